"""The outbox in a PostgreSQL ledger: its tables stand in the ledger's schema, in the application's own database."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

import psycopg

from counterfoil.errors import CommitUnknown, LedgerUnavailable, UsageError
from counterfoil.ledgers.outbox_rows import counted, orphan
from counterfoil.ledgers.postgres import migrations, names, outbox_staging, troubles
from counterfoil.ledgers.postgres.connections import Connection
from counterfoil.ledgers.postgres.outbox_turn import FORMAT_MAX, LOW_S, RECEIPT, Asking, PostgresTurn, requeue
from counterfoil.ledgers.postgres.pool import Pool
from counterfoil.ports.outbox_store import Given, Known, NewIntent, Staging, Sweep, Wanted, nothing
from counterfoil.protocol import standings
from counterfoil.protocol.standings import LOOK, SEND

T = TypeVar("T")

# Claims that one transaction recovers, and rows that one look marks.
PAGE: Final = 500
# A look whether anything is due costs a round trip, so there is one this often at most.
LOOK_S: Final = 0.04
# A look at everything that is due, also at what a held snapshot keeps of what was, takes this part of the time at most.
DEEP_SHARE: Final = 0.02
DEEP_S: Final = 0.9
SETTLE_S: Final = 30.0
_TRIES: Final = 6
_PAUSE_S: Final = 0.01
_KEPT_TURNS: Final = 100

_ENLIST: Final = (
    "INSERT INTO :schema.dispatcher (epoch, label, since, low, ended) VALUES (%s, %s, %s,"
    " (SELECT coalesce(max(seq), 0) + 1 FROM :schema.attempt), false) ON CONFLICT DO NOTHING"
)
_ENDED: Final = "UPDATE :schema.dispatcher SET ended = true WHERE epoch = %s AND NOT ended"
_LIVES: Final = "SELECT epoch FROM :schema.dispatcher WHERE NOT ended AND epoch <> %s"
_OPEN: Final = (
    "SELECT a.seq, a.intent, a.kind, a.standing, a.at, i.recipient, i.operation, i.format, i.lane, i.place"
    " FROM :schema.dispatcher d JOIN :schema.attempt a ON a.seq >= d.low AND a.owner = d.epoch"
    " JOIN :schema.intent i ON i.seq = a.intent WHERE d.epoch = %s"
    " AND NOT EXISTS (SELECT FROM :schema.receipt c WHERE c.attempt = a.seq) ORDER BY a.seq LIMIT %s"
)
_REVOKE: Final = (
    "INSERT INTO :schema.sending (attempt, kind, owner, at) SELECT a, 'revocation', %s, %s"
    " FROM unnest(%s::bigint[]) a ON CONFLICT (attempt) DO NOTHING"
)
_GRANTED: Final = "SELECT attempt, at FROM :schema.sending WHERE kind = 'grant' AND attempt = ANY (%s)"
_RECIPIENTS: Final = """
WITH RECURSIVE named (name) AS (
    (SELECT recipient FROM :schema.ready WHERE kind = 'send' AND due IS NOT NULL ORDER BY recipient LIMIT 1)
    UNION ALL
    SELECT (SELECT r.recipient FROM :schema.ready r WHERE r.kind = 'send' AND r.due IS NOT NULL AND r.recipient > n.name
        ORDER BY r.recipient LIMIT 1) FROM named n WHERE n.name IS NOT NULL
)
SELECT name, (SELECT r.state FROM :schema.ready r WHERE r.kind = 'send' AND r.recipient = name AND r.due <= %s
    ORDER BY r.due, r.intent LIMIT 1) FROM named WHERE name IS NOT NULL
