"""`AsyncRuntime` and `AsyncRun`: the asyncio colour. Every name means what it means in `Runtime`, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from counterfoil.effects import decide as deciding
from counterfoil.effects import effect as effects
from counterfoil.effects import evidence, lifetime, park
from counterfoil.effects import step as steps
from counterfoil.effects.scope import Scope
from counterfoil.errors import LedgerUnavailable, RunPruned, UsageError
from counterfoil.outcomes import Decision, Outcome
from counterfoil.ports.clock import Clock
from counterfoil.ports.ledger import Ledger
from counterfoil.ports.recipient import Operation
from counterfoil.protocol import codec, keys
from counterfoil.runtime import arguments
from counterfoil.runtime.arguments import Retry
from counterfoil.runtime.coding import Coder
from counterfoil.runtime.held import LoopKeeper
from counterfoil.runtime.looped import LoopDriver
from counterfoil.runtime.run import pruned, typed
from counterfoil.runtime.session import RunState, Session

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
        if self._started.loop is not asyncio.get_running_loop():
            raise UsageError("this AsyncRuntime was entered on another event loop", code="other-loop")
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

    async def execute(self, run_id: str, body: Callable[..., Any], *args: Any) -> Any:
        """Run a durable body; see `Runtime.execute`. The body is an async function."""
        given = codec.encode(list(args), what="the body's arguments")
        name = arguments.body_name(body)
        async with self.run(run_id) as run:
            if (result := await run._drive(lambda scope: lifetime.start(scope, name, given))) is not None:
                return codec.decode(result)
            return await self._carry(run, body, args)

    async def _carry(self, run: AsyncRun, body: Callable[..., Any], args: Iterable[Any]) -> Any:
        with self._session.carrying(run.id):
            result = await body(run, *args)
        await run.finish(result)
        return codec.decode(lifetime.result_of(run._state.history) or b"null")

    async def recover(self, bodies: Iterable[Body] | Mapping[str, Body]) -> dict[str, Any]:
        """Resume the unfinished runs whose life is gone; see `Runtime.recover`."""
        table = arguments.body_table(bodies)
        results: dict[str, Any] = {}
        for row in await self.runs(finished=False):
            if row.run_id in self._session.carried:
                continue
            async with self.run(row.run_id) as run:
                try:
                    await run._load()
                    begun = lifetime.started(run._state.history)
                    body = None if begun is None else table.get(begun.body)
                    if begun is None or body is None or not await run._drive(lifetime.claim):
                        continue
                    results[row.run_id] = await self._carry(run, body, codec.decode(bytes(begun.args)))
                except Exception as error:  # noqa: BLE001 - what one run meets must not stop the others
                    results[row.run_id] = error
        return results

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


class AsyncRun:
    """A handle of one run; see `Run`."""

    def __init__(self, runtime: AsyncRuntime, run_id: str) -> None:
        self.id = run_id
        self._runtime = runtime
        self._session: Session = runtime._session
        self._driver = runtime._driver
        self._state: RunState = self._session.state(run_id)
        self._scope: Scope | None = None
        self._cancelled = False
        self._left = False

    def __repr__(self) -> str:
        return f"AsyncRun({self.id!r})"

    async def __aenter__(self) -> Self:
        self._session.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left = True
        await self._driver.drain(self.id, self._runtime._drain_s)

    def cancel(self) -> None:
        """Cancel this handle: what is recorded is still answered, nothing new is started."""
        self._cancelled = True

    # --- steps and effects

    @overload
    async def step(
        self,
        name: str,
        body: Callable[..., Any],
        *,
        inputs: Any = None,
        retry: Retry | None = None,
        result_type: type[T],
    ) -> T: ...
    @overload
    async def step(
        self,
        name: str,
        body: Callable[..., Any],
        *,
        inputs: Any = None,
        retry: Retry | None = None,
        result_type: None = None,
    ) -> Any: ...

    async def step(
        self,
        name: str,
        body: Callable[..., Any],
        *,
        inputs: Any = None,
        retry: Retry | None = None,
        result_type: Any = None,
    ) -> Any:
        """Run a computation and record its result after it; see `Run.step`."""
        call, coded = arguments.step_call(name, body, inputs=inputs, retry=retry, result_type=result_type)
        scope = self._usable() or await self._load()
        found = steps.recorded(scope, name, call.inputs)
        if found is None:
            await self._not_cancelled(lambda: steps.recorded(scope, name, call.inputs) is not None)
            found = await self._shared(scope, "step", name, flow=lambda: steps.step(scope, call), request=call.inputs)
        return coded.decode(found)

    @overload
    async def effect(
        self,
        name: str,
        operation: Operation[P],
        /,
        *,
        wait: float = 30.0,
        reconcile_timeout: float = 30.0,
        visibility: float = 0.0,
        verify: Callable[..., Any] | None = None,
        retry: Retry | None = None,
    ) -> Outcome[P]: ...
    @overload
    async def effect(
        self,
        name: str,
        operation: Operation[Any] | None = None,
        *,
        run: Callable[..., Any] | None = None,
        reconcile: Any = None,
        request: Any = None,
        wait: float = 30.0,
        reconcile_timeout: float = 30.0,
        visibility: float = 0.0,
        verify: Callable[..., Any] | None = None,
        retry: Retry | None = None,
        proof_type: type[P],
    ) -> Outcome[P]: ...
    @overload
    async def effect(
        self,
        name: str,
        operation: None = None,
        *,
        run: Callable[..., Any],
        reconcile: Any,
        request: Any = None,
        wait: float = 30.0,
        reconcile_timeout: float = 30.0,
        visibility: float = 0.0,
        verify: Callable[..., Any] | None = None,
        retry: Retry | None = None,
        proof_type: None = None,
    ) -> Outcome[Any]: ...

    async def effect(
        self,
        name: str,
        operation: Any = None,
        *,
        run: Callable[..., Any] | None = None,
        reconcile: Any = None,
        request: Any = None,
        wait: float = 30.0,
        reconcile_timeout: float = 30.0,
        visibility: float = 0.0,
        verify: Callable[..., Any] | None = None,
        retry: Retry | None = None,
        proof_type: Any = None,
    ) -> Any:
        """Perform an effect at most once, and return how it ended; see `Run.effect`.

        A cancelled caller is detached; the effect runs on to its outcome or a release, and leaving the run
        waits for it.
        """
        call, coded = arguments.effect_call(
            name,
            operation,
            run=run,
            reconcile=reconcile,
            request=request,
            wait=wait,
            reconcile_timeout=reconcile_timeout,
            visibility=visibility,
            verify=verify,
            retry=retry,
            proof_type=proof_type,
        )
        scope = self._usable() or await self._load()
        if call.verifier is not None:
            scope.memory.verifiers[name] = call.verifier
        outcome = effects.recorded(scope, name, call.request)
        if outcome is None:
            await self._not_cancelled(lambda: effects.recorded(scope, name, call.request) is not None)
            try:
                outcome = await self._shared(
                    scope,
                    "effect",
                    name,
                    flow=lambda: effects.effect(scope, call),
                    request=call.request,
                    wait_s=call.wait_s,
                )
            except RunPruned as error:
                raise await self._buried(scope, name, coded, error=error) from None
            except LedgerUnavailable:
                self._session.keep(self.id, self._state)
                self._runtime._keeper.wake()
                raise
        if scope.history.pruned:
            raise pruned(self.id, name, typed(outcome, coded))
        return typed(outcome, coded)

    async def _buried(self, scope: Scope, name: str, coded: Coder, *, error: RunPruned) -> RunPruned:
        await self._driver.refresh(scope)
        outcome = effects.recorded(scope, name, None)
        return error if outcome is None else pruned(self.id, name, typed(outcome, coded))

    # --- parks

    async def sleep(self, seconds: float, *, name: str) -> None:
        """Return when `seconds` have passed since the first call under this name; see `Run.sleep`."""
        keys.seconds(seconds, "seconds")
        keys.name(name)
        scope = await self._load()
        await self._not_cancelled()
        await self._shared(scope, "sleep", name, flow=lambda: park.sleep(scope, name, seconds))

    async def wait_for(self, event: str, id: str, *, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        """Return the payload that is delivered for (event, id); see `Run.wait_for`."""
        keys.name(event, "event")
        keys.name(id, "id")
        timeout_s = arguments.timeout(timeout)
        return codec.decode(await self._drive(lambda scope: park.wait_for(scope, event, id, timeout_s=timeout_s)))

    async def deliver(self, event: str, id: str, payload: Any = None) -> bool:
        """Record a delivery; see `Run.deliver`."""
        keys.name(event, "event")
        keys.name(id, "id")
        encoded = codec.encode(payload, what="the payload")
        by = self._session.label
        return await self._drive(lambda scope: park.deliver(scope, event, id, payload=encoded, by=by))  # type: ignore[no-any-return]

    # --- evidence and decisions

    async def settle(self, name: str, proof: Any, *, key: str, source: str) -> bool:
        """Record evidence that came by another way; see `Run.settle`."""
        keys.name(name)
        keys.name(source, "source")
        encoded = evidence.proof_of(lambda value: codec.encode(value, what="the proof"), proof)
        verifier = self._state.memory.verifiers.get(name)
        return await self._drive(  # type: ignore[no-any-return]
            lambda scope: evidence.settle(scope, name, encoded, key=key, source=source, verifier=verifier)
        )

    async def decision(self, name: str, *, timeout: float | None = None) -> Decision:  # noqa: ASYNC109 - pinned
        """Wait for a person's decision about an uncertain effect; see `Run.decision`."""
        keys.name(name)
        timeout_s = arguments.timeout(timeout)
        return await self._drive(lambda scope: deciding.decision(scope, name, timeout_s=timeout_s))  # type: ignore[no-any-return]

    async def finish(self, result: Any = None) -> None:
        """Record the run's end and result; see `Run.finish`."""
        encoded = codec.encode(result, what="the run's result")
        await self._drive(lambda scope: lifetime.finish(scope, encoded))

    # --- inside

    def _usable(self) -> Scope | None:
        if self._left:
            raise UsageError(f"this handle of run {self.id!r} was left", hint="open the run again", code="left")
        self._session.check()
        return self._scope

    async def _load(self) -> Scope:
        self._usable()
        if self._scope is None:
            scope = self._session.scope(self.id, self._state)
            if _cancelling():
                # What is recorded is answered even now, and the pending cancellation would cut any await.
                self._session.read(scope)
            else:
                await self._driver.refresh(scope)
            self._scope = scope
        return self._scope

    async def _drive(self, flow: Callable[[Scope], Any]) -> Any:
        scope = await self._load()
        return await self._driver.run(scope, flow(scope))

    def _shared(self, scope: Scope, kind: str, name: str, *, flow: Callable[[], Any], **more: Any) -> Awaitable[Any]:
        return self._driver.shared(scope, kind, name, flow=flow, **more)

    async def _not_cancelled(self, recorded_meanwhile: Callable[[], bool] | None = None) -> None:
        if not self._cancelled and not _cancelling():
            return
        if recorded_meanwhile is not None:
            # The pending cancellation would cut any await, so this one read blocks the loop.
            self._session.read(await self._load())
            if recorded_meanwhile():
                return
        raise asyncio.CancelledError(f"run {self.id!r} was cancelled; nothing was started")


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
