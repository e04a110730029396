"""A few connections that callers take in turn, opened in the caller's thread when they are first needed.

Not psycopg's own pool: that connects in threads of its own, so that a wrong password shows as a time-out.
"""

from __future__ import annotations

import os
import random
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from threading import BoundedSemaphore
from typing import Final, TypeVar

import psycopg

from counterfoil.errors import LedgerReadOnly, LedgerUnavailable
from counterfoil.ledgers.postgres import troubles
from counterfoil.ledgers.postgres.connections import Connection
from counterfoil.ledgers.rows import closed, forked

T = TypeVar("T")
C = TypeVar("C", bound=Connection)

# How long a short restart of the server is waited for, in seconds.
PATIENCE_S: Final = 10.0
_PAUSE_S: Final = 0.05


class Pool:
    """At most `size` connections at a time.

    Args:
        conninfo: what libpq takes.
        size: how many.
        timeout_s: how long to wait for a connection and for each answer, in seconds.
    """

    def __init__(self, conninfo: str, *, size: int, timeout_s: float) -> None:
        self.size = size
        self.timeout_s = timeout_s
        self._conninfo = conninfo
        self._process = os.getpid()
        self._free: deque[Connection] = deque()
        self._places = BoundedSemaphore(size)
        self._closed = False
        # Not at exit: a child would say goodbye to the server on connections that are its parent's.
        weakref.finalize(self, _close_all, self._free, self._process).atexit = False

    def usable(self) -> None:
        """Raise unless this process may use the ledger.

        Raises:
            ForkedLedger: it was opened before a fork.
            LedgerUnavailable: it is closed.
        """
        if os.getpid() != self._process:
            raise forked()
        if self._closed:
            raise closed()

    @property
    def inherited(self) -> bool:
        """Whether this process is a child of the one that opened it."""
        return os.getpid() != self._process

    @contextmanager
    def take(self, *, timeout_s: float | None = None) -> Generator[Connection]:
        """Have a connection for a while; one that is not idle afterwards is thrown away.

        Args:
            timeout_s: how long to wait for it and then for all answers together; None: the pool's own.

        Raises:
            LedgerUnavailable: there is none in time; nothing was sent.
        """
        give_up = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        self.usable()
        if not self._places.acquire(timeout=max(0.0, give_up - time.monotonic())):
            raise LedgerUnavailable(
                f"all {self.size} connections of this process are busy",
                code="ledger-busy",
                hint="give the URL a larger pool=, or find what holds them",
                effect_ran="no",
            )
        connection: Connection | None = None
        try:
            connection = self._connection(give_up)
            connection.give_up = give_up
            connection.wait_cancelled = False
            yield connection
        finally:
            if connection is not None:
                self._give_back(connection)
            self._places.release()

    def read(self, work: Callable[[Connection], T], *, timeout_s: float | None = None) -> T:
        """Do work that records nothing, once more on a fresh connection if the first was stale.

        Raises:
            LedgerUnavailable: no answer.
        """
        again = True
        while True:
            with self.take(timeout_s=timeout_s) as connection:
                try:
                    return work(connection)
                except psycopg.Error as error:
                    if connection.idle:
                        raise troubles.said(error) from error
                    if not again:
                        raise LedgerUnavailable(
                            f"the ledger cannot be read: {troubles.text(error)}",
                            code="ledger-unreachable",
                            effect_ran="no",
                        ) from error
            again = False

    def spare(self) -> Connection:
        """Open a connection beside those of the pool, for whom it must not wait; the caller closes it.

        Raises:
            LedgerUnavailable: it cannot be had.
        """
        return self.spare_of(Connection)

    def spare_of(self, kind: type[C]) -> C:
        """Open a spare connection of one kind.

        Raises:
            LedgerUnavailable: it cannot be had.
        """
        self.usable()
        try:
            connection = self._checked(kind.open(self._conninfo))
        except psycopg.Error as error:
            raise troubles.unreachable(error) from error
        connection.give_up = time.monotonic() + self.timeout_s
        return connection

    def keep(self, connection: Connection) -> None:
        """Take a spare connection in, before the pool is used."""
        self._give_back(connection)

    def close(self) -> None:
        """Close what is free; what is in use is closed when it is given back."""
        if not self.inherited:
            self._closed = True
            _close_all(self._free, self._process)

    def _connection(self, give_up: float) -> Connection:
        with suppress(IndexError):
            while True:
                connection = self._free.pop()
                if not connection.stale:
                    return connection
                connection.close()
        patient_until = min(give_up, time.monotonic() + PATIENCE_S)
        while True:
            try:
                return self.spare()
            except LedgerReadOnly:
                raise
            except LedgerUnavailable:
                if time.monotonic() >= patient_until:
                    raise
            time.sleep(_PAUSE_S * random.uniform(0.5, 2))  # noqa: S311

    def _checked(self, connection: C) -> C:
        if connection.pgconn.parameter_status(b"in_hot_standby") == b"on":
            connection.close()
            raise LedgerReadOnly(
                "this server is a standby: what it shows is old, and it takes no records",
                code="ledger-replica",
                hint="name the primary, or several hosts with target_session_attrs=read-write",
            )
        return connection

    def _give_back(self, connection: Connection) -> None:
        if self.inherited:
            return
        if connection.idle and not self._closed:
            self._free.append(connection)
            return
        lost = connection.closed or connection.broken
        connection.close()
        if lost:
            # The others have most likely gone the same way.
            _close_all(self._free, self._process)


def _close_all(connections: deque[Connection], process: int) -> None:
    while connections and os.getpid() == process:
        with suppress(IndexError):
            connections.pop().close()
