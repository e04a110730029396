"""Running the statements of staging on a connection: the same for every driver, blocking or awaited."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

from counterfoil.errors import UsageError
from counterfoil.ports.outbox_store import Staging

Rows = Sequence[Sequence[Any]]

# Top-level package of a connection's class (or of one that it derives from), and who stages through it.
_DRIVERS: Final = {
    "sqlite3": "sqlite3",
    "apsw": "apsw",
    "psycopg": "psycopg",
    "asyncpg": "asyncpg",
    "sqlalchemy": "sqlalchemy",
    "django": "django",
}
_KNOWN: Final = "sqlite3, apsw, psycopg, asyncpg, SQLAlchemy and Django are known"


def driver_module(connection: Any) -> Any:
    """Return the module that stages through a connection: it has `check`, `raw`, `stage` and `is_async`.

    Raises:
        UsageError: it is no connection of a driver that is known.
    """
    return _module_of(type(connection))  # type: ignore[arg-type]  # types are hashable


@lru_cache(64)
def _module_of(kind: type) -> Any:
    for cls in kind.__mro__:
        name = _DRIVERS.get(cls.__module__.partition(".")[0])
        if name is not None:
            return import_module(f"counterfoil.staging.{name}")
    raise UsageError(f"{kind.__name__} is no connection that intents can be staged through", hint=_KNOWN)


def run(staging: Staging, execute: Callable[[str, Sequence[Any]], Rows]) -> list[bool]:
    """Run the statements; what the driver raises passes unchanged."""
    rows: Rows | None = None
    while True:
        try:
            sql, parameters = staging.send(rows)  # type: ignore[arg-type]
        except StopIteration as done:
            return list(done.value)
        rows = execute(sql, parameters)


async def run_async(staging: Staging, execute: Callable[[str, Sequence[Any]], Awaitable[Rows]]) -> list[bool]:
    """The same, awaited."""
    rows: Rows | None = None
    while True:
        try:
            sql, parameters = staging.send(rows)  # type: ignore[arg-type]
        except StopIteration as done:
            return list(done.value)
        rows = await execute(sql, parameters)


def no_connection(given: Any) -> UsageError:
    """Make the error for a cursor, or whatever else of a driver is no connection."""
    return UsageError(
        f"staging takes a connection, not {type(given).__module__}.{type(given).__name__}; nothing was staged",
        hint="give the connection that your transaction is open on",
    )


def no_transaction(mend: str) -> UsageError:
    """Make the error for a connection without an open transaction."""
    return UsageError(
        "there is no open transaction on this connection; nothing was staged",
        code="no-transaction",
        hint=mend,
    )
