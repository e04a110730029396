"""Blocking handlers in worker threads: quick ones share a thread, and slow ones do not wait for each other.

Handing each call to a thread of its own costs more than many a handler does. So what starts together begins in one
thread, one after the other; whatever has not begun a moment later gets a thread of its own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from counterfoil import threads
from counterfoil.runtime.jobs import Job

# How long a call waits for those before it.
PATIENCE_S: Final = 0.001


class Crew:
    """Calls handlers in worker threads.

    Args:
        call: calls one, in a worker thread; it handles its own exceptions.
        wake: called, from any thread, when some have ended: once for those that end together.
    """

    def __init__(self, call: Callable[[Job], None], *, wake: Callable[[], None]) -> None:
        self._call = call
        self._wake = wake
        self._waiting: deque[Job] = deque()
        self._since = 0.0

    @property
    def behind(self) -> bool:
        """Whether something has not begun yet."""
        return bool(self._waiting)

    def start(self, jobs: Sequence[Job]) -> None:
        """Have handlers called; `spread` must be called a moment later if this leaves the crew `behind`."""
        if jobs:
            self._since = time.monotonic()
            self._waiting.extend(jobs)
            threads.submit(self._work)

    def spread(self) -> None:
        """Give a thread to each that has waited for longer than a moment."""
        if self._waiting and time.monotonic() - self._since >= PATIENCE_S:
            for _ in range(len(self._waiting)):
                threads.submit(self._work)

    def _work(self) -> None:
        since = time.monotonic()
        while True:
            try:
                job = self._waiting.popleft()
            except IndexError:
                self._wake()
                return
            self._call(job)
            if (now := time.monotonic()) - since >= PATIENCE_S:
                since = now
                self._wake()
