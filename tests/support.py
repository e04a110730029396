"""The harness of the tests: one scenario for both colours and every ledger, judged by the recipient's log.

A scenario is an `async def` against a *life*: a runtime whose methods are awaited in either colour. For the
blocking colour the calls block right there, or in a thread (`life.beside`) where a scenario needs two at once.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, Self, TypeVar
from weakref import WeakSet

import pytest

from counterfoil import AsyncRuntime, Evidence, Runtime
from counterfoil.errors import CommitUnknown
from counterfoil.ledgers.memory import MemoryLedger
from counterfoil.ledgers.urls import parse
from counterfoil.protocol import codec
from counterfoil.protocol.records import Draft
from counterfoil.protocol.requests import Append, Pause

# How long a fact is waited for. It is for failures only: nothing that is tested takes so long.
PATIENCE_S = 60.0
# Deadlines that are tried one after the other, until the one that is looked for came after what it must not cut off.
GROWING_S = (0.05, 0.3, 1.2, 5.0, 20.0)

T = TypeVar("T")


# --- time


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self, wall: float = 1_000_000.0) -> None:
        self.wall = wall
        self.mono = 0.0
        self._lock = threading.Lock()
        # By thread: what one lets pass is not used up by another that looks at the clock meanwhile.
        self._skips: dict[int, float] = {}

    def time(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        now = self.mono
        self.advance(self._skips.pop(threading.get_ident(), 0.0))
        return now

    def skip(self, seconds: float) -> None:
        """Let time pass as soon as somebody has looked when his wait began."""
        self._skips[threading.get_ident()] = seconds

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        with self._lock:
            self.wall += seconds
            self.mono += seconds

    def set_wall(self, by: float) -> None:
        """Set the wall clock forward or back; no time passes."""
        with self._lock:
            self.wall += by


# --- recipients


class Payee:
    """A recipient in this process. It logs each request and makes one more item for each: it never deduplicates."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.items: list[tuple[str, str]] = []
        self.asked: list[str] = []

    @property
    def sends(self) -> int:
        return len(self.requests)

    def made(self, key: str) -> str | None:
        """The first item that it made under a key."""
        return next((item for made_for, item in self.items if made_for == key), None)

    def pay(self, ctx: Any) -> str:
        """Take a request and answer with the item's id."""
        self.requests.append(ctx.key)
        self.items.append((ctx.key, f"item-{len(self.items) + 1}"))
        return self.items[-1][1]

    def pay_and_drop(self, ctx: Any) -> str:
        """Take a request, and lose the answer."""
        self.pay(ctx)
        raise ConnectionError("the reply was lost")

    def refuse(self, ctx: Any) -> str:
        """Take a request, make nothing, and lose the answer."""
        self.requests.append(ctx.key)
        raise ConnectionError("the reply was lost")

    def find(self, ctx: Any) -> str | None:
        """Look up what became of a key."""
        self.asked.append(ctx.key)
        return self.made(ctx.key)

    def never(self, ctx: Any) -> str:
        """A handler that must not be called."""
        raise AssertionError("this handler must not be called")


class Gate:
    """Holds handlers until a test opens it; tells the test when one has come."""

    _made: ClassVar[WeakSet[Gate]] = WeakSet()

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        self._made.add(self)

    @classmethod
    def open_all(cls) -> None:
        """Let everybody go who waits for a test that has failed."""
        for gate in list(cls._made):
            gate.open()

    def stop(self) -> None:
        """Wait here, in a thread."""
        self.reached.set()
        assert self.opened.wait(PATIENCE_S)

    async def hold(self) -> None:
        """Wait here, on a loop."""
        self.reached.set()
        assert await in_thread(lambda: self.opened.wait(PATIENCE_S))

    async def arrival(self) -> None:
        """Wait until a handler is here."""
        assert await in_thread(lambda: self.reached.wait(PATIENCE_S))

    def open(self) -> None:
        self.opened.set()


async def eventually(holds: Callable[[], Any]) -> None:
    """Wait until something holds that another thread or process brings about."""
    give_up = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up
        await asyncio.sleep(0.003)


def tries(shown: Callable[[], Any], each: Iterable[T]) -> Iterator[T]:
    """Yield one after the other until a try has shown what it may show only where the machine did not stand still.

    That is how long something takes when nothing holds it up, or what a short deadline does when it comes late enough.
    """
    for one in each:
        yield one
        if shown():
            return
    raise AssertionError("no try has shown it")


def quick(took: list[float], within_s: float) -> bool:
    """Whether clearly more tries took less than that than did not: in those the machine stood still."""
    fast = sum(seconds < within_s for seconds in took)
    return fast - (len(took) - fast) >= 3


