"""Staging through a connection of `psycopg`, blocking or asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from counterfoil.errors import UsageError
from counterfoil.ledgers.postgres.outbox_staging import numbered
from counterfoil.ports.outbox_store import Staging
from counterfoil.staging.postgres_state import check_kind, placing
from counterfoil.staging.running import Rows, no_connection, no_transaction, run, run_async

_BEGIN = "use `with connection.transaction():`, or a connection without autocommit"


def is_async(connection: Any) -> bool:
    """Whether the connection is one of asyncio."""
    return isinstance(connection, psycopg.AsyncConnection)


def check(connection: Any, ledger: Any) -> None:
    """Check that intents can be staged here.

    Raises:
        UsageError: it commits by itself, its transaction has failed, or the ledger is none of PostgreSQL.
    """
    if not isinstance(connection, (psycopg.Connection, psycopg.AsyncConnection)):
        raise no_connection(connection)
    check_kind(ledger)
    status = connection.info.transaction_status
    if status == TransactionStatus.INERROR:
        raise UsageError(
            "the transaction on this connection has failed; nothing was staged",
            code="no-transaction",
            hint="roll it back, or to a savepoint",
        )
    # Without autocommit the first statement begins one, and in a pipeline it may be on its way.
    first = status == TransactionStatus.IDLE or connection.pgconn.pipeline_status != PipelineStatus.OFF
    if status != TransactionStatus.INTRANS and (connection.autocommit or not first):
        raise no_transaction(_BEGIN)


check_inside = check


def raw(connection: Any) -> Any:
    """Return the driver's own connection."""
    return connection


def stage(connection: psycopg.Connection[Any], staging: Staging, ledger: Any) -> list[bool]:
    """Write the intents."""
    with connection.cursor(binary=_binary(connection), row_factory=tuple_row) as cursor:
        counted = isinstance(cursor, psycopg.RawCursor)

        def execute(sql: str, parameters: Sequence[Any]) -> Rows:
            cursor.execute(_said(sql, counted=counted), parameters)
            return cursor.fetchall()

        run(placing(connection, ledger), execute)
        return run(staging, execute)


async def stage_async(connection: psycopg.AsyncConnection[Any], staging: Staging, ledger: Any) -> list[bool]:
    """The same, awaited."""
    async with connection.cursor(binary=_binary(connection), row_factory=tuple_row) as cursor:
        counted = isinstance(cursor, psycopg.AsyncRawCursor)

        async def execute(sql: str, parameters: Sequence[Any]) -> Rows:
            await cursor.execute(_said(sql, counted=counted), parameters)
            return await cursor.fetchall()

        await run_async(placing(connection, ledger), execute)
        return await run_async(staging, execute)


def _binary(connection: Any) -> bool:
    # Cheaper to read, but for cursors that put the parameters into the text.
    return not issubclass(connection.cursor_factory, (psycopg.ClientCursor, psycopg.AsyncClientCursor))


@lru_cache(256)
def _said(sql: str, *, counted: bool) -> bytes:
    # For the connection's own kind of cursor: whoever chose it may need it, behind a pooler for example.
    return (numbered(sql) if counted else sql).encode()
