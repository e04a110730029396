"""The two connections to one database file: one writes, one reads, each behind a lock of its own.

Before a `fork()` the connections are closed and opened again on their next use. So a child inherits none: an
inherited connection must neither be used nor closed, and a new one of the child would share its locks, which
the child does not hold.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable
from threading import Lock
from typing import Final, TypeVar

from counterfoil.errors import CounterfoilError, LedgerReadOnly, LedgerUnavailable, UsageError
from counterfoil.ledgers.rows import closed, forked
from counterfoil.ledgers.sqlite import forks, migrations, presence, troubles
from counterfoil.ledgers.sqlite.engines import (
    CANTOPEN,
    NOTADB,
    READONLY,
    Connection,
    StoreError,
    connect,
    library_version,
    resets_wal_wrongly,
)

T = TypeVar("T")

WAL_BYTES_MAX: Final = 64 * 1024 * 1024
# Makes a transaction one that writes, and so waits for the disk.
SETTLED: Final = "UPDATE counterfoil_ledger SET settled = settled + 1 WHERE id = 1"
_LOOK_EVERY_S: Final = 0.1
_LEVELS: Final = {"full": 2, "extra": 3}
_log: Final = logging.getLogger("counterfoil")
_warned: set[str] = set()


class Database:
    """One SQLite file, opened for a ledger.

    Args:
        path: the file.
        engine: `apsw` or `sqlite3`.
        timeout_s: how long to wait for other connections, in seconds.
        synchronous: `full` or `extra`.
        strict: refuse a SQLite library with the WAL-reset defect.
    """

    def __init__(self, path: str, *, engine: str, timeout_s: float, synchronous: str, strict: bool) -> None:
        self.path = os.path.realpath(path)
        self.engine = engine
        self.timeout_s = timeout_s
        self.synchronous = synchronous
        self.version = library_version(engine)
        self.affected = resets_wal_wrongly(self.version)
        self.write_lock = Lock()
        self.read_lock = Lock()
        self.writes_opened = 0
        self._birthmark = forks.Birthmark()
        self._unmoved_until = 0.0
        self._writes: Connection | None = None
        self._reads: Connection | None = None
        self._lent: Connection | None = None
        self._closed = False
        self.forked = False
        self._check_place(strict=strict)
        self._presence = self._claimed()
        self.file = self._presence.file
        forks.watch(self)

    def writing(self) -> Connection:
        """Return the connection that writes. The caller holds `write_lock`."""
        if self._writes is None:
            self._check_again()
            self._writes = self._connected()
            self.writes_opened += 1
        return self._writes

    def reading(self) -> Connection:
        """Return the connection that reads. The caller holds `read_lock`."""
        if self._reads is None:
            self._check_again()
            self._reads = self._connected()
            self._reads.execute("PRAGMA query_only = ON")
        return self._reads

    def lend(self) -> Connection:
        """Open a connection for one transaction of the application. The caller holds `write_lock`.

        What the application sets on it goes with it. Foreign keys are enforced.
        """
        self._check_again()
        self._lent = self._connected()
        self._lent.execute("PRAGMA foreign_keys = ON")
        return self._lent

    def take_back(self) -> None:
        """Close what was lent; in a child that was forked meanwhile it is not touched."""
        lent, self._lent = self._lent, None
        if lent is not None:
            lent.close()

    def usable(self) -> None:
        """Raise unless this process may use the ledger.

        Raises:
            ForkedLedger: it was opened before a fork.
            LedgerUnavailable: it is closed.
        """
        if self.forked or self._closed or self._birthmark.inherited():
            if self.inherited():
                forks.notice()
                raise forked()
            raise closed()

    def inherited(self) -> bool:
        """Return whether this process is a child of the one that opened the ledger."""
        return self.forked or self._birthmark.inherited()

    def check_unmoved(self) -> None:
        """Raise if the path leads to another file now: what is written here would be lost.

        It is looked up every tenth of a second at most.

        Raises:
            LedgerReadOnly: the file was removed or replaced.
        """
        now = time.monotonic()
        if now < self._unmoved_until:
            return
        if presence.identity(self.path) != self.file:
            raise LedgerReadOnly(
                f"{self.path} is gone, or is another file now",
                code="ledger-moved",
                hint="open the ledger again; look into the old file for what is missing",
            )
        self._unmoved_until = now + _LOOK_EVERY_S

    def close(self) -> None:
        """Close both connections. Does nothing in a child."""
        if self.inherited() or self._closed:
            return
        with self.write_lock, self.read_lock:
            self._closed = True
            self._drop()
            presence.release(self._presence)

    def suspend(self, give_up: float) -> bool:
        """Before a fork: wait for what is going on, close the connections, keep both locks.

        Returns False, and leaves everything as it was, if that cannot be had before `give_up`
        (`time.monotonic`).
        """
        if not self.write_lock.acquire(timeout=max(0.0, give_up - time.monotonic())):
            return False
        if not self.read_lock.acquire(timeout=max(0.0, give_up - time.monotonic())):
            self.write_lock.release()
            return False
        self._drop()
        return True

    def resume(self) -> None:
        """After a fork, in the parent: let others go on."""
        self.read_lock.release()
        self.write_lock.release()

    def orphan(self) -> tuple[Connection, ...]:
        """After a fork, in the child: refuse from now on; return the connections that were inherited."""
        self.forked = True
        left = tuple(one for one in (self._writes, self._reads, self._lent) if one is not None)
        self._lent = None
        self.write_lock = Lock()
        self.read_lock = Lock()
        return left

    def _check_again(self) -> None:
        self.usable()
        self._unmoved_until = 0.0
        self.check_unmoved()  # or a new, empty database would be made where ours was

    def _drop(self) -> None:
        for connection in (self._reads, self._writes):
            if connection is not None:
                connection.close()
        self._reads = self._writes = None

    def _check_place(self, *, strict: bool) -> None:
        if os.path.isdir(self.path):  # noqa: PTH112
            raise UsageError(f"{self.path} is a folder", hint="name a file in it")
        folder = os.path.dirname(self.path)  # noqa: PTH120
        if not os.path.isdir(folder):  # noqa: PTH112
            raise UsageError(f"there is no folder {folder}", hint="make it first")
        if self.affected:
            found = f"SQLite {'.'.join(map(str, self.version))} can corrupt a WAL database"
            mend = "open the ledger with ?engine=apsw, or use a Python with SQLite 3.51.3 or newer"
            if strict:
                raise UsageError(found, hint=mend)
            if self.engine not in _warned:
                _warned.add(self.engine)
                _log.warning("%s when several processes write: %s", found, mend)

    def _claimed(self) -> presence.Presence:
        found, claimed = presence.identity(self.path), None
        if found is not None:
            if forks.inherited(found):
                raise forked()
            claimed = presence.claim(found, self.engine)
        left_behind = os.path.exists(f"{self.path}-wal")  # noqa: PTH110
        try:
            self._writes = self._connected(first=True)
            self.writes_opened += 1
            if left_behind:
                _sync(self._writes)
            file = _existing(self.path)
            if claimed is None or file != claimed.file:
                # New, or copied by an overlay file system when it was opened for writing.
                former, claimed = claimed, presence.claim(file, self.engine)
                if former is not None:
                    presence.release(former)
        except BaseException:
            if self._writes is not None:
                self._writes.close()
            if claimed is not None:
                presence.release(claimed)
            raise
        return claimed

    def _connected(self, *, first: bool = False) -> Connection:
        try:
            connection = connect(self.engine, self.path)
        except StoreError as error:
            raise self._cannot_open(error) from error
        try:
            self._prepare(connection, first=first)
        except StoreError as error:
            connection.close()
            raise self._cannot_open(error) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: Connection, *, first: bool) -> None:
        # The first statement that reads the file finds out whether it is a database at all.
        version = self.patiently(lambda: migrations.LEDGER.version_of(connection))
        migrations.LEDGER.refuse_newer(version)
        if first and version < len(migrations.LEDGER.scripts):
            self.patiently(lambda: self._to_wal(connection))
            self.patiently(lambda: _migrate(connection))
        connection.execute(f"PRAGMA synchronous = {self.synchronous}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_MAX}")
        if self.affected:
            connection.execute("PRAGMA wal_autocheckpoint = 0")
        self._check_promises(connection)

    @staticmethod
    def _to_wal(connection: Connection) -> None:
        if connection.execute("PRAGMA journal_mode")[0][0] != "wal":
            connection.execute("PRAGMA journal_mode = wal")

    def _check_promises(self, connection: Connection) -> None:
        mode = self.patiently(lambda: connection.execute("PRAGMA journal_mode"))[0][0]
        if mode != "wal":
            self.patiently(lambda: self._to_wal(connection))
            mode = connection.execute("PRAGMA journal_mode")[0][0]
        level = connection.execute("PRAGMA synchronous")[0][0]
        if mode != "wal" or level != _LEVELS[self.synchronous]:
            raise LedgerUnavailable(
                f"the database runs with journal_mode={mode}, synchronous={level}",
                hint="it must be able to run in WAL mode with synchronous=FULL",
                effect_ran="no",
            )

    def patiently(self, work: Callable[[], T]) -> T:
        """Try work again while other connections are in its way, for `timeout_s` at most."""
        give_up = time.monotonic() + self.timeout_s
        while True:
            try:
                return work()
            except StoreError as error:
                if error.code not in troubles.WAITS or time.monotonic() > give_up:
                    raise
            # SQLite waits by itself for most locks, but not where waiting could be a deadlock.
            time.sleep(random.uniform(0.0005, 0.01))  # noqa: S311

    def _cannot_open(self, error: StoreError) -> CounterfoilError:
        if error.code == NOTADB:
            return UsageError(f"{self.path} is no SQLite database", hint="name another file")
        if error.code == CANTOPEN:
            return LedgerUnavailable(
                f"SQLite cannot open {self.path}: {error}",
                hint="this user must be able to read the file and, unless somebody has it open, to write in its folder",
                effect_ran="no",
            )
        if error.code == READONLY or error.code in troubles.WAITS:
            return troubles.before_commit(error)
        return troubles.while_reading(error)


def _migrate(connection: Connection) -> None:
    connection.command("BEGIN IMMEDIATE")
    try:
        migrations.LEDGER.apply(connection)
        connection.command("COMMIT")
    finally:
        if connection.in_transaction():
            connection.command("ROLLBACK")


def _sync(connection: Connection) -> None:
    """Commit something, so that all that is in the WAL is on the disk before anybody acts on it.

    A process killed between writing a commit and syncing it leaves it in the WAL, and whoever opens the database
    next sees it. Where another connection is at work the commit in progress does the same.
    """
    try:
        connection.command("BEGIN IMMEDIATE")
        connection.execute(SETTLED)
        connection.command("COMMIT")
    except StoreError as error:
        if connection.in_transaction():
            connection.command("ROLLBACK")
        if error.code not in troubles.WAITS and error.code not in (READONLY, CANTOPEN):
            raise troubles.before_commit(error) from error


def _existing(path: str) -> presence.Identity:
    file = presence.identity(path)
    if file is None:
        raise LedgerUnavailable(f"{path} was removed meanwhile", effect_ran="no")
    return file
