"""Staging through a connection of `apsw`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from counterfoil.ports.outbox_store import Staging
from counterfoil.staging.running import Rows, no_connection, no_transaction, run
from counterfoil.staging.sqlite_state import NONE, READ, WRITE, check_place, refuse_reader

_BEGIN = "begin with BEGIN IMMEDIATE; the intent commits with it"
_STATES = {0: NONE, 1: READ, 2: WRITE}


def check(connection: Any, ledger: Any) -> None:
    """Check that intents can be staged here; see `counterfoil.staging.sqlite3.check`."""
    if not isinstance(connection, apsw.Connection):
        raise no_connection(connection)
    check_place(connection.filename or None, ledger, "apsw")
    if not connection.in_transaction:
        raise no_transaction(_BEGIN)
    refuse_reader(_STATES[connection.txn_state("main")])


def is_async(connection: Any) -> bool:
    """Whether the connection is one of asyncio."""
    return connection.is_async if hasattr(connection, "is_async") else False


def raw(connection: Any) -> Any:
    """Return the driver's own connection."""
    return connection


def stage(connection: apsw.Connection, staging: Staging, ledger: Any) -> list[bool]:
    """Write the intents."""
    del ledger  # `check` has compared it
    cursor = connection.cursor()
    # Whatever the caller's tracers make of rows, ours are tuples.
    cursor.row_trace = None
    cursor.exec_trace = None

    def execute(sql: str, parameters: Sequence[Any]) -> Rows:
        return cursor.execute(sql, tuple(parameters)).fetchall()

    return run(staging, execute)
