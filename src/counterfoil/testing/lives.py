"""One life of a process that carries a user's body, in either colour, until it ends or is killed as planned."""

# pyright: reportPrivateUsage=false
# A life is killed as a process is, which no public face offers.

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from counterfoil import threads
from counterfoil.errors import EffectUnresolved, UsageError
from counterfoil.protocol import slots
from counterfoil.protocol.keys import effect_key
from counterfoil.protocol.requests import Append, Call, Pause, Request
from counterfoil.runtime.aio import AsyncRuntime
from counterfoil.runtime.sync import Runtime
from counterfoil.testing.notes import shown
from counterfoil.testing.tracing import trace
from counterfoil.testing.turns import wrap

if TYPE_CHECKING:
    from counterfoil.testing.trials import Trial

E = TypeVar("E", bound=BaseException)

CALLS_MAX: Final = 12
EVENTS_MAX: Final = 20_000
PAUSES_MAX: Final = 400
ALIKE: Final = 2
SAME_MAX: Final = 6
SECOND: Final = "process 2"
DRAIN_S: Final = 5.0
_RETIRING_S: Final = 5.0


class Crash(BaseException):
    """The process dies here."""


class Waiting(BaseException):
    """The body waits for something that nobody does."""


class Endless(BaseException):
    """The body asks for more than any body does."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a life ended: `returned`, `died`, `waits`, `endless` or `raised`, with the result or the error."""

    how: str
    value: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class Sequence:
    """What a body asked for in one call of it: (`effect`, name) and so on, and which of these returned."""

    pairs: list[tuple[str, str]] = field(default_factory=list)
    returned: set[tuple[str, str]] = field(default_factory=set)


class Life:
    """A life: it counts the events of its flows, and dies, is cancelled or stops at the planned ones.

    Args:
        trial: what it is a life of.
        who: what people call it.
        crash: the event at which it dies, or None.
        cancels: the events at which its caller is cancelled.
        second: the event at which it stops for a second process, or None.
    """

    def __init__(
        self,
        trial: Trial,
        who: str,
        *,
        crash: int | None = None,
        cancels: tuple[int, ...] = (),
        second: int | None = None,
    ) -> None:
        self.trial = trial
        self.who = who
        self.crash = crash
        self.cancels = cancels
        self.second = second
        self.events = 0
        self.dead = False
        self.cancelled = False
        self.cancel: Callable[[], Any] = lambda: None
        self.asked = Sequence()
        self._open = 0
        self._pauses = 0
        self._seen = 0
        self._error = ""
        self._times = 0

    # --- what a body asks

    def begin(self) -> None:
        """Note that the body is called, from its beginning."""
        self.asked = Sequence()
        if self.who != SECOND:
            self.trial.sequences.append(self.asked)

    def ask(self, kind: str, name: str) -> None:
        """Note what the body asks for."""
        self._open += 1
        if self._open > 1:
            self.trial.notes.overlapping = True
        if not self.dead:
            self.asked.pairs.append((kind, name))
            self.trial.check_order(self.asked)

    def answered(self, kind: str, name: str, *, returned: bool) -> None:
        """Note that it was answered: with a value, or with an error."""
        self._open -= 1
        if not self.dead and returned:
            self.asked.returned.add((kind, name))

    # --- what its flows ask

    def watch(self, moment: str, run: str, request: Request[Any]) -> None:
        """See one event of a flow; what this raises ends the flow."""
        if run != self.trial.run_id:
            return
        if self.dead:
            raise Crash(self.who)
        before = moment == "before"
        if before:
            self._before(request)
        elif isinstance(request, Append):
            self.trial.notes.say(self.who, f"{request.draft.phase} → {request.draft.slot}")
        self._seen += 1
        if self._seen > EVENTS_MAX:
            raise Endless(self.who)
        if self._pauses <= ALIKE:
            # A body that waits comes by the same points again and again.
            self.events += 1
            self._planned(moment, request)
        if before and isinstance(request, Pause):
            self._pause(request)

    def _planned(self, moment: str, request: Request[Any]) -> None:
        if self.crash is not None and self.events >= self.crash:
            self._die(moment, request)
        if self.events in self.cancels:
            self.cancelled = True
            self.trial.notes.say(self.who, f"its caller is cancelled ({moment} {_what(request)})")
            self.cancel()
        if self.second == self.events:
            self.trial.notes.say(self.who, f"stops here ({moment} {_what(request)}) while a second process goes on")
            self.trial.second_process()
            self.trial.notes.say(self.who, "goes on")

    def _before(self, request: Request[Any]) -> None:
        if isinstance(request, Append):
            self._pauses = 0
            self._learn(request)
        elif isinstance(request, Call) and not self.trial.quiet:
            self._pauses = 0
            request.handler, request.told = wrap(self, request), True

    def _learn(self, request: Append) -> None:
        found = slots.effect_of(request.draft.slot)
        if found is not None and found[2] == "intent":
            name, attempt, _ = found
            key = effect_key(self.trial.case.namespace, self.trial.run_id, name, attempt=attempt)
            self.trial.notes.names[key] = name, attempt

    def _die(self, moment: str, request: Request[Any]) -> None:
        self.dead = True
        self.trial.notes.say(self.who, f"IS KILLED {moment} {_what(request)}")
        raise Crash(self.who)

    def _pause(self, request: Pause) -> None:
        self._pauses += 1
        if self._pauses > PAUSES_MAX:
            raise Waiting(self.who)
        self.trial.notes.clock.skip(request.seconds)

    # --- judging what a body raised

    def say_end(self, error: BaseException) -> None:
        """Tell people how a call of the body ended; of a death they know."""
        if self.dead:
            return
        said = f"its body ends with {shown(error)}"
        if within(error, Waiting) is not None:
            said = "its body waits, and nothing comes"
        elif within(error, Endless) is not None:
            said = "its body asks again and again"
        self.trial.notes.say(self.who, said)

    def judged(self, error: BaseException) -> Ended | None:
        """Say how a life ends with what its body raised; None: the body is called again."""
        if self.dead:
            return Ended("died")
        if within(error, Waiting) is not None:
            return Ended("waits")
        if within(error, Endless) is not None:
            return Ended("endless")
        if self.trial.notes.mistakes:
            return Ended("raised", error=error)
        if not isinstance(error, Exception) and within(error, asyncio.CancelledError) is None:
            raise error
        said = repr(error)
        self._times, self._error = (self._times + 1 if said == self._error else 1), said
        if self._times == SAME_MAX:
            return Ended("raised", error=error)
        unresolved = within(error, EffectUnresolved)
        wait_s = 1.0 if unresolved is None else unresolved.retry_after_s or 1.0
        self.trial.notes.clock.advance(wait_s)
        return None


