"""Recovery: finding runs that nobody carries, and carrying them, so many at once, once or for as long as told.

Any number of processes share the work through the ledger: the claim of a run is a slot, and a life that holds one is
left alone until it is proved to be gone. `counterfoil work` is this in a process of its own.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from counterfoil import threads
from counterfoil.effects import carry
from counterfoil.errors import RunCancelled, UsageError
from counterfoil.runtime.search import LOOK_S, Bodies, Left, Search, Told

if TYPE_CHECKING:
    from counterfoil.runtime.aio import AsyncRuntime
    from counterfoil.runtime.async_run import AsyncRun
    from counterfoil.runtime.run import Run
    from counterfoil.runtime.sync import Runtime

AT_ONCE_MAX: Final = 1000


def _nobody(event: str, run_id: str, what: Any) -> None:
    """Tell nobody."""


class Recovery:
    """Recovers runs with blocking bodies.

    Args:
        runtime: where.
        bodies: those that may be resumed.
        at_once: how many run at the same time.
        deaths_max: when a run is quarantined.
        told: hears what happens, from any thread.
    """

    def __init__(
        self,
        runtime: Runtime,
        bodies: Bodies,
        *,
        at_once: int = 1,
        deaths_max: int = carry.DEATHS_MAX,
        told: Told = _nobody,
    ) -> None:
        self._runtime = runtime
        self._session = runtime._session
        self.search = Search(self._session, bodies, asynchronous=False, deaths_max=deaths_max, told=told)
        self._at_once = _at_once(at_once)
        self._changed = threading.Condition()
        self._active: dict[str, Run | None] = {}
        self._stop = threading.Event()

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stop.is_set()

    @property
    def idle(self) -> bool:
        """Whether no body runs, and the last look found nothing to resume."""
        return not self._active and self.search.dry

    def once(self) -> dict[str, Any]:
        """Resume what is left behind now; return results and exceptions by run when all have ended."""
        results: dict[str, Any] = {}
        self.search.again = False
        while True:
            for run_id in self.search.candidates():
                if self._at_once == 1:
                    self._one(run_id, results)
                else:
                    self._begin(run_id, results, wait=True)
            with self._changed:
                self._changed.wait_for(lambda: not self._active)
            if not self.search.pending:
                return results
            self.wait(LOOK_S)

    def begin(self) -> int:
        """Begin to resume what is left behind, as far as there is room; return how many were begun."""
        with self._changed:
            room = self._at_once - len(self._active)
        return sum(self._begin(run_id, {}, wait=False) for run_id in self.search.take(room))

    def wait(self, seconds: float) -> None:
        """Wait until a body ends or it is time to stop, for so many seconds at most."""
        with self._changed:
            if not self.stopping:
                self._changed.wait(seconds)

    def stop(self) -> None:
        """Take no more runs, and let bodies end at their next call; what they have begun is recorded."""
        with self._changed:
            self._stop.set()
            for run in self._active.values():
                if run is not None:
                    run.cancel()
            self._changed.notify_all()

    def drain(self, seconds: float) -> list[str]:
        """Wait until all bodies have ended, for so many seconds at most; return the runs that have not."""
        with self._changed:
            self._changed.wait_for(lambda: not self._active, seconds)
            return list(self._active)

    def _begin(self, run_id: str, results: dict[str, Any], *, wait: bool) -> bool:
        with self._changed:
            if wait:
                self._changed.wait_for(self._has_room)
            if not self._has_room() or self.stopping:
                return False
            self._active[run_id] = None
        threads.submit(lambda: self._beside(run_id, results))
        return True

    def _has_room(self) -> bool:
        return len(self._active) < self._at_once or self.stopping

    def _beside(self, run_id: str, results: dict[str, Any]) -> None:
        try:
            self._one(run_id, results)
        except BaseException as error:  # noqa: BLE001 - a thread has no caller whom SystemExit could reach
            results[run_id] = error
            self.search.ended(run_id, error)
        finally:
            with self._changed:
                del self._active[run_id]
                self._changed.notify_all()

    def _one(self, run_id: str, results: dict[str, Any]) -> None:
        with self._session.carrying(run_id, alone=True) as alone, self._runtime.run(run_id) as run:
            if not alone:
                return
            try:
                results[run_id] = self._carry(run)
            except Left:
                return
            except Exception as error:  # noqa: BLE001 - what one run meets must not stop the others
                results[run_id] = error
            self.search.ended(run_id, results[run_id])

    def _carry(self, run: Run) -> Any:
        run._load()
        body, args = self.search.body_of(run._state.history)
        with self._changed:
            if self.stopping:
                raise Left
            if run.id in self._active:
                self._active[run.id] = run
        self.search.enter(run._state.history)
        try:
            if not run._drive(lambda scope: carry.claim(scope, deaths_max=self.search.deaths_max)):
                raise self.search.refused(run._state.history)
            self.search.told("resumed", run.id, None)
            return self._runtime._carried(run, body, args, stopped=self._stop.is_set)
        except RunCancelled:
            if not self._stop.is_set():
                raise
        finally:
            self.search.leave(run.id)
        run._drive(carry.let_go)
        self.search.told("released", run.id, None)
        raise Left


class AsyncRecovery:
    """Recovers runs with async bodies, on the runtime's loop; see `Recovery`."""

    def __init__(
        self,
        runtime: AsyncRuntime,
        bodies: Bodies,
        *,
        at_once: int = 1,
        deaths_max: int = carry.DEATHS_MAX,
        told: Told = _nobody,
    ) -> None:
        self._runtime = runtime
        self._session = runtime._session
        self.search = Search(self._session, bodies, asynchronous=True, deaths_max=deaths_max, told=told)
        self._at_once = _at_once(at_once)
        self._active: dict[str, asyncio.Task[None]] = {}
        self._runs: dict[str, AsyncRun] = {}
        self._stop = asyncio.Event()

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stop.is_set()

    @property
    def idle(self) -> bool:
        """Whether no body runs, and the last look found nothing to resume."""
        return not self._active and self.search.dry

    async def once(self) -> dict[str, Any]:
        """Resume what is left behind now; return results and exceptions by run when all have ended."""
        results: dict[str, Any] = {}
        self.search.again = False
        try:
            while True:
                await self._pass(results)
                if not self.search.pending:
                    return results
                await self.wait(LOOK_S)
        finally:
            # Only where the caller was cancelled: its bodies end with it.
            for task in self._active.values():
                task.cancel()

    async def _pass(self, results: dict[str, Any]) -> None:
        for run_id in await self._runtime._driver.blocking(self.search.candidates):
            if self._at_once == 1:
                await self._one(run_id, results)
                continue
            while len(self._active) >= self._at_once:
                await self.wait(None)
            self._begin(run_id, results)
        while self._active:
            await self.wait(None)

    async def begin(self) -> int:
        """Begin to resume what is left behind, as far as there is room; return how many were begun."""
        room = self._at_once - len(self._active)
        found: list[str] = await self._runtime._driver.blocking(lambda: self.search.take(room))
        if self._stop.is_set():
            return 0
        for run_id in found:
            self._begin(run_id, {})
        return len(found)

    async def wait(self, seconds: float | None) -> None:
        """Wait until a body ends or it is time to stop, for so many seconds at most."""
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait([stopped, *self._active.values()], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()

    def stop(self) -> None:
        """Take no more runs, and let bodies end where they wait; what they have begun is recorded."""
        self._stop.set()
        for run_id, run in self._runs.items():
            run.cancel()
            self._active[run_id].cancel()

    async def drain(self, seconds: float) -> list[str]:
        """Wait until all bodies have ended, for so many seconds at most; return the runs that have not."""
        if self._active:
            await asyncio.wait(list(self._active.values()), timeout=seconds)
        return list(self._active)

    def _begin(self, run_id: str, results: dict[str, Any]) -> None:
        task = self._active[run_id] = asyncio.get_running_loop().create_task(self._one(run_id, results))
        task.add_done_callback(lambda _ended: self._active.pop(run_id, None))

    async def _one(self, run_id: str, results: dict[str, Any]) -> None:
        with self._session.carrying(run_id, alone=True) as alone:
            if not alone:
                return
            try:
                async with self._runtime.run(run_id) as run:
                    results[run_id] = await self._carry(run)
            except Left:
                return
            except asyncio.CancelledError:
                if not self._stop.is_set():
                    raise
                await self._let_go(run_id)
                return
            except Exception as error:  # noqa: BLE001 - what one run meets must not stop the others
                results[run_id] = error
            self.search.ended(run_id, results[run_id])

    async def _carry(self, run: AsyncRun) -> Any:
        await run._load()
        body, args = self.search.body_of(run._state.history)
        self.search.enter(run._state.history)
        try:
            if not await run._drive(lambda scope: carry.claim(scope, deaths_max=self.search.deaths_max)):
                raise self.search.refused(run._state.history)
            self.search.told("resumed", run.id, None)
            if run.id in self._active:
                self._runs[run.id] = run
            return await self._runtime._carried(run, body, args, stopped=self._stop.is_set)
        finally:
            self.search.leave(run.id)
            self._runs.pop(run.id, None)

    async def _let_go(self, run_id: str) -> None:
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()
        with suppress(RunCancelled):
            await self._runtime.run(run_id)._drive(carry.let_go)
            self.search.told("released", run_id, None)


def _at_once(number: int) -> int:
    if type(number) is not int or not 1 <= number <= AT_ONCE_MAX:
        raise UsageError(f"at_once must be an int from 1 to {AT_ONCE_MAX}, not {number!r}")
    return number
