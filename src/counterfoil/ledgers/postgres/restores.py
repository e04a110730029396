"""A ledger that went back in time, and a person's acceptance of it."""

from __future__ import annotations

import time
from typing import Final

import msgspec
import psycopg

from counterfoil.errors import LedgerUnavailable
from counterfoil.ledgers.postgres import names, troubles, writer
from counterfoil.ledgers.postgres.connections import Connection
from counterfoil.ledgers.postgres.pool import Pool
from counterfoil.ledgers.postgres.reader import Reader
from counterfoil.protocol import slots
from counterfoil.protocol.records import LEDGER, Draft, entry_of

_PHASE: Final = "accepted-restore"


class Restores:
    """Tells whether a ledger went back in time, and records that a person accepts it.

    Args:
        pool: where connections are taken from.
        reader: how the ledger is read.
        schema: the ledger's schema.
    """

    def __init__(self, pool: Pool, *, reader: Reader, schema: str) -> None:
        self._pool = pool
        self._reader = reader
        self._quoted = names.quoted(schema)
        self._question = writer.question(schema)

    def restored(self) -> str | None:
        """Return why this ledger takes no records, or None."""
        found: str | None = self._reader.query("SELECT :schema.moved()")[0][0]
        return found

    def accepted_generation(self) -> int:
        """Return the latest accepted generation, 0 if there was none."""
        return int(self._reader.query("SELECT accepted FROM :schema.ledger")[0][0])

    def accept(self, *, by: str, reason: str) -> int:
        """Record, durably, that a person accepts the ledger as it is; return the new generation.

        All lives end with it: what they have read may be no longer there. Positions go on far above those that were
        given out in the part that is lost.
        """
        with self._pool.take() as connection:
            try:
                with connection.transaction():
                    generation = self._accept(connection, by=by, reason=reason)
            except psycopg.Error as error:
                if connection.idle:
                    raise troubles.said(error) from error
                raise LedgerUnavailable(
                    f"whether it was accepted is unknown: {troubles.text(error)}",
                    hint="run `counterfoil doctor`, and accept it again if it still says so",
                ) from error
            if connection.wait_cancelled:
                raise LedgerUnavailable(
                    "it was accepted, but a standby may not know it", hint="run `counterfoil doctor`"
                )
        return generation

    def _accept(self, connection: Connection, *, by: str, reason: str) -> int:
        found = connection.execute(f"SELECT {self._quoted}.accept()".encode()).fetchone()
        assert found is not None
        generation = int(found[0])
        said = msgspec.json.encode({"by": by, "generation": generation, "reason": reason}, order="sorted")
        draft = Draft(slot=slots.accepted_restore(generation), kind=LEDGER, phase=_PHASE, body=said)
        place = (slots.SYSTEM_NAMESPACE, slots.SYSTEM_RUN)
        entry = entry_of(draft, *place, epoch="", append_id=generation, at=time.time())
        (reply,) = writer.replies(writer.ask(connection, self._question, [entry], patience_s=0), [entry])
        if isinstance(reply, BaseException):
            raise reply
        return generation
