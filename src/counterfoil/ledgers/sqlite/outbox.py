"""The outbox in a SQLite ledger: its tables stand beside the ledger's, in the application's own database."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from counterfoil.errors import UsageError
from counterfoil.ledgers.outbox_rows import orphan
from counterfoil.ledgers.sqlite import migrations, outbox_staging
from counterfoil.ledgers.sqlite.checkpoints import Checkpoints
from counterfoil.ledgers.sqlite.database import Database
from counterfoil.ledgers.sqlite.engines import Connection
from counterfoil.ledgers.sqlite.outbox_turn import (
    READY,
    RECEIPT,
    SENDING,
    SqliteTurn,
    insert,
    marks,
)
from counterfoil.ledgers.sqlite.reader import Reader
from counterfoil.ledgers.sqlite.transactions import Transactions
from counterfoil.ports.outbox_store import Given, Known, NewIntent, Staging, Sweep, Wanted, nothing
from counterfoil.protocol import standings
from counterfoil.protocol.standings import LOOK, SEND

T = TypeVar("T")

FORMAT_MAX: Final = 1
# Claims that one transaction recovers, and rows that one look marks: nobody waits long for the write lock.
PAGE: Final = 500

_ENLIST: Final = (
    "INSERT INTO counterfoil_dispatcher (epoch, label, since, low, ended) VALUES (?, ?, ?,"
    " (SELECT ifnull(max(seq), 0) + 1 FROM counterfoil_attempt), 0)"
)
_OPEN: Final = (
    "SELECT a.seq, a.intent, a.kind, a.standing, s.at, i.recipient, i.operation, i.format, i.lane, i.place"
    " FROM counterfoil_dispatcher d JOIN counterfoil_attempt a ON a.seq >= d.low AND a.owner = d.epoch"
    " LEFT JOIN counterfoil_receipt c ON c.attempt = a.seq"
    " LEFT JOIN counterfoil_sending s ON s.attempt = a.seq AND s.kind = 'grant'"
    " JOIN counterfoil_intent i ON i.seq = a.intent"
    " WHERE d.epoch = ? AND c.attempt IS NULL LIMIT ?"
)
_LIVES: Final = "SELECT epoch FROM counterfoil_dispatcher WHERE ended = 0 AND epoch <> ?"
_ENDED: Final = "UPDATE counterfoil_dispatcher SET ended = 1 WHERE epoch = ? AND ended = 0"
# One probe of the index for each recipient, however many rows it has.
_RECIPIENTS: Final = (
    "WITH RECURSIVE named (name) AS"
    " (SELECT min(recipient) FROM counterfoil_ready WHERE kind = 'send' AND due IS NOT NULL"
    " UNION ALL SELECT (SELECT min(recipient) FROM counterfoil_ready"
    " WHERE kind = 'send' AND due IS NOT NULL AND recipient > name) FROM named WHERE name IS NOT NULL)"
    " SELECT name FROM named WHERE name IS NOT NULL"
)
_NEXT_DUE: Final = "SELECT min(due) FROM counterfoil_ready WHERE kind = ? AND recipient = ? AND due IS NOT NULL"
_UNSETTLED: Final = (
    "SELECT min(due) FROM counterfoil_ready WHERE due IS NOT NULL AND state IN ('retry-scheduled', 'reconciling')"
    " AND recipient = ?"
)
_UNKNOWN_RECIPIENT: Final = (
    "UPDATE counterfoil_ready SET state = 'blocked', reason = 'unknown-recipient', since = ? WHERE intent IN"
    " (SELECT intent FROM counterfoil_ready WHERE kind = 'send' AND recipient = ? AND due <= ? ORDER BY due LIMIT ?)"
    " AND state <> 'blocked'"
)
_FRONT: Final = (
    "SELECT intent, operation, format FROM counterfoil_ready WHERE kind = 'send' AND recipient = ? AND due <= ?"
    " ORDER BY due LIMIT ?"
)
_BLOCKED: Final = (
    "SELECT intent, recipient, operation, format FROM counterfoil_ready WHERE state = 'blocked' AND due IS NULL"
)


class SqliteOutbox:
    """See `counterfoil.ports.outbox_store.OutboxStore`.

    Args:
        database: the ledger's file.
        transactions: how it is written.
        reader: how it is read.
        checkpoints: told of every commit.
        clock: seconds since 1970; None: the machine's, which is the database's too.
        create: False: refuse where there are no tables, or older ones.

    Raises:
        LedgerReadOnly: its tables would have to be made, and the database cannot be written.
        LedgerUnavailable: a newer version has made them.
        UsageError: they are not there, or older, and are not to be made.
    """

    elsewhere = False

    def __init__(
        self,
        database: Database,
        *,
        transactions: Transactions,
        reader: Reader,
        checkpoints: Checkpoints,
        clock: Callable[[], float] | None = None,
        create: bool = True,
    ) -> None:
        self._database = database
        self._transactions = transactions
        self._reader = reader
        self._checkpoints = checkpoints
        self.now = time.time if clock is None else clock
        self._seen: tuple[Connection, int] | None = None
        version = reader.query(migrations.OUTBOX.version_of)
        migrations.OUTBOX.refuse_newer(version)
        if version < len(migrations.OUTBOX.scripts):
            if not create:
                raise UsageError(
                    "there is no outbox in this ledger" if version == 0 else "the outbox is older than this version",
                    hint="an application makes it, or `counterfoil outbox migrate`",
                )
            self.write(migrations.OUTBOX.apply)

    def staging(self, intents: Sequence[NewIntent], *, now: float | None = None) -> Staging:
        """Write intents, as statements that the caller's own connection runs."""
        return outbox_staging.stage(intents, now=self.now() if now is None else now)

    def taking(self, source: str, message: str, *, window_s: float) -> Staging:
        """Note that a message is taken, as statements that the caller's own connection runs."""
        return outbox_staging.take(source, message, now=self.now(), window_s=window_s)

    def enlist(self, epoch: str, label: str) -> None:
        """Register a dispatcher's life, durably."""
        self.write(lambda connection: connection.execute(_ENLIST, (epoch, label, self.now())))

    def dismiss(self, epoch: str) -> None:
        """Note that a life has nothing in hand any more."""
        self.write(lambda connection: connection.execute(_ENDED, (epoch,)))

    def exchange(self, epoch: str, wanted: Wanted, *, meanwhile: Callable[[], None] = nothing) -> Given:
        """Answer what a life's flows ask in one transaction, durable on return."""
        meanwhile()
        return self.write(lambda connection: SqliteTurn(connection, epoch, now=self.now()).answer(wanted))

    def write(self, work: Callable[[Connection], T]) -> T:
        """Do work in one write transaction, durable on return."""
        self._database.usable()
        with self._database.write_lock:
            answer = self._transactions.run(work)
            self._checkpoints.after_commit()
        return answer

    def changed(self) -> bool:
        """Say whether another connection has committed since the last call."""

        def look(connection: Connection) -> bool:
            # The pragma looks at the file; `version` only tells what this connection has seen already.
            seen = (connection, connection.execute("PRAGMA data_version")[0][0])
            before, self._seen = self._seen, seen
            return before != seen

        return self._reader.query(look)

    def sweep(self, epoch: str, known: Known, *, unsettled: bool = False) -> Sweep:
        """Look over the outbox; it writes only where there is something to mark."""
        now = self.now()
        strange, front, back = self._reader.query(lambda connection: _marks(connection, known, now=now))
        if strange or front or back:
            self.write(lambda connection: _mark(connection, strange, (front, back), now=now))

        def look(connection: Connection) -> Sweep:
            lives = tuple(row[0] for row in connection.execute(_LIVES, (epoch,)))
            turn = SqliteTurn(connection, epoch, now=now)
            names = [name for name in known if f"recipient:{name}" not in turn.paused and "*" not in turn.paused]
            due = [connection.execute(_NEXT_DUE, (kind, name))[0][0] for name in names for kind in (SEND, LOOK)]
            later = [connection.execute(_UNSETTLED, (name,))[0][0] for name in names] if unsettled else []
            return Sweep(lives=lives, next_due_s=_left(due, now), unsettled_due_s=_left(later, now), paused=turn.paused)

        return self._reader.query(look)

    def recover(self, gone: str, *, by: str) -> int:
        """Take back what a life that is gone had in hand, durably."""
        count = 0
        while True:
            page = self.write(lambda connection: _recover(connection, gone, by=by, now=self.now()))
            count += page
            if page < PAGE:
                return count


