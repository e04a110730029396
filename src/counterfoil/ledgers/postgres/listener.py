"""Telling other processes that there is something new, and hearing it from them.

Notifications are sent after the commit, from a thread and a connection of its own, since a transaction that notifies
commits one at a time. They say only that something happened; polling is the floor. Behind a transaction pooler nothing
can be heard, so `poll_s` does without.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Final

import psycopg

from counterfoil.errors import CounterfoilError
from counterfoil.ledgers.postgres.pool import Pool
from counterfoil.ledgers.submissions import Submission
from counterfoil.protocol.records import EFFECT, PARK, RUN, STEP
from counterfoil.threads import start_daemon, when_collected

# Looked for at least this often although we listen: a notification may be lost.
FLOOR_S: Final = 1.0
# Notifications of one process are this far apart at least.
_APART_S: Final = 0.05
_PAUSE_S: Final = 1.0
# What nobody else waits for.
_QUIET: Final = frozenset({(STEP, "result"), (PARK, "armed"), (EFFECT, "intent"), (RUN, "started"), (RUN, "claimed")})
_log: Final = logging.getLogger("counterfoil")


class _Bell:
    """What a listener and its threads share; the threads do not keep the listener."""

    def __init__(self) -> None:
        self.news = threading.Event()
        self.said = threading.Event()
        self.stopped = threading.Event()
        self.hearing = False

    def stop(self) -> None:
        self.stopped.set()
        self.said.set()


class Listener:
    """Tells and hears.

    Args:
        pool: where connections come from.
        channel: the ledger's channel.
        poll_s: do neither, and look this often, in seconds.
    """

    def __init__(self, pool: Pool, *, channel: str, poll_s: float | None) -> None:
        self._pool = pool
        self._channel = channel
        self._poll_s = poll_s
        self._lock = threading.Lock()
        self._looked = 0.0
        self._bell = _Bell()
        self._started: set[str] = set()
        when_collected(self, self._bell.stop)

    def due(self) -> bool:
        """Return whether somebody who waits should look into the database now."""
        if self._poll_s is None:
            self._start("listener", _hear)
        every_s = self._poll_s if self._poll_s is not None else (FLOOR_S if self._bell.hearing else 0.0)
        now = time.monotonic()
        with self._lock:
            due = self._bell.news.is_set() or now - self._looked >= every_s
            if due:
                self._bell.news.clear()
                self._looked = now
            return due

    def tell(self, batch: Sequence[Submission]) -> None:
        """Let others know that something was committed that they may wait for."""
        bell = self._bell
        if not bell.news.is_set():
            bell.news.set()
        if (
            self._poll_s is None
            and not bell.said.is_set()
            and any((one.entry.kind, one.entry.phase) not in _QUIET for one in batch)
        ):
            self._start("herald", _tell)
            bell.said.set()

    def stop(self) -> None:
        """End both threads."""
        self._bell.stop()

    def _start(self, name: str, work: Callable[[_Bell, Callable[[], Pool | None], str], None]) -> None:
        if name in self._started:
            return
        with self._lock:
            if name not in self._started:
                self._started.add(name)
                bell, pool, channel = self._bell, weakref.ref(self._pool), self._channel
                start_daemon(name, lambda: work(bell, pool, channel))


def _tell(bell: _Bell, pool_of: Callable[[], Pool | None], channel: str) -> None:
    """Send notifications, never two close together."""
    while bell.said.wait() and not bell.stopped.is_set():
        bell.said.clear()
        pool = pool_of()
        if pool is None:
            return
        with suppress(CounterfoilError, psycopg.Error), pool.take() as connection:
            # What is lost with a crash of the server is found by looking.
            connection.execute("SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, '')", (channel,))
        del pool
        bell.stopped.wait(_APART_S)


def _hear(bell: _Bell, pool_of: Callable[[], Pool | None], channel: str) -> None:
    """Listen on a connection of its own, and on another one when that is lost."""
    failed = False
    while not bell.stopped.wait(_PAUSE_S if failed else 0):
        pool = pool_of()
        if pool is None:
            return
        try:
            connection = pool.spare()
            del pool
            with closing(connection):
                connection.give_up = time.monotonic() + _PAUSE_S
                if not connection.direct():
                    _log.warning("there is a pooler in between, so nothing can be heard, and it is polled: say poll=")
                    return
                connection.execute(f"LISTEN {channel}".encode())
                bell.hearing, failed = True, False
                bell.news.set()  # for what came before
                while not bell.stopped.is_set() and pool_of() is not None:
                    if connection.heard(FLOOR_S):
                        bell.news.set()
        except (CounterfoilError, psycopg.Error) as error:
            if not failed:
                _log.warning("nothing is heard from other processes for now, so it is polled: %s", error)
            failed = True
        finally:
            bell.hearing = False
