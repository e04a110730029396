"""What people may do about an intent, given all that is on record about it."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from counterfoil.errors import Conflict, UsageError
from counterfoil.outbox.endings import RECONCILING, RETRY, body_of
from counterfoil.outcomes import Evidence
from counterfoil.ports.outbox_store import RESTING, Consequence, Requeue, Story
from counterfoil.protocol import codec
from counterfoil.protocol.standings import LOOK, SEND, Standing

_outcomes: Final = msgspec.json.Decoder(codec.OutcomeBody)


def standing_of(story: Story) -> Standing:
    """Return what is known of an intent's earlier attempts."""
    if story.waiting is not None:
        return story.waiting[5]
    return story.attempts[-1].standing if story.attempts else Standing()


def phase_of(story: Story) -> str | None:
    """Return how an intent ended, None if it has not."""
    last = story.attempts[-1] if story.attempts else None
    return last.phase if last is not None and last.final and story.waiting is None else None


def redrive(story: Story | None) -> Consequence:
    """Let an intent be sent again that provably was not sent, or failed.

    Raises:
        UsageError: it may have been sent, or it is in somebody's hands.
    """
    assert story is not None
    if any(claims == "accepted" for _, claims, _, _ in story.late):
        raise _refused(story, "there is evidence that it was accepted")
    phase, standing = phase_of(story), standing_of(story)
    if phase is None and story.waiting is None:
        raise _refused(story, "a dispatcher has it in hand")
    if phase in ("accepted", "uncertain") or (phase is None and standing.unsure):
        raise _refused(story, "it was accepted" if phase == "accepted" else "it may have been sent")
    if story.body is None:
        raise _refused(story, "it was pruned: what was to be sent is gone")
    if phase == "rejected" and _kind(story) == "expired":
        raise _refused(story, "it has expired")
    fresh = replace(standing, claims=0, revoked=0, kills=0, looks=0, began=None)
    if phase == "failed":
        fresh = replace(fresh, round=fresh.round + 1, sends=0, first_sent=None)
    return Requeue(kind=SEND, state=RETRY, standing=fresh, reason="redriven")


def reconcile(story: Story | None) -> Consequence:
    """Let the recipient be asked again about an intent that waits for a person.

    Raises:
        UsageError: nothing of it may have been sent, or it is not waiting for a person.
    """
    assert story is not None
    standing = standing_of(story)
    if story.waiting is None or not standing.unsure:
        phase = phase_of(story)
        raise _refused(story, f"it ended as {phase}" if phase else "there is nothing to ask about", act="reconciled")
    asked = replace(standing, looks=0, asked=None, kills=0)
    return Requeue(kind=LOOK, state=RECONCILING, standing=asked, reason="asked-by-a-person")


def decide(story: Story | None, *, happened: bool) -> Consequence:
    """End an intent that a person has found out about; of one that ended as uncertain only the decision is recorded.

    Raises:
        Conflict: somebody has decided already.
        UsageError: it waits for no person, or it cannot have happened.
    """
    assert story is not None
    for name, by, _, at, _ in story.acts:
        if name == "decide":
            raise Conflict(f"{by} has decided about {story.key!r} already", by=by, at=at)
    if phase_of(story) == "uncertain":
        return None
    if story.waiting is None or story.waiting[1] not in RESTING:
        raise _refused(story, "it does not wait for a person", act="decided")
    _, state, reason, *_ = story.waiting
    if standing_of(story).unsure:
        return "uncertain", body_of(Evidence(reason or state, phase="dispatched"), via="decision")
    if happened:
        raise _refused(story, "nothing of it was ever sent", act="decided to have happened")
    return "rejected", body_of(Evidence("given-up", phase="not-dispatched", bytes_offered=0), via="decision")


def _kind(story: Story) -> str | None:
    body = _outcomes.decode(story.attempts[-1].body)
    return None if body.evidence is None else body.evidence.kind


def _refused(story: Story, why: str, *, act: str = "redriven") -> UsageError:
    return UsageError(f"{story.key!r} cannot be {act}: {why}", code="act-refused")
