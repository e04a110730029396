"""Many deadlines on one loop, nearly all of which are taken back: one timer, at the soonest, for all of them.

A timer of asyncio's own for each operation costs as much as what a broker decides about it, and what it keeps alive
keeps the garbage collector busy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Alarm:
    """Looks again at the soonest deadline; `at` is called on one loop only.

    Args:
        look: ends what is due at a time on `time.monotonic()`, and returns when the next is due; None: nothing is.
    """

    def __init__(self, look: Callable[[float], float | None]) -> None:
        self._look = look
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def at(self, due: float) -> None:
        """See to it that somebody looks at a time, at the latest."""
        if self._timer is None or due < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._due = due
            rest_s = max(0.0, due - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(rest_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        following = self._look(time.monotonic())
        if following is not None:
            self.at(following)
