"""Write transactions: begun, committed and rolled back in one place, so that errors mean the same everywhere.

An interrupt (Ctrl-C) inside a transaction rolls it back before it is passed on. If it fell right behind the
COMMIT, the transaction stands; doing the same appends again then finds their own records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from counterfoil.errors import CommitUnknown, LedgerError
from counterfoil.ledgers.sqlite import troubles
from counterfoil.ledgers.sqlite.database import Database
from counterfoil.ledgers.sqlite.engines import Connection, StoreError
from counterfoil.ledgers.sqlite.generations import Generations

T = TypeVar("T")


class Transactions:
    """Runs work in write transactions on the connection that writes.

    Attributes:
        view: changes whenever what was learnt in earlier transactions may no longer hold.
        sync_failed: whether a commit of this life may not have reached the disk.
    """

    def __init__(self, database: Database, generations: Generations) -> None:
        self.view = 0
        self.sync_failed = False
        self._database = database
        self._generations = generations
        self._seen: tuple[int, int] | None = None

    def run(self, work: Callable[[Connection], T], *, accepting: bool = False) -> T:
        """Do work in one write transaction, durable on return. The caller holds the write lock.

        Args:
            work: what to do.
            accepting: do it also where a person must accept the ledger first.

        Raises:
            CommitUnknown: SQLite did not say how the commit ended.
            LedgerError: anything else; nothing was recorded.
        """
        database = self._database
        database.usable()
        connection = database.writing()
        try:
            self._begin(connection)
            self._look(connection)
            if not accepting:
                self._generations.refuse()
            answer = work(connection)
            database.check_unmoved()
        except StoreError as error:
            self.roll_back(connection)
            raise troubles.before_commit(error) from error
        except BaseException:
            self.roll_back(connection)
            raise
        self._commit(connection)
        if connection.engine == "apsw" and self._seen is not None:
            # Its number counts this commit too, and no other yet: this connection sees others when it begins.
            self._seen = (database.writes_opened, connection.version())
        return answer

    def alone(self, sql: str, values: Sequence[Any], *, guards: tuple[Any, ...], count: int = 1) -> int | None:
        """Run an INSERT that is a transaction of its own, durable on return. The caller holds the write lock.

        Args:
            sql: the statement; behind the rows it takes the generation that it must find, and the guards.
            values: what to insert.
            guards: what else it checks.
            count: of the rows.

        Returns:
            The last row's id; None: it did not add all of them, and a transaction has to find out why.

        Raises:
            CommitUnknown: SQLite did not say how the commit ended.
            LedgerError: anything else; nothing was recorded.
        """
        generation = self._generations.sound()
        if generation is None or self.sync_failed:
            return None
        database = self._database
        connection = database.writing()
        database.check_unmoved()
        try:
            added, position = connection.insert(sql, (*values, generation, *guards))
        except StoreError as error:
            self.roll_back(connection)
            if error.code in troubles.WAITS or error.code in troubles.OF_THE_STATEMENT:
                return None
            raise self.at_commit(error) from error
        return position if added == count else None

    def roll_back(self, connection: Connection) -> None:
        """Leave no transaction open, and trust nothing that was learnt in it."""
        self._seen = None
        if connection.in_transaction():
            try:
                connection.command("ROLLBACK")
            except StoreError:
                if connection.in_transaction():
                    raise

    def forget(self) -> None:
        """Look everything up again: this connection itself has changed what is cached."""
        self._seen = None

    def _begin(self, connection: Connection) -> None:
        try:
            connection.command("BEGIN IMMEDIATE")
        except StoreError as error:
            if connection.in_transaction():  # an interrupt on top of an interrupt left it open
                self.roll_back(connection)
            elif error.code not in troubles.WAITS:
                raise
            self._database.patiently(lambda: connection.command("BEGIN IMMEDIATE"))

    def _look(self, connection: Connection) -> None:
        # Unchanged since our own last commit: no other connection has committed, and inside the transaction
        # nobody else can.
        seen = (self._database.writes_opened, connection.version())
        if seen != self._seen:
            self.view += 1
            self._generations.look(connection)
            self._seen = seen

    def command_commit(self, connection: Connection) -> None:
        """Commit; what SQLite answers otherwise is for `at_commit`."""
        try:
            connection.command("COMMIT")
        except StoreError as error:
            # A busy COMMIT leaves the transaction open: it is committed again.
            if error.code not in troubles.WAITS or not connection.in_transaction():
                raise
            self._database.patiently(lambda: connection.command("COMMIT"))

    def _commit(self, connection: Connection) -> None:
        try:
            self.command_commit(connection)
        except StoreError as error:
            self.roll_back(connection)
            raise self.at_commit(error) from error
        except BaseException:
            self.roll_back(connection)
            raise

    def at_commit(self, error: StoreError) -> LedgerError:
        """Make the error for a COMMIT that failed, and remember where its sync may have."""
        said = troubles.at_commit(error)
        if isinstance(said, CommitUnknown):
            self.sync_failed = True
        return said
