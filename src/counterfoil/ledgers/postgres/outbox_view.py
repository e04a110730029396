"""Looking at the outbox in PostgreSQL, and the acts of people on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from counterfoil.errors import Conflict, UsageError
from counterfoil.ledgers.outbox_rows import DISPATCHING, attempt_row, counted, oldest, ready_values, story_of
from counterfoil.ledgers.postgres.outbox import PostgresOutbox
from counterfoil.ledgers.postgres.outbox_turn import ACT, ATTEMPT, HEAD, RECEIPT, Asking, advance, requeue
from counterfoil.ports.outbox_store import Act, Ages, Consequence, Requeue, Story

_INTENT: Final = (
    "SELECT seq, effect_id, key, recipient, operation, body, policy, lane, place, not_before, expires_at, staged_at"
    " FROM :schema.intent WHERE effect_id = %s"
)
_ATTEMPTS: Final = (
    "SELECT a.standing, a.seq, a.kind, a.owner, a.at, s.kind, s.at, c.phase, coalesce(c.final, false), c.body, c.at"
    " FROM :schema.attempt a LEFT JOIN :schema.sending s ON s.attempt = a.seq"
    " LEFT JOIN :schema.receipt c ON c.attempt = a.seq WHERE a.intent = %s ORDER BY a.seq"
)
_WAITING: Final = "SELECT kind, state, reason, since, due, standing FROM :schema.ready WHERE intent = %s"
_LATE: Final = "SELECT attempt, claims, body, at FROM :schema.late_evidence WHERE intent = %s ORDER BY seq"
_ACTS: Final = "SELECT name, by, reason, at, body FROM :schema.act WHERE scope = %s ORDER BY number"
_DEPTH: Final = "SELECT recipient, state, count(*), min(since) FROM :schema.ready GROUP BY recipient, state"
_IN_HAND: Final = (
    "SELECT i.recipient, 'dispatching', count(*), min(a.at) FROM :schema.dispatcher d"
    " JOIN :schema.attempt a ON a.seq >= d.low AND a.owner = d.epoch JOIN :schema.intent i ON i.seq = a.intent"
    " WHERE NOT d.ended AND NOT EXISTS (SELECT FROM :schema.receipt c WHERE c.attempt = a.seq) GROUP BY i.recipient"
)
# What is shown of a row: that of a lane which stands still is blocked, wherever it would stand otherwise.
_SHOWN: Final = (
    "CASE WHEN r.state = 'reconciling' THEN 'dispatching'"
    " WHEN r.state IN ('needs-operator', 'quarantined') THEN r.state"
    " WHEN EXISTS (SELECT FROM (SELECT at, stuck FROM :schema.lane_head WHERE lane = r.lane ORDER BY at DESC LIMIT 1) h"
    " WHERE h.stuck IS NOT NULL AND h.at <> r.place) THEN 'blocked' ELSE r.state END"
)
_WAITS: Final = (
    "SELECT i.seq, i.effect_id FROM :schema.ready r JOIN :schema.intent i ON i.seq = r.intent"  # noqa: S608
    f" WHERE %s::text IS NULL OR {_SHOWN} = %s ORDER BY r.intent LIMIT %s"
)
_HELD: Final = (
    "SELECT i.seq, i.effect_id FROM :schema.dispatcher d"
    " JOIN :schema.attempt a ON a.seq >= d.low AND a.owner = d.epoch JOIN :schema.intent i ON i.seq = a.intent"
    " WHERE NOT d.ended AND NOT EXISTS (SELECT FROM :schema.receipt c WHERE c.attempt = a.seq)"
    " ORDER BY i.seq LIMIT %s"
)
_PAUSED: Final = (
    "SELECT scope FROM :schema.pause UNION SELECT '*' FROM :schema.ledger l, :schema.outbox b"
    " WHERE l.accepted > b.resumed"
)
_OLDEST_DUE: Final = "SELECT min(due) FROM :schema.ready WHERE due <= %s AND state <> 'blocked'"
# Uncertain ones nobody has decided about, and those that a person has to look at before they end.
_UNSURE: Final = (
    "SELECT count(*), min(u.at) FROM (SELECT c.at FROM :schema.receipt c JOIN :schema.intent i ON i.seq = c.intent"
    " WHERE c.final AND c.phase = 'uncertain' AND c.phase <> 'accepted' AND NOT EXISTS"
    " (SELECT FROM :schema.act a WHERE a.scope = i.effect_id AND a.name = 'decide')"
    " UNION ALL SELECT since FROM :schema.ready WHERE due IS NULL AND kind = 'look'"
    " AND state IN ('needs-operator', 'quarantined')) u"
)
_LANES: Final = (
    "SELECT r.lane, count(*), h.stuck, h.since, (SELECT i.effect_id FROM :schema.intent i"
    " WHERE i.lane = r.lane AND i.place = coalesce(h.at, 1))"
    " FROM :schema.ready r LEFT JOIN LATERAL (SELECT at, stuck, since FROM :schema.lane_head"
    " WHERE lane = r.lane ORDER BY at DESC LIMIT 1) h ON true"
    " WHERE r.lane IS NOT NULL GROUP BY r.lane, h.stuck, h.since, h.at ORDER BY r.lane"
)
_PRUNABLE: Final = (
    "SELECT i.seq, i.effect_id, c.attempt FROM :schema.receipt c JOIN :schema.intent i ON i.seq = c.intent"
    " WHERE c.final AND c.phase IN ('accepted', 'rejected', 'failed') AND c.at < %s AND i.body IS NOT NULL"
    " AND NOT EXISTS (SELECT FROM :schema.ready r WHERE r.intent = i.seq)"
    " AND c.attempt = (SELECT max(seq) FROM :schema.attempt a WHERE a.intent = i.seq)"
    " ORDER BY c.attempt LIMIT %s FOR UPDATE OF i SKIP LOCKED"
)


class PostgresOutboxView:
    """See `counterfoil.ports.outbox_store.OutboxView`.

    Args:
        store: the outbox.
    """

    def __init__(self, store: PostgresOutbox) -> None:
        self._store = store

    def story(self, effect_id: str) -> Story | None:
        """Return all that is on record about an intent, as of one moment."""
        return self._store.read(lambda asking: _story(asking, effect_id))

    def waiting(self, *, state: str | None = None, limit: int = 1000) -> list[str]:
        """Return effect ids of what waits or is in hand, oldest first."""

        def look(asking: Asking) -> list[tuple[int, str]]:
            waits = asking.rows(_WAITS, (state, state, limit))
            held = asking.rows(_HELD, (limit,)) if state in (None, DISPATCHING) else []
            return [(seq, effect_id) for seq, effect_id in (*waits, *held)]

        return oldest(self._store.read(look), limit=limit)

    def ended(self, phase: str, *, limit: int = 1000) -> list[str]:
        """Return effect ids of intents with this outcome, newest first."""
        rare = " AND c.phase <> 'accepted'" if phase != "accepted" else ""
        sql = (
            "SELECT i.effect_id FROM :schema.receipt c JOIN :schema.intent i ON i.seq = c.intent"  # noqa: S608
            f" WHERE c.final AND c.phase = %s{rare} ORDER BY c.attempt DESC LIMIT %s"
        )
        return [row[0] for row in self._store.query(sql, (phase, limit))]

    def depth(self) -> list[tuple[str, str, int, float | None]]:
        """Return (recipient, state, how many, since when the oldest)."""
        found = [*self._store.query(_DEPTH), *self._store.query(_IN_HAND)]
        return [(name, state, count, since) for name, state, count, since in found]

    def lanes(self) -> list[tuple[str, int, str | None, float | None, str | None]]:
        """Return (lane, how many wait, why it stands still, since when, effect id of its head)."""
        return [(lane, count, stuck, since, head) for lane, count, stuck, since, head in self._store.query(_LANES)]

    def ages(self) -> Ages:
        """Return how long the oldest ones wait, and what is paused."""
        now = self._store.now()
        due, unsure = self._store.query(_OLDEST_DUE, (now,)), self._store.query(_UNSURE)
        paused = [row[0] for row in self._store.query(_PAUSED)]
        return Ages.of(due[0][0], (unsure[0][0], unsure[0][1]), now=now, paused=paused)

    def act(self, act: Act, work: Callable[[Story | None], Consequence]) -> None:
        """Record what a person did, with what follows from it, in one transaction."""
        now = self._store.now()
        self._store.act(lambda asking: _act(asking, act, work, now=now))

    def prune(self, *, before: float, limit: int) -> list[str]:
        """Let go of payloads and attempts of ended intents; identities, fingerprints and outcomes stay."""
        return self._store.write(lambda asking: _prune(asking, before=before, limit=limit))


def _story(asking: Asking, effect_id: str) -> Story | None:
    found = asking.rows(_INTENT, (effect_id,))
    if not found:
        return None
    seq, lane = found[0][0], found[0][7]
    waiting = asking.rows(_WAITING, (seq,))
    head = asking.rows(HEAD, (lane,)) if lane is not None else []
    attempts = [attempt_row(row, counted(kept, row[1], at=row[3])) for kept, *row in asking.rows(_ATTEMPTS, (seq,))]
    return story_of(
        found[0],
        waiting=waiting[0] if waiting else None,
        head=(head[0][0], head[0][1], head[0][2]) if head else None,
        attempts=attempts,
        late=asking.rows(_LATE, (seq,)),
        acts=asking.rows(_ACTS, (effect_id,)),
    )


def _act(asking: Asking, act: Act, work: Callable[[Story | None], Consequence], *, now: float) -> None:
    if act.scope == "*" or act.scope.startswith("recipient:"):
        work(None)
        _scoped(asking, act, now=now)
    else:
        # Acts on one intent take turns; a dispatcher that takes it meanwhile is seen when its row is taken.
        asking.rows("SELECT FROM :schema.intent WHERE effect_id = %s FOR UPDATE", (act.scope,))
        story = _story(asking, act.scope)
        if story is None:
            raise UsageError("nothing is staged under that key", code="no-such-intent")
        if act.expect_version != story.version:
            raise _changed(story, act.expect_version)
        _follow(asking, story, work(story), now=now)
    asking.rows(ACT, (act.scope, act.scope, act.name, act.by, act.reason, act.body, now))


def _changed(story: Story, expected: Any) -> Conflict:
    return Conflict(
        f"{story.key!r} has changed since: it is at version {story.version}, not {expected}", hint="look at it again"
    )


def _scoped(asking: Asking, act: Act, *, now: float) -> None:
    if act.name in ("pause", "drain"):
        asking.rows("INSERT INTO :schema.pause (scope, since) VALUES (%s, %s) ON CONFLICT DO NOTHING", (act.scope, now))
    elif act.name == "resume":
        asking.rows("DELETE FROM :schema.pause WHERE scope = %s", (act.scope,))
        if act.scope == "*":
            asking.rows("UPDATE :schema.outbox SET resumed = (SELECT accepted FROM :schema.ledger)")


def _follow(asking: Asking, story: Story, then: Consequence, *, now: float) -> None:
    place = None if story.lane is None or story.place is None else (story.lane, story.place)
    if then is not None:
        taken = asking.rows("DELETE FROM :schema.ready WHERE intent = %s RETURNING intent", (story.intent,))
        if bool(taken) is not (story.waiting is not None):
            raise _changed(story, story.version)
    if isinstance(then, Requeue):
        _again(asking, story, then, now=now)
        if place is not None:
            asking.rows("UPDATE :schema.lane_head SET stuck = NULL, since = NULL WHERE lane = %s AND at = %s", place)
        return
    if then is not None:
        phase, body = then
        ((attempt,),) = asking.rows(ATTEMPT, (story.intent, "act", "", now, None))
        asking.rows(RECEIPT, ("", now, [attempt], [story.intent], [phase], [True], [body]))
    if place is not None:
        # Whoever decided about the head lets its lane go on.
        advance(asking, [place], now=now)


def _again(asking: Asking, story: Story, then: Requeue, *, now: float) -> None:
    format_ = asking.rows("SELECT format FROM :schema.intent WHERE seq = %s", (story.intent,))[0][0]
    what = (story.recipient, story.operation, format_, story.lane, story.place)
    row = ready_values(story.intent, what, then, now=now)
    requeue(asking, [row])


def _prune(asking: Asking, *, before: float, limit: int) -> list[str]:
    found = asking.rows(_PRUNABLE, (before, limit))
    if not found:
        return []
    intents, kept = [row[0] for row in found], [row[2] for row in found]
    asking.rows("UPDATE :schema.intent SET body = NULL WHERE seq = ANY (%s)", (intents,))
    old = "SELECT seq FROM :schema.attempt WHERE intent = ANY (%s) AND seq <> ALL (%s)"
    for table in ("sending", "receipt"):
        asking.rows(f"DELETE FROM :schema.{table} WHERE attempt IN ({old})", (intents, kept))  # noqa: S608
    asking.rows("DELETE FROM :schema.attempt WHERE intent = ANY (%s) AND seq <> ALL (%s)", (intents, kept))
    return [row[1] for row in found]
