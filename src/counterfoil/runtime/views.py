"""What people look at: runs, timelines, effects. Viewing calls nothing and records nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from counterfoil.errors import LedgerCorrupt, UsageError
from counterfoil.outcomes import Accepted, Decision, Outcome
from counterfoil.ports.ledger import Catalogue
from counterfoil.protocol import codec, keys, records, slots, states
from counterfoil.protocol.history import Effect, History, decision_of, look
from counterfoil.protocol.records import Record
from counterfoil.runtime import arguments
from counterfoil.runtime.session import Session

UNRESOLVED: Final = "unresolved"
RETRY_SCHEDULED: Final = "retry-scheduled"
CORRUPT: Final = "corrupt"
STATES: Final = ("unresolved", "retry-scheduled", "accepted", "rejected", "failed", "uncertain", "corrupt")
_PAGE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run in a listing: its id, times in seconds since 1970, and `open | finished | pruned`."""

    run_id: str
    state: str
    began: float
    finished: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LateEvidence:
    """A fact that came after the outcome: what it claims, how it came, and when (seconds since 1970)."""

    attempt: int
    claims: str
    via: str
    proof: Any
    digest: str | None
    source: str | None
    at: float


@dataclass(frozen=True, slots=True)
class EffectView:
    """An effect as operators see it.

    Args:
        run_id: its run.
        name: its name.
        attempt: the latest attempt.
        state: `unresolved`, `retry-scheduled`, `accepted`, `rejected`, `failed`, `uncertain` or `corrupt`.
        since: when it got into this state, in seconds since 1970.
        age_s: seconds since then.
        version: grows with every record about it; pass it to `decide`.
        outcome: the final outcome, or None.
        effect_key: the key of the latest attempt, as the recipient got it.
        late_evidence: facts that came after the outcome.
        decision: what a person decided, or None.
    """

    run_id: str
    name: str
    attempt: int
    state: str
    since: float
    age_s: float
    version: int
    outcome: Outcome[Any] | None
    effect_key: str
    late_evidence: tuple[LateEvidence, ...]
    decision: Decision | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordView:
    """One record of a run's timeline.

    Args:
        position: order within the run.
        at: seconds since 1970, on the ledger's clock.
        kind, phase: what it is, in the words of the protocol.
        name: what it is about; "" for the run itself.
        attempt: the attempt of an effect, or None.
        epoch: the life that recorded it.
        body: the record's body as a JSON value; None if it cannot be decoded.
        slot: the slot that it fills.
    """

    position: int
    at: float
    kind: str
    phase: str
    name: str
    attempt: int | None
    epoch: str
    body: Any
    slot: str


def runs(session: Session, *, finished: bool | None = None, limit: int | None = None) -> list[RunView]:
    """List runs, oldest first."""
    if finished is not None and type(finished) is not bool:
        raise UsageError(f"finished is True, False, or None for all runs, not {finished!r}")
    arguments.limit(limit)
    found = []
    for row in rows(session, finished=finished):
        state = "pruned" if row.pruned else "open" if row.finished is None else "finished"
        found.append(RunView(run_id=row.run, state=state, began=row.began, finished=row.finished))
        if limit is not None and len(found) >= limit:
            break
    return found


def rows(session: Session, **which: Any) -> Iterator[Any]:
    """List what the catalogue says of runs, page by page."""
    ledger = session.ledger
    if not isinstance(ledger, Catalogue):
        raise UsageError("this ledger cannot list its runs; name the run", code="no-catalogue")
    after = 0
    while page := ledger.runs(session.namespace, after=after, limit=_PAGE, **which):
        yield from page
        after = page[-1].position


def history(session: Session, run_id: str) -> History:
    """Read a run afresh."""
    found = History(session.namespace, keys.name(run_id, "run id"))
    found.add(session.ledger.read(session.namespace, run_id))
    return found


def show(session: Session, run_id: str) -> list[RecordView]:
    """Return a run's timeline; a record that cannot be decoded is shown without its body."""
    return [_view(record) for record in history(session, run_id)]


