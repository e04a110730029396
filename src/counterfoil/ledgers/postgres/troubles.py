"""What an error of PostgreSQL means for the caller: did anything commit, may it be tried again, who mends it.

A server that still answers has told the truth: an `ERROR` means that the transaction was rolled back. A connection
that is lost under a question leaves its end unknown.
"""

from __future__ import annotations

from typing import Final

import psycopg

from counterfoil.errors import CommitUnknown, LedgerCorrupt, LedgerError, LedgerReadOnly, LedgerUnavailable, UsageError

# Rolled back, and likely to succeed when it is tried again: serialization failure, deadlock, and a session that has
# forgotten a statement that it kept.
AGAIN: Final = frozenset({"40001", "40P01", "26000"})
# The store itself says that it does not know: completion unknown, transaction resolution unknown.
_UNKNOWN: Final = frozenset({"40003", "08007"})
# At the server's end, not at that of one entry.
_OF_ALL: Final = ("08", "25", "40", "42", "53", "55", "57", "58", "XX")

_MENDS: Final = {
    "25006": "name the primary: this server, role or database takes no writes",
    "53100": "make room on the server's disk",
    "53200": "give the server more memory, or raise max_locks_per_transaction",
    "53300": "raise max_connections, give the URL a smaller pool=, or put a pooler in between",
    "55P03": "call again; if it stays so, find the transaction that holds the run (pg_locks)",
    "57014": "somebody cancelled it, or statement_timeout is shorter than a commit takes",
    "42501": "grant this role what docs/how-to/postgres.md lists",
    "3F000": "run `counterfoil migrate`",
    "42P01": "run `counterfoil migrate`",
    "42883": "run `counterfoil migrate`",
}
_CODES: Final = {
    "53100": "ledger-full",
    "55P03": "ledger-busy",
    "42501": "ledger-denied",
    "3F000": "schema-missing",
    "42P01": "schema-missing",
    "42883": "schema-missing",
}
_DAMAGED: Final = ("XX001", "XX002")


def lost(error: psycopg.Error) -> CommitUnknown:
    """Make the error for a question whose end is unknown."""
    return CommitUnknown(f"PostgreSQL did not say how the commit ended: {text(error)}")


def said(error: psycopg.Error) -> LedgerError:
    """Make the error for what a server said that is still there: nothing was recorded."""
    state = error.sqlstate or ""
    if state in _UNKNOWN:
        return lost(error)
    if state in _DAMAGED:
        return LedgerCorrupt(f"the database is damaged: {text(error)}", hint="stop, and restore a backup")
    if state == "25006":
        return LedgerReadOnly(f"the server takes no writes: {text(error)}", code="ledger-replica", hint=_MENDS[state])
    return LedgerUnavailable(
        f"PostgreSQL: {text(error)}",
        code=_CODES.get(state, "ledger-io"),
        hint=_MENDS.get(state, ""),
        effect_ran="no",
    )


def unreachable(error: psycopg.Error) -> LedgerUnavailable:
    """Make the error for a connection that could not be had: nothing was sent."""
    return LedgerUnavailable(
        f"no connection to PostgreSQL: {text(error)}",
        code="ledger-unreachable",
        hint="check host, port, user, password and database of the URL, and whether the server runs",
        effect_ran="no",
    )


def of_one_entry(error: psycopg.Error) -> bool:
    """Return whether one entry of a batch may be what the server does not take."""
    return bool(error.sqlstate) and not str(error.sqlstate).startswith(_OF_ALL)


def refused(error: psycopg.Error) -> UsageError:
    """Make the error for an entry that the server does not take."""
    return UsageError(f"it cannot be recorded: {text(error)}")


def text(error: psycopg.Error) -> str:
    """Return what happened in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    state = f" [{error.sqlstate}]" if error.sqlstate else ""
    return ("; ".join(lines) or type(error).__name__) + state


def not_awaited() -> CommitUnknown:
    """Make the error for a commit whose wait for a standby was cancelled: the standby may not have it."""
    return CommitUnknown("PostgreSQL committed, but was told not to wait for its standby")
