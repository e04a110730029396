"""The application's own transaction: a connection lent to a body, and the receipt written in the same commit.

The body gets a connection of its own, so that nothing it sets stays. Bodies of one receipt take turns by an advisory
lock of the transaction, so that the second finds the receipt and does not run. PostgreSQL has no way to forbid COMMIT:
what psycopg's methods would do is refused, and a savepoint around the body shows whether it was said in SQL.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from hashlib import blake2b
from threading import BoundedSemaphore
from typing import Any, Final, Self

import psycopg
from psycopg.sql import Composable

from counterfoil.errors import CounterfoilError, LedgerUnavailable, OwnerRetired, RunPruned, UsageError
from counterfoil.ledgers.postgres import names, rows, troubles, writer
from counterfoil.ledgers.postgres.connections import Connection
from counterfoil.ledgers.postgres.pool import Pool
from counterfoil.ledgers.rows import forked
from counterfoil.protocol.records import Entry, Record, with_body

# One statement of a body may take this long, in seconds; the server's own statement_timeout holds as well.
_BODY_S: Final = 86_400.0
_TRIES: Final = 10
_PAUSE_S: Final = 0.01
_LOCK_SHARE: Final = 0.7
_MARK: Final = "counterfoil_transaction"
_FAILED: Final = "25P02"
_CONSTRAINT: Final = "23"
_MEND: Final = "return from the body to commit, raise from it to roll back, and use SAVEPOINT for anything in between"

_ENDING: Final = re.compile(
    rb"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
    rb"(?:commit|end|abort|begin|start\s+transaction|prepare\s+transaction|rollback(?!\s+(?:work\s+|transaction\s+)?to))\b",
    re.IGNORECASE | re.DOTALL,
)

_TURN: Final = "SELECT set_config('lock_timeout', %s, true), pg_advisory_xact_lock(%s)"
_STATE: Final = """
SELECT (SELECT u.buried FROM :schema.run u WHERE u.namespace = %(namespace)s AND u.run = %(run)s),
    (SELECT o.retired FROM :schema.owner o WHERE o.epoch = %(epoch)s)
"""
_STANDING: Final = (
    f"SELECT {rows.COLUMNS} FROM :schema.record r LEFT JOIN :schema.owner o ON o.id = r.owner"  # noqa: S608
    " WHERE r.run = (SELECT u.id FROM :schema.run u WHERE u.namespace = %(namespace)s AND u.run = %(run)s)"
    " AND r.slot = %(slot)s"
)


class Lent(Connection):
    """A connection that a body has: it cannot end the transaction by psycopg's own methods.

    Attributes:
        lent: whether the body has it now.
        refused: whether it tried.
        process: whose it is.
    """

    process: int = 0
    lent: bool = False
    refused: bool = False

    def commit(self) -> None:
        """Refuse."""
        self._refuse()

    def rollback(self) -> None:
        """Refuse."""
        self._refuse()

    def _refuse(self) -> None:
        self.refused = True
        raise _ended_by_itself()

    def check(self, query: object) -> None:
        """Refuse a statement that begins by ending the transaction, and any in a child that the body forked.

        Raises:
            UsageError, ForkedLedger: it was not sent.
        """
        if os.getpid() != self.process:
            raise forked()
        text = query.as_string(self) if isinstance(query, Composable) else query
        said = text.encode() if isinstance(text, str) else text
        if isinstance(said, bytes) and _ENDING.match(said):
            self._refuse()


class _Cursor(psycopg.Cursor[Any]):
    """A cursor of a body's."""

    def execute(self, query: Any, *args: Any, **kwargs: Any) -> Self:
        """Execute a statement that does not end the transaction."""
        if isinstance(self.connection, Lent) and self.connection.lent:
            self.connection.check(query)
        return super().execute(query, *args, **kwargs)


