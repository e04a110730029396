"""Owners in SQLite: a life is proved to be over by the lock that died with its process.

The lock is taken before the life is registered, so a registered life whose lock file is missing has ended. An
epoch that is not registered here is over only if its lock file is there and free: without a file nothing is
proved, for it may belong to another ledger.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

from counterfoil.errors import CommitUnknown, LedgerUnavailable, UsageError
from counterfoil.ledgers.rows import OwnerRow
from counterfoil.ledgers.sqlite.beside import Beside
from counterfoil.ledgers.sqlite.database import Database
from counterfoil.ledgers.sqlite.engines import Connection
from counterfoil.ledgers.sqlite.generations import Generations
from counterfoil.ledgers.sqlite.reader import Reader
from counterfoil.ledgers.sqlite.transactions import Transactions
from counterfoil.ledgers.sqlite.writer import LIVE, RETIRED

T = TypeVar("T")

_ADVANCE: Final = "UPDATE counterfoil_ledger SET generation = ? WHERE id = 1"
_REGISTER: Final = "INSERT INTO counterfoil_owner (epoch, label, since, retired) VALUES (?, ?, ?, 0)"
_RETIRE: Final = "UPDATE counterfoil_owner SET retired = 1 WHERE epoch = ?"


class Lives:
    """Registers, retires and observes owners.

    Args:
        database: where they are kept.
        transactions: how that is written.
        reader: how that is read.
        beside: where their locks are.
        generations: advanced by each registration and retirement.
    """

    def __init__(
        self,
        database: Database,
        *,
        transactions: Transactions,
        reader: Reader,
        beside: Beside,
        generations: Generations,
    ) -> None:
        self._database = database
        self._transactions = transactions
        self._reader = reader
        self._beside = beside
        self._generations = generations
        self._own: set[str] = set()

    def register(self, label: str) -> str:
        """Register a life, durably, with its lock held, and return its fresh epoch."""
        self._database.usable()
        if not label.isprintable():
            raise UsageError(f"{label!r} is no label for an owner", hint="use printable text")
        held: list[str] = []

        def work(connection: Connection) -> int:
            present = self._generations.present(connection)
            if present == 0:
                self._beside.advance(0)  # or a crash before the file follows would look like a restore
            epoch = f"{present + 1}.{os.urandom(4).hex()}"
            self._beside.hold(epoch)
            held.append(epoch)
            connection.execute(_REGISTER, (epoch, label, time.time()))
            connection.execute(_ADVANCE, (present + 1,))
            return present + 1

        try:
            with self._beside.turn():
                self._advanced(self._write(work))
        except BaseException:
            for epoch in held:
                self._beside.let_go(epoch)
            raise
        self._own.add(held[0])
        return held[0]

    def retire(self, epoch: str) -> None:
        """End an own life; its lock is given back even if that cannot be recorded."""
        self._database.usable()
        if epoch not in self._own:
            return

        def work(connection: Connection) -> int:
            present = self._generations.present(connection) + 1
            connection.execute(_RETIRE, (epoch,))
            connection.execute(_ADVANCE, (present,))
            return present

        try:
            with self._beside.turn():
                self._advanced(self._write(work))
        finally:
            self._own.discard(epoch)
            self._beside.let_go(epoch)

    def _advanced(self, generation: int) -> None:
        self._generations.advanced(generation)
        self._beside.advance(generation)

    def gone(self, epoch: str) -> bool:
        """Return True only if a life is proved to be over; it is then retired durably.

        `""` is no life, so nobody is there to wait for.

        Raises:
            LedgerReadOnly: it is over, but that cannot be recorded.
        """
        self._database.usable()
        if epoch == "":
            return True
        if self._beside.held_here(epoch):
            return False
        state = self._state(epoch)
        if state == RETIRED:
            return True
        over = self._beside.over(epoch, remove=False)
        if over is False or (over is None and state != LIVE):
            return False
        self._write(lambda connection: connection.execute(_RETIRE, (epoch,)))
        self._beside.over(epoch, remove=True)
        return True

    def live(self, epoch: str) -> bool:
        """Return whether an own life may still decide."""
        self._database.usable()
        return epoch in self._own and not self._transactions.sync_failed and self._state(epoch) == LIVE

    def owners(self) -> list[OwnerRow]:
        """Return the lives that are not known to be over, oldest first."""
        found = self._reader.query(
            lambda connection: connection.execute(
                "SELECT epoch, label, since FROM counterfoil_owner WHERE retired = 0 ORDER BY id"
            )
        )
        return [
            OwnerRow(epoch=epoch, label=label, since=since, alive=self._alive(epoch)) for epoch, label, since in found
        ]

    def let_go(self) -> None:
        """Give back the locks of all own lives: others then find them gone."""
        for epoch in self._own:
            self._beside.let_go(epoch)
        self._own.clear()

    def _alive(self, epoch: str) -> bool:
        return self._beside.held_here(epoch) or self._beside.over(epoch, remove=False) is False

    def _state(self, epoch: str) -> int | None:
        found = self._reader.query(
            lambda connection: connection.execute("SELECT retired FROM counterfoil_owner WHERE epoch = ?", (epoch,))
        )
        return found[0][0] if found else None

    def _write(self, work: Callable[[Connection], T]) -> T:
        with self._database.write_lock:
            try:
                return self._transactions.run(work)
            except CommitUnknown as error:
                # Nobody settles this: the caller acts as if it had not happened, which is safe either way.
                raise LedgerUnavailable(str(error), code=error.code, effect_ran="no") from error
            finally:
                self._transactions.forget()
