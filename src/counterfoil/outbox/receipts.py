"""What became of an intent, read from its story."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from counterfoil.errors import LedgerCorrupt
from counterfoil.outbox.endings import BLOCKED, NEEDS_OPERATOR, PENDING, QUARANTINED, RECONCILING
from counterfoil.outcomes import Accepted, Decision, Evidence, Outcome, Uncertain
from counterfoil.ports.outbox_store import AttemptRow, Story
from counterfoil.protocol import codec
from counterfoil.protocol.history import outcome_of

DISPATCHING: Final = "dispatching"
# Nothing more happens to these by itself.
SETTLED: Final = frozenset({"accepted", "rejected", "failed", "uncertain", NEEDS_OPERATOR, QUARANTINED})
STATES: Final = (
    PENDING,
    DISPATCHING,
    "retry-scheduled",
    "accepted",
    "rejected",
    "failed",
    "uncertain",
    NEEDS_OPERATOR,
    QUARANTINED,
    BLOCKED,
)

_outcomes: Final = msgspec.json.Decoder(codec.OutcomeBody)
_decisions: Final = msgspec.json.Decoder(codec.DecisionBody)


@dataclass(frozen=True, slots=True, kw_only=True)
class LateEvidence:
    """A fact that arrived when it could change nothing any more; see `EffectView.late_evidence`."""

    attempt: int
    claims: str
    at: float
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Receipt:
    """The record of what became of an intent.

    Args:
        key: what the caller named it.
        effect_id: its identity.
        state: one of `STATES`.
        outcome: how it ended; None where it has not. What waits for a person and may have been sent is `Uncertain`.
        attempts: times that it was taken to be sent.
        reason: why it stands where it stands, as a slug.
        late_evidence: facts that came too late to change anything.
        version: counts the records about it; an act names the version that it rests on.
        due: when it is tried next, in seconds since 1970.
        since: since when it stands where it stands.
        decision: what a person recorded about it.
    """

    key: str
    effect_id: str
    state: str
    outcome: Outcome[Any] | None = None
    attempts: int = 0
    reason: str | None = None
    late_evidence: tuple[LateEvidence, ...] = ()
    version: int = 0
    due: float | None = None
    since: float | None = None
    decision: Decision | None = None

    @property
    def settled(self) -> bool:
        """Whether nothing more happens to it by itself."""
        return self.state in SETTLED


def receipt_of(story: Story) -> Receipt:
    """Read the receipt out of a story.

    Raises:
        LedgerCorrupt: what is on record cannot be decoded.
    """
    last = story.attempts[-1] if story.attempts else None
    state, reason, since, outcome = PENDING, None, story.staged_at, None
    due: float | None = None
    if story.waiting is not None:
        state, reason, since, due, outcome = _waiting(story)
    elif last is not None and last.final:
        state, since, outcome = str(last.phase), last.ended or last.at, _outcome(last)
        reason = getattr(getattr(outcome, "evidence", None), "kind", None)
    elif last is not None:
        state, since, reason = DISPATCHING, last.at, "asking" if last.kind == "look" else None
    return Receipt(
        key=story.key,
        effect_id=story.effect_id,
        state=state,
        outcome=outcome,
        attempts=sum(a.kind == "send" and a.phase != "drained" for a in story.attempts),
        reason=reason,
        late_evidence=tuple(
            LateEvidence(attempt=attempt, claims=claims, at=at, details=codec.decode(body))
            for attempt, claims, body, at in story.late
        ),
        version=story.version,
        due=due,
        since=since,
        decision=_decision(story),
    )


def _waiting(story: Story) -> tuple[str, str | None, float, float | None, Outcome[Any] | None]:
    assert story.waiting is not None
    _, state, reason, since, due, standing = story.waiting
    if state == RECONCILING:
        return DISPATCHING, reason or "asking", since, due, None
    if state in (NEEDS_OPERATOR, QUARANTINED):
        unsure = Uncertain(Evidence(reason or state, phase="dispatched")) if standing.unsure else None
        return state, reason, since, due, unsure
    behind = story.lane is not None and story.place != story.lane_at
    if behind and story.lane_stuck is not None:
        return BLOCKED, f"lane: {story.lane_stuck[0]}", story.lane_stuck[1], due, None
    return state, reason, since, due, None


def _outcome(row: AttemptRow) -> Outcome[Any]:
    try:
        body = _outcomes.decode(row.body)
    except msgspec.MsgspecError as error:
        raise LedgerCorrupt(f"the receipt of attempt {row.attempt} cannot be decoded") from error
    outcome = outcome_of(str(row.phase), body)
    if isinstance(outcome, Accepted):
        return Accepted(codec.decode(bytes(outcome.proof)), outcome.via, outcome.evidence)
    return outcome


def _decision(story: Story) -> Decision | None:
    for name, by, reason, at, body in reversed(story.acts):
        if name == "decide":
            found = _decisions.decode(body)
            return Decision(
                happened=found.happened,
                proof=codec.decode(bytes(found.proof)),
                reason=reason,
                by=by,
                at=at,
                seen_version=found.seen_version,
                new_name=found.new_name,
            )
    return None
