"""The blocking driver: it runs a flow in the caller's thread and answers its requests there."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, Final

import msgspec

from counterfoil import threads
from counterfoil.effects.scope import Scope
from counterfoil.errors import CounterfoilError, EffectUnresolved, LedgerUnavailable, NameConflict, RunCancelled
from counterfoil.protocol.requests import (
    Append,
    Call,
    Filled,
    Gone,
    Instant,
    Live,
    Now,
    Overran,
    Pause,
    Raised,
    Read,
    Reply,
    Request,
    Returned,
    Transact,
)
from counterfoil.runtime.coding import PLAIN
from counterfoil.runtime.handlers import Context, arguments, enter, inside, own_flights
from counterfoil.runtime.observe import Watch
from counterfoil.runtime.session import Session
from counterfoil.runtime.tracing import calling, of_run, traced
from counterfoil.runtime.transactions import transact

POLL_FIRST_S: Final = 0.01
POLL_LAST_S: Final = 0.25
VIRTUAL_S: Final = 0.005
NESTED_WAIT_S: Final = 30.0

Flow = Coroutine[Request[Any], Any, Any]


class Flight(msgspec.Struct, eq=False):
    """A flow under way for one name, and who waits for it."""

    # A lone caller takes no lock: who comes or goes tells first and looks then, so that of two that meet one sees
    # the other. Setting and deleting one key of a dictionary are atomic.

    run: str
    fingerprint: Any = None
    waiters: int = 0
    done: bool = False
    idle: bool = False
    value: Any = None
    error: BaseException | None = None


class BlockingDriver:
    """Runs flows for one session.

    Args:
        session: the life that they belong to.
        watch: sees every request, or None.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.watch: Watch | None = None
        self._flights: dict[tuple[str, str, str], Flight] = {}
        # Its waiters are callers that share a flight, and flows that pause for changes.
        self._changed = threading.Condition()
        self._pausing = 0
        self._serve: dict[type[Request[Any]], Callable[[Scope, Any, Flight | None], Any]] = {
            Append: self._append,
            Pause: self._pause,
            Read: self._read,
            Call: self._call,
            Now: self._now,
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
    ) -> Any:
        """Run a flow, or share the one that is under way for this name.

        Args:
            scope: the run.
            kind: `step`, `effect`, `park` …: equal names of different kinds do not meet.
            name: the name.
            flow: makes the flow.
            request: canonical request, compared with that of the one under way.
            wait_s: how long to wait for somebody else's flow; None: as long as it takes.
        """
        chain = enter(id(self), scope.run, kind=kind, name=name)
        key = (scope.run, kind, name)
        if wait_s is None and len(chain) > 1:
            wait_s = NESTED_WAIT_S
        flight = Flight(scope.run, request)
        while (other := self._flights.setdefault(key, flight)) is not flight:
            self._join(scope, other, name, request=request, wait_s=wait_s)
            if not isinstance(other.error, RunCancelled):
                return _value_of(other)
            # Only that handle was cancelled: this one goes on where it stopped.
        token = inside.set(chain)
        try:
            if traced():
                with calling(kind, of_run(scope.run, kind, name)) as called:
                    flight.value = called.over(self.run(scope, flow(), flight))
            else:
                flight.value = self.run(scope, flow(), flight)
        except BaseException as error:
            flight.error = error
            raise
        finally:
            inside.reset(token)
            del self._flights[key]
            flight.done = True
            if flight.waiters:
                self.wake()
        return flight.value

    def _join(self, scope: Scope, flight: Flight, name: str, *, request: Any, wait_s: float | None) -> None:
        if request is not None and flight.fingerprint is not None and request != flight.fingerprint:
            raise conflict(name)
        with self._changed:
            flight.waiters += 1
            ended = self._changed.wait_for(lambda: flight.done or scope.cancelled, wait_s)
            flight.waiters -= 1
        if not ended:
            raise in_flight(name)
        if not flight.done:
            raise run_cancelled(scope.run)

    def busy(self, run: str, kind: str, name: str) -> bool:
        """Say whether a flow is under way for a name."""
        return (run, kind, name) in self._flights

    def drain(self, run: str | None, timeout_s: float) -> bool:
        """Wait until no flow of a run (of any run: None) is under way; False if that took too long."""
        # A handler that leaves a handle of its own run does not wait for itself.
        mine = own_flights(id(self))

        def under_way() -> list[Flight]:
            flights = list(self._flights.items())
            return [f for key, f in flights if key not in mine and not f.idle and (run is None or f.run == run)]

        with self._changed:
            waiting = under_way()
            for flight in waiting:
                flight.waiters += 1
            return not waiting or self._changed.wait_for(lambda: not under_way(), timeout_s)

    # --- one flow

    def run(self, scope: Scope, flow: Flow, flight: Flight | None = None) -> Any:
        """Run a flow to its end in this thread."""
        answer: Any = None
        error: BaseException | None = None
        watch, serve, send = self.watch, self._serve, flow.send
        # The life does not end under a flow: what it holds (a proof, perhaps) is still to be recorded.
        self.session.retain(flow)
        try:
            while True:
                try:
                    request = send(answer) if error is None else flow.throw(error)
                except StopIteration as done:
                    return done.value
                error = None
                if watch is not None:
                    self._watched(watch, "before", scope, request=request, flow=flow)
                try:
                    answer = serve[type(request)](scope, request, flight)
                except BaseException as raised:  # noqa: BLE001 - the flow decides what becomes of it
                    error = raised
                if watch is not None:
                    self._watched(watch, "after", scope, request=request, flow=flow)
        finally:
            self.session.release(flow)

    @staticmethod
    def _watched(watch: Watch, moment: Any, scope: Scope, *, request: Request[Any], flow: Flow) -> None:
        try:
            watch(moment, scope.run, request)
        except BaseException:
            flow.close()
            raise

    def _append(self, scope: Scope, request: Append, _flight: Flight | None) -> Filled:
        session, settle = self.session, request.settle
        entry = settle
        if entry is None:
            entry = session.entry(scope, request.draft, scope.epoch or session.epoch_of(scope))
        try:
            record = session.ledger.append(entry, settle=settle is not None)
        except BaseException as error:
            session.refused(error, entry)
            raise
        if self._pausing:
            self.wake()
        return session.filled(scope, entry, record)

    def _transact(self, scope: Scope, request: Transact, _flight: Flight | None) -> Filled | Raised:
        return transact(self.session, scope, request)

    def _read(self, scope: Scope, _request: Read, _flight: Flight | None) -> None:
        self.session.read(scope)

    def refresh(self, scope: Scope) -> None:
        """Bring what is known of a run up to date."""
        self.session.read(scope)

    def _now(self, _scope: Scope, _request: Now, _flight: Flight | None) -> Instant:
        clock = self.session.clock
        return Instant(clock.time(), clock.monotonic())

    def _gone(self, _scope: Scope, request: Gone, _flight: Flight | None) -> bool:
        owners = self.session.owners
        return True if owners is None else owners.gone(request.epoch)

    def _live(self, scope: Scope, _request: Live, _flight: Flight | None) -> bool:
        owners = self.session.owners
        return True if owners is None else owners.live(self.session.epoch_of(scope))

    def wake(self) -> None:
        """Let whoever waits look again."""
        with self._changed:
            self._changed.notify_all()

    def _pause(self, scope: Scope, request: Pause, flight: Flight | None) -> None:
        if flight is None or not request.idle:
            self._paused(scope, request)
            return
        # A flow that waits owes nothing: nobody who leaves waits for it.
        self._set_idle(flight, idle=True)
        try:
            self._paused(scope, request)
        finally:
            self._set_idle(flight, idle=False)

    def _set_idle(self, flight: Flight, *, idle: bool) -> None:
        flight.idle = idle
        if idle and flight.waiters:
            self.wake()

    def _paused(self, scope: Scope, request: Pause) -> None:
        clock, notifier = self.session.clock, self.session.notifier
        end = clock.monotonic() + request.seconds
        slice_s = POLL_LAST_S if notifier is None else POLL_FIRST_S
        position, seen = scope.history.position, 0
        if notifier is not None and request.changes:
            seen = notifier.changes(-1)[1]
            # What came between the flow's last read and this look at the ledger.
            self.session.read(scope)
            if scope.history.position != position:
                return
        while (rest := end - clock.monotonic()) > 0:
            if self.session.virtual:
                rest = min(rest, VIRTUAL_S)
            if request.idle and scope.cancelled:
                raise run_cancelled(scope.run)
            if request.idle and self.session.ending:
                raise runtime_closed()
            with self._changed:
                self._pausing += request.changes
                self._changed.wait(min(rest, slice_s if request.changes else POLL_LAST_S * 4))
                self._pausing -= request.changes
            if not request.changes:
                continue
            slice_s = min(slice_s * 1.5, POLL_LAST_S)
            if notifier is None:
                return
            changed, seen = notifier.changes(seen)
            if (scope.namespace, scope.run) in changed or scope.history.position != position:
                return

    # --- handlers

    def _call(self, _scope: Scope, request: Call, _flight: Flight | None) -> Reply:
        if request.timeout_s is not None:
            return _Overseen(self.session, request, request.timeout_s).reply()
        if not request.told:
            return _reply(request.handler, request.proof, _await)
        context = Context(request.key, request.attempt, None)
        return _reply(request.handler, arguments(request.handler, request.proof, context), _await)


