"""The asyncio driver: a callback state machine on one loop.

A flow is no task. Whatever answers a request calls `_step`, which sends the answer and serves the next
request; the ledger's writer wakes the loop once per commit and steps every flow of that commit. Callers await
plain futures, so that a cancelled caller never touches a flow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context as ContextVars
from contextvars import copy_context
from functools import partial
from typing import Any, Final

from counterfoil import threads
from counterfoil.effects.scope import Scope
from counterfoil.errors import RunCancelled
from counterfoil.protocol.requests import (
    Append,
    Call,
    Gone,
    Instant,
    Live,
    Now,
    Pause,
    Read,
    Request,
    Transact,
)
from counterfoil.runtime.asked import Asked
from counterfoil.runtime.blocking import (
    NESTED_WAIT_S,
    again,
    conflict,
    in_flight,
    run_cancelled,
    runtime_closed,
)
from counterfoil.runtime.handlers import enter, inside, own_flights
from counterfoil.runtime.observe import Watch
from counterfoil.runtime.parking import Parking
from counterfoil.runtime.session import Session
from counterfoil.runtime.tracing import calling, loaded, of_run
from counterfoil.runtime.transactions import transact

Flow = Coroutine[Request[Any], Any, Any]
Key = tuple[str, str, str]

_WAITING: Final = object()


class Flight:
    """A flow under way, and the callers that wait for it."""

    __slots__ = (
        "answering",
        "chain",
        "fingerprint",
        "flow",
        "idle",
        "key",
        "pause",
        "scope",
        "serial",
        "variables",
        "waiters",
    )

    def __init__(self, scope: Scope, flow: Flow, *, key: Key | None, fingerprint: Any, chain: Any) -> None:
        self.scope = scope
        self.flow: Flow | None = flow
        self.key = key
        self.fingerprint = fingerprint
        self.chain = chain
        self.waiters: list[asyncio.Future[Any]] = []
        self.idle = False
        self.pause: asyncio.Handle | None = None
        # Answers that come for an older request (an abandoned look-up) are told by its serial number.
        self.serial = 0
        self.answering: Callable[[], None] | None = None
        self.variables: ContextVars = copy_context()


class LoopDriver:
    """Runs flows for one session on one loop."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.watch: Watch | None = None
        self.loop = asyncio.get_running_loop()
        self._keyed: dict[Key, Flight] = {}
        self._flights: set[Flight] = set()
        self.parking = Parking(self)
        self._drained: list[asyncio.Future[None]] = []
        self.tasks: set[asyncio.Task[Any]] = set()
        self.closed = False
        # Made once: the ledger tells by it which replies go together.
        self._deliver = self._delivered
        self._serve: dict[type[Request[Any]], Callable[[Flight, Any], Any]] = {
            Append: self._append,
            Read: self._read,
            Call: self._call,
            Now: self._now,
            Pause: self._pause,
            Gone: self._gone,
            Live: self._live,
            Transact: self._transact,
        }

    # --- one flow for one name

    def shared(
        self,
        scope: Scope,
        kind: str,
        name: str,
        *,
        flow: Callable[[], Flow],
        request: Any = None,
        wait_s: float | None = None,
    ) -> Awaitable[Any]:
        """Run a flow, or share the one that is under way for this name; see `BlockingDriver.shared`.

        It begins here; what is returned waits for its end.
        """
        chain = enter(id(self), scope.run, kind=kind, name=name)
        key = (scope.run, kind, name)
        if loaded("trace") is None and key not in self._keyed:
            return self._begin(Flight(scope, flow(), key=key, fingerprint=request, chain=chain))
        return self._joined(scope, key, flow=flow, chain=chain, request=request, wait_s=wait_s)

    async def _joined(
        self, scope: Scope, key: Key, *, flow: Callable[[], Flow], chain: Any, request: Any, wait_s: float | None
    ) -> Any:
        _, kind, name = key
        while (flight := self._keyed.get(key)) is not None:
            try:
                return await self._join(flight, name, request=request, wait_s=wait_s, nested=len(chain) > 1)
            except RunCancelled:
                if scope.cancelled:
                    raise
                # Only that handle was cancelled: this one goes on where it stopped.
        with calling(kind, of_run(scope.run, kind, name)) as called:
            flight = Flight(scope, flow(), key=key, fingerprint=request, chain=chain)
            return called.over(await self._begin(flight))

    async def _join(self, flight: Flight, name: str, *, request: Any, wait_s: float | None, nested: bool) -> Any:
        if request is not None and flight.fingerprint is not None and request != flight.fingerprint:
            raise conflict(name)
        if wait_s is None and nested:
            wait_s = NESTED_WAIT_S
        waiter = self._waiter(flight)
        timer = None if wait_s is None else self.loop.call_later(wait_s, _give_up, waiter, name)
        try:
            return await self._wait(flight, waiter)
        finally:
            if timer is not None:
                timer.cancel()

    def busy(self, run: str, kind: str, name: str) -> bool:
        """Say whether a flow is under way for a name."""
        return (run, kind, name) in self._keyed

    async def run(self, scope: Scope, flow: Flow) -> Any:
        """Run a flow that nobody shares."""
        return await self._begin(Flight(scope, flow, key=None, fingerprint=None, chain=inside.get()))

    def _begin(self, flight: Flight) -> Awaitable[Any]:
        self._flights.add(flight)
        if flight.key is not None:
            self._keyed[flight.key] = flight
        waiter = self._waiter(flight)
        self._step(flight, None)
        return self._wait(flight, waiter)

    def _waiter(self, flight: Flight) -> asyncio.Future[Any]:
        waiter = self.loop.create_future()
        flight.waiters.append(waiter)
        return waiter

    async def _wait(self, flight: Flight, waiter: asyncio.Future[Any]) -> Any:
        try:
            return await waiter
        finally:
            if flight.flow is not None:
                flight.waiters.remove(waiter)
                self._close_if_idle(flight)

    def _close_if_idle(self, flight: Flight) -> None:
        if flight.idle and not flight.waiters and flight.flow is not None:
            flow = flight.flow
            self._ended(flight)
            flow.close()

    # --- stepping

    def _step(self, flight: Flight, answer: Any, error: BaseException | None = None) -> None:
        flow = flight.flow
        watch = self.watch
        while flow is not None:
            flight.serial += 1
            try:
                request = flow.send(answer) if error is None else flow.throw(error)
            except StopIteration as done:
                self._finish(flight, done.value)
                return
            except BaseException as raised:  # noqa: BLE001 - it belongs to the callers
                self._fail(flight, raised)
                return
            answer = error = None
            if watch is not None:
                try:
                    watch("before", flight.scope.run, request)
                except BaseException as raised:  # noqa: BLE001 - a crash on purpose
                    flow.close()
                    self._fail(flight, raised)
                    return
            try:
                answer = self._serve[type(request)](flight, request)
            except BaseException as raised:  # noqa: BLE001 - the flow decides what becomes of it
                error = raised
            if answer is _WAITING:
                return
            if watch is not None:
                self._watched(flight, request)
            flow = flight.flow

    def _watched(self, flight: Flight, request: Request[Any]) -> None:
        if self.watch is not None and flight.flow is not None:
            try:
                self.watch("after", flight.scope.run, request)
            except BaseException as raised:  # noqa: BLE001 - a crash on purpose
                flight.flow.close()
                self._fail(flight, raised)

    def answer(
        self,
        flight: Flight,
        serial: int,
        request: Request[Any],
        *,
        answer: Any,
        error: BaseException | None = None,
    ) -> None:
        """Give a late answer to a flow; one for an older request is dropped."""
        if flight.flow is None or flight.serial != serial:
            return
        if self.watch is not None:
            self._watched(flight, request)
        self._step(flight, answer, error)

    def _from_thread(self, flight: Flight, request: Request[Any], work: Callable[[], Any]) -> Any:
        serial = flight.serial

        def done() -> None:
            answer, error = None, None
            try:
                answer = work()
            except BaseException as raised:  # noqa: BLE001 - the flow decides what becomes of it
                error = raised
            self.to_loop(lambda: self.answer(flight, serial, request, answer=answer, error=error))

        threads.submit(done)
        return _WAITING

    def to_loop(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function on the loop, from any thread."""
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            # The loop is closed: for this flow the process has crashed, and the ledger knows all that counts.
            return

    def _ended(self, flight: Flight) -> list[asyncio.Future[Any]]:
        flight.flow = None
        self._flights.discard(flight)
        if flight.pause is not None:
            self.parking.leave(flight)
        if flight.key is not None and self._keyed.get(flight.key) is flight:
            del self._keyed[flight.key]
        if self._drained:
            self._drain_again()
        waiters, flight.waiters = flight.waiters, []
        return [waiter for waiter in waiters if not waiter.done()]

    def _finish(self, flight: Flight, value: Any) -> None:
        for waiter in self._ended(flight):
            waiter.set_result(value)

    def _fail(self, flight: Flight, error: BaseException) -> None:
        for count, waiter in enumerate(self._ended(flight)):
            if isinstance(error, asyncio.CancelledError):
                waiter.cancel()
            elif isinstance(error, StopIteration):
                waiter.set_exception(RuntimeError("a handler raised StopIteration"))
            else:
                waiter.set_exception(again(error) if count else error)

    # --- serving: the ledger

    def _append(self, flight: Flight, request: Append) -> Any:
        session, scope, entry = self.session, flight.scope, request.settle
        settle = entry is not None
        if entry is None:
            if not session.has_epoch(scope):
                return self._from_thread(flight, request, partial(self._append_now, flight, request))
            entry = session.entry(scope, request.draft, session.epoch_of(scope))
        session.check()
        if session.batching is None:
            return self._from_thread(flight, request, partial(self._append_now, flight, request))
        token = (flight, flight.serial, request, entry)
        session.batching.submit(entry, settle=settle, token=token, deliver=self._deliver)
        return _WAITING

    def _append_now(self, flight: Flight, request: Append) -> Any:
        """Append in a worker thread: the first of a life, which registers it, or in a ledger without batches."""
        session = self.session
        entry = request.settle or session.entry(flight.scope, request.draft, session.epoch_of(flight.scope))
        try:
            record = session.ledger.append(entry, settle=request.settle is not None)
        except BaseException as error:
            session.refused(error, entry)
            raise
        self.to_loop(self.parking.wake, flight.scope.run)
        return session.filled(flight.scope, entry, record)

    def _delivered(self, batch: list[tuple[Any, Any]]) -> None:
        # In the ledger's thread: one wake-up of the loop for a whole commit.
        self.to_loop(self._arrived, batch)

    def _arrived(self, batch: list[tuple[Any, Any]]) -> None:
        session = self.session
        for (flight, serial, request, entry), reply in batch:
            if isinstance(reply, BaseException):
                session.refused(reply, entry)
                self.answer(flight, serial, request, answer=None, error=reply)
            else:
                filled = session.filled(flight.scope, entry, reply)
                self.parking.wake(flight.scope.run)
                self.answer(flight, serial, request, answer=filled)

    def _read(self, flight: Flight, request: Read) -> Any:
        return self._from_thread(flight, request, lambda: self.session.read(flight.scope))

    async def refresh(self, scope: Scope) -> None:
        """Bring what is known of a run up to date."""
        await self.blocking(lambda: self.session.read(scope))

    async def blocking(self, work: Callable[[], Any]) -> Any:
        """Do blocking work in a worker thread; a cancelled caller does not cut it."""
        future = self.loop.create_future()

        def told(value: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        def done() -> None:
            try:
                value = work()
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                self.to_loop(told, None, error)
            else:
                self.to_loop(told, value, None)

        threads.submit(done)
        return await future

    async def pause(self, seconds: float) -> None:
        """Wait on the loop's own clock."""
        await asyncio.sleep(seconds)

    def _now(self, _flight: Flight, _request: Now) -> Instant:
        clock = self.session.clock
        return Instant(clock.time(), clock.monotonic())

    def _gone(self, flight: Flight, request: Gone) -> Any:
        owners = self.session.owners
        if owners is None:
            return True
        return self._from_thread(flight, request, lambda: owners.gone(request.epoch))

    def _live(self, flight: Flight, request: Live) -> Any:
        owners = self.session.owners
        if owners is None:
            return True
        return self._from_thread(flight, request, lambda: owners.live(self.session.epoch_of(flight.scope)))

    def _transact(self, flight: Flight, request: Transact) -> Any:
        variables = flight.variables.copy()
        variables.run(inside.set, flight.chain)
        session = self.session

        def work() -> Any:
            try:
                return variables.run(transact, session, flight.scope, request)
            finally:
                self.to_loop(self.parking.wake, flight.scope.run)
                session.release(work)

        # The life does not end under it: what it holds is the store's own lock.
        session.retain(work)
        return self._from_thread(flight, request, work)

    # --- serving: pauses

    def _pause(self, flight: Flight, request: Pause) -> Any:
        if request.idle and flight.scope.cancelled:
            raise run_cancelled(flight.scope.run)
        self.parking.park(flight, request)
        if flight.idle and not flight.waiters:
            # Not here: the flow is being stepped right now.
            self.loop.call_soon(self._close_if_idle, flight)
        self._drain_again()
        return _WAITING

    def cancel(self, scope: Scope) -> None:
        """End what pauses for a handle that was cancelled."""
        for flight in [f for f in self._flights if f.scope is scope and f.idle]:
            self.parking.leave(flight)
            self._step(flight, None, run_cancelled(scope.run))

    # --- serving: handlers

    def _call(self, flight: Flight, request: Call) -> Any:
        Asked(self, flight, request).start()
        return _WAITING

    # --- leaving

    def _drain_again(self) -> None:
        for drained in self._drained:
            if not drained.done():
                drained.set_result(None)

    async def drain(self, run: str | None, timeout_s: float) -> bool:
        """Wait until no flow of a run owes anything; False if that took too long."""
        end = self.loop.time() + timeout_s
        # A handler that leaves a handle of its own run does not wait for itself.
        mine = own_flights(id(self))
        while any((run is None or f.scope.run == run) and not f.idle and f.key not in mine for f in self._flights):
            rest = end - self.loop.time()
            if rest <= 0:
                return False
            drained = self.loop.create_future()
            self._drained.append(drained)
            try:
                await asyncio.wait([drained], timeout=rest)
            finally:
                self._drained.remove(drained)
        return True

    def close(self) -> None:
        """Close every flow: for the ledger this is a crash. Handlers that still run are told to stop."""
        self.closed = True
        for flight in list(self._flights):
            flow = flight.flow
            waiters = self._ended(flight)
            if flow is not None:
                flow.close()
            for waiter in waiters:
                waiter.set_exception(runtime_closed())
        for task in self.tasks:
            task.cancel()


def _give_up(waiter: asyncio.Future[Any], name: str) -> None:
    if not waiter.done():
        waiter.set_exception(in_flight(name))