def _view(record: Record) -> RecordView:
    of_effect = slots.effect_of(record.slot)
    try:
        body = codec.decode(record.body)
    except Exception:  # noqa: BLE001 - a damaged record is shown as such
        body = None
    return RecordView(
        position=record.position,
        at=record.at,
        kind=record.kind,
        phase=record.phase,
        name="/".join(slots.names_in(record.slot)),
        attempt=of_effect[1] if of_effect is not None and of_effect[2] != "note" else None,
        epoch=record.epoch,
        body=body,
        slot=record.slot,
    )


def effects(session: Session, *, state: str | None = None, run_id: str | None = None) -> list[EffectView]:
    """List effects, oldest run first.

    Args:
        session: where.
        state: only those in this state.
        run_id: only those of this run.
    """
    if state is not None and state not in STATES:
        raise UsageError(f"state is one of {', '.join(STATES)}, not {state!r}")
    found: list[EffectView] = []
    for each in [run_id] if run_id is not None else _candidates(session, state):
        found.extend(view for view in _of_run(session, each) if state is None or view.state == state)
    return found


def _candidates(session: Session, state: str | None) -> Iterable[str]:
    if state in ("uncertain", "rejected", "failed"):
        which: dict[str, Any] = {"holding": [(records.EFFECT, state), (records.EFFECT, "buried")]}
    elif state in (UNRESOLVED, RETRY_SCHEDULED, "accepted"):
        phases = ("intent", "buried") if state == "accepted" else ("intent",)
        which = {"holding": [(records.EFFECT, phase) for phase in phases]}
    else:
        which = {}
    return (row.run for row in rows(session, **which))


def _of_run(session: Session, run_id: str) -> Iterator[EffectView]:
    found = history(session, run_id)
    now = session.clock.time()
    for name in found.effect_names():
        try:
            seen = look(found, name)
        except LedgerCorrupt:
            yield _corrupt(session, found, name, now=now)
            continue
        if seen.attempts or seen.closed is not None:
            yield effect_view(session, found, seen, now=now)


def effect_view(session: Session, found: History, seen: Effect, *, now: float) -> EffectView:
    """Make a view of what the records say about an effect."""
    last = seen.last
    # A name that evidence closed before its first intent has no attempt: nothing was sent under it.
    number, keep = (1, False) if last is None else (last.number, last.body.keep_key)
    since = seen.since
    outcome = seen.outcome()
    if isinstance(outcome, Accepted):
        outcome = Accepted(codec.decode(bytes(outcome.proof)), outcome.via, outcome.evidence)
    state = {states.INTENDED: UNRESOLVED, states.RELEASED: UNRESOLVED, states.RETRYABLE: RETRY_SCHEDULED}.get(
        seen.state, seen.state
    )
    if seen.state in (states.FAILED, states.REJECTED):
        state = type(outcome).__name__.lower()
    return EffectView(
        run_id=found.run,
        name=seen.name,
        attempt=number,
        state=state,
        since=since.at,
        age_s=max(0.0, now - since.at),
        version=seen.version,
        outcome=outcome,
        effect_key=keys.effect_key(session.namespace, found.run, seen.name, attempt=1 if keep else number),
        late_evidence=tuple(_late(record, body) for record, body in seen.late),
        decision=None if seen.decision is None else decision_of(*seen.decision),
    )


def _late(record: Record, body: codec.LateBody) -> LateEvidence:
    return LateEvidence(
        attempt=body.attempt,
        claims=body.claims,
        via=body.via,
        proof=codec.decode(bytes(body.proof)),
        digest=body.digest,
        source=body.source,
        at=record.at,
    )


def _corrupt(session: Session, found: History, name: str, *, now: float) -> EffectView:
    record = next(r for r in found if (parts := slots.effect_of(r.slot)) is not None and parts[0] == name)
    return EffectView(
        run_id=found.run,
        name=name,
        attempt=1,
        state=CORRUPT,
        since=record.at,
        age_s=max(0.0, now - record.at),
        version=0,
        outcome=None,
        effect_key=keys.effect_key(session.namespace, found.run, name, attempt=1),
        late_evidence=(),
        decision=None,
    )
