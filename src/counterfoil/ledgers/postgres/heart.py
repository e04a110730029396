"""A thread that beats for the lives of this process, on a connection of its own."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import psycopg

from counterfoil.errors import CounterfoilError
from counterfoil.ledgers.postgres.connections import Connection
from counterfoil.threads import start_daemon, when_collected

if TYPE_CHECKING:
    from counterfoil.ledgers.postgres.lives import Lives

# A beat that takes longer than this is given up, and the next is tried on another connection.
_PATIENCE_S: Final = 2.0
_log: Final = logging.getLogger("counterfoil")


class Heart:
    """Beats from the first registration on, until it is stopped or its owner is collected.

    Args:
        lives: what beats.
        beat_s: seconds between two beats.
    """

    def __init__(self, lives: Lives, beat_s: float) -> None:
        self._lives = weakref.ref(lives)
        self._beat_s = beat_s
        self._lock = threading.Lock()
        self._started = False
        self._stopped = threading.Event()
        when_collected(lives, self._stopped.set)

    def start(self) -> None:
        """Start beating, if it does not beat already."""
        if self._started:
            return
        with self._lock:
            if not self._started:
                self._started = True
                start_daemon("heart", self._work)

    def stop(self) -> None:
        """Stop beating."""
        self._stopped.set()

    def _work(self) -> None:
        connection: Connection | None = None
        missed = 0
        while not self._stopped.wait(self._beat_s):
            lives = self._lives()
            if lives is None:
                break
            try:
                if connection is None:
                    connection = lives.spare()
                connection.give_up = time.monotonic() + max(_PATIENCE_S, self._beat_s)
                lives.beat(connection)
                missed = 0
            except (CounterfoilError, psycopg.Error) as error:
                missed += 1
                if missed == 1:
                    _log.warning("a beat of this process's owner failed, others may take it for gone: %s", error)
                _close(connection)
                connection = None
            del lives
        _close(connection)


def _close(connection: Connection | None) -> None:
    if connection is not None:
        with suppress(psycopg.Error):
            connection.close()