def _reply(handler: Callable[..., Any], given: tuple[Any, ...], wait: Callable[[Any], Any]) -> Reply:
    """Call a handler in this thread; `wait` is given what must be awaited."""
    try:
        value = handler(*given)
        if type(value) not in PLAIN and inspect.isawaitable(value):
            value = wait(value)
        return Returned(value)
    except BaseException as error:  # noqa: BLE001 - it is the flow's to judge
        return Raised(error)


def _await(value: Any) -> Any:
    return threads.Running(_awaited(value)).result()


class _Overseen:
    """One call of one handler in a daemon thread, abandoned when it is overdue; a coroutine is cancelled then."""

    def __init__(self, session: Session, request: Call, timeout_s: float) -> None:
        self._session = session
        self._handler = request.handler
        self._timeout_s = timeout_s
        self._context = Context(request.key, request.attempt, time.monotonic() + timeout_s)
        self._given = arguments(request.handler, request.proof, self._context)
        self._reply: Reply | None = None
        self._running: threads.Running | None = None

    def _await(self, value: Any) -> Any:
        running = self._running = threads.Running(_awaited(value))
        if self._context.cancelled:
            running.cancel()
        return running.result()

    def reply(self) -> Reply:
        """Call it, and wait until it has ended or is overdue."""
        context = copy_context()
        ended = threading.Event()

        def work() -> None:
            try:
                self._reply = context.run(_reply, self._handler, self._given, self._await)
                ended.set()
            finally:
                self._session.release(self)

        # It may go on when its flow has long ended: the life lasts as long.
        self._session.retain(self)
        threads.submit(work)
        try:
            in_time = ended.wait(self._timeout_s)
        finally:
            if not ended.is_set():
                self._context.cancel()
                if self._running is not None:
                    self._running.cancel()
        return self._reply if in_time and self._reply is not None else Overran()


