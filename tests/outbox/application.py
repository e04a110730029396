"""The application's own connection, of either library."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw


@contextmanager
def connected(path: Path, engine: str) -> Iterator[Any]:
    """Open a connection that begins and commits only when it is told to."""
    if engine == "apsw":
        connection: Any = apsw.Connection(str(path))
        connection.set_busy_timeout(60_000)
    else:
        connection = sqlite3.connect(path, timeout=60, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()