async def in_thread(work: Callable[[], Any]) -> Any:
    """Run blocking work in a daemon thread, with the caller's context variables."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = copy_context()

    def tell(value: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def run() -> None:
        value, error = None, None
        try:
            value = context.run(work)
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(tell, value, error)
        except RuntimeError:
            return  # the test is over

    threading.Thread(target=run, daemon=True, name="beside").start()
    return await future


# --- both colours behind one face


class Awaited:
    """An object whose methods are awaited, whatever colour it has."""

    def __init__(self, inner: Any, *, threaded: bool = False) -> None:
        self.inner = inner
        self._threaded = threaded

    @property
    def beside(self) -> Self:
        """The same, where each call may block without holding up the test."""
        return type(self)(self.inner, threaded=True)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name == "cancel" or not callable(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            if inspect.iscoroutinefunction(found):
                return await found(*args, **kwargs)
            if self._threaded:
                return await in_thread(lambda: found(*args, **kwargs))
            return found(*args, **kwargs)

        return call

    async def __aenter__(self) -> Self:
        if hasattr(self.inner, "__aenter__"):
            await self.inner.__aenter__()
        else:
            self.inner.__enter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        if error[0] is not None:
            Gate.open_all()
        if hasattr(self.inner, "__aexit__"):
            await self.inner.__aexit__(*error)
        else:
            await in_thread(lambda: self.inner.__exit__(*error))


class Life(Awaited):
    """A runtime of either colour."""

    def run(self, run_id: str) -> Awaited:
        return Awaited(self.inner.run(run_id))

    @property
    def session(self) -> Any:
        return self.inner._session

    @property
    def driver(self) -> Any:
        return self.inner._driver

    def watch(self, watch: Callable[[str, str, Any], None] | None) -> None:
        self.driver.watch = watch

    def note_pauses(self) -> list[float]:
        """From now on list the waits of flows as they begin."""
        waits: list[float] = []

        def watch(moment: str, run: str, request: Any) -> None:
            if moment == "before" and isinstance(request, Pause):
                waits.append(request.seconds)

        self.watch(watch)
        return waits

    async def shared(self, *, by: int) -> None:
        """Wait until the one call that is under way here has so many callers."""

        def callers() -> int:
            if hasattr(self.driver, "_keyed"):
                return sum(len(flight.waiters) for flight in list(self.driver._keyed.values()))
            return sum(1 + flight.waiters for flight in list(self.driver._flights.values()))

        await eventually(lambda: callers() == by)

    def skip_pauses(self, clock: Clock, *, idle_ones: bool = True) -> list[float]:
        """From now on time passes as soon as somebody waits for it; returns the list of all waits."""
        waits: list[float] = []

        def watch(moment: str, run: str, request: Any) -> None:
            if moment == "before" and isinstance(request, Pause) and (idle_ones or not request.changes):
                waits.append(request.seconds)
                clock.skip(request.seconds)

        self.watch(watch)
        return waits

    def records(self, run_id: str = "r") -> list[Any]:
        """The raw records of a run."""
        return list(self.session.ledger.read(self.session.namespace, run_id))


@dataclass(frozen=True)
class Colour:
    """Blocking or asyncio."""

    name: str

    @property
    def blocking(self) -> bool:
        return self.name == "blocking"

    def life(self, target: Any, **options: Any) -> Life:
        """Make a runtime that is not entered yet."""
        return Life(Runtime(target, **options) if self.blocking else AsyncRuntime(target, **options))

    def handler(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Make a handler of the colour's own kind out of a plain function."""
        if self.blocking:
            return function
        if _required(function):

            async def with_context(ctx: Any) -> Any:
                return function(ctx)

            return with_context

        async def without() -> Any:
            return function()

        return without


def _required(function: Callable[..., Any]) -> bool:
    return any(
        p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        for p in inspect.signature(function).parameters.values()
    )


# --- ledgers


class Store:
    """One ledger that several lives of this process open, and that their deaths leave behind.

    Args:
        kind: `memory`, `sqlite` (apsw), `sqlite3` (the standard library's engine), `postgres` or `nats`.
        folder: where its file is.
        server: the address of a PostgreSQL database or a NATS server, where each store gets a schema or a stream of its
            own.
    """

    _schemas = count(1)

    def __init__(self, kind: str, folder: Any, server: str = "") -> None:
        self.kind = kind
        self._memory = MemoryLedger() if kind == "memory" else None
        engine = "?engine=sqlite3" if kind == "sqlite3" else ""
        self.url = f"sqlite:///{folder}/ledger.db{engine}"
        if kind == "postgres":
            self.url = f"{server}?schema=store_{next(self._schemas)}&timeout=30&pool=2"
        elif kind == "nats":
            self.url = f"{server}/store_{next(self._schemas)}?timeout=30&allow_lazy_sync=1"

    @property
    def target(self) -> Any:
        """What a runtime takes."""
        return self._memory if self._memory is not None else self.url

    def open(self) -> Any:
        """The ledger as an object of its own."""
        return self._memory if self._memory is not None else parse(self.url).open()


