"""When a caller goes away: at its deadline, or because it was told to stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from counterfoil.recipients.events.facts import Unsent


class Leaving:
    """How long somebody waits for one publish.

    Args:
        deadline: on `time.monotonic()`.
        cancelled: says whether the context was told to stop.
    """

    def __init__(self, deadline: float, cancelled: Callable[[], bool]) -> None:
        self.deadline = deadline
        self._cancelled = cancelled
        self._stopped = False
        self._forgiven = False

    def stop(self) -> None:
        """Note that nobody waits any more; from any thread."""
        self._stopped = True

    @property
    def told(self) -> bool:
        """Whether it was told to stop."""
        return self._stopped or self._cancelled()

    def forgives(self) -> bool:
        """Whether the task was cancelled because it was told to stop, once: then it still says how it ended.

        Any other cancellation is that of a loop that shuts down.
        """
        forgiven = self.told and not self._forgiven
        self._forgiven = True
        return forgiven

    async def see_out(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what must be done before the end, whether somebody waits for it or not."""
        task = asyncio.get_running_loop().create_task(work)
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                if not self.forgives():
                    task.cancel()
                    raise
        task.result()

    @property
    def why(self) -> str:
        """What made the caller go."""
        return "deadline" if time.monotonic() >= self.deadline else "cancelled"

    @property
    def rest_s(self) -> float:
        """Seconds until the deadline, 0 after it."""
        return max(0.0, self.deadline - time.monotonic())

    def check(self) -> None:
        """Raise `Unsent` if nobody waits any more."""
        if time.monotonic() >= self.deadline:
            raise Unsent("deadline-before-dispatch")
        if self.told:
            raise Unsent("cancelled")
