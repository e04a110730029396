"""A few connections that callers take in turn, opened in the caller's thread when they are first needed.

Not psycopg's own pool: that connects in threads of its own, so that a wrong password shows as a time-out.
"""

from __future__ import annotations

import os
import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Condition
from typing import Final, TypeVar

import psycopg

from counterfoil.errors import LedgerReadOnly, LedgerUnavailable
from counterfoil.ledgers.postgres import troubles
from counterfoil.ledgers.postgres.connections import Connection
from counterfoil.ledgers.rows import closed, forked
from counterfoil.threads import when_collected

T = TypeVar("T")
C = TypeVar("C", bound=Connection)

# How long a short restart of the server is waited for, in seconds.
PATIENCE_S: Final = 10.0
# A connection that answered so recently is not looked at again before it is used.
FRESH_S: Final = 0.2
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
        # One item for each place that is free: its connection, or None where it has none yet. The last one used comes
        # first. Taking and giving back need no lock; the condition is for those who wait.
        self._free: deque[Connection | None] = deque([None] * size)
        self._freed = Condition()
        self._waiting = 0
        self._closed = False
        # Not at exit: a child would say goodbye to the server on connections that are its parent's.
        when_collected(self, partial(_close_all, self._free, self._process))

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

    def take(self, *, timeout_s: float | None = None) -> Taken:
        """Have a connection for a while; one that is not idle afterwards is thrown away.

        Args:
            timeout_s: how long to wait for it and then for all answers together; None: the pool's own.

        Raises:
            LedgerUnavailable: there is none in time; nothing was sent.
        """
        self.usable()
        return Taken(self, time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s))

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
        self._free.pop()
        self.give_back(connection)

    def close(self) -> None:
        """Close what is free; what is in use is closed when it is given back."""
        if not self.inherited:
            self._closed = True
            _close_all(self._free, self._process)

    def lend(self, give_up: float) -> Connection:
        """Take a connection out; `give_back` puts it in again.

        Raises:
            LedgerUnavailable: there is none in time; nothing was sent.
        """
        connection = self._place(give_up)
        try:
            if connection is None or connection.stale:
                connection = self._opened(give_up, connection)
        except BaseException:
            self.give_back(connection)
            raise
        connection.give_up = give_up
        connection.wait_cancelled = False
        return connection

    def _place(self, give_up: float) -> Connection | None:
        with suppress(IndexError):
            return self._free.pop()
        with self._freed:
            self._waiting += 1
            try:
                # Whoever gives back looks for those who wait after he has put it there.
                while not self._free:
                    if not self._freed.wait(max(0.0, give_up - time.monotonic())):
                        break
                with suppress(IndexError):
                    return self._free.pop()
            finally:
                self._waiting -= 1
        raise LedgerUnavailable(
            f"all {self.size} connections of this process are busy",
            code="ledger-busy",
            hint="give the URL a larger pool=, or find what holds them",
            effect_ran="no",
        )

    def _opened(self, give_up: float, stale: Connection | None) -> Connection:
        if stale is not None:
            stale.close()
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

    def give_back(self, connection: Connection | None) -> None:
        """Put a connection in again; one that is not idle is thrown away."""
        if self.inherited:
            return
        if connection is not None and (self._closed or not connection.idle):
            lost = connection.closed or connection.broken
            connection.close()
            connection = None
            if lost:
                # The others have most likely gone the same way.
                _close_all(self._free, self._process)
        if connection is not None:
            connection.fresh_until = time.monotonic() + FRESH_S
        self._free.append(connection)
        if self._waiting:
            with self._freed:
                self._freed.notify()


class Taken:
    """A connection for the time of a `with` block. Not a generator: an append of a lone caller would feel that."""

    __slots__ = ("_connection", "_give_up", "_pool")

    def __init__(self, pool: Pool, give_up: float) -> None:
        self._pool = pool
        self._give_up = give_up

    def __enter__(self) -> Connection:
        self._connection = self._pool.lend(self._give_up)
        return self._connection

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._pool.give_back(self._connection)


def _close_all(free: deque[Connection | None], process: int) -> None:
    if os.getpid() != process:
        return
    for connection in list(free):
        if connection is not None:
            with suppress(IndexError, ValueError):
                free.remove(connection)
                free.appendleft(None)
                connection.close()
