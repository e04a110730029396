"""`AsyncRuntime`: the asyncio colour. Every name means what it means in `Runtime`, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from counterfoil import threads
from counterfoil.effects import carry, lifetime
from counterfoil.effects import decide as deciding
from counterfoil.effects.carry import DEATHS_MAX
from counterfoil.errors import UsageError
from counterfoil.outcomes import Decision
from counterfoil.ports.clock import Clock
from counterfoil.ports.ledger import Ledger
from counterfoil.protocol import codec, keys
from counterfoil.runtime import arguments
from counterfoil.runtime.async_run import AsyncRun, other_loop
from counterfoil.runtime.held import LoopKeeper
from counterfoil.runtime.looped import LoopDriver
from counterfoil.runtime.session import Session

# Looking and pruning are imported when they are first used: importing counterfoil is to be quick.
if TYPE_CHECKING:
    from counterfoil.runtime.pruning import PruneArguments, PruneReport
    from counterfoil.runtime.views import EffectView, RecordView, RunView

T = TypeVar("T")
P = TypeVar("P")
Body = Callable[..., Any]


class AsyncRuntime:
    """One life against a ledger, on the running loop. Use it in an `async with` block.

    Handlers may be synchronous (they run in a worker thread) or asynchronous. The arguments are those of
    `Runtime`.
    """

    def __init__(
        self,
        url_or_ledger: str | Ledger,
        *,
        namespace: str | None = None,
        owner: str | None = None,
        clock: Clock | Callable[[], float] | None = None,
        drain_timeout: float = 30.0,
    ) -> None:
        self._session = Session(url_or_ledger, namespace=namespace, owner=owner, clock=clock)
        self._drain_s = keys.seconds(drain_timeout, "drain_timeout")
        self._started: LoopDriver | None = None

    async def __aenter__(self) -> Self:
        driver = LoopDriver(self._session)
        await driver.blocking(self._session.open)
        self._started = driver
        self._keeper = LoopKeeper(self._session, driver)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        driver = self._driver
        try:
            await driver.drain(None, self._drain_s)
            await self._keeper.stop()
        finally:
            driver.close()
            await driver.blocking(self._session.close)
            self._started = None

    @property
    def _driver(self) -> LoopDriver:
        self._session.check()
        if self._started is None:
            raise UsageError("the runtime is not open", hint="use it in an `async with` block", code="not-entered")
        # None where no loop runs: `run` is a plain method, and may be called there by mistake.
        if self._started.loop is not threads.running_loop():
            raise other_loop()
        return self._started

    @property
    def namespace(self) -> str:
        """The scope of this runtime's run ids."""
        self._session.check()
        return self._session.namespace

    @property
    def ledger(self) -> Ledger:
        """The open ledger."""
        return self._session.ledger

    def __repr__(self) -> str:
        return f"<AsyncRuntime: {self._session.shown}>"

    def run(self, run_id: str) -> AsyncRun:
        """Give a handle of a run; see `Runtime.run`."""
        self._session.check()
        return AsyncRun(self, keys.name(run_id, "run id"))

    async def runs(self, *, finished: bool | None = None, limit: int | None = None) -> list[RunView]:
        """List runs, oldest first."""
        from counterfoil.runtime import views

        return await self._view(lambda: views.runs(self._session, finished=finished, limit=limit))

    async def show(self, run_id: str) -> list[RecordView]:
        """Return a run's timeline."""
        from counterfoil.runtime import views

        return await self._view(lambda: views.show(self._session, run_id))

    async def effects(self, *, state: str | None = None, run_id: str | None = None) -> list[EffectView]:
        """List effects, oldest run first, optionally of one state or one run."""
        from counterfoil.runtime import views

        return await self._view(lambda: views.effects(self._session, state=state, run_id=run_id))

    async def prune(self, **what: Unpack[PruneArguments]) -> PruneReport:
        """Prune finished runs; see `Runtime.prune`."""
        from counterfoil.runtime.pruning import Pruning, prune

        return await self._view(lambda: prune(self._session, Pruning(**what)))

    async def _view(self, look: Callable[[], T]) -> T:
        return await self._driver.blocking(look)  # type: ignore[no-any-return]

    async def execute(self, run_id: str, body: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run a durable body; see `Runtime.execute`. The body is an async function."""
        arguments.coloured(body, asynchronous=True)
        given = codec.encode(list(args), what="the list of the body's arguments")
        name = arguments.body_name(body)
        async with self.run(run_id) as run:
            fits = partial(arguments.callable_with, body, args)
            if (result := await run._drive(lambda scope: lifetime.start(scope, name, given, check=fits))) is not None:
                return codec.decode(result)  # type: ignore[no-any-return]
            return await self._carry(run, body, args)  # type: ignore[no-any-return]

    async def _carry(self, run: AsyncRun, body: Callable[..., Any], args: Iterable[Any]) -> Any:
        with self._session.carrying(run.id):
            return await self._carried(run, body, args)

    async def _carried(
        self,
        run: AsyncRun,
        body: Callable[..., Any],
        args: Iterable[Any],
        *,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Any:
        result = await body(run, *args)
        if stopped():
            raise asyncio.CancelledError(f"run {run.id!r} was cancelled")
        await run._end(result)
        return codec.decode(lifetime.result_of(run._state.history) or b"null")

    async def recover(
        self, bodies: Iterable[Body] | Mapping[str, Body], *, at_once: int = 1, deaths_max: int = DEATHS_MAX
    ) -> dict[str, Any]:
        """Resume the unfinished runs whose life is gone, oldest first; see `Runtime.recover`.

        With `at_once` above 1 the bodies are tasks of their own.
        """
        from counterfoil.runtime.recovery import AsyncRecovery

        return await AsyncRecovery(self, bodies, at_once=at_once, deaths_max=deaths_max).once()

    async def lift(self, run_id: str, *, reason: str, by: str) -> None:
        """Lift a run's quarantine; see `Runtime.lift`."""
        arguments.said(reason=reason, by=by)
        await self.run(run_id)._drive(lambda scope: carry.lift(scope, by=by, reason=reason))

    async def deliver(self, run_id: str, event: str, id: str, payload: Any = None) -> bool:
        """Record a delivery for a run; see `Run.deliver`."""
        return await self.run(run_id).deliver(event, id, payload)

    async def settle(self, run_id: str, name: str, proof: Any, *, key: str, source: str) -> bool:
        """Record evidence for an effect of a run; see `Run.settle`."""
        return await self.run(run_id).settle(name, proof, key=key, source=source)

    async def decide(
        self,
        run_id: str,
        name: str,
        *,
        happened: Any = None,
        did_not_happen: bool = False,
        reason: str,
        by: str,
        expect_version: int,
        new_name: str | None = None,
    ) -> Decision:
        """Record what a person found out about an uncertain effect; see `Runtime.decide`."""
        verdict = arguments.verdict(
            happened=happened,
            did_not_happen=did_not_happen,
            reason=reason,
            by=by,
            expect_version=expect_version,
            new_name=new_name,
        )
        keys.name(name)
        busy = self._driver.busy(run_id, "effect", name)
        return await self.run(run_id)._drive(  # type: ignore[no-any-return]
            lambda scope: deciding.decide(scope, name, verdict, busy=busy)
        )