def _left(moments: Sequence[float | None], now: float) -> float | None:
    found = [moment for moment in moments if moment is not None]
    return min(found) - now if found else None


def _marks(connection: Connection, known: Known, *, now: float) -> tuple[list[str], list[Any], list[Any]]:
    strange = [name for (name,) in connection.execute(_RECIPIENTS) if name not in known]
    strange = [name for name in strange if _unmarked(connection, name, now=now)]
    front = [
        (intent, "newer-format" if format_ > FORMAT_MAX else "unknown-operation")
        for name, operations in known.items()
        for intent, operation, format_ in connection.execute(_FRONT, (name, now, PAGE))
        if operation not in operations or format_ > FORMAT_MAX
    ]
    back = [
        intent
        for intent, name, operation, format_ in connection.execute(_BLOCKED)
        if name in known and operation in known[name] and format_ <= FORMAT_MAX
    ]
    return strange, front, back


def _unmarked(connection: Connection, name: str, *, now: float) -> bool:
    found = connection.execute(
        "SELECT state FROM counterfoil_ready WHERE kind = 'send' AND recipient = ? AND due <= ? ORDER BY due LIMIT 1",
        (name, now),
    )
    return bool(found) and found[0][0] != "blocked"


def _mark(
    connection: Connection, strange: Sequence[str], rows: tuple[Sequence[tuple[int, str]], Sequence[int]], *, now: float
) -> None:
    front, back = rows
    for name in strange:
        connection.execute(_UNKNOWN_RECIPIENT, (now, name, now, PAGE))
    for intent, reason in front:
        connection.execute(
            "UPDATE counterfoil_ready SET state = 'blocked', reason = ?, since = ?, due = NULL WHERE intent = ?",
            (reason, now, intent),
        )
    for start in range(0, len(back), PAGE):
        page = back[start : start + PAGE]
        known = (
            "UPDATE counterfoil_ready SET state = 'pending', reason = NULL, since = ?, due = max(not_before, ?)"  # noqa: S608
            f" WHERE intent IN {marks(len(page))}"
        )
        connection.execute(known, (now, now, *page))


def _recover(connection: Connection, gone: str, *, by: str, now: float) -> int:
    found = connection.execute(_OPEN, (gone, PAGE))
    if found:
        # Whoever fills the send-right first decides. Where the owner did, it may have been sent.
        revoked = [(row[0], "revocation", by, now) for row in found if row[2] == SEND]
        if revoked:
            insert(connection, SENDING, revoked, tail=" ON CONFLICT (attempt) DO NOTHING")
        receipts, ready = [], []
        for attempt, intent, kind, kept, sent_at, *what in found:
            then = standings.orphaned(standings.decode(kept), kind, sent_at=sent_at, now=now)
            phase = "revoked" if kind == SEND and sent_at is None else "released"
            receipts.append((attempt, intent, phase, 0, b"{}", by, now))
            ready.append(orphan(intent, what, then=then, now=now))
        insert(connection, RECEIPT, receipts)
        insert(connection, READY, ready)
    if len(found) < PAGE:
        connection.execute(_ENDED, (gone,))
    return len(found)
