"""Staging through a connection of Python's `sqlite3`."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from counterfoil.ports.outbox_store import Staging
from counterfoil.staging.running import Rows, no_connection, no_transaction, run
from counterfoil.staging.sqlite_state import NONE, READ, WRITE, check_place, refuse_reader

_BEGIN = "write your own row first, or begin with BEGIN IMMEDIATE; the intent commits with it"


class _Seen(Exception):
    """Ends a backup that was begun only for what its first step says."""


def check(connection: Any, ledger: Any) -> None:
    """Check that intents can be staged here.

    Raises:
        UsageError: there is no open transaction, it has read before it wrote, or it is another database.
    """
    if not isinstance(connection, sqlite3.Connection):
        raise no_connection(connection)
    check_place(path_of(connection), ledger, "sqlite3")
    if not connection.in_transaction:
        raise no_transaction(_BEGIN)
    refuse_reader(state_of(connection))


def check_inside(connection: sqlite3.Connection, ledger: Any) -> None:
    """Check a connection whose owner (SQLAlchemy, Django) says that a transaction is open.

    Raises:
        UsageError: it commits by itself, it has read before it wrote, or it is another database.
    """
    check_place(path_of(connection), ledger, "sqlite3")
    if connection.in_transaction:
        refuse_reader(state_of(connection))
    elif connection.isolation_level is None:
        # Else the first statement that writes begins one.
        raise no_transaction(_BEGIN)


def is_async(connection: Any) -> bool:
    """Whether the connection is one of asyncio; none is."""
    del connection
    return False


def raw(connection: Any) -> Any:
    """Return the driver's own connection."""
    return connection


def stage(connection: sqlite3.Connection, staging: Staging, ledger: Any) -> list[bool]:
    """Write the intents."""
    del ledger  # `check` has compared it
    # A cursor of our own: whatever the caller's row factory makes, ours are tuples.
    cursor = sqlite3.Cursor(connection)
    cursor.row_factory = None

    def execute(sql: str, parameters: Sequence[Any]) -> Rows:
        return cursor.execute(sql, parameters).fetchall()

    try:
        return run(staging, execute)
    finally:
        cursor.close()


def path_of(connection: sqlite3.Connection) -> str | None:
    """Return the file of a connection's main database."""
    cursor = sqlite3.Cursor(connection)
    cursor.row_factory = None
    for _, name, path in cursor.execute("PRAGMA database_list").fetchall():
        if name == "main":
            return path or None
    return None


def state_of(connection: sqlite3.Connection) -> str:
    """Say how far the open transaction has come: `none`, `read` or `write`.

    `sqlite3` has no name for SQLite's `txn_state`, so two calls are tried that SQLite refuses by it: a step of a
    backup from a connection that is writing, and a checkpoint from one that has a snapshot.
    """
    steps: list[int] = []

    def seen(status: int, _remaining: int, _total: int) -> None:
        steps.append(status)
        raise _Seen

    target = sqlite3.connect(":memory:")
    try:
        connection.backup(target, pages=1, progress=seen, sleep=0)
    except _Seen:
        pass
    finally:
        target.close()
    if steps and steps[0] in (5, 6):
        return WRITE
    try:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").close()
    except sqlite3.OperationalError as error:
        # LOCKED: a snapshot is open.
        if error.sqlite_errorcode & 0xFF == 6:
            return READ
        raise
    return NONE
