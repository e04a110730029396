"""What a SQLite error means for the caller, which depends on how far the transaction had come."""

from __future__ import annotations

from typing import Final

from counterfoil.errors import (
    CommitUnknown,
    LedgerCorrupt,
    LedgerError,
    LedgerReadOnly,
    LedgerUnavailable,
)
from counterfoil.ledgers.sqlite.engines import (
    BUSY,
    CANTOPEN,
    CORRUPT,
    FULL,
    LOCKED,
    NOTADB,
    PROTOCOL,
    READONLY,
    TOOBIG,
    StoreError,
)

# After these the statement may be tried again: somebody else holds what it needs.
WAITS: Final = frozenset({BUSY, LOCKED, PROTOCOL})
# What is wrong with a statement itself: it was undone before any COMMIT.
OF_THE_STATEMENT: Final = frozenset({1, TOOBIG, 19, 20, 21, 25})
# These say for sure that a COMMIT has not happened. Whatever is not listed leaves that open.
_NOT_COMMITTED: Final = frozenset({BUSY, LOCKED, FULL, READONLY})


def before_commit(error: StoreError) -> LedgerError:
    """Make the error for a transaction that was rolled back before its COMMIT: definite."""
    if error.code in WAITS:
        return LedgerUnavailable(
            f"another connection holds the database: {error}",
            code="ledger-busy",
            hint="find the long transaction, or give the URL a larger timeout=",
            effect_ran="no",
        )
    if error.code == FULL:
        return LedgerUnavailable(
            f"no room for the record: {error}",
            code="ledger-full",
            hint="make room on the disk",
            effect_ran="no",
        )
    if error.code in (READONLY, CANTOPEN):
        return LedgerReadOnly(
            f"the database takes no writes: {error}",
            hint="the file and its folder must be writable for this user",
        )
    if error.code in (CORRUPT, NOTADB):
        return corrupt(error)
    return LedgerUnavailable(f"SQLite: {error}", code="ledger-io", effect_ran="no")


def at_commit(error: StoreError) -> LedgerError:
    """Make the error for a COMMIT that failed: unknown, unless SQLite says that it did not happen."""
    if error.code in _NOT_COMMITTED:
        return before_commit(error)
    return CommitUnknown(f"SQLite did not say how the commit ended: {error}")


def while_reading(error: StoreError) -> LedgerError:
    """Make the error for a read that failed."""
    if error.code in (CORRUPT, NOTADB):
        return corrupt(error)
    return LedgerUnavailable(f"the ledger cannot be read: {error}", effect_ran="no")


def corrupt(what: object) -> LedgerCorrupt:
    """Make the error for a database whose parts do not fit together."""
    return LedgerCorrupt(
        f"the database is damaged: {what}",
        hint="stop, keep the file and its -wal, and restore a backup",
    )
