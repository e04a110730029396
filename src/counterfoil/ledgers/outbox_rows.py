"""What all outbox stores share: rows made into claims and stories, and claims into rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from counterfoil.ports.outbox_store import RESTING, AttemptRow, Claim, Ending, Requeue, Story
from counterfoil.protocol import standings
from counterfoil.protocol.standings import LOOK, SEND, Standing

# What a lane does after the end of a claim of its head.
WAIT, HOLD, SKIP, ON = "wait", "hold", "skip", "on"
# As a receipt shows what a dispatcher has in hand.
DISPATCHING = "dispatching"


def oldest(found: Iterable[tuple[int, str]], *, limit: int) -> list[str]:
    """Return the effect ids of the oldest intents, of (number, effect id)."""
    return [effect_id for _, effect_id in sorted(set(found))[:limit]]


def counted(body: bytes | None, kind: str, *, at: float) -> Standing:
    """Return the standing of a claim, with the claim counted, from that of its intent before it."""
    standing = standings.decode(body)
    return standings.claimed(standing, kind, now=at) if kind in (SEND, LOOK) else standing


def ready_values(intent: int, what: Sequence[Any], requeue: Requeue, *, now: float) -> tuple[Any, ...]:
    """Make the row of an intent that waits again: as the columns of `ready` stand in its table.

    Args:
        intent: its number.
        what: recipient, operation, format, lane, place.
        requeue: what to do with it next, and what is known.
        now: the database's clock.
    """
    recipient, operation, format_, lane, place = what
    due = None if requeue.delay_s is None else now + requeue.delay_s
    return (
        intent,
        requeue.kind,
        recipient,
        operation,
        format_,
        due,
        now if due is None else due,
        lane,
        place,
        requeue.state,
        requeue.reason,
        now,
        standings.encode(requeue.standing),
    )


def ready_again(claim: Claim, requeue: Requeue, *, now: float) -> tuple[Any, ...]:
    """Make the row of an intent that waits again after a claim."""
    what = (claim.recipient, claim.operation, claim.format, claim.lane, claim.place)
    return ready_values(claim.intent, what, requeue, now=now)


def orphan(intent: int, what: Sequence[Any], *, then: tuple[str, Standing], now: float) -> tuple[Any, ...]:
    """Make the row of an intent whose claim's owner is gone: due at once.

    Args:
        intent: its number.
        what: recipient, operation, format, lane, place.
        then: what to do with it next, and what is known.
        now: the database's clock.
    """
    kind, standing = then
    tried = "retry-scheduled" if standing.claims > standing.revoked else "pending"
    state = "reconciling" if kind == LOOK else tried
    return ready_values(intent, what, Requeue(kind=kind, state=state, standing=standing), now=now)


def lane_after(ending: Ending) -> tuple[str, str]:
    """Say what the lane of an intent does after the end of a claim of it, and why it does not simply go on.

    Returns:
        `wait` for another claim, `hold` with what is in the way, `skip` (go on without it) with the reason, or `on`.
    """
    claim, again = ending.claim, ending.requeue
    if again is not None and again.state not in RESTING:
        return WAIT, ""
    if again is None and ending.phase != "uncertain":
        return ON, ""
    if claim.on_stuck == "halt":
        return HOLD, (again.reason if again is not None else None) or ending.phase
    return SKIP, f"lane {claim.lane!r} went on without it"


def attempt_row(row: Sequence[Any], standing: Standing) -> AttemptRow:
    """Make one claim of a story: (seq, kind, owner, at, right, right_at, phase, final, body, ended)."""
    attempt, kind, owner, at, right, right_at, phase, final, body, ended = row
    return AttemptRow(
        attempt=attempt,
        kind=kind,
        owner=owner,
        at=at,
        standing=standing,
        right=right,
        right_at=right_at,
        phase=phase,
        final=bool(final),
        body=body or b"{}",
        ended=ended,
    )


def story_of(
    intent: Sequence[Any],
    *,
    waiting: Sequence[Any] | None,
    head: tuple[int, str | None, float | None] | None,
    attempts: Sequence[AttemptRow],
    late: Sequence[Any],
    acts: Sequence[Any],
) -> Story:
    """Put a story together.

    Args:
        intent: (seq, effect_id, key, recipient, operation, body, policy, lane, place, not_before, expires_at,
            staged_at).
        waiting: (kind, state, reason, since, due, standing) of its row in `ready`.
        head: (at, stuck, since) of its lane, None where nothing was delivered yet.
        attempts: its claims, in order.
        late: its late facts.
        acts: the acts about it.
    """
    seq, effect_id, key, recipient, operation, body, policy, lane, place, not_before, expires_at, staged_at = intent
    at, stuck, since = head or (1, None, None)
    return Story(
        effect_id=effect_id,
        key=key,
        recipient=recipient,
        operation=operation,
        body=body,
        policy=policy,
        lane=lane,
        place=place,
        not_before=not_before,
        expires_at=expires_at,
        staged_at=staged_at,
        version=1 + sum(2 if a.phase else 1 for a in attempts) + len(late) + len(acts),
        intent=seq,
        waiting=None if waiting is None else (*waiting[:5], standings.decode(waiting[5])),
        lane_at=None if lane is None else at,
        lane_stuck=None if stuck is None else (stuck, since or 0.0),
        attempts=tuple(attempts),
        late=tuple(tuple(row) for row in late),
        acts=tuple(tuple(row) for row in acts),
    )
