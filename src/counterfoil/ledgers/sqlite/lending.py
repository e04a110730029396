"""The application's own transaction: a connection lent to a body, and the receipt written in the same commit.

The body gets a connection of its own, so that nothing it sets stays. An authorizer refuses whatever would end the
transaction (COMMIT, ROLLBACK, and the methods of the drivers that say these), and ATTACH, since a commit over two files
in WAL mode is not atomic. Around the body stands a savepoint: if it is gone afterwards, the transaction was ended all
the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from counterfoil.errors import CounterfoilError, UsageError
from counterfoil.ledgers.rows import forked
from counterfoil.ledgers.sqlite import troubles
from counterfoil.ledgers.sqlite.database import Database
from counterfoil.ledgers.sqlite.engines import ATTACH, BUSY, CONSTRAINT, DETACH, TRANSACTION, Connection, StoreError
from counterfoil.ledgers.sqlite.generations import Generations
from counterfoil.ledgers.sqlite.transactions import Transactions
from counterfoil.ledgers.sqlite.writer import Writer
from counterfoil.ledgers.submissions import Submission
from counterfoil.protocol.records import Entry, Record, with_body

_MARK: Final = "counterfoil_transaction"
_REFUSED: Final = (TRANSACTION, ATTACH, DETACH)
_MEND: Final = "return from the body to commit, raise from it to roll back, and use SAVEPOINT for anything in between"


class Lending:
    """Runs bodies of the application in transactions.

    Args:
        database: which.
        transactions: those of the ledger itself; they learn when a sync fails.
        generations: whether the ledger takes records at all.
    """

    def __init__(self, database: Database, *, transactions: Transactions, generations: Generations) -> None:
        self._database = database
        self._transactions = transactions
        self._generations = generations

    def transact(self, entry: Entry, work: Callable[[Any], bytes]) -> Record:
        """Run a body and commit its writes with the receipt; the caller holds the write lock.

        Raises:
            UsageError: the body tried to end the transaction, or did.
            CommitUnknown: SQLite did not say how the commit ended.
            LedgerError: anything else; nothing was written.
        """
        database = self._database
        connection = database.lend()
        try:
            try:
                database.patiently(lambda: connection.command("BEGIN IMMEDIATE"))
                record, ours = self._inside(connection, entry, work)
                database.check_unmoved()
            except StoreError as error:
                raise troubles.before_commit(error) from error
            if ours:
                self._commit(connection)
            return record
        finally:
            self._take_back(connection)

    def _take_back(self, connection: Connection) -> None:
        try:
            # In a child that the body forked nothing is touched: it is the parent's transaction.
            if not self._database.inherited():
                with suppress(Exception):  # the body may have closed it
                    connection.take_back()
                    # A cursor that is still known to somebody would keep a merely closed connection in its transaction.
                    if connection.in_transaction():
                        connection.command("ROLLBACK")
        finally:
            self._database.take_back()

    def _inside(self, connection: Connection, entry: Entry, work: Callable[[Any], bytes]) -> tuple[Record, bool]:
        self._generations.look(connection)
        self._generations.refuse()
        writer = Writer(self._transactions)
        standing = writer.standing(connection, entry)
        if isinstance(standing, Record):
            return standing, False
        if standing is not None:
            raise standing
        body = self._lent(connection, work)
        (reply,) = writer.fill(connection, [Submission(with_body(entry, body), settle=False)])
        if isinstance(reply, BaseException):
            raise reply
        if (reply.epoch, reply.append_id) != (entry.epoch, entry.append_id):
            raise UsageError(f"the body wrote into the ledger's own tables: slot {entry.slot!r} is filled")
        return reply, True

    def _lent(self, connection: Connection, work: Callable[[Any], bytes]) -> bytes:
        connection.command(f"SAVEPOINT {_MARK}")
        refused: list[int] = []

        def refuses(action: int) -> bool:
            if action in _REFUSED:
                refused.append(action)
            return action in _REFUSED

        try:
            body = work(connection.lend(refuses))
        except Exception as error:
            if refused and not isinstance(error, CounterfoilError):
                raise _ended_by_itself(refused[0]) from error
            raise
        if self._database.inherited():
            raise forked()
        if refused:
            raise _ended_by_itself(refused[0])
        self._released(connection)
        return body

    @staticmethod
    def _released(connection: Connection) -> None:
        try:
            connection.take_back()
            connection.command(f"RELEASE {_MARK}")
        except StoreError as error:
            if error.code == BUSY:
                raise UsageError(
                    "a statement of the body is still in progress; nothing was written",
                    code="statement-open",
                    hint="fetch all its rows, or close its cursor",
                ) from error
            raise UsageError(
                "the body closed the connection or ended the transaction: what it committed by itself stands",
                code="transaction-ended",
                hint=_MEND,
                effect_ran="unknown",
            ) from error

    def _commit(self, connection: Connection) -> None:
        try:
            self._transactions.command_commit(connection)
        except StoreError as error:
            if error.code == CONSTRAINT and error.__cause__ is not None:
                # A deferred constraint of the application's own: it is told by its own driver.
                raise error.__cause__ from None
            raise self._transactions.at_commit(error) from error


def _ended_by_itself(action: int) -> UsageError:
    if action == TRANSACTION:
        return UsageError(
            "the body tried to begin, commit or roll back; its transaction is the ledger's, and nothing was written",
            code="transaction-ended",
            hint=_MEND,
        )
    return UsageError(
        "the body tried to attach another database; a commit over two files is not atomic, and nothing was written",
        code="attached",
        hint="write to one database; move what belongs to another one into a step or an effect",
    )