class _Standing(Exception):
    """The slot is filled: nothing is written, and this is what answers."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self.record = record


class Lending:
    """Runs bodies of the application in transactions.

    Args:
        pool: whose server; the connections are beside its own, as many at most.
        schema: the ledger's schema.
    """

    def __init__(self, pool: Pool, schema: str) -> None:
        self._pool = pool
        self._schema = schema
        self._quoted = names.quoted(schema)
        self._question = writer.question(schema)
        self._places = BoundedSemaphore(pool.size)

    def transact(self, entry: Entry, work: Callable[[Any], bytes]) -> Record:
        """Run a body and commit its writes with the receipt.

        Raises:
            UsageError: the body tried to end the transaction, or did.
            CommitUnknown: PostgreSQL did not say how the commit ended.
            LedgerError: anything else; nothing was written.
        """
        self._pool.usable()
        if (fault := writer.fault_of(entry)) is not None:
            raise fault
        with self._connection() as connection:
            tries = 0
            while True:
                tries += 1
                attempt = _Attempt(connection, self._pool)
                try:
                    return self._once(attempt, entry, work)
                except psycopg.Error as error:
                    if error.sqlstate not in troubles.AGAIN or not connection.idle or tries == _TRIES:
                        raise attempt.told(error) from error
                time.sleep(_PAUSE_S * tries * random.uniform(0.5, 2))  # noqa: S311

    @contextmanager
    def _connection(self) -> Generator[Lent]:
        pool = self._pool
        if not self._places.acquire(timeout=pool.timeout_s):
            raise LedgerUnavailable(
                f"{pool.size} transactions of this process are under way",
                code="ledger-busy",
                hint="give the URL a larger pool=, or make the transactions shorter",
                effect_ran="no",
            )
        try:
            connection = pool.spare_of(Lent)
            connection.cursor_factory = _Cursor
            connection.process = os.getpid()
            try:
                yield connection
            finally:
                if not pool.inherited:
                    connection.close()
        finally:
            self._places.release()

    def _once(self, attempt: _Attempt, entry: Entry, work: Callable[[Any], bytes]) -> Record:
        connection = attempt.connection
        self._hurry(connection)
        try:
            with connection.transaction():
                self._look(connection, entry)
                body = attempt.run(work)
                self._hurry(connection)
                record = self._append(connection, with_body(entry, body))
                attempt.committing = True
        except _Standing as standing:
            return standing.record
        if connection.wait_cancelled:
            raise troubles.not_awaited()
        return record

    def _hurry(self, connection: Lent) -> None:
        connection.give_up = time.monotonic() + self._pool.timeout_s

    def _look(self, connection: Lent, entry: Entry) -> None:
        """Wait for the receipt's turn, and see what an append would answer."""
        patience_ms = str(int(_LOCK_SHARE * self._pool.timeout_s * 1000))
        connection.execute(_TURN, (patience_ms, _key(self._schema, entry)))
        connection.execute("SET LOCAL lock_timeout TO DEFAULT")
        values = {"namespace": entry.namespace, "run": entry.run, "epoch": entry.epoch, "slot": entry.slot}
        ((buried, retired),) = self._query(connection, _STATE, values)
        if buried:
            raise RunPruned(f"run {entry.run!r} was pruned")
        for row in self._query(connection, _STANDING, values):
            raise _Standing(rows.record(row))
        if entry.decision and entry.epoch and retired != 0:
            raise OwnerRetired(f"owner {entry.epoch} is retired")

    def _query(self, connection: Lent, statement: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        made = statement.replace(":schema", self._quoted).encode()
        with connection.cursor(binary=True) as cursor:
            return cursor.execute(made, values).fetchall()

    def _append(self, connection: Lent, entry: Entry) -> Record:
        patience_s = _LOCK_SHARE * self._pool.timeout_s
        (reply,) = writer.replies(writer.ask(connection, self._question, [entry], patience_s=patience_s), [entry])
        if isinstance(reply, BaseException):
            raise reply
        if (reply.epoch, reply.append_id) != (entry.epoch, entry.append_id):
            raise _Standing(reply)
        return reply


class _Attempt:
    """One execution of a body, and how far it has come: what an error means hangs on that."""

    def __init__(self, connection: Lent, pool: Pool) -> None:
        self.connection = connection
        self._pool = pool
        self.committing = False
        self._raised: BaseException | None = None

    def run(self, work: Callable[[Any], bytes]) -> bytes:
        """Run the body inside a savepoint of ours."""
        connection = self.connection
        connection.execute(f"SAVEPOINT {_MARK}")
        connection.give_up = time.monotonic() + _BODY_S
        connection.lent, connection.refused = True, False
        try:
            body = work(connection)
        except BaseException as error:
            self._raised = error
            if connection.refused and not isinstance(error, CounterfoilError):
                raise _ended_by_itself() from error
            raise
        finally:
            connection.lent = False
            if self._pool.inherited:
                _cut_off(connection)
            open_still = connection.in_progress
            if open_still:
                # Whatever is said on it now would wait for that to end: for a COPY, for ever.
                connection.close()
        self._pool.usable()
        if open_still:
            raise _still_open()
        if connection.refused:
            raise _ended_by_itself()
        closed_by_body = connection.closed and not connection.broken
        try:
            connection.execute(f"RELEASE {_MARK}")
        except psycopg.Error as error:
            if connection.closed and not closed_by_body:
                raise
            raise _not_as_it_was(error) from error
        return body

    def told(self, error: psycopg.Error) -> BaseException:
        """Say what an error of psycopg's means."""
        lost = not self.connection.idle
        if self.committing and lost:
            return troubles.lost(error)
        if lost:
            return LedgerUnavailable(
                f"the connection was lost before the COMMIT: {troubles.text(error)}",
                code="ledger-unreachable",
                hint="call again",
                effect_ran="no",
            )
        if error is self._raised or (self.committing and str(error.sqlstate).startswith(_CONSTRAINT)):
            # The application's own: its statement, or a constraint that is checked at the commit.
            return error
        return troubles.said(error)


def _cut_off(connection: Lent) -> None:
    # This is a child that the body forked: the socket leads to its parent's transaction, and nothing that is said on it
    # from now on must arrive.
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, connection.pgconn.socket)
    os.close(nowhere)


def _key(schema: str, entry: Entry) -> int:
    parts = (schema, entry.namespace, entry.run, entry.slot)
    state = blake2b(b"\0".join(part.encode() for part in parts), digest_size=8, person=b"counterfoil-txn1")
    return int.from_bytes(state.digest(), "big", signed=True)


def _ended_by_itself() -> UsageError:
    return UsageError(
        "the body tried to commit or roll back; its transaction is the ledger's, and nothing was written",
        code="transaction-ended",
        hint=_MEND,
    )


def _still_open() -> UsageError:
    return UsageError(
        "a statement of the body is still in progress (a COPY, or rows that are streamed); nothing was written",
        code="statement-open",
        hint="end it before the body returns: use `with cursor.copy(…)`, read the rows to their end",
    )


def _not_as_it_was(error: psycopg.Error) -> CounterfoilError:
    if error.sqlstate == _FAILED:
        return UsageError(
            "a statement of the body failed, and the body went on; nothing was written",
            code="transaction-failed",
            hint="let the error out, or put a savepoint around the statement",
        )
    return UsageError(
        "the body closed the connection or ended the transaction: what it committed by itself stands",
        code="transaction-ended",
        hint=_MEND,
        effect_ran="unknown",
    )
