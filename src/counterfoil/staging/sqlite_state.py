"""What can be found out about a SQLite connection of the caller's: which file, and how far its transaction has come."""

from __future__ import annotations

from typing import Any, Final

from counterfoil.errors import UsageError
from counterfoil.ledgers.sqlite.presence import identity

NONE: Final = "none"
READ: Final = "read"
WRITE: Final = "write"

_MEND: Final = "begin it with BEGIN IMMEDIATE, or write your own rows before you read"


def refuse_reader(state: str) -> None:
    """Refuse a transaction that has read and not yet written.

    It sees the database as it was when it first read. If anybody has committed since, SQLite refuses its first
    write, and no waiting helps.

    Raises:
        UsageError: it has read.
    """
    if state == READ:
        raise UsageError(
            "this deferred transaction has read already, so its first write may be refused; nothing was staged",
            code="deferred-transaction",
            hint=_MEND,
        )


def check_place(path: str | None, ledger: Any, engine: str) -> None:
    """Check that a connection is open on the ledger's own file, through the same SQLite library.

    Raises:
        UsageError: it is another file, or another library, which would break the ledger's locks.
    """
    at = getattr(ledger, "path", None)
    if at is None:
        raise UsageError(
            "this connection is one of SQLite, the ledger is not", hint="stage through the ledger's own database"
        )
    if path != at and (path is None or identity(path) != identity(at)):
        raise UsageError(
            f"this connection is open on {path or 'a database in memory'}, the outbox is in {at}; nothing was staged",
            hint="the intent has to commit with your rows: use one database for both",
        )
    if ledger.engine != engine:
        raise UsageError(
            f"this connection belongs to {engine}, the ledger has the same file open with {ledger.engine};"
            " two SQLite libraries on one file break each other's locks",
            hint=f"open the outbox with ?engine={engine}",
        )
