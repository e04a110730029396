"""Recovery: finding runs that nobody carries, and carrying them, so many at once, once or for as long as told.

Any number of processes share the work through the ledger: the claim of a run is a slot, and a life that holds one is
left alone until it is proved to be gone. `counterfoil work` is this in a process of its own.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from counterfoil import threads
from counterfoil.effects import carry, lifetime
from counterfoil.errors import RunCancelled, UsageError
from counterfoil.protocol import codec, records
from counterfoil.protocol.history import History
from counterfoil.runtime import arguments, views
from counterfoil.runtime.session import Session

if TYPE_CHECKING:
    from counterfoil.runtime.aio import AsyncRuntime
    from counterfoil.runtime.async_run import AsyncRun
    from counterfoil.runtime.run import Run
    from counterfoil.runtime.sync import Runtime

Bodies = Iterable[Callable[..., Any]] | Mapping[str, Callable[..., Any]]
Told = Callable[[str, str, Any], None]
"""Called with an event (`resumed`, `finished`, `raised`, `released`, `quarantined`), the run, and what came of it."""

AT_ONCE_MAX: Final = 1000
_LOOK_S: Final = 0.2
_LIFTED_S: Final = 5.0
# So many lives in a row have ended with a body before it is kept apart, for so many seconds from its beginning.
_SUSPECT: Final = 2
_ALONE_S: Final = 5.0
_AGAIN_FIRST_S: Final = 1.0
_AGAIN_LAST_S: Final = 300.0


class _Left(Exception):
    """The run is left alone: somebody else has it, or nobody shall."""


def _nobody(event: str, run_id: str, what: Any) -> None:
    """Tell nobody."""


class Search:
    """Which runs may be left behind, oldest first. It remembers what it has learnt about the others.

    Args:
        session: the life that looks.
        bodies: those that may be resumed.
        deaths_max: when a run is quarantined.
        told: hears what happens.

    Attributes:
        again: whether a body that raised is called again, later and later.
        dry: whether the last look found nothing, now or soon.
    """

    def __init__(self, session: Session, bodies: Bodies, *, deaths_max: int, told: Told) -> None:
        if type(deaths_max) is not int or deaths_max < 1:
            raise UsageError(f"deaths_max must be an int of 1 or more, not {deaths_max!r}")
        self._session = session
        self._table = arguments.body_table(bodies)
        self.deaths_max = deaths_max
        self.told = told
        self.again = True
        self._carriers: dict[str, str] = {}
        self._foreign: set[str] = set()
        self._quarantined: set[str] = set()
        self._again: dict[str, tuple[float, float]] = {}
        self._queue: deque[str] = deque()
        self._next_s = 0.0
        self._lock = threading.Lock()
        self._begun: dict[str, tuple[float, bool]] = {}
        self._deferred: set[str] = set()
        self._silent = False
        self.dry = False

    def take(self, room: int) -> list[str]:
        """Take runs that may be left behind, as many as there is room for; blocks, and looks anew now and then."""
        if not self._queue and (now := time.monotonic()) >= self._next_s:
            self._queue.extend(self.candidates())
            self._next_s = now + _LOOK_S
            self.dry = not self._queue and not self.pending
        return [self._queue.popleft() for _ in range(min(room, len(self._queue)))]

    def candidates(self) -> list[str]:
        """Look for runs that may be left behind; blocks."""
        session = self._session
        self._deferred.clear()
        gone: dict[str, bool] = {}
        found: list[str] = []
        seen: set[str] = set()
        for row in views.rows(session, finished=False, holding=[(records.RUN, "started")]):
            seen.add(row.run)
            if row.run in self._foreign or row.run in session.carried or not self._due(row.run):
                continue
            epoch = self._carriers.get(row.run)
            if epoch is not None and epoch not in gone:
                gone[epoch] = session.owners is None or session.owners.gone(epoch)
            if epoch is None or gone[epoch]:
                found.append(row.run)
        self._silent = bool(set(self._carriers.values()) & self._silent_lives())
        for known in (self._carriers, self._again):
            for run in known.keys() - seen:
                del known[run]
        self._foreign &= seen
        self._quarantined &= seen
        return found

    @property
    def pending(self) -> bool:
        """Whether there will soon be more: a life that carries a run is silent, or a body waits for its turn."""
        return self._silent or bool(self._deferred)

    def enter(self, history: History) -> None:
        """Note that a body begins; one that may have killed its process begins when no other one has just begun.

        So neighbours of such a body are not blamed for what it does.

        Raises:
            _Left: it is not its turn.
        """
        carrier = carry.carrier_of(history)
        suspect = carrier is not None and carrier.deaths >= _SUSPECT
        with self._lock:
            now = time.monotonic()
            fresh = [alone for at, alone in self._begun.values() if now - at < _ALONE_S]
            if fresh and (suspect or any(fresh)):
                self._deferred.add(history.run)
                raise _Left
            self._begun[history.run] = (now, suspect)

    def leave(self, run_id: str) -> None:
        """Note that a body has ended."""
        with self._lock:
            self._begun.pop(run_id, None)

    def _silent_lives(self) -> set[str]:
        owners = self._session.owners
        return set() if owners is None else {owner.epoch for owner in owners.owners() if not owner.alive}

    def body_of(self, history: History) -> tuple[Callable[..., Any], list[Any]]:
        """Return a run's body and its arguments.

        Raises:
            _Left: it is not one of the bodies that may be resumed.
            LedgerCorrupt: the record of its start cannot be decoded.
        """
        begun = lifetime.started(history)
        body = None if begun is None else self._table.get(begun.body)
        if begun is None or body is None:
            self._foreign.add(history.run)
            raise _Left
        return body, codec.decode(bytes(begun.args))

    def refused(self, history: History) -> _Left:
        """Remember why a run was not claimed."""
        carrier = carry.carrier_of(history)
        if carrier is not None and carrier.quarantine:
            # Looked at again from time to time: a person may lift it.
            self._again[history.run] = (self._session.clock.monotonic() + _LIFTED_S, _AGAIN_FIRST_S / 2)
            if history.run not in self._quarantined:
                self._quarantined.add(history.run)
                self.told("quarantined", history.run, carrier.deaths)
        elif carrier is not None and carrier.epoch not in self._session.own_epochs:
            self._carriers[history.run] = carrier.epoch
        return _Left()

    def ended(self, run_id: str, result: Any) -> None:
        """Tell of an end."""
        if isinstance(result, BaseException):
            _, wait_s = self._again.get(run_id, (0.0, _AGAIN_FIRST_S / 2))
            wait_s = min(wait_s * 2, _AGAIN_LAST_S) if self.again else math.inf
            self._again[run_id] = (self._session.clock.monotonic() + wait_s, wait_s)
            self.told("raised", run_id, result)
        else:
            self.told("finished", run_id, result)

    def _due(self, run_id: str) -> bool:
        due, _ = self._again.get(run_id, (0.0, 0.0))
        return self._session.clock.monotonic() >= due


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
        self.search = Search(self._session, bodies, deaths_max=deaths_max, told=told)
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
            self.wait(_LOOK_S)

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
            except _Left:
                return
            except Exception as error:  # noqa: BLE001 - what one run meets must not stop the others
                results[run_id] = error
            self.search.ended(run_id, results[run_id])

    def _carry(self, run: Run) -> Any:
        run._load()
        body, args = self.search.body_of(run._state.history)
        with self._changed:
            if self.stopping:
                raise _Left
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
        raise _Left


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
        self.search = Search(self._session, bodies, deaths_max=deaths_max, told=told)
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
                await self.wait(_LOOK_S)
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
            except _Left:
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
