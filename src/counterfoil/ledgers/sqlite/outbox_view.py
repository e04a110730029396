"""Looking at the outbox in SQLite, and the acts of people on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from counterfoil.errors import Conflict, UsageError
from counterfoil.ledgers.outbox_rows import DISPATCHING, attempt_row, oldest, ready_values, story_of
from counterfoil.ledgers.sqlite.engines import Connection
from counterfoil.ledgers.sqlite.outbox import SqliteOutbox
from counterfoil.ledgers.sqlite.outbox_lanes import advance, release
from counterfoil.ledgers.sqlite.outbox_turn import ATTEMPT, READY, RECEIPT, insert, marks
from counterfoil.ledgers.sqlite.reader import Reader
from counterfoil.ports.outbox_store import Act, Ages, Consequence, Requeue, Story
from counterfoil.protocol import standings

_INTENT: Final = (
    "SELECT seq, effect_id, key, recipient, operation, body, policy, lane, place, not_before, expires_at, staged_at"
    " FROM counterfoil_intent WHERE effect_id = ?"
)
_ATTEMPTS: Final = (
    "SELECT a.seq, a.kind, a.owner, a.at, a.standing, s.kind, s.at, c.phase, ifnull(c.final, 0), c.body, c.at"
    " FROM counterfoil_attempt a LEFT JOIN counterfoil_sending s ON s.attempt = a.seq"
    " LEFT JOIN counterfoil_receipt c ON c.attempt = a.seq WHERE a.intent = ? ORDER BY a.seq"
)
_WAITING: Final = "SELECT kind, state, reason, since, due, standing FROM counterfoil_ready WHERE intent = ?"
_LATE: Final = "SELECT attempt, claims, body, at FROM counterfoil_late_evidence WHERE intent = ? ORDER BY seq"
_ACTS: Final = "SELECT name, by, reason, at, body FROM counterfoil_act WHERE scope = ? ORDER BY number"
_NEW_ACT: Final = (
    "INSERT INTO counterfoil_act (scope, number, name, by, reason, body, at) VALUES"
    " (?, (SELECT count(*) + 1 FROM counterfoil_act WHERE scope = ?), ?, ?, ?, ?, ?)"
)
_DEPTH: Final = "SELECT recipient, state, count(*), min(since) FROM counterfoil_ready GROUP BY recipient, state"
_IN_HAND: Final = (
    "SELECT i.recipient, 'dispatching', count(*), min(a.at) FROM counterfoil_dispatcher d"
    " JOIN counterfoil_attempt a ON a.seq >= d.low AND a.owner = d.epoch"
    " LEFT JOIN counterfoil_receipt c ON c.attempt = a.seq JOIN counterfoil_intent i ON i.seq = a.intent"
    " WHERE d.ended = 0 AND c.attempt IS NULL GROUP BY i.recipient"
)
# What is shown of a row: that of a lane which stands still is blocked, wherever it would stand otherwise.
_SHOWN: Final = (
    "CASE WHEN r.state = 'reconciling' THEN 'dispatching'"
    " WHEN r.state IN ('needs-operator', 'quarantined') THEN r.state"
    " WHEN EXISTS (SELECT 1 FROM counterfoil_lane_head h WHERE h.lane = r.lane AND h.stuck IS NOT NULL"
    " AND h.at <> r.place) THEN 'blocked' ELSE r.state END"
)
_WAITS: Final = (
    "SELECT i.seq, i.effect_id FROM counterfoil_ready r JOIN counterfoil_intent i ON i.seq = r.intent"  # noqa: S608
    f" WHERE ? IS NULL OR {_SHOWN} = ? ORDER BY r.intent LIMIT ?"
)
_HELD: Final = (
    "SELECT i.seq, i.effect_id FROM counterfoil_dispatcher d"
    " JOIN counterfoil_attempt a ON a.seq >= d.low AND a.owner = d.epoch"
    " LEFT JOIN counterfoil_receipt c ON c.attempt = a.seq JOIN counterfoil_intent i ON i.seq = a.intent"
    " WHERE d.ended = 0 AND c.attempt IS NULL ORDER BY i.seq LIMIT ?"
)
_PAUSED: Final = (
    "SELECT scope FROM counterfoil_pause UNION SELECT '*' FROM counterfoil_ledger l, counterfoil_outbox b"
    " WHERE l.accepted > b.resumed"
)
_OLDEST_DUE: Final = "SELECT min(due) FROM counterfoil_ready WHERE due <= ? AND state <> 'blocked'"
# Uncertain ones nobody has decided about, and those that a person has to look at before they end.
_UNSURE: Final = (
    "SELECT count(*), min(u.at) FROM (SELECT c.at FROM counterfoil_receipt c"
    " JOIN counterfoil_intent i ON i.seq = c.intent"
    " WHERE c.final = 1 AND c.phase = 'uncertain' AND c.phase <> 'accepted' AND NOT EXISTS"
    " (SELECT 1 FROM counterfoil_act a WHERE a.scope = i.effect_id AND a.name = 'decide')"
    " UNION ALL SELECT since FROM counterfoil_ready WHERE due IS NULL AND kind = 'look'"
    " AND state IN ('needs-operator', 'quarantined')) u"
)
_LANES: Final = (
    "SELECT r.lane, count(*), h.stuck, h.since, (SELECT i.effect_id FROM counterfoil_intent i"
    " WHERE i.lane = r.lane AND i.place = ifnull(h.at, 1))"
    " FROM counterfoil_ready r LEFT JOIN counterfoil_lane_head h ON h.lane = r.lane"
    " WHERE r.lane IS NOT NULL GROUP BY r.lane ORDER BY r.lane"
)


class SqliteOutboxView:
    """See `counterfoil.ports.outbox_store.OutboxView`.

    Args:
        store: the outbox.
        reader: how it is read.
    """

    def __init__(self, store: SqliteOutbox, *, reader: Reader) -> None:
        self._store = store
        self._reader = reader

    def story(self, effect_id: str) -> Story | None:
        """Return all that is on record about an intent."""
        return self._reader.query(lambda connection: _story(connection, effect_id))

    def waiting(self, *, state: str | None = None, limit: int = 1000) -> list[str]:
        """Return effect ids of what waits or is in hand, oldest first."""

        def look(connection: Connection) -> list[tuple[int, str]]:
            waits = connection.execute(_WAITS, (state, state, limit))
            held = connection.execute(_HELD, (limit,)) if state in (None, DISPATCHING) else []
            return [(seq, effect_id) for seq, effect_id in (*waits, *held)]

        return oldest(self._reader.query(look), limit=limit)

    def ended(self, phase: str, *, limit: int = 1000) -> list[str]:
        """Return effect ids of intents with this outcome, newest first."""
        rare = " AND c.phase <> 'accepted'" if phase != "accepted" else ""
        sql = (
            "SELECT i.effect_id FROM counterfoil_receipt c JOIN counterfoil_intent i ON i.seq = c.intent"  # noqa: S608
            f" WHERE c.final = 1 AND c.phase = ?{rare} ORDER BY c.attempt DESC LIMIT ?"
        )
        return [row[0] for row in self._reader.query(lambda c: c.execute(sql, (phase, limit)))]

    def depth(self) -> list[tuple[str, str, int, float | None]]:
        """Return (recipient, state, how many, since when the oldest)."""
        found = self._reader.query(lambda c: [*c.execute(_DEPTH), *c.execute(_IN_HAND)])
        return [(name, state, count, since) for name, state, count, since in found]

    def lanes(self) -> list[tuple[str, int, str | None, float | None, str | None]]:
        """Return (lane, how many wait, why it stands still, since when, effect id of its head)."""
        found = self._reader.query(lambda c: c.execute(_LANES))
        return [(lane, count, stuck, since, head) for lane, count, stuck, since, head in found]

    def ages(self) -> Ages:
        """Return how long the oldest ones wait, and what is paused."""
        now = self._store.now()
        due, unsure, paused = self._reader.query(
            lambda c: (c.execute(_OLDEST_DUE, (now,)), c.execute(_UNSURE), c.execute(_PAUSED))
        )
        return Ages.of(due[0][0], (unsure[0][0], unsure[0][1]), now=now, paused=[row[0] for row in paused])

    def act(self, act: Act, work: Callable[[Story | None], Consequence]) -> None:
        """Record what a person did, with what follows from it, in one transaction."""
        self._store.write(lambda connection: _act(connection, act, work, now=self._store.now()))

    def prune(self, *, before: float, limit: int) -> list[str]:
        """Let go of payloads and attempts of ended intents; identities, fingerprints and outcomes stay."""
        return self._store.write(lambda connection: _prune(connection, before=before, limit=limit))


def _story(connection: Connection, effect_id: str) -> Story | None:
    found = connection.execute(_INTENT, (effect_id,))
    if not found:
        return None
    seq, lane = found[0][0], found[0][7]
    waiting = connection.execute(_WAITING, (seq,))
    head = connection.execute("SELECT at, stuck, since FROM counterfoil_lane_head WHERE lane = ?", (lane,))
    return story_of(
        found[0],
        waiting=waiting[0] if waiting else None,
        head=cast(tuple[int, str | None, float | None], head[0]) if head else None,
        attempts=[
            attempt_row((*row[:4], *row[5:]), standings.decode(row[4])) for row in connection.execute(_ATTEMPTS, (seq,))
        ],
        late=connection.execute(_LATE, (seq,)),
        acts=connection.execute(_ACTS, (effect_id,)),
    )


def _act(connection: Connection, act: Act, work: Callable[[Story | None], Consequence], *, now: float) -> None:
    if act.scope == "*" or act.scope.startswith("recipient:"):
        work(None)
        _scoped(connection, act, now=now)
    else:
        story = _story(connection, act.scope)
        if story is None:
            raise UsageError("nothing is staged under that key", code="no-such-intent")
        if act.expect_version != story.version:
            raise Conflict(
                f"{story.key!r} has changed since: it is at version {story.version}, not {act.expect_version}",
                hint="look at it again",
            )
        _follow(connection, story, work(story), now=now)
    connection.execute(_NEW_ACT, (act.scope, act.scope, act.name, act.by, act.reason, act.body, now))


def _scoped(connection: Connection, act: Act, *, now: float) -> None:
    if act.name in ("pause", "drain"):
        connection.execute(
            "INSERT INTO counterfoil_pause (scope, since) VALUES (?, ?) ON CONFLICT DO NOTHING", (act.scope, now)
        )
    elif act.name == "resume":
        connection.execute("DELETE FROM counterfoil_pause WHERE scope = ?", (act.scope,))
        if act.scope == "*":
            connection.execute("UPDATE counterfoil_outbox SET resumed = (SELECT accepted FROM counterfoil_ledger)")


def _follow(connection: Connection, story: Story, then: Consequence, *, now: float) -> None:
    if isinstance(then, Requeue):
        connection.execute("DELETE FROM counterfoil_ready WHERE intent = ?", (story.intent,))
        format_ = connection.execute("SELECT format FROM counterfoil_intent WHERE seq = ?", (story.intent,))[0][0]
        what = (story.recipient, story.operation, format_, story.lane, story.place)
        row = ready_values(story.intent, what, then, now=now)
        insert(connection, READY, [row])
        if story.lane is not None and story.place is not None:
            release(connection, story.lane, story.place)
        return
    if then is not None:
        phase, body = then
        connection.execute("DELETE FROM counterfoil_ready WHERE intent = ?", (story.intent,))
        _, attempt = insert(connection, ATTEMPT, [(story.intent, "act", "", now, None)])
        insert(connection, RECEIPT, [(attempt, story.intent, phase, 1, body, "", now)])
    if story.lane is not None and story.place is not None:
        # Whoever decided about the head lets its lane go on.
        advance(connection, story.lane, story.place, now=now)


def _prune(connection: Connection, *, before: float, limit: int) -> list[str]:
    found = connection.execute(
        "SELECT i.seq, i.effect_id, c.attempt FROM counterfoil_receipt c JOIN counterfoil_intent i ON i.seq = c.intent"
        " WHERE c.final = 1 AND c.phase IN ('accepted', 'rejected', 'failed') AND c.at < ? AND i.body IS NOT NULL"
        " AND NOT EXISTS (SELECT 1 FROM counterfoil_ready r WHERE r.intent = i.seq)"
        " AND c.attempt = (SELECT max(seq) FROM counterfoil_attempt a WHERE a.intent = i.seq)"
        " ORDER BY c.attempt LIMIT ?",
        (before, limit),
    )
    if not found:
        return []
    intents = [row[0] for row in found]
    inside, kept = marks(len(found)), [row[2] for row in found]
    connection.execute(f"UPDATE counterfoil_intent SET body = NULL WHERE seq IN {inside}", intents)  # noqa: S608
    old = f"(SELECT seq FROM counterfoil_attempt WHERE intent IN {inside} AND seq NOT IN {inside})"  # noqa: S608
    for table in ("sending", "receipt"):
        connection.execute(f"DELETE FROM counterfoil_{table} WHERE attempt IN {old}", (*intents, *kept))  # noqa: S608
    connection.execute(
        f"DELETE FROM counterfoil_attempt WHERE intent IN {inside} AND seq NOT IN {inside}",  # noqa: S608
        (*intents, *kept),
    )
    return [row[1] for row in found]
