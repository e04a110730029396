"""Staging through a connection of `asyncpg`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counterfoil.ledgers.postgres.outbox_staging import numbered
from counterfoil.ports.outbox_store import Staging
from counterfoil.staging.postgres_state import check_kind, placing
from counterfoil.staging.running import Rows, no_connection, no_transaction, run_async

_BEGIN = "use `async with connection.transaction():`"


def is_async(connection: Any) -> bool:
    """Whether the connection is one of asyncio: all are."""
    del connection
    return True


def check(connection: Any, ledger: Any) -> None:
    """Check that intents can be staged here.

    Raises:
        UsageError: there is no open transaction, or the ledger is none of PostgreSQL.
    """
    if not hasattr(connection, "is_in_transaction"):
        raise no_connection(connection)
    check_kind(ledger)
    if not connection.is_in_transaction():
        raise no_transaction(_BEGIN)


def check_inside(connection: Any, ledger: Any) -> None:
    """Check a connection whose owner (SQLAlchemy) says that a transaction is open; its first statement may begin it."""
    del connection
    check_kind(ledger)


def raw(connection: Any) -> Any:
    """Return the driver's own connection."""
    return connection


async def stage_async(connection: Any, staging: Staging, ledger: Any) -> list[bool]:
    """Write the intents."""

    async def execute(sql: str, parameters: Sequence[Any]) -> Rows:
        return [tuple(row) for row in await connection.fetch(numbered(sql), *parameters)]

    await run_async(placing(connection, ledger), execute)
    return await run_async(staging, execute)
