"""The asyncio driver: a callback state machine on one loop.

A flow is no task. Whatever answers a request calls `_step`, which sends the answer and serves the next
request; the ledger's writer wakes the loop once per commit and steps every flow of that commit. Callers await
plain futures, so that a cancelled caller never touches a flow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context as ContextVars
from contextvars import copy_context
from typing import Any, Final

from counterfoil import threads
from counterfoil.effects.scope import Scope
from counterfoil.errors import CounterfoilError
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
)
from counterfoil.runtime.asked import Asked
from counterfoil.runtime.blocking import (
    NESTED_WAIT_S,
    POLL_FIRST_S,
    POLL_LAST_S,
    VIRTUAL_S,
    again,
    conflict,
    in_flight,
    runtime_closed,
)
from counterfoil.runtime.handlers import enter, inside, own_flights
from counterfoil.runtime.observe import Watch
from counterfoil.runtime.session import Session

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
        self._parked: set[Flight] = set()
        self._ticking = False
        self._tick_s = POLL_FIRST_S
        self._seen = -1
        self._drained: list[asyncio.Future[None]] = []
        self.tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._serve: dict[type[Request[Any]], Callable[[Flight, Any], Any]] = {
            Append: self._append,
            Read: self._read,
            Call: self._call,
            Now: self._now,
            Pause: self._pause,
            Gone: self._gone,
            Live: self._live,
        }

    # --- one flow for one name

    async def shared(
        self,
        scope: Scope,
        kind: str,
        name: str,
        *,
        flow: Callable[[], Flow],
        request: Any = None,
        wait_s: float | None = None,
    ) -> Any:
        """Run a flow, or share the one that is under way for this name; see `BlockingDriver.shared`."""
        chain = enter(id(self), scope.run, kind=kind, name=name)
        key = (scope.run, kind, name)
        flight = self._keyed.get(key)
        if flight is None:
            flight = self._keyed[key] = Flight(scope, flow(), key=key, fingerprint=request, chain=chain)
            return await self._first(flight)
        if request is not None and flight.fingerprint is not None and request != flight.fingerprint:
            raise conflict(name)
        if wait_s is None and len(chain) > 1:
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
        return await self._first(Flight(scope, flow, key=None, fingerprint=None, chain=inside.get()))

    async def _first(self, flight: Flight) -> Any:
        self._flights.add(flight)
        waiter = self._waiter(flight)
        self._step(flight, None)
        return await self._wait(flight, waiter)

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
            answer, error = None, None
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
            flow = self._after(flight, request)

    def _after(self, flight: Flight, request: Request[Any]) -> Flow | None:
        if self.watch is not None and flight.flow is not None:
            try:
                self.watch("after", flight.scope.run, request)
            except BaseException as raised:  # noqa: BLE001 - a crash on purpose
                flight.flow.close()
                self._fail(flight, raised)
        return flight.flow

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
        if flight.flow is not None and flight.serial == serial and self._after(flight, request) is not None:
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
        self._parked.discard(flight)
        if flight.pause is not None:
            flight.pause.cancel()
        if flight.key is not None and self._keyed.get(flight.key) is flight:
            del self._keyed[flight.key]
        for drained in self._drained:
            if not drained.done():
                drained.set_result(None)
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
        session = self.session
        if request.settle is None and not session.has_epoch(flight.scope):
            return self._from_thread(flight, request, lambda: self._append_now(flight, request))
        entry = request.settle or session.entry(flight.scope, request.draft, session.epoch_of(flight.scope))
        session.check()
        if session.batching is not None:
            token = (flight, flight.serial, request, entry)
            session.batching.submit(entry, settle=request.settle is not None, token=token, deliver=self._delivered)
            return _WAITING
        return self._from_thread(flight, request, lambda: self._append_now(flight, request))

    def _append_now(self, flight: Flight, request: Append) -> Any:
        """Append in a worker thread: the first of a life, which registers it, or in a ledger without batches."""
        session = self.session
        entry = request.settle or session.entry(flight.scope, request.draft, session.epoch_of(flight.scope))
        try:
            record = session.ledger.append(entry, settle=request.settle is not None)
        except BaseException as error:
            session.refused(error, entry)
            raise
        self.to_loop(self._wake, flight.scope.run)
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
                if self._parked:
                    self._wake(flight.scope.run)
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

    # --- serving: pauses

    def _pause(self, flight: Flight, request: Pause) -> Any:
        flight.idle = request.idle
        clock = self.session.clock
        self._arm(flight, flight.serial, request, end=clock.monotonic() + request.seconds)
        self._close_soon(flight)
        if request.changes:
            self._parked.add(flight)
            self._tick_s = POLL_FIRST_S
            self._tick()
        for drained in self._drained:
            if not drained.done():
                drained.set_result(None)
        return _WAITING

    def _close_soon(self, flight: Flight) -> None:
        if flight.idle and not flight.waiters:
            # Not here: the flow is being stepped right now.
            self.loop.call_soon(self._close_if_idle, flight)

    def _arm(self, flight: Flight, serial: int, request: Pause, *, end: float) -> None:
        rest = end - self.session.clock.monotonic()
        if rest <= 0:
            # Not here: the flow may be being stepped right now.
            flight.pause = self.loop.call_soon(self._resume, flight, serial, request)
            return
        wait_s = min(rest, VIRTUAL_S) if self.session.virtual else rest
        flight.pause = self.loop.call_later(wait_s, lambda: self._arm(flight, serial, request, end=end))
        flight.answering = lambda: self._resume(flight, serial, request)

    def _resume(self, flight: Flight, serial: int, request: Pause) -> None:
        if flight.flow is None or flight.serial != serial:
            return
        if flight.pause is not None:
            flight.pause.cancel()
            flight.pause = None
        flight.idle = False
        flight.answering = None
        self._parked.discard(flight)
        self.answer(flight, serial, request, answer=None)

    def _wake(self, run: str) -> None:
        for flight in [f for f in self._parked if f.scope.run == run]:
            if flight.answering is not None:
                self._parked.discard(flight)
                self.loop.call_soon(flight.answering)

    def _tick(self) -> None:
        """Ask the ledger which runs have changed, while somebody waits for that."""
        if self._ticking or not self._parked or self._closed:
            return
        self._ticking = True
        notifier = self.session.notifier
        if notifier is None:
            self.loop.call_later(POLL_LAST_S, self._ticked, None)
            return
        since = self._seen

        def ask() -> None:
            try:
                found = notifier.changes(since)
            except CounterfoilError:
                found = None
            self.to_loop(self._ticked, found)

        threads.submit(ask)

    def _ticked(self, found: tuple[set[tuple[str, str]], int] | None) -> None:
        self._ticking = False
        changed: set[str] = set()
        if found is not None:
            first = self._seen < 0
            self._seen = found[1]
            changed = {run for namespace, run in found[0] if namespace == self.session.namespace}
            if first:
                # What came between a flow's last read and the first look at the ledger.
                changed = {flight.scope.run for flight in self._parked}
        else:
            changed = {flight.scope.run for flight in self._parked}
        for run in changed:
            self._wake(run)
        if self._parked:
            self.loop.call_later(self._tick_s, self._tick)
            self._tick_s = min(self._tick_s * 1.5, POLL_LAST_S)
        else:
            self._seen = -1

    # --- serving: handlers

    def _call(self, flight: Flight, request: Call) -> Any:
        Asked(self, flight, request).start()
        return _WAITING

    # --- leaving

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
        self._closed = True
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