"""
_UNKNOWN_RECIPIENT: Final = (
    "UPDATE :schema.ready SET state = 'blocked', reason = 'unknown-recipient', since = %s WHERE intent IN"
    " (SELECT intent FROM :schema.ready WHERE kind = 'send' AND recipient = %s AND due <= %s ORDER BY due LIMIT %s"
    " FOR UPDATE SKIP LOCKED) AND state <> 'blocked'"
)
_FRONT: Final = (
    "SELECT intent, operation, format FROM :schema.ready WHERE kind = 'send' AND recipient = %s AND due <= %s"
    " ORDER BY due, intent LIMIT %s"
)
_STRANGE: Final = (
    "UPDATE :schema.ready SET state = 'blocked', reason = %s, since = %s, due = NULL WHERE intent IN"
    " (SELECT intent FROM :schema.ready WHERE intent = ANY (%s) FOR UPDATE SKIP LOCKED)"
)
_BLOCKED: Final = (
    "SELECT intent, recipient, operation, format FROM :schema.ready WHERE state = 'blocked' AND due IS NULL"
)
_BACK: Final = (
    "UPDATE :schema.ready SET state = 'pending', reason = NULL, since = %s, due = greatest(not_before, %s)"
    " WHERE intent IN (SELECT intent FROM :schema.ready WHERE intent = ANY (%s) FOR UPDATE SKIP LOCKED)"
)
# A lane whose head was staged while the place before it ended: neither saw the other.
_STALLED: Final = """
WITH RECURSIVE named (lane) AS (
    (SELECT lane FROM :schema.ready WHERE lane IS NOT NULL ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT (SELECT r.lane FROM :schema.ready r WHERE r.lane > n.lane ORDER BY r.lane LIMIT 1)
    FROM named n WHERE n.lane IS NOT NULL
)
SELECT r.intent FROM named n JOIN :schema.ready r ON r.lane = n.lane AND r.due IS NULL AND r.state = 'pending'
    AND r.place = coalesce((SELECT max(h.at) FROM :schema.lane_head h WHERE h.lane = n.lane), 1)
"""
_NEXT_DUE: Final = "SELECT min(due) FROM :schema.ready WHERE kind = %s AND recipient = %s AND due >= %s"
_UNSETTLED: Final = (
    "SELECT min(due) FROM :schema.ready WHERE due IS NOT NULL AND state IN ('retry-scheduled', 'reconciling')"
    " AND recipient = ANY (%s)"
)
_ANY_DUE: Final = (
    "SELECT EXISTS (SELECT FROM unnest(%s::text[], %s::text[], %s::float8[]) u (k, n, low) CROSS JOIN LATERAL"  # noqa: S608
    " (SELECT FROM :schema.ready r WHERE r.kind = k AND r.recipient = n AND r.due >= low AND r.due <= "
    f"{outbox_staging.NOW} LIMIT 1) d)"
)
_SCOPES: Final = (
    "SELECT l.accepted > b.resumed, ARRAY(SELECT scope FROM :schema.pause) FROM :schema.ledger l, :schema.outbox b"
)
_SLOT: Final = "INSERT INTO :schema.turn (epoch, number) VALUES (%s, %s)"
_FORGET: Final = "DELETE FROM :schema.turn WHERE epoch = %s AND number >= %s AND number < %s"
# Fills the slot of a transaction, or writes what it was filled with again: either way the answer waits for a commit.
_SETTLE: Final = (
    "INSERT INTO :schema.turn AS t (epoch, number, aborted) VALUES (%s, %s, true)"
    " ON CONFLICT (epoch, number) DO UPDATE SET aborted = t.aborted RETURNING aborted"
)
_CLOCK: Final = "SELECT extract(epoch FROM clock_timestamp())::float8"


class PostgresOutbox:
    """See `counterfoil.ports.outbox_store.OutboxStore`.

    Args:
        pool: where connections are taken from.
        schema: the ledger's schema.
        clock: seconds since 1970; None: the database's own.
        create: False: refuse where there are no tables, or older ones.

    Raises:
        UsageError: they are not there, or older, and may or shall not be made.
        LedgerUnavailable: a newer version has made them.
    """

    elsewhere = True

    def __init__(self, pool: Pool, *, schema: str, clock: Callable[[], float] | None, create: bool) -> None:
        self._pool = pool
        self.quoted = names.quoted(schema)
        self._clock = clock
        self._offset_s: float | None = None
        self._turns = itertools.count(1)
        self._low: dict[tuple[str, str], float] = {}
        self._known: list[str] = []
        self._look_at = 0.0
        self._deep_at = 0.0
        self._prepare(schema, create=create)

    def _prepare(self, schema: str, *, create: bool) -> None:
        version = self._pool.read(lambda connection: migrations.OUTBOX.version_of(connection, schema))
        migrations.OUTBOX.refuse_newer(version)
        if version == len(migrations.OUTBOX.scripts):
            return
        if not create:
            raise UsageError(
                "there is no outbox in this ledger" if version == 0 else "the outbox is older than this version",
                hint="an application makes it, or `counterfoil outbox migrate`",
            )
        with self._pool.take() as connection:
            migrations.OUTBOX.apply(connection, schema)

    def staging(self, intents: Sequence[NewIntent], *, now: float | None = None) -> Staging:
        """Write intents, as statements that the caller's own connection runs."""
        return outbox_staging.stage(intents, schema=self.quoted, now=now or self._virtual())

    def taking(self, source: str, message: str, *, window_s: float) -> Staging:
        """Note that a message is taken, as statements that the caller's own connection runs."""
        return outbox_staging.take((source, message), schema=self.quoted, now=self._virtual(), window_s=window_s)

    def enlist(self, epoch: str, label: str) -> None:
        """Register a dispatcher's life, durably."""
        # Asked before: a connection that is held never waits for another one.
        now = self.now()
        self.write(lambda asking: asking.rows(_ENLIST, (epoch, label, now)))

    def dismiss(self, epoch: str) -> None:
        """Note that a life has nothing in hand any more."""

        def work(asking: Asking) -> None:
            asking.rows(_ENDED, (epoch,))
            asking.rows("DELETE FROM :schema.turn WHERE epoch = %s", (epoch,))

        self.write(work)

    def exchange(self, epoch: str, wanted: Wanted, *, meanwhile: Callable[[], None] = nothing) -> Given:
        """Answer what a life's flows ask in one transaction; a COMMIT that is not answered is settled."""
        number = next(self._turns)

        def once(asking: Asking) -> Given:
            turn = PostgresTurn(asking, epoch, number=number, now=self._virtual(), low=self._low)
            given = turn.answer(wanted, meanwhile=meanwhile)
            self._offset_s = turn.now - time.monotonic()
            if number % _KEPT_TURNS == 0:
                asking.rows(_FORGET, (epoch, number - 2 * _KEPT_TURNS, number))
            return given

        return self._done(once, turn=(epoch, number))

    def act(self, work: Callable[[Asking], T]) -> T:
        """Do what a person said in one transaction, durable on return and done once; see `write`."""
        turn = (f"act-{os.urandom(8).hex()}", 0)

        def once(asking: Asking) -> T:
            asking.rows(_SLOT, turn)
            return work(asking)

        return self.write(once, turn=turn)

    def write(self, work: Callable[[Asking], T], *, turn: tuple[str, int] | None = None) -> T:
        """Do work in one transaction, durable on return; see `_done`."""

        def insisting(asking: Asking) -> T:
            asking.rows("SELECT :schema.insist()::text")
            return work(asking)

        return self._done(insisting, turn=turn)

    def _done(self, work: Callable[[Asking], T], *, turn: tuple[str, int] | None) -> T:
        """Do work that insists on a durable commit by itself.

        Args:
            work: what to do; done again where the server asks for that.
            turn: the slot that the work fills, by which a lost COMMIT is settled; None: the work may be done twice, and
                is done again.

        Raises:
            CommitUnknown: the server did not say how the commit ended.
            LedgerError: anything else; nothing was recorded.
        """
        tries, give_up = 0, time.monotonic() + SETTLE_S
        while True:
            tries += 1
            try:
                answer, unknown = self._committed(work)
            except psycopg.Error as error:
                if error.sqlstate not in troubles.AGAIN or tries >= _TRIES:
                    raise troubles.said(error) from error
            else:
                if unknown is None:
                    return answer
                if turn is not None:
                    return self._settled(turn, answer, unknown)
                if time.monotonic() >= give_up:
                    raise unknown
            time.sleep(_PAUSE_S * min(tries, _TRIES) * random.uniform(0.5, 2))  # noqa: S311

    def _committed(self, work: Callable[[Asking], T]) -> tuple[T, CommitUnknown | None]:
        """Do work in one transaction; a `psycopg.Error` says that it was rolled back."""
        with self._pool.take() as connection:
            committing, answer = False, cast("T", None)
            try:
                connection.execute("BEGIN")
                answer = work(Asking(connection, self.quoted))
                committing = True
                connection.execute("COMMIT")
            except psycopg.Error as error:
                if _rolled_back(connection):
                    raise
                if not committing:
                    raise troubles.unreachable(error) from error
                return answer, troubles.lost(error)
            except BaseException:
                _rolled_back(connection)
                raise
            return answer, troubles.not_awaited() if connection.wait_cancelled else None

    def _settled(self, turn: tuple[str, int], answer: T, unknown: CommitUnknown) -> T:
        """Find out how a commit ended by filling its slot: if it was filled by the transaction, that stands."""
        if not self._aborted(turn, unknown):
            return answer
        raise LedgerUnavailable(
            f"the transaction was not committed: {unknown}", code="ledger-unreachable", effect_ran="no"
        ) from unknown

    def _aborted(self, turn: tuple[str, int], unknown: CommitUnknown) -> bool:
        give_up = time.monotonic() + SETTLE_S
        while True:
            try:
                ((aborted,),) = self.write(lambda asking: asking.rows(_SETTLE, turn))
            except LedgerUnavailable as error:
                if time.monotonic() >= give_up:
                    raise unknown from error
                time.sleep(_PAUSE_S * _TRIES)
            else:
                return bool(aborted)

    def query(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a statement that records nothing."""
        return self._pool.read(lambda connection: Asking(connection, self.quoted).rows(sql, parameters))

    def read(self, work: Callable[[Asking], T]) -> T:
        """Do work that records nothing, in one snapshot."""

        def once(connection: Connection) -> T:
            with connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                return work(Asking(connection, self.quoted))

        return self._pool.read(once)

    def changed(self) -> bool:
        """Say whether something that the last sweep knew recipients of is due."""
        now = time.monotonic()
        if now < self._look_at or not self._known:
            return False
        self._look_at = now + LOOK_S
        asked = [(kind, name) for kind in (SEND, LOOK) for name in self._known]
        columns = [list(column) for column in zip(*asked, strict=True)]
        low = [self._low.get(one, 0.0) for one in asked]
        return bool(self.query(_ANY_DUE, (*columns, low, self._virtual()))[0][0])

    def now(self) -> float:
        """Return the database's clock, as it was heard last and has gone on since."""
        if self._clock is not None:
            return self._clock()
        offset_s = self._offset_s
        if offset_s is None:
            offset_s = self._offset_s = float(self.query(_CLOCK)[0][0]) - time.monotonic()
        return time.monotonic() + offset_s

    def _virtual(self) -> float | None:
        return None if self._clock is None else self._clock()

    def sweep(self, epoch: str, known: Known, *, unsettled: bool = False) -> Sweep:
        """Look over the outbox; it writes only where there is something to mark."""
        now, began = self.now(), time.monotonic()
        deep = unsettled or began >= self._deep_at
        if deep:
            self._low.clear()
            self._mark(known, now)
        lives = tuple(row[0] for row in self.query(_LIVES, (epoch,)))
        ((restored, scopes),) = self.query(_SCOPES)
        paused = frozenset(scopes) | ({"*"} if restored else frozenset())
        usable = [name for name in known if f"recipient:{name}" not in paused and "*" not in paused]
        self._known = usable
        due = [self._next_due(kind, name, now=now) for name in usable for kind in (SEND, LOOK)]
        later = [self.query(_UNSETTLED, (usable,))[0][0]] if unsettled else []
        if deep:
            spent_s = time.monotonic() - began
            self._deep_at = began + max(DEEP_S, spent_s / DEEP_SHARE)
        return Sweep(lives=lives, next_due_s=_left(due, now), unsettled_due_s=_left(later, now), paused=paused)

    def _next_due(self, kind: str, name: str, *, now: float) -> float | None:
        """Return when the next is due; what is dead before it is not looked through again until the next deep look."""
        low = self._low.get((kind, name), 0.0)
        found: float | None = self.query(_NEXT_DUE, (kind, name, low))[0][0]
        self._low[kind, name] = max(low, min(now, now if found is None else found) - LOW_S)
        return found

    def _mark(self, known: Known, now: float) -> None:
        strange = [
            name
            for name, state in self.query(_RECIPIENTS, (now,))
            if name not in known and state not in (None, "blocked")
        ]
        front: dict[str, list[int]] = {"newer-format": [], "unknown-operation": []}
        for name, operations in known.items():
            for intent, operation, format_ in self.query(_FRONT, (name, now, PAGE)):
                if operation not in operations or format_ > FORMAT_MAX:
                    front["newer-format" if format_ > FORMAT_MAX else "unknown-operation"].append(intent)
        back = [
            intent
            for intent, name, operation, format_ in self.query(_BLOCKED)
            if name in known and operation in known[name] and format_ <= FORMAT_MAX
        ]
        back += [row[0] for row in self.query(_STALLED)]
        if strange or back or any(front.values()):
            self.write(lambda asking: _mark(asking, strange, (front, back), now=now))

    def recover(self, gone: str, *, by: str) -> int:
        """Take back what a life that is gone had in hand, durably."""
        count = 0
        while True:
            now = self.now()
            page = self.write(lambda asking, now=now: _recover(asking, gone, by=by, now=now))  # type: ignore[misc]
            count += page
            if page < PAGE:
                return count


def _rolled_back(connection: Connection) -> bool:
    """Roll back what is open; return whether the server said that nothing stands."""
    if connection.closed or connection.broken:
        return False
    if not connection.idle:
        try:
            connection.execute("ROLLBACK")
        except psycopg.Error:
            return False
    return connection.idle


def _left(moments: Sequence[float | None], now: float) -> float | None:
    found = [moment for moment in moments if moment is not None]
    return min(found) - now if found else None


def _mark(
    asking: Asking, strange: Sequence[str], rows: tuple[dict[str, list[int]], Sequence[int]], *, now: float
) -> None:
    front, back = rows
    for name in strange:
        asking.rows(_UNKNOWN_RECIPIENT, (now, name, now, PAGE))
    for reason, intents in front.items():
        if intents:
            asking.rows(_STRANGE, (reason, now, intents))
    if back:
        asking.rows(_BACK, (now, now, list(back)))


def _recover(asking: Asking, gone: str, *, by: str, now: float) -> int:
    found = asking.rows(_OPEN, (gone, PAGE))
    if found:
        # Whoever fills the send-right first decides. Where the owner did, it may have been sent.
        sends = [row[0] for row in found if row[2] == SEND]
        asking.rows(_REVOKE, (by, now, sends))
        granted = dict(asking.rows(_GRANTED, (sends,)))
        columns: list[list[Any]] = [[], [], [], [], []]
        for attempt, intent, kind, *_ in found:
            phase = "revoked" if kind == SEND and attempt not in granted else "released"
            for column, value in zip(columns, (attempt, intent, phase, False, b"{}"), strict=True):
                column.append(value)
        ours = {row[0] for row in asking.rows(RECEIPT, (by, now, *columns))}
        again = []
        for attempt, intent, kind, kept, at, *what in found:
            if attempt in ours:
                standing = counted(kept, kind, at=at)
                then = standings.orphaned(standing, kind, sent_at=granted.get(attempt), now=now)
                again.append(orphan(intent, what, then=then, now=now))
        requeue(asking, again)
    if len(found) < PAGE:
        asking.rows(_ENDED, (gone,))
        asking.rows("DELETE FROM :schema.turn WHERE epoch = %s", (gone,))
    return len(found)
