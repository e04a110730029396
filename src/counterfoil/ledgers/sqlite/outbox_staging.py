"""Staging as statements: whoever holds the application's connection runs them there, blocking or awaited.

The first statement writes: a transaction that has not written yet takes the write lock with it, before anything
is read, so that it cannot lose its snapshot half-way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from counterfoil.errors import NameConflict
from counterfoil.ports.outbox_store import NewIntent, Staging

_INTENT: Final = (
    "INSERT INTO counterfoil_intent (effect_id, namespace, key, recipient, operation, format, body, fingerprint,"
    " policy, on_stuck, not_before, expires_at, staged_at, trace, generation{columns})"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, (SELECT generation FROM counterfoil_ledger){values})"
    " ON CONFLICT (effect_id) DO NOTHING RETURNING seq, place"
)
_ALONE: Final = _INTENT.format(columns="", values="")
_IN_LANE: Final = _INTENT.format(
    columns=", lane, place",
    values=", ?, (SELECT ifnull(max(next), 1) FROM counterfoil_lane_tail WHERE lane = ?)",
)
_TAIL: Final = (
    "INSERT INTO counterfoil_lane_tail (lane, next) VALUES (?, ?) ON CONFLICT (lane) DO UPDATE SET next = excluded.next"
)
_READY: Final = (
    "INSERT INTO counterfoil_ready (intent, kind, recipient, operation, format, due, not_before, state, since)"
    " VALUES (?, 'send', ?, ?, ?, ?, ?, 'pending', ?)"
)
_READY_IN_LANE: Final = (
    "INSERT INTO counterfoil_ready"
    " (intent, kind, recipient, operation, format, due, not_before, lane, place, state, since)"
    " VALUES (?, 'send', ?, ?, ?, CASE WHEN ? = ifnull((SELECT at FROM counterfoil_lane_head WHERE lane = ?), 1)"
    " THEN ? END, ?, ?, ?, 'pending', ?)"
)
_KNOWN: Final = "SELECT fingerprint FROM counterfoil_intent WHERE effect_id = ?"


def stage(intents: Sequence[NewIntent], *, now: float) -> Staging:
    """Write intents; see `counterfoil.ports.outbox_store.OutboxStore.staging`."""
    fresh = [False] * len(intents)
    # Lanes in sorted order, as on stores where each is locked by itself.
    order = sorted(range(len(intents)), key=lambda at: (intents[at].lane or "", at))
    for at in order:
        intent = intents[at]
        lane = intent.lane
        values = _values(intent, now=now)
        written = yield (_ALONE, values) if lane is None else (_IN_LANE, (*values, lane, lane))
        if written:
            fresh[at] = True
            yield from _waiting(intent, written[0], now=now)
            continue
        known = yield _KNOWN, (intent.effect_id,)
        if known[0][0] != intent.fingerprint:
            raise NameConflict(
                f"key {intent.key!r} was staged for another operation; this one was not staged",
                hint="give a different intent a different key",
            )
    return fresh


def _values(intent: NewIntent, *, now: float) -> tuple[object, ...]:
    return (
        intent.effect_id,
        intent.namespace,
        intent.key,
        intent.recipient,
        intent.operation,
        intent.format,
        intent.body,
        intent.fingerprint,
        intent.policy,
        intent.on_stuck,
        intent.not_before,
        intent.expires_at,
        now,
        intent.trace,
    )


def _waiting(intent: NewIntent, row: Sequence[object], *, now: float) -> Staging:
    seq, place = row
    # Not before it is staged, so that what came first is taken first.
    due = now if intent.not_before is None else max(now, intent.not_before)
    what = (seq, intent.recipient, intent.operation, intent.format)
    if intent.lane is None:
        yield _READY, (*what, due, due, now)
    else:
        yield _TAIL, (intent.lane, int(str(place)) + 1)
        yield _READY_IN_LANE, (*what, place, intent.lane, due, due, intent.lane, place, now)
    return []


_TAKE: Final = (
    "INSERT INTO counterfoil_inbox (source, message, at) VALUES (?, ?, ?)"
    " ON CONFLICT (source, message) DO NOTHING RETURNING 1"
)
_FORGET: Final = (
    "DELETE FROM counterfoil_inbox WHERE (source, message) IN"
    " (SELECT source, message FROM counterfoil_inbox WHERE at < ? ORDER BY at LIMIT 10)"
)


def take(source: str, message: str, *, now: float, window_s: float) -> Staging:
    """Note that a message is taken, and forget a few that are older than the window."""
    taken = yield _TAKE, (source, message, now)
    if taken:
        yield _FORGET, (now - window_s,)
    return [bool(taken)]
