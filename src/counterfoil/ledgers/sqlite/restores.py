"""A person's acceptance of a ledger that went back in time."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from counterfoil.ledgers.sqlite.beside import Beside
from counterfoil.ledgers.sqlite.database import Database
from counterfoil.ledgers.sqlite.engines import Connection
from counterfoil.ledgers.sqlite.generations import Generations
from counterfoil.ledgers.sqlite.reader import Reader
from counterfoil.ledgers.sqlite.transactions import Transactions
from counterfoil.ledgers.sqlite.writer import Writer
from counterfoil.ledgers.submissions import Submission
from counterfoil.protocol import slots
from counterfoil.protocol.records import LEDGER, Entry, checksum

_PHASE: Final = "accepted-restore"


class Restores:
    """Tells whether a ledger went back in time, and records that a person accepts it.

    Args:
        database: the ledger's file.
        transactions: how it is written.
        reader: how it is read.
        writer: fills the slot of the acceptance.
        beside: where the generation is kept.
        generations: what judges it.
    """

    def __init__(
        self,
        database: Database,
        *,
        transactions: Transactions,
        reader: Reader,
        writer: Writer,
        beside: Beside,
        generations: Generations,
    ) -> None:
        self._database = database
        self._transactions = transactions
        self._reader = reader
        self._writer = writer
        self._beside = beside
        self._generations = generations

    def restored(self) -> str | None:
        """Return why this ledger takes no records, or None."""
        # The file is read before the database, so it cannot be ahead by a registration in between; the
        # first registration of all makes the file, hence the second look.
        return self._look() and self._look()

    def _look(self) -> str | None:
        kept = self._beside.generation()
        present = self._reader.query(self._generations.present)
        return self._generations.judge(present, kept)

    def accept(self, *, by: str, reason: str) -> int:
        """Record, durably, that a person accepts the ledger as it is; return the new generation.

        It may be called where nothing was noticed: not every restore can be.
        """
        self._database.usable()

        def work(connection: Connection) -> int:
            kept = self._beside.generation() or 0
            generation = max(kept, self._generations.present(connection), self._generations.known) + 1
            connection.execute(
                "UPDATE counterfoil_ledger SET generation = ?, accepted = ? WHERE id = 1",
                (generation, generation),
            )
            entry = _entry(generation, by=by, reason=reason)
            (reply,) = self._writer.fill(connection, [Submission(entry, settle=False)])
            if isinstance(reply, BaseException):
                raise reply
            return generation

        with self._beside.turn(), self._database.write_lock:
            try:
                generation = self._transactions.run(work, accepting=True)
            finally:
                self._transactions.forget()
            self._beside.advance(generation)
            self._generations.accepted(generation)
        return generation

    def accepted_generation(self) -> int:
        """Return the latest accepted generation, 0 if there was none."""
        found = self._reader.query(lambda connection: connection.execute("SELECT accepted FROM counterfoil_ledger"))
        return int(found[0][0])


def _entry(generation: int, *, by: str, reason: str) -> Entry:
    said = {"by": by, "generation": generation, "reason": reason}
    body = msgspec.json.encode(said, order="sorted")
    slot = slots.accepted_restore(generation)
    namespace, run = slots.SYSTEM_NAMESPACE, slots.SYSTEM_RUN
    return Entry(
        namespace=namespace,
        run=run,
        slot=slot,
        kind=LEDGER,
        phase=_PHASE,
        body=body,
        epoch="",
        append_id=generation,
        at=time.time(),
        check=checksum(namespace, run, slot, kind=LEDGER, phase=_PHASE, body=body, epoch="", append_id=generation),
    )
