"""Staging through a connection of Django (`django.db.connection`), inside `transaction.atomic`."""

from __future__ import annotations

from typing import Any

from counterfoil.errors import UsageError
from counterfoil.ports.outbox_store import Staging
from counterfoil.staging.running import driver_module, no_connection, no_transaction

_BEGIN = "use `with transaction.atomic():`"


def is_async(connection: Any) -> bool:
    """Whether the connection is one of asyncio; Django has none."""
    del connection
    return False


def check(connection: Any, ledger: Any) -> None:
    """Check that intents can be staged here.

    Raises:
        UsageError: it is outside `atomic`, the transaction is to be rolled back, or it is another database.
    """
    if not hasattr(connection, "in_atomic_block"):
        raise no_connection(connection)
    if not connection.in_atomic_block:
        raise no_transaction(_BEGIN)
    if connection.needs_rollback:
        raise UsageError("this transaction is to be rolled back; nothing was staged", code="no-transaction")
    connection.ensure_connection()
    driver_module(connection.connection).check_inside(connection.connection, ledger)


def raw(connection: Any) -> Any:
    """Return the driver's own connection."""
    return connection.connection


def stage(connection: Any, staging: Staging, ledger: Any) -> list[bool]:
    """Write the intents."""
    made: list[bool] = driver_module(connection.connection).stage(connection.connection, staging, ledger)
    return made
