"""Giving space back: a finished run keeps its tombstone and what it names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from counterfoil.errors import UsageError
from counterfoil.ledgers.postgres import names, writer
from counterfoil.ledgers.postgres.connections import Connection
from counterfoil.ledgers.postgres.rows import CODES
from counterfoil.protocol.records import EVENT, Entry

_LOCK: Final = "SELECT u.id, u.buried FROM :schema.run u WHERE u.namespace = %s AND u.run = %s FOR NO KEY UPDATE"
_PRUNABLE: Final = """
SELECT EXISTS (SELECT FROM :schema.record r WHERE r.run = %(run)s AND r.kind = 17)
    OR NOT EXISTS (SELECT FROM :schema.record r WHERE r.run = %(run)s AND r.kind <> %(delivered)s)
"""
_DROP: Final = "DELETE FROM :schema.record WHERE run = %s AND slot = ANY (%s) AND slot <> %s"


def bury(
    connection: Connection, schema: str, *, place: tuple[str, str], entries: Sequence[Entry], drop: Sequence[str]
) -> None:
    """Prune one page of a run inside a transaction.

    Args:
        connection: in the transaction.
        schema: the ledger's schema.
        place: namespace and run.
        entries: the tombstone and what is kept.
        drop: slots whose records are deleted; never the tombstone's.

    Raises:
        UsageError: the run is neither finished nor one that holds deliveries alone.
    """
    quoted = names.quoted(schema)

    def filled(statement: str) -> bytes:
        return statement.replace(":schema", quoted).encode()

    run = connection.execute(filled(_LOCK), place).fetchone()
    values = {"run": run and run[0], "delivered": CODES[EVENT, "delivered"]}
    if run is None or not (run[1] or connection.execute(filled(_PRUNABLE), values).fetchone() == (True,)):
        raise UsageError(f"run {place[1]!r} is not finished", hint="only finished runs are pruned")
    answer = writer.ask(connection, writer.question(schema), entries, patience_s=0, keeping=True)
    for reply in writer.replies(answer, entries):
        if isinstance(reply, BaseException):
            raise reply
    connection.execute(filled(_DROP), (run[0], list(drop), entries[0].slot))
