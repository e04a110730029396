"""`AsyncBroker`: immediate operations on a loop. Every name means what it means in `Broker`, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

from counterfoil.alarms import Alarm
from counterfoil.broker.budgets import Budget
from counterfoil.broker.calls import Authority, Call, Proposal
from counterfoil.broker.desk import Desk
from counterfoil.broker.grants import Grant
from counterfoil.broker.perform import Admission, Attempted, Backoff, Ended, Intended, Performed, admit, attempts, work
from counterfoil.broker.reports import Report
from counterfoil.effects import activation as flows
from counterfoil.effects.scope import Scope
from counterfoil.errors import CounterfoilError, LedgerError, UsageError
from counterfoil.outcomes import Outcome
from counterfoil.ports.recipient import Operation
from counterfoil.protocol import keys
from counterfoil.runtime.aio import AsyncRuntime
from counterfoil.runtime.arguments import Retry
from counterfoil.runtime.broker import DRAIN_S
from counterfoil.runtime.brokerage import Brokerage, Effort, Trail
from counterfoil.runtime.looped_work import Bell, looped
from counterfoil.runtime.proposals import Proposed, proposed
from counterfoil.runtime.tracing import calling

P = TypeVar("P")


class AsyncBroker:
    """Immediate operations on the running loop; the arguments are those of `Broker`, with an `AsyncRuntime`."""

    def __init__(
        self,
        runtime: AsyncRuntime | None = None,
        *,
        policy: Callable[[Proposal], Any] | None = None,
        audit: str = "off",
        concurrency: int = 64,
    ) -> None:
        if runtime is not None and not isinstance(runtime, AsyncRuntime):
            raise UsageError(
                f"AsyncBroker takes an AsyncRuntime or None, not {type(runtime).__name__}",
                hint="Broker takes a Runtime",
            )
        self._runtime = runtime
        self._idle: Bell | None = None
        self._shared = Brokerage(
            None if runtime is None else runtime._session,
            policy=policy,
            audit=audit,
            concurrency=concurrency,
            changed=self._changed,
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        # Whose callers wait, by the loops that they wait on.
        self._waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, _Waiting] = WeakKeyDictionary()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def activation(
        self,
        *,
        principal: str = "default",
        grants: Iterable[Grant] = (),
        budget: Budget | None = None,
        deadline_s: float = 30.0,
    ) -> AsyncActivation:
        """Make the scope in which operations may be performed; enter it in an `async with` block."""
        authority, trail = self._shared.authority(principal, grants=grants, budget=budget, deadline_s=deadline_s)
        return AsyncActivation(self, authority, trail)

    def report(self) -> Report:
        """Say what is still owned; nothing is awaited."""
        return self._shared.report()

    async def close(self, *, timeout_s: float = DRAIN_S) -> Report:
        """Shut down: take no new calls, wait for those under way, and end what is left at the deadline.

        Args:
            timeout_s: seconds to wait.

        Returns:
            What is still owned then.
        """
        keys.seconds(timeout_s, "timeout_s")
        self._shared.desk.shut()
        self._idle = Bell()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.until(lambda: self._shared.idle)
        self._shared.desk.end_all()
        return self.report()

    def _changed(self) -> None:
        if self._idle is not None:
            self._idle.ring()

    def _waiting_here(self) -> _Waiting:
        loop = asyncio.get_running_loop()
        if (found := self._waiting.get(loop)) is None:
            found = self._waiting[loop] = _Waiting()
        return found

    def _spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- the audit

    async def _clear_up(self) -> None:
        if self._runtime is None or not self._shared.audited:
            return
        try:
            left = await self._runtime._driver.blocking(self._shared.leftovers)
        except LedgerError:
            if self._shared.required:
                raise
            return
        for scope in left:
            # What cannot be cleared up now is left as it is; new calls meet the same ledger.
            with suppress(CounterfoilError):
                await self._recorded(scope, flows.clear_up(scope))

    async def _recorded(self, scope: Scope, flow: Any) -> Any:
        assert self._runtime is not None
        try:
            driver = self._runtime._driver
        except CounterfoilError:
            flow.close()
            raise
        return await driver.run(scope, flow)

    async def _conclude(self, made: Effort, late: Outcome[Any] | None) -> None:
        error: BaseException | None = None
        try:
            assert made.scope is not None
            await self._recorded(made.scope, self._shared.concluding(made, late))
        except Exception as raised:  # noqa: BLE001 - the caller is told how it ended, recorded or not
            error = raised
        if self._shared.concluded(made, error):
            await self._finish(made.trail)

    async def _abandon(self, made: Effort, reason: str) -> None:
        """Have it recorded that the attempt was due and is not made."""
        assert made.scope is not None
        assert made.entry is not None
        with suppress(CounterfoilError):
            await self._recorded(made.scope, flows.abandon(made.entry, reason))

    async def _finish(self, trail: Trail) -> None:
        with suppress(CounterfoilError):
            await self._recorded(self._shared.scope(trail), flows.finish())


class AsyncActivation:
    """The scope in which grants and budget are valid; made by `AsyncBroker.activation`."""

    def __init__(self, broker: AsyncBroker, authority: Authority, trail: Trail) -> None:
        self._broker = broker
        self._shared = broker._shared
        self._authority = authority
        self._trail = trail

    async def __aenter__(self) -> Self:
        if self._trail.desk is not None:
            raise UsageError("this activation was entered before", hint="make another one", code="entered-twice")
        await self._broker._clear_up()
        self._shared.begin(self._authority, self._trail)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shared.desk.end(self._authority, "activation-over")
        if self._shared.left(self._trail):
            await self._broker._finish(self._trail)

    def revoke(self) -> Done:
        """Take its authority away; see `Activation.revoke`. It is done on return, and may be awaited like the rest."""
        self._shared.desk.end(self._authority, "revoked")
        return Done()

    def cancel(self) -> None:
        """End the calls under way, as a cancelled task does, and take no new ones."""
        self._shared.desk.end(self._authority, "cancelled")

    async def perform(
        self, operation: Operation[P], *, timeout_s: float | None = None, retry: Retry | None = None
    ) -> Outcome[P]:
        """Perform an operation now, and say how it ended; see `Activation.perform`.

        The work is a task of the library's: a cancelled caller leaves at once, and its work is told to stop. The
        `CancelledError` then carries what the caller would have been told as `outcome`.
        """
        self._shared.check(self._trail)
        asked = proposed(operation, principal=self._authority.principal, retry=retry, whole=self._shared.whole)
        of, verb = asked.proposal.recipient, asked.proposal.operation
        with calling(f"perform {of}.{verb}", {"counterfoil.recipient": of, "counterfoil.operation": verb}) as called:
            found: Outcome[P] = called.over(await _Performing(self, asked, timeout_s).outcome())
        return found


class _Waiting:
    """The calls whose callers wait on one loop, each until its deadline."""

    def __init__(self) -> None:
        self._calls: dict[Call, Desk] = {}
        self._alarm = Alarm(self._look)

    def begin(self, desk: Desk, call: Call) -> None:
        """Close a call at its deadline, if its caller still waits then."""
        self._calls[call] = desk
        self._alarm.at(call.deadline)

    def end(self, call: Call) -> None:
        """Its caller waits no longer."""
        self._calls.pop(call, None)

    def _look(self, now: float) -> float | None:
        """Close what is due; return when the next one is."""
        for call in [call for call in self._calls if call.deadline <= now]:
            self._calls.pop(call).close(call, "deadline")
        return min((call.deadline for call in self._calls), default=None)


class Done:
    """What has been done already; it may be awaited."""

    def __await__(self) -> Any:
        return iter(())


class _Performing:
    """One operation's attempts, driven from the caller's task."""

    def __init__(self, activation: AsyncActivation, asked: Proposed, timeout_s: float | None) -> None:
        self._broker = activation._broker
        self._shared = activation._shared
        self._authority = activation._authority
        self._trail = activation._trail
        self._asked = asked
        self._terms = self._shared.terms(self._authority, asked, timeout_s)
        self._name = self._shared.name(self._trail, asked)
        self._bell = Bell()

    async def outcome(self) -> Outcome[Any]:
        """Make the attempts that the policy allows."""
        if self._terms.retry is None:
            return (await self._attempt(1))[0]
        flow = attempts()
        answer: Any = None
        while True:
            try:
                request = flow.send(answer)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            answer = None
            if isinstance(request, Attempted):
                answer = await self._attempt(request.number)
            else:
                assert isinstance(request, Backoff)
                await self._back_off(request)

    async def _back_off(self, request: Backoff) -> None:
        ended = self._shared.ended(self._authority, self._bell.ring, listening=True)
        try:
            if not ended:
                with suppress(TimeoutError):
                    async with asyncio.timeout(request.seconds):
                        await self._bell.until(lambda: self._authority.ended is not None)
        finally:
            self._shared.ended(self._authority, self._bell.ring, listening=False)

    async def _attempt(self, number: int) -> tuple[Outcome[Any], float | None]:
        made = self._shared.attempt(
            self._trail,
            self._authority,
            self._asked,
            terms=self._terms,
            name=self._name,
            number=number,
            wake=self._bell.ring,
        )
        call, desk = made.call, self._shared.desk
        waiting = self._broker._waiting_here()
        waiting.begin(desk, call)
        handed = False
        try:
            if (refused := await self._admitted(made)) is not None:
                if number > 1 and self._shared.audited:
                    await self._broker._abandon(made, refused.evidence.kind)
                return refused, None
            handed = True
            # It lets go of itself: a callback would be one more turn of the loop for each operation.
            self._broker._tasks.add(asyncio.get_running_loop().create_task(self._worked(made)))
            while not call.told:
                await self._bell.rung()
        except asyncio.CancelledError as cancelled:
            desk.close(call, "cancelled")
            cancelled.outcome = call.outcome  # type: ignore[attr-defined]
            raise
        finally:
            if not handed:
                desk.withdraw(call)
            waiting.end(call)
            self._owed(made)
        if made.interrupt is not None:
            raise made.interrupt
        assert call.outcome is not None
        return call.outcome, call.pause_s

    def _owed(self, made: Effort) -> None:
        """Have it recorded what the caller is told who leaves before the work is over."""
        if self._shared.owes(made):
            self._broker._spawn(self._broker._conclude(made, None))

    async def _admitted(self, made: Effort) -> Any:
        flow = admit(self._shared.desk, made.call)
        while True:
            try:
                request = flow.send(None)
            except StopIteration as done:
                return done.value
            assert isinstance(request, Admission)
            while not made.call.permitted and made.call.outcome is None:
                await self._bell.rung()

    async def _worked(self, made: Effort) -> None:
        try:
            await self._work(made)
        finally:
            task = asyncio.current_task()
            assert task is not None
            self._broker._tasks.discard(task)

    async def _work(self, made: Effort) -> None:
        """Do the work to its end, whatever becomes of the caller."""
        flow = work(self._shared.desk, made.call, terms=self._terms)
        answer: Any = None
        while True:
            try:
                request = flow.send(answer)
            except StopIteration:
                return
            answer = None
            if isinstance(request, Performed):
                answer = made.judged(await looped(made.work))
            elif isinstance(request, Intended):
                answer = await self._intended(made)
            else:
                assert isinstance(request, Ended)
                await self._ended(made, request.late)

    async def _intended(self, made: Effort) -> Any:
        shared = self._shared
        if not shared.required:
            shared.expect(made)
            return None
        assert made.scope is not None
        assert made.entry is not None
        try:
            await self._broker._recorded(made.scope, flows.intend(made.entry))
        except Exception as error:  # noqa: BLE001 - whatever a ledger raises, nothing goes out unrecorded
            return shared.refused(made, error)
        shared.expect(made)
        return None

    async def _ended(self, made: Effort, late: Outcome[Any] | None) -> None:
        if self._shared.required or self._terms.retry is not None:
            # Attempts of one operation are recorded one after the other.
            await self._broker._conclude(made, late)
        else:
            self._broker._spawn(self._broker._conclude(made, late))