def other_colour(item: pytest.Item, colour: str) -> bool:
    """Say whether this is not the one colour that a test has, by its name, where one must do."""
    name = f"{item.path.name}::{getattr(item, 'originalname', item.name)}"
    return bool((zlib.crc32(name.encode()) % 2 == 0) == (colour == "blocking"))


def kill(life: Life) -> None:
    """End a life as a dying process would: nothing more is recorded, and its owner is found gone."""
    driver, session, keeper = life.driver, life.session, life.inner._keeper
    if hasattr(driver, "close"):
        driver.close()
        if keeper._task is not None:
            keeper._task.cancel()
    else:
        keeper._stopped.set()
    ledger = session._ledger
    ended = ledger
    while hasattr(ended, "behind"):
        ended = ended.behind
    if isinstance(ended, MemoryLedger):
        for epoch in session.own_epochs:
            ended.retire(epoch)
    else:
        ended.close()
    session._ledger = None


class Fault:
    """What a faulty ledger does to the appends whose slot ends in one of some words."""

    def __init__(self) -> None:
        self.refused: tuple[str, ...] = ()
        self.error: Callable[[], BaseException] = lambda: CommitUnknown("no answer")
        self.commits = False
        self.times = 10**9
        self.seen: list[tuple[str, bool, int]] = []
        self.meddling: list[tuple[str, Callable[[], None]]] = []
        self.unreadable: Callable[[], BaseException] | None = None

    def refuse(
        self, *endings: str, error: Callable[[], BaseException], commits: bool = False, times: int = 10**9
    ) -> None:
        """From now on refuse appends to these slots; with `commits` they are recorded all the same."""
        self.refused, self.error, self.commits, self.times = endings, error, commits, times

    def heal(self) -> None:
        self.refused = ()
        self.unreadable = None

    def before(self, ending: str, act: Callable[[], None]) -> None:
        """Let somebody else act right before the next append to such a slot."""
        self.meddling.append((ending, act))

    def append(self, entry: Any, *, settle: bool, commit: Callable[[], Any]) -> Any:
        self.seen.append((entry.slot, settle, entry.append_id))
        for meddling in [m for m in self.meddling if entry.slot.endswith(m[0])]:
            self.meddling.remove(meddling)
            meddling[1]()
        if self.times > 0 and any(entry.slot.endswith(ending) for ending in self.refused):
            self.times -= 1
            if self.commits:
                commit()
            raise self.error()
        return commit()


def faulty(ledger: Any, fault: Fault) -> Any:
    """Put a fault before a ledger's appends; everything else is the ledger's own."""

    def append(entry: Any, *, settle: bool = False) -> Any:
        return fault.append(entry, settle=settle, commit=lambda: ledger.append(entry, settle=settle))

    def submit(entry: Any, *, settle: bool, token: object, deliver: Any) -> None:
        def work() -> None:
            try:
                reply = append(entry, settle=settle)
            except BaseException as error:
                reply = error
            deliver([(token, reply)])

        threading.Thread(target=work, daemon=True, name="faulty").start()

    def read(namespace: str, run: str, after: int = 0) -> Any:
        if fault.unreadable is not None:
            raise fault.unreadable()
        return ledger.read(namespace, run, after)

    methods = {
        name: staticmethod(getattr(ledger, name))
        for name in dir(ledger)
        if not name.startswith("_") and callable(getattr(ledger, name))
    }
    ours = {"append": staticmethod(append), "submit": staticmethod(submit), "read": staticmethod(read)}
    made = type("Faulty", (), {**methods, **ours})()
    made.behind = ledger
    return made


def record_by(life: Life, slot: str, *, kind: str, phase: str, body: Any, run_id: str = "r") -> None:
    """Let a life record something at once, whatever its colour."""
    session = life.session
    draft = Draft(slot=slot, kind=kind, phase=phase, body=codec.body_of(body))
    session.ledger.append(session.entry(session.scope(run_id, session.state(run_id)), draft, session.epoch()))


class TwoMethods:
    """A third party's ledger: `append` and `read`, nothing else."""

    def __init__(self) -> None:
        self._ledger = MemoryLedger()

    def append(self, entry: Any, *, settle: bool = False) -> Any:
        import msgspec

        return self._ledger.append(msgspec.structs.replace(entry, decision=False), settle=settle)

    def read(self, namespace: str, run: str, after: int = 0) -> Any:
        return self._ledger.read(namespace, run, after)


