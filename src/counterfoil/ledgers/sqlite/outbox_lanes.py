"""Lanes in SQLite: the head of a lane is the place that is being delivered; only its intent is ever due."""

from __future__ import annotations

from typing import Final

from counterfoil.ledgers.outbox_rows import HOLD, SKIP, WAIT, lane_after
from counterfoil.ledgers.sqlite.engines import Connection
from counterfoil.ports.outbox_store import Ending

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
    claim = ending.claim
    assert claim.lane is not None
    assert claim.place is not None
    step, why = lane_after(ending)
    if step == WAIT:
        return
    if step == HOLD:
        hold(connection, claim.lane, claim.place, why=why, now=now)
        return
    if step == SKIP:
        connection.execute(_SKIPPED, (claim.effect_id, claim.effect_id, f"dispatcher {owner}", why, now))
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