async def _awaited(value: Any) -> Any:
    return await value


def conflict(name: str) -> CounterfoilError:
    """Make the error for a name that is in use for another request."""
    return NameConflict(
        f"{name!r} is being performed for another request; this one was not sent",
        hint="give a different effect a different name",
    )


def _value_of(flight: Flight) -> Any:
    if flight.error is not None:
        raise again(flight.error)
    return flight.value


def runtime_closed() -> LedgerUnavailable:
    """Make the error for a call that waits for something while its runtime is left."""
    return LedgerUnavailable("the runtime was left meanwhile", code="runtime-closed", effect_ran="unknown")


def run_cancelled(run: str) -> RunCancelled:
    """Make the error for a handle that was cancelled."""
    return RunCancelled(f"run {run!r} was cancelled; nothing was started")


def in_flight(name: str) -> EffectUnresolved:
    """Make the error for a caller that waited long enough for another call of its own process."""
    return EffectUnresolved(
        f"{name!r} is unresolved: another call in this process is still performing it",
        reason="in-flight",
        name=name,
        effect_ran="unknown",
        hint="call again later, or wait longer with wait=",
    )


def again(error: BaseException) -> BaseException:
    """Give another caller the same error, as an instance of its own where that can be."""
    return error.again() if isinstance(error, CounterfoilError) else error
