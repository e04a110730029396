"""What asyncio callers append, handed to the ledger's loop in groups, with no thread in between.

Two groups overlap: one is published while the answers to the other are on their way. All go over one connection, in the
order in which they were put.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from counterfoil.ledgers.jetstream import troubles
from counterfoil.ledgers.submissions import BATCH_MAX, Submission, tell
from counterfoil.threads import Loop

# With one more the server has work while this process is busy with the answers; with many more each is small, and a
# group costs as much as several records.
_AT_ONCE: Final = 2
_log: Final = logging.getLogger("counterfoil")


class Intake:
    """Takes submissions from any thread and commits them on a loop.

    Args:
        loop: where.
        commit: sets the reply of each; its first step publishes what it can.
    """

    def __init__(self, loop: Loop, commit: Callable[[Sequence[Submission]], Coroutine[Any, Any, None]]) -> None:
        self._loop = loop
        self._commit = commit
        self._items: deque[Submission] = deque()
        self._rung = False
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, item: Submission) -> None:
        """Put a submission behind the others; never blocks on the store."""
        self._items.append(item)
        # Whoever empties the queue lowers the flag first: one of the two sees the other.
        if not self._rung:
            self._rung = True
            self._loop.soon(self._begin)

    def _begin(self) -> None:
        self._rung = False
        while self._items and len(self._tasks) < _AT_ONCE:
            batch = [self._items.popleft() for _ in range(min(BATCH_MAX, len(self._items)))]
            task = asyncio.get_running_loop().create_task(self._serve(batch))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._begin()

    async def _serve(self, batch: list[Submission]) -> None:
        try:
            await self._commit(batch)
        except Exception as error:  # noqa: BLE001 - it is told to each of them
            # A flow that waits for a reply must get one.
            _log.exception("a group of appends ended without saying how")
            for item in batch:
                item.reply = item.reply or troubles.unknown(type(error).__name__)
        tell(batch)

    async def rest(self, timeout_s: float) -> None:
        """Wait until what was put has been told, or for so many seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
