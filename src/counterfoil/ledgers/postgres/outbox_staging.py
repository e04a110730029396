"""Staging as statements: whoever holds the application's connection runs them there, blocking or awaited.

Parameters are `%s`; drivers that count them get `$1` (`numbered`). A lane's row is locked before anything of that lane
is written, and until the commit: so places are in commit order, and a rollback leaves no gap. A snapshot that is
older than the lock gets a serialization failure, as it does for the application's own rows. Each statement returns
rows, for in a pipeline nobody can see whether one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from counterfoil.errors import NameConflict
from counterfoil.ports.outbox_store import NewIntent, Staging

NOW: Final = "coalesce(%s::float8, extract(epoch FROM clock_timestamp())::float8)"
# Empty where a new lane was committed meanwhile: the statement after this one sees it.
_LOCK: Final = (
    "WITH made AS (INSERT INTO :schema.lane (lane) VALUES (%s::text) ON CONFLICT DO NOTHING RETURNING lane),"
    " held AS (SELECT lane FROM :schema.lane WHERE lane = %s::text FOR UPDATE)"
    " SELECT lane FROM made UNION ALL SELECT lane FROM held"
)
# Due not before it is staged, so that what came first is taken first; in a lane, where it is the head.
_STAGE: Final = (
    "WITH made AS (INSERT INTO :schema.intent (effect_id, namespace, key, recipient, operation, format, body,"  # noqa: S608
    " fingerprint, policy, on_stuck, not_before, expires_at, staged_at, trace, generation{columns})"
    " VALUES (%s::text, %s::text, %s::text, %s::text, %s::text, %s::int, %s::bytea, %s::text, %s::text, %s::text,"
    f" %s::float8, %s::float8, {NOW}, %s::text, (SELECT generation FROM :schema.ledger){{values}})"
    " ON CONFLICT DO NOTHING RETURNING seq, recipient, operation, format{columns},"
    " greatest(staged_at, not_before) AS due, staged_at)"
    " INSERT INTO :schema.ready"
    " (intent, kind, recipient, operation, format, due, not_before, state, since{columns})"
    " SELECT seq, 'send', recipient, operation, format, {due}, due, 'pending', staged_at{columns} FROM made m"
    " RETURNING intent"
)
_ALONE: Final = _STAGE.format(columns="", values="", due="due")
_IN_LANE: Final = _STAGE.format(
    columns=", lane, place",
    values=", %s::text, (SELECT coalesce(max(place), 0) + 1 FROM :schema.intent WHERE lane = %s::text)",
    due=(
        "CASE WHEN m.place = coalesce((SELECT max(h.at) FROM :schema.lane_head h WHERE h.lane = m.lane), 1)"
        " THEN m.due END"
    ),
)
_KNOWN: Final = "SELECT fingerprint FROM :schema.intent WHERE effect_id = %s::text"
_TAKE: Final = (
    f"INSERT INTO :schema.inbox (source, message, at) VALUES (%s::text, %s::text, {NOW})"  # noqa: S608
    " ON CONFLICT (source, message) DO NOTHING RETURNING at"
)
_FORGET: Final = (
    "DELETE FROM :schema.inbox WHERE (source, message) IN"
    " (SELECT source, message FROM :schema.inbox WHERE at < %s::float8 ORDER BY at LIMIT 10 FOR UPDATE SKIP LOCKED)"
    " RETURNING at"
)


@lru_cache(256)
def worded(sql: str, schema: str) -> str:
    """Put the schema's quoted name into a statement."""
    return sql.replace(":schema", schema)


@lru_cache(256)
def numbered(sql: str) -> str:
    """Count the parameters of a statement, as asyncpg wants them."""
    parts = sql.split("%s")
    return "".join(f"{part}${place}" for place, part in enumerate(parts[:-1], start=1)) + parts[-1]


def stage(intents: Sequence[NewIntent], *, schema: str, now: float | None) -> Staging:
    """Write intents; see `counterfoil.ports.outbox_store.OutboxStore.staging`.

    Args:
        intents: what to write.
        schema: the ledger's, quoted.
        now: seconds since 1970; None: the database's own clock.
    """
    fresh = [False] * len(intents)
    order = sorted(range(len(intents)), key=lambda at: (intents[at].lane or "", at))
    for at in order:
        intent = intents[at]
        lane = () if intent.lane is None else (intent.lane, intent.lane)
        while lane and not (yield worded(_LOCK, schema), lane):
            pass
        if (yield worded(_IN_LANE if lane else _ALONE, schema), (*_values(intent, now=now), *lane)):
            fresh[at] = True
            continue
        known = yield worded(_KNOWN, schema), (intent.effect_id,)
        if known[0][0] != intent.fingerprint:
            raise NameConflict(
                f"key {intent.key!r} was staged for another operation; this one was not staged",
                hint="give a different intent a different key",
            )
    return fresh


def _values(intent: NewIntent, *, now: float | None) -> tuple[Any, ...]:
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


def take(message: tuple[str, str], *, schema: str, now: float | None, window_s: float) -> Staging:
    """Note that a message is taken, and forget a few that are older than the window."""
    taken = yield worded(_TAKE, schema), (*message, now)
    if taken:
        yield worded(_FORGET, schema), (taken[0][0] - window_s,)
    return [bool(taken)]
