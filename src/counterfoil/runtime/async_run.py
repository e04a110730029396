"""`AsyncRun`: a handle of one run, awaited. Every name means what it means in `Run`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from counterfoil.effects import carry, evidence, lifetime, park
from counterfoil.effects import decide as deciding
from counterfoil.effects import effect as effects
from counterfoil.effects import step as steps
from counterfoil.effects import transaction as transactions
from counterfoil.effects.call import RECONCILE_TIMEOUT_S, VISIBILITY_S, WAIT_S
from counterfoil.effects.scope import Scope
from counterfoil.errors import LedgerUnavailable, RunCancelled, RunPruned, UsageError
from counterfoil.outcomes import Decision, Outcome
from counterfoil.ports.recipient import Operation
from counterfoil.protocol import codec, keys, slots
from counterfoil.runtime import arguments
from counterfoil.runtime.arguments import Retry
from counterfoil.runtime.coding import Coder
from counterfoil.runtime.handlers import not_in_transaction
from counterfoil.runtime.run import pruned, typed
from counterfoil.runtime.session import RunState, Session
from counterfoil.runtime.transactions import transactable

if TYPE_CHECKING:
    from counterfoil.runtime.aio import AsyncRuntime

T = TypeVar("T")
P = TypeVar("P")


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
        self._usable()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left = True
        await self._driver.drain(self.id, self._runtime._drain_s)

    def cancel(self) -> None:
        """Cancel this handle: what is recorded is still answered, nothing new is started, what waits ends."""
        self._cancelled = True
        if self._scope is not None:
            self._scope.cancelled = True
            self._driver.cancel(self._scope)

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
        body: Callable[..., Awaitable[T]],
        *,
        inputs: Any = None,
        retry: Retry | None = None,
        result_type: None = None,
    ) -> T: ...
    @overload
    async def step(
        self,
        name: str,
        body: Callable[..., T],
        *,
        inputs: Any = None,
        retry: Retry | None = None,
        result_type: None = None,
    ) -> T: ...

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
        scope.asks(slots.step(name))
        found = steps.recorded(scope, name, call.inputs)
        if found is None:
            await self._not_cancelled(partial(steps.recorded, scope, name, call.inputs))
            found = await self._shared(scope, "step", name, flow=partial(steps.step, scope, call), request=call.inputs)
        return coded.decode(found)

    @overload
    async def effect(
        self,
        name: str,
        operation: Operation[P],
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
        run: Callable[..., Awaitable[P]],
        reconcile: Any,
        request: Any = None,
        wait: float = 30.0,
        reconcile_timeout: float = 30.0,
        visibility: float = 0.0,
        verify: Callable[..., Any] | None = None,
        retry: Retry | None = None,
        proof_type: None = None,
    ) -> Outcome[P]: ...
    @overload
    async def effect(
        self,
        name: str,
        operation: None = None,
        *,
        run: Callable[..., P],
        reconcile: Any,
        request: Any = None,
        wait: float = 30.0,
        reconcile_timeout: float = 30.0,
        visibility: float = 0.0,
        verify: Callable[..., Any] | None = None,
        retry: Retry | None = None,
        proof_type: None = None,
    ) -> Outcome[P]: ...

    async def effect(
        self,
        name: str,
        operation: Any = None,
        *,
        run: Callable[..., Any] | None = None,
        reconcile: Any = None,
        request: Any = None,
        wait: float = WAIT_S,
        reconcile_timeout: float = RECONCILE_TIMEOUT_S,
        visibility: float = VISIBILITY_S,
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
            asynchronous=True,
        )
        scope = self._usable() or await self._load()
        scope.asks(slots.effect_head(name))
        if call.verifier is not None:
            scope.memory.verifiers[name] = call.verifier
        outcome = effects.recorded(scope, name, call.request)
        if outcome is None:
            if self._cancelled or self._cancelling():
                await self._not_cancelled(partial(effects.recorded, scope, name, call.request))
            try:
                outcome = await self._driver.shared(
                    scope,
                    "effect",
                    name,
                    # No lambda: what one refers to costs more wherever it is used.
                    flow=partial(effects.effect, scope, call),
                    request=call.request,
                    wait_s=call.wait_s,
                )
            except RunCancelled as error:
                raise asyncio.CancelledError(str(error)) from None
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

    # --- transactions

    @overload
    async def transaction(
        self,
        name: str,
        body: Callable[[Any], Any],
        *,
        inputs: Any = None,
        result_type: type[T],
        connection: Literal["driver", "sqlalchemy"] = "driver",
    ) -> T: ...
    @overload
    async def transaction(
        self,
        name: str,
        body: Callable[[Any], T],
        *,
        inputs: Any = None,
        result_type: None = None,
        connection: Literal["driver", "sqlalchemy"] = "driver",
    ) -> T: ...

    async def transaction(
        self,
        name: str,
        body: Callable[[Any], Any],
        *,
        inputs: Any = None,
        result_type: Any = None,
        connection: Literal["driver", "sqlalchemy"] = "driver",
    ) -> Any:
        """Run `body(connection)` in one transaction of the database that is also the ledger; see `Run.transaction`.

        The body is a plain function, which blocks; it runs in a worker thread. A cancelled caller is detached, and the
        transaction goes on to its commit.
        """
        call, coded = arguments.transaction_call(
            name, body, inputs=inputs, result_type=result_type, connection=connection
        )
        scope = self._usable() or await self._load()
        scope.asks(slots.transaction_head(name))
        found = transactions.recorded(scope, name, call.inputs)
        if found is None:
            transactable(self._session)
            await self._not_cancelled(partial(transactions.recorded, scope, name, call.inputs))
            flow = partial(transactions.transaction, scope, call)
            found = await self._shared(scope, "transaction", name, flow=flow, request=call.inputs)
        return coded.decode(found)

    # --- parks

    async def sleep(self, seconds: float, *, name: str) -> None:
        """Return when `seconds` have passed since the first call under this name; see `Run.sleep`."""
        keys.seconds(seconds, "seconds")
        keys.name(name)
        scope = await self._load()
        scope.asks(slots.sleep(name))
        if park.slept(scope, name):
            return
        await self._not_cancelled(lambda: park.slept(scope, name) or None)
        await self._shared(scope, "sleep", name, flow=lambda: park.sleep(scope, name, seconds))

    async def wait_for(self, event: str, id: str, *, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        """Return the payload that is delivered for (event, id); see `Run.wait_for`."""
        keys.name(event, "event")
        keys.name(id, "id")
        timeout_s = arguments.timeout(timeout)
        scope = await self._load()
        scope.asks(slots.wait(event, id))
        if park.delivered(scope, event, id) is None:
            await self._not_cancelled(lambda: park.delivered(scope, event, id))
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
        (await self._load()).asks(slots.effect_head(name))
        return await self._drive(lambda scope: deciding.decision(scope, name, timeout_s=timeout_s))  # type: ignore[no-any-return]

    async def finish(self, result: Any = None) -> None:
        """Record the run's end and result; see `Run.finish`."""
        encoded = codec.encode(result, what="the run's result")
        await self._drive(lambda scope: lifetime.finish(scope, encoded))

    # --- inside

    async def _end(self, result: Any) -> None:
        """Finish with what the carried body returned; what is on record and was not asked for is noted."""
        encoded = codec.encode(result, what="the run's result")
        asked = self._state.memory.asked or set()
        await self._drive(lambda scope: lifetime.finish(scope, encoded, unasked=carry.unasked(scope.history, asked)))

    def _usable(self) -> Scope | None:
        if self._left:
            raise UsageError(f"this handle of run {self.id!r} was left", hint="open the run again", code="left")
        self._session.check()
        not_in_transaction()
        if self._driver.loop is not asyncio._get_running_loop():
            raise other_loop()
        return self._scope

    async def _load(self) -> Scope:
        self._usable()
        if self._scope is None:
            scope = self._session.scope(self.id, self._state)
            await self._read(scope)
            scope.cancelled = self._cancelled
            self._scope = scope
        return self._scope

    async def _read(self, scope: Scope) -> None:
        """Bring what is known of the run up to date, also for a cancelled task: what is recorded is answered even then.

        A cancellation that is pending would cut the read. It is taken here, and comes at the next await after it.
        """
        pending: asyncio.CancelledError | None = None
        if self._cancelling():
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError as error:
                pending = error
        try:
            await self._driver.refresh(scope)
        finally:
            if pending is not None:
                _cancel_again(pending)

    async def _drive(self, flow: Callable[[Scope], Any]) -> Any:
        scope = await self._load()
        try:
            return await self._driver.run(scope, flow(scope))
        except RunCancelled as error:
            raise asyncio.CancelledError(str(error)) from None

    async def _shared(self, scope: Scope, kind: str, name: str, *, flow: Callable[[], Any], **more: Any) -> Any:
        try:
            return await self._driver.shared(scope, kind, name, flow=flow, **more)
        except RunCancelled as error:
            raise asyncio.CancelledError(str(error)) from None

    async def _not_cancelled(self, recorded_meanwhile: Callable[[], object] | None = None) -> None:
        if not self._cancelled and not self._cancelling():
            return
        if recorded_meanwhile is not None:
            await self._read(await self._load())
            if recorded_meanwhile() is not None:
                return
        if self._cancelled or _unwinding() or await _cancellation_comes():
            raise asyncio.CancelledError(f"run {self.id!r} was cancelled; nothing was started")

    def _cancelling(self) -> bool:
        # Given the loop, asyncio need not find out which one runs.
        task = asyncio.current_task(self._driver.loop)
        return task is not None and task.cancelling() > 0


def other_loop() -> UsageError:
    """Say that a runtime, or a handle of a run, is used on a loop that is not its own; nothing was recorded."""
    return UsageError(
        "this AsyncRuntime was entered on another event loop",
        hint="give each loop a runtime of its own; from other threads use `asyncio.run_coroutine_threadsafe`",
        code="other-loop",
    )


# A task's count of cancellations does not say that one is pending: on Python 3.11 and 3.12 a TaskGroup one of whose
# tasks failed leaves one behind, and so does whoever catches `CancelledError` and goes on.


async def _cancellation_comes() -> bool:
    """Whether a cancellation of the current task has not reached it yet; it still comes, at its next await."""
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError as pending:
        _cancel_again(pending)
        return True
    return False


def _cancel_again(taken: asyncio.CancelledError) -> None:
    if (task := asyncio.current_task()) is not None:
        task.uncancel()
        task.cancel(*taken.args)


def _unwinding() -> bool:
    """Whether the caller is in an `except` or `finally` block that a cancellation brought it to."""
    error = sys.exception()
    while error is not None and not isinstance(error, asyncio.CancelledError):
        error = error.__context__
    return error is not None
