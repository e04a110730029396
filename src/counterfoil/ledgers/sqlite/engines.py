"""Two SQLite libraries behind one small face: `apsw`, which carries its own, and Python's `sqlite3`.

A connection is used by one thread at a time; whoever holds it sees to that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

BUSY: Final = 5
LOCKED: Final = 6
READONLY: Final = 8
IOERR: Final = 10
CORRUPT: Final = 11
FULL: Final = 13
CANTOPEN: Final = 14
PROTOCOL: Final = 15
TOOBIG: Final = 18
CONSTRAINT: Final = 19
NOTADB: Final = 26

# What a statement does, as an authorizer is told.
TRANSACTION: Final = 22
ATTACH: Final = 24
DETACH: Final = 25
_ALLOW: Final = 0
_DENY: Final = 1

# Statements kept compiled: one for each batch size up to 64, and the few dozen others.
STATEMENTS: Final = 200
# How long SQLite itself waits for a lock; longer waits are loops of ours, which can be interrupted.
BUSY_STEP_MS: Final = 100

Row = tuple[Any, ...]


class StoreError(Exception):
    """What SQLite answered when it did not do as told.

    Attributes:
        code: the primary result code.
        extended: the extended result code.
    """

    def __init__(self, message: str, extended: int) -> None:
        super().__init__(message)
        self.extended = extended
        self.code = extended & 0xFF


class Connection(Protocol):
    """One connection to a database."""

    engine: str

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run one statement to its end and return its rows."""
        ...

    def command(self, sql: str) -> None:
        """Run one statement that has neither parameters nor rows."""
        ...

    def insert(self, sql: str, parameters: Sequence[Any]) -> tuple[int, int]:
        """Run an INSERT; return how many rows it added and the rowid of the last."""
        ...

    def version(self) -> int:
        """Return a number that changes with every commit of another connection, and perhaps with our own."""
        ...

    def in_transaction(self) -> bool:
        """Return whether a transaction is open."""
        ...

    def lend(self, refuses: Callable[[int], bool]) -> Any:
        """Return the driver's own connection; `refuses` is asked about each statement compiled from now on.

        It gets SQLite's code for what the statement does (`TRANSACTION`, `ATTACH` …).
        """
        ...

    def take_back(self) -> None:
        """End `lend`: statements of ours are not asked about, and rows come as they are."""
        ...

    def close(self) -> None:
        """Close it, whatever is still open in it."""
        ...


class _Apsw:
    engine = "apsw"

    def __init__(self, path: str) -> None:
        import apsw

        self._error: type[Exception] = apsw.Error
        try:
            self._connection = apsw.Connection(path, statementcachesize=STATEMENTS)
            self._connection.set_busy_timeout(BUSY_STEP_MS)
            self._cursor = self._connection.cursor()
        except apsw.Error as error:
            raise self._told(error) from error

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        try:
            # apsw steps lazily: without fetching, a statement stops at its first row.
            return self._cursor.execute(sql, parameters).fetchall()
        except self._error as error:
            raise self._told(error) from error

    def command(self, sql: str) -> None:
        try:
            self._cursor.execute(sql)
        except self._error as error:
            raise self._told(error) from error

    def insert(self, sql: str, parameters: Sequence[Any]) -> tuple[int, int]:
        try:
            self._cursor.execute(sql, parameters)
        except self._error as error:
            raise self._told(error) from error
        return self._connection.changes(), self._connection.last_insert_rowid()

    def version(self) -> int:
        # Without a statement of its own, unlike the pragma; it counts our own commits too.
        return self._connection.data_version()

    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def lend(self, refuses: Callable[[int], bool]) -> Any:
        self._connection.authorizer = lambda action, *_rest: _DENY if refuses(action) else _ALLOW
        return self._connection

    def take_back(self) -> None:
        try:
            self._connection.authorizer = None
            self._connection.row_trace = None
            self._connection.exec_trace = None
        except self._error as error:
            raise self._told(error) from error

    def close(self) -> None:
        self._connection.close(force=True)

    @staticmethod
    def _told(error: Exception) -> StoreError:
        extended: int = getattr(error, "extendedresult", 1)
        return StoreError(str(error), extended)


class _Sqlite3:
    engine = "sqlite3"

    def __init__(self, path: str) -> None:
        import sqlite3

        self._error: type[Exception] = sqlite3.Error
        try:
            self._connection = sqlite3.connect(
                path,
                timeout=BUSY_STEP_MS / 1000,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=STATEMENTS,
            )
            self._cursor = self._connection.cursor()
        except sqlite3.Error as error:
            raise self._told(error) from error

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        try:
            return self._cursor.execute(sql, parameters).fetchall()
        except self._error as error:
            raise self._told(error) from error

    def command(self, sql: str) -> None:
        try:
            self._cursor.execute(sql)
        except self._error as error:
            raise self._told(error) from error

    def insert(self, sql: str, parameters: Sequence[Any]) -> tuple[int, int]:
        try:
            cursor = self._cursor.execute(sql, parameters)
        except self._error as error:
            raise self._told(error) from error
        return cursor.rowcount, cursor.lastrowid or 0

    def version(self) -> int:
        return int(self.execute("PRAGMA data_version")[0][0])

    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def lend(self, refuses: Callable[[int], bool]) -> Any:
        self._connection.set_authorizer(lambda action, *_rest: _DENY if refuses(action) else _ALLOW)
        return self._connection

    def take_back(self) -> None:
        try:
            self._connection.set_authorizer(None)
            self._connection.text_factory = str
        except self._error as error:
            raise self._told(error) from error

    def close(self) -> None:
        self._connection.close()

    @staticmethod
    def _told(error: Exception) -> StoreError:
        extended: int = getattr(error, "sqlite_errorcode", 1)
        return StoreError(str(error), extended)


def connect(engine: str, path: str) -> Connection:
    """Open a connection, creating the file if it is not there.

    Args:
        engine: `apsw` or `sqlite3`.
        path: absolute, so that it can never be taken for a `file:` URI.
    """
    return _Apsw(path) if engine == "apsw" else _Sqlite3(path)


def library_version(engine: str) -> tuple[int, int, int]:
    """Return the version of the SQLite library behind an engine."""
    if engine == "apsw":
        import apsw

        text = apsw.sqlite_lib_version()
    else:
        import sqlite3

        text = sqlite3.sqlite_version
    major, minor, patch = (int(part) for part in text.split(".")[:3])
    return major, minor, patch


def resets_wal_wrongly(version: tuple[int, int, int]) -> bool:
    """Return whether a SQLite has the WAL-reset defect: two processes can corrupt a database.

    It came with WAL in 3.7.0, is mended in 3.51.3, and the mend went back to 3.50.7 and 3.44.6.
    """
    if version[:2] == (3, 50):
        return version[2] < 7
    if version[:2] == (3, 44):
        return version[2] < 6
    return (3, 7, 0) <= version < (3, 51, 3)
