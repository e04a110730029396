"""Staging through SQLAlchemy: a connection (Core) or a session (ORM), blocking or asyncio."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session, scoped_session

from counterfoil.ledgers.postgres.outbox_staging import numbered
from counterfoil.ports.outbox_store import Staging
from counterfoil.staging.postgres_state import placing
from counterfoil.staging.running import Rows, driver_module, no_connection, no_transaction, run

_BEGIN = "use `with session.begin():` or `with engine.begin() as connection:`"


def is_async(connection: Any) -> bool:
    """Whether the connection is one of asyncio."""
    # Whoever has one has imported this. We do not: without greenlet, which SQLAlchemy does not bring along, it raises.
    twins = sys.modules.get("sqlalchemy.ext.asyncio")
    return twins is not None and isinstance(
        connection, (twins.AsyncConnection, twins.AsyncSession, twins.async_scoped_session)
    )


def check(connection: Any, ledger: Any) -> None:
    """Check that intents can be staged here.

    Raises:
        UsageError: there is no open transaction, or it is another database.
    """
    awaited = is_async(connection)
    if isinstance(connection, scoped_session) or (awaited and callable(connection)):
        connection = connection()  # the session that is current in this scope
    if not isinstance(connection, (Connection, Session)) and not awaited:
        raise no_connection(connection)
    if not connection.in_transaction():
        raise no_transaction(_BEGIN)
    del ledger  # compared where the driver's own connection is at hand


def raw(connection: Any) -> Any:
    """Return the driver's own connection; a transaction of ours that lends one says which is beneath."""
    core = connection if isinstance(connection, Connection) else connection.connection()
    found = core.connection.driver_connection
    return getattr(found, "lent_connection", found)


def stage(connection: Any, staging: Staging, ledger: Any) -> list[bool]:
    """Write the intents."""
    core = connection if isinstance(connection, Connection) else connection.connection()
    found = raw(core)
    driver_module(found).check_inside(found, ledger)
    counted = core.dialect.driver == "asyncpg"
    postgres = core.dialect.name == "postgresql"

    def execute(sql: str, parameters: Sequence[Any]) -> Rows:
        result = core.exec_driver_sql(numbered(sql) if counted else sql, tuple(parameters))
        return [tuple(row) for row in result.fetchall()] if result.returns_rows else []

    if postgres:
        run(placing(found, ledger), execute)
    return run(staging, execute)


async def stage_async(connection: Any, staging: Staging, ledger: Any) -> list[bool]:
    """The same, awaited."""
    made: list[bool] = await connection.run_sync(lambda inner: stage(inner, staging, ledger))
    return made
