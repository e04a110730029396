"""Facts that the ledger refused: this life keeps trying to record what it holds (rule E17)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from counterfoil import threads
from counterfoil.effects.effect import append_held
from counterfoil.errors import CounterfoilError
from counterfoil.runtime.blocking import BlockingDriver
from counterfoil.runtime.session import Session

if TYPE_CHECKING:
    import asyncio

    from counterfoil.runtime.looped import LoopDriver

FIRST_S: Final = 0.2
LAST_S: Final = 5.0


class BlockingKeeper:
    """Tries again and again, in a thread of its own while there is something to record."""

    def __init__(self, session: Session, driver: BlockingDriver) -> None:
        self._session = session
        self._driver = driver
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._working = False

    def wake(self) -> None:
        """Start trying, if there is something and nobody tries yet."""
        with self._lock:
            if self._working or not self._session.pinned:
                return
            self._working = True
        self._stopped.clear()
        threads.submit(self._work)

    def stop(self) -> None:
        """Try once more and stop."""
        self._stopped.set()
        self.attempt()

    def _work(self) -> None:
        wait_s = FIRST_S
        while not self._stopped.wait(wait_s):
            if self.attempt():
                break
            wait_s = min(wait_s * 2, LAST_S)
        with self._lock:
            self._working = False

    def attempt(self) -> bool:
        """Try to record everything that is held; True if nothing is left."""
        for run, state in list(self._session.pinned.items()):
            for held in list(state.memory.held.values()):
                try:
                    scope = self._session.scope(run, state)
                    self._driver.run(scope, append_held(scope, held.name, held.attempt))
                except CounterfoilError:
                    continue
            self._session.keep(run, state)
        return not any(state.memory.held for state in self._session.pinned.values())


class LoopKeeper:
    """The same on a loop, as a task."""

    def __init__(self, session: Session, driver: LoopDriver) -> None:
        self._session = session
        self._driver = driver
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Start trying, if there is something and nobody tries yet."""
        if self._session.pinned and (self._task is None or self._task.done()):
            self._task = self._driver.loop.create_task(self._work())

    async def stop(self) -> None:
        """Try once more and stop."""
        if self._task is not None:
            self._task.cancel()
        await self.attempt()

    async def _work(self) -> None:
        wait_s = FIRST_S
        await self._driver.pause(wait_s)
        while not await self.attempt():
            wait_s = min(wait_s * 2, LAST_S)
            await self._driver.pause(wait_s)

    async def attempt(self) -> bool:
        """Try to record everything that is held; True if nothing is left."""
        for run, state in list(self._session.pinned.items()):
            for held in list(state.memory.held.values()):
                try:
                    scope = self._session.scope(run, state)
                    await self._driver.run(scope, append_held(scope, held.name, held.attempt))
                except CounterfoilError:
                    continue
            self._session.keep(run, state)
        return not any(state.memory.held for state in self._session.pinned.values())
