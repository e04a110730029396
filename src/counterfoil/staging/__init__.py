"""Staging through the caller's own open transaction. The driver is known by the connection, and never imported here."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from counterfoil.errors import UsageError

# Module of a connection's class (or of one that it derives from), up to a dot, and who stages through it.
_DRIVERS: Final = {
    "sqlite3": "sqlite3",
    "apsw": "apsw",
    "psycopg": "psycopg",
    "psycopg_pool": "psycopg",
    "asyncpg": "asyncpg",
    "sqlalchemy": "sqlalchemy",
    "django": "django",
}
_HINT: Final = "sqlite3, apsw, psycopg, asyncpg, SQLAlchemy and Django are known"


def driver_of(connection: Any) -> Any:
    """Return the module that stages through a connection.

    Raises:
        UsageError: it is no connection of a driver that is known.
    """
    for cls in type(connection).__mro__:
        name = _DRIVERS.get(cls.__module__.partition(".")[0])
        if name is not None:
            return import_module(f"counterfoil.staging.{name}")
    raise UsageError(f"{type(connection).__name__} is no connection that intents can be staged through", hint=_HINT)
