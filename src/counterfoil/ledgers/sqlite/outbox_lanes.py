"""Lanes in SQLite: the head of a lane is the place that is being delivered; only its intent is ever due."""

from __future__ import annotations

from typing import Final

from counterfoil.ledgers.sqlite.engines import Connection
from counterfoil.ports.outbox_store import Ending

# States in which an intent waits for a person, or for a dispatcher that knows more.
_RESTING: Final = ("needs-operator", "quarantined", "blocked")

_ADVANCE: Final = (
    "INSERT INTO counterfoil_lane_head (lane, at) VALUES (?, ?) ON CONFLICT (lane) DO UPDATE"
    " SET at = excluded.at, stuck = NULL, since = NULL WHERE at = excluded.at - 1"
)
_NEXT: Final = (
    "UPDATE counterfoil_ready SET due = max(not_before, ?)"
    " WHERE lane = ? AND place = ? AND due IS NULL AND state = 'pending'"
)
_HOLD: Final = (
    "INSERT INTO counterfoil_lane_head (lane, at, stuck, since) VALUES (?, ?, ?, ?) ON CONFLICT (lane) DO UPDATE"
    " SET stuck = excluded.stuck, since = excluded.since WHERE at = excluded.at"
)
_SKIPPED: Final = (
    "INSERT INTO counterfoil_act (scope, number, name, by, reason, body, at) VALUES (?,"
    " (SELECT count(*) + 1 FROM counterfoil_act WHERE scope = ?), 'skip', ?, ?, '{}', ?)"
)


def settle_lane(connection: Connection, ending: Ending, *, owner: str, now: float) -> None:
    """Move a lane on, or hold it, after the end of a claim of its head."""
    claim, requeue = ending.claim, ending.requeue
    assert claim.lane is not None
    assert claim.place is not None
    resting = requeue is not None and requeue.state in _RESTING
    if requeue is not None and not resting:
        return
    stuck = resting or ending.phase == "uncertain"
    if stuck and claim.on_stuck == "halt":
        reason = requeue.reason if requeue is not None else ending.phase
        hold(connection, claim.lane, claim.place, why=reason or ending.phase, now=now)
        return
    if stuck:
        reason = f"lane {claim.lane!r} went on without it"
        connection.execute(_SKIPPED, (claim.effect_id, claim.effect_id, f"dispatcher {owner}", reason, now))
    advance(connection, claim.lane, claim.place, now=now)


def advance(connection: Connection, lane: str, place: int, *, now: float) -> None:
    """Let the next intent of a lane be due, if this place is the head."""
    added, _ = connection.insert(_ADVANCE, (lane, place + 1))
    if added:
        connection.execute(_NEXT, (now, lane, place + 1))


def hold(connection: Connection, lane: str, place: int, *, why: str, now: float) -> None:
    """Say why a lane stands still, and since when."""
    connection.execute(_HOLD, (lane, place, why, now))


def release(connection: Connection, lane: str, place: int) -> None:
    """Take back what `hold` said: its head is tried again."""
    connection.execute(
        "UPDATE counterfoil_lane_head SET stuck = NULL, since = NULL WHERE lane = ? AND at = ?", (lane, place)
    )