# --- crash points


class Crash(BaseException):
    """The process dies here."""


class CrashAt:
    """A watch that kills at the n-th event, and at every later one: the dead do nothing."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.count = 0

    @property
    def crashed(self) -> bool:
        return self.count >= self.number

    def __call__(self, moment: str, run: str, request: Any) -> None:
        self.count += 1
        if self.crashed:
            raise Crash(f"{self.count}: {moment} {type(request).__name__}")


async def die_at(life: Life, call: Awaitable[Any], *, moment: str, request: type, slot: str = "") -> None:
    """Run a call and kill its life at the first such event (for appends: to a slot that ends so)."""

    def watch(when: str, run: str, asked: Any) -> None:
        here = not isinstance(asked, Append) or asked.draft.slot.endswith(slot)
        if when == moment and isinstance(asked, request) and here:
            raise Crash(f"{when} {request.__name__} {slot}")

    life.watch(watch)
    try:
        await call
    except Crash:
        kill(life)
    else:
        raise AssertionError("the call ended before its life did")


@dataclass
class World:
    """What outlives a crash: the ledger, the recipient, the time, and whatever a scenario keeps."""

    colour: Colour
    target: Any
    payee: Payee = field(default_factory=Payee)
    clock: Clock = field(default_factory=Clock)
    notes: dict[str, Any] = field(default_factory=dict)
    result: Any = None

    @asynccontextmanager
    async def life(self) -> Any:
        async with self.colour.life(self.target, clock=self.clock, namespace="crash") as life:
            yield life

    def handler(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.colour.handler(function)


Scenario = Callable[[Life, World], Awaitable[Any]]
Judge = Callable[[Life, World], Awaitable[None]]


async def lives_until(world: World, scenario: Scenario, crashes: Iterator[int]) -> tuple[bool, Any]:
    """Run a scenario in one life after the other; each dies at its own event.

    Returns:
        Whether the last crash came, and what the scenario returned in the life that did not crash.
    """
    came = True
    for number in crashes:
        life = world.colour.life(world.target, clock=world.clock, namespace="crash")
        await life.__aenter__()
        crash = CrashAt(number)
        life.watch(_with_time(crash, world.clock))
        with suppress(Crash):
            await scenario(life, world)
        came = crash.crashed
        if came:
            kill(life)
        else:
            await life.__aexit__(None, None, None)
    async with world.life() as life:
        life.watch(_with_time(lambda *event: None, world.clock))
        return came, await scenario(life, world)


def _with_time(watch: Callable[[str, str, Any], None], clock: Clock) -> Callable[[str, str, Any], None]:
    def watched(moment: str, run: str, request: Any) -> None:
        watch(moment, run, request)
        if moment == "before" and isinstance(request, Pause):
            clock.skip(request.seconds)

    return watched


async def at_every_crash_point(
    make: Callable[[], World], scenario: Scenario, judge: Judge, *, deaths: int = 1, stride: int = 1
) -> int:
    """Kill a scenario at each of its events in turn (with `deaths=2`: at each pair), then let it finish.

    Args:
        make: makes a fresh world.
        scenario: called in each life; what it raises besides a crash is a failure.
        judge: asserts what must hold at the end, in a life of its own.
        deaths: lives that die before the last one.
        stride: of the events of the second life only each so many-th, beginning elsewhere for each event of the first.

    Returns:
        The number of events of an undisturbed life.
    """
    events = 0
    pending: list[tuple[int, ...]] = [(1,)]
    while pending:
        numbers = pending.pop()
        world = make()
        came, world.result = await lives_until(world, scenario, iter(numbers))
        try:
            async with world.life() as life:
                await judge(life, world)
        except AssertionError as error:
            error.add_note(f"crashed at events {numbers}")
            raise
        if came:
            pending.append((*numbers[:-1], numbers[-1] + (stride if len(numbers) > 1 else 1)))
            if len(numbers) < deaths:
                pending.append((*numbers, 1 + numbers[-1] % stride))
        elif len(numbers) == 1:
            events = numbers[0] - 1
    return events


# Tests that concern one colour only, or that no ledger makes a difference to.
BLOCKING = pytest.mark.parametrize("colour", ["blocking"], indirect=True)
ASYNCIO = pytest.mark.parametrize("colour", ["asyncio"], indirect=True)
IN_MEMORY = pytest.mark.parametrize("store", ["memory"], indirect=True)

EVIDENCE = Evidence("refused-by-policy", phase="not-dispatched", bytes_offered=0)
PROVED = Evidence("status", phase="acknowledged", status=422, contract="payee/1")