def within(error: BaseException, kind: type[E]) -> E | None:
    """Return an error of a kind: this one, one of a group, or what it was raised from."""
    at: BaseException | None = error
    while at is not None:
        if isinstance(at, kind):
            return at
        if isinstance(at, BaseExceptionGroup):
            for each in at.exceptions:
                if (found := within(each, kind)) is not None:
                    return found
        at = at.__cause__
    return None


def _what(request: Request[Any]) -> str:
    if isinstance(request, Append):
        return f"the append of {request.draft.slot}"
    if isinstance(request, Call):
        return "a call of a handler"
    return {"Read": "a read", "Now": "a look at the clock", "Pause": "a pause"}.get(
        type(request).__name__, "a question about an owner"
    )


# --- one life, in either colour ------------------------------------------------------------------------------


def live(life: Life) -> Ended:
    """Let a life carry the body until it ends."""
    return threads.run_apart(_live_async(life)) if life.trial.case.asynchronous else _live(life)


def _live(life: Life) -> Ended:
    trial = life.trial
    ledger = trial.open()
    runtime = Runtime(
        ledger, namespace=trial.case.namespace, owner=life.who, clock=trial.notes.clock, drain_timeout=DRAIN_S
    )
    runtime.__enter__()
    runtime._driver.watch = life.watch  # noqa: SLF001 - the crash tests hang on it
    ended = Ended("raised")
    for _ in range(CALLS_MAX):
        life.begin()
        try:
            with runtime.run(trial.run_id) as run:
                life.cancel = run.cancel
                body = trial.case.body
                ended = Ended("returned", _plain(body(trace(life, run, asynchronous=False), *trial.case.args)))
            break
        except BaseException as error:  # noqa: BLE001 - crashes are no exceptions of the user's
            found = life.judged(error)
            ended = found or Ended("raised", error=error)
            life.say_end(error)
            if found is not None:
                break
    if life.dead:
        session = runtime._session  # noqa: SLF001 - a death is not in the public face
        runtime._keeper._stopped.set()  # noqa: SLF001
        session._ledger = None  # noqa: SLF001
        trial.kill(ledger, set(session.own_epochs))
        return Ended("died")
    runtime.__exit__(None, None, None)
    trial.leave(ledger)
    return ended


def _plain(value: Any) -> Any:
    if inspect.iscoroutine(value):
        value.close()
        raise UsageError("the body returns a coroutine and is no asynchronous function", hint="write `async def`")
    return value


async def _live_async(life: Life) -> Ended:
    trial = life.trial
    ledger = trial.open()
    runtime = AsyncRuntime(
        ledger, namespace=trial.case.namespace, owner=life.who, clock=trial.notes.clock, drain_timeout=DRAIN_S
    )
    await runtime.__aenter__()
    runtime._driver.watch = life.watch  # noqa: SLF001 - the crash tests hang on it
    ended = Ended("raised")
    for _ in range(CALLS_MAX):
        life.begin()
        try:
            ended = await _called(life, runtime)
            break
        except BaseException as error:  # noqa: BLE001 - crashes are no exceptions of the user's
            found = life.judged(error)
            ended = found or Ended("raised", error=error)
            life.say_end(error)
            if found is not None:
                break
    if life.dead:
        await _die(runtime)
        trial.kill(ledger, set(runtime._session.own_epochs))  # noqa: SLF001
        return Ended("died")
    await runtime.__aexit__(None, None, None)
    trial.leave(ledger)
    return ended


async def _called(life: Life, runtime: AsyncRuntime) -> Ended:
    trial = life.trial
    async with runtime.run(trial.run_id) as run:
        coroutine = trial.case.body(trace(life, run, asynchronous=True), *trial.case.args)
        task = asyncio.ensure_future(coroutine)
        life.cancel = task.cancel
        return Ended("returned", await task)


async def _die(runtime: AsyncRuntime) -> None:
    """End a life on a loop: its flows are closed, and handlers that still run in threads are waited for."""
    driver, session, keeper = runtime._driver, runtime._session, runtime._keeper  # noqa: SLF001
    driver.close()
    if keeper._task is not None:  # noqa: SLF001
        keeper._task.cancel()  # noqa: SLF001
    end = driver.loop.time() + _RETIRING_S
    while session._physical and driver.loop.time() < end:  # noqa: SLF001, ASYNC110 - nobody tells
        await asyncio.sleep(0.001)
    session._ledger = None  # noqa: SLF001
