"""When handlers that run are given up, soonest first."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Iterator, Mapping
from typing import Final

from counterfoil.runtime.claimed import Work
from counterfoil.runtime.jobs import Job

# Deadlines of handlers that have ended which may be kept.
SPARE: Final = 500


class Deadlines:
    """Deadlines of handlers.

    Args:
        running: the handlers that run; what has ended is passed over.
    """

    def __init__(self, running: Mapping[Job, str]) -> None:
        self._running = running
        self._heap: list[tuple[float, int, Work, Job]] = []
        self._serial = itertools.count()

    def add(self, work: Work, job: Job, *, at: float) -> None:
        """Note until when a handler is waited for, on `time.monotonic()`."""
        heapq.heappush(self._heap, (at, next(self._serial), work, job))

    def passed(self) -> Iterator[tuple[Work, Job]]:
        """Take out what is to be given up now."""
        now = time.monotonic()
        if len(self._heap) > 2 * len(self._running) + SPARE:
            # Those behind one that takes long have ended long ago.
            self._heap = [one for one in self._heap if one[3] in self._running]
            heapq.heapify(self._heap)
        while self._heap and (self._heap[0][0] <= now or self._heap[0][3] not in self._running):
            _, _, work, job = heapq.heappop(self._heap)
            if work.job is job and job in self._running:
                yield work, job

    def wait_s(self, mono: float) -> float:
        """Return how long it is until the next one, infinite where there is none."""
        return self._heap[0][0] - mono if self._heap else float("inf")

    def clear(self) -> None:
        """Give up nothing any more."""
        self._heap.clear()
