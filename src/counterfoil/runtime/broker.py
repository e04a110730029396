"""`Broker`: immediate operations, blocking."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import copy_context
from types import TracebackType
from typing import Any, Self, TypeVar

from counterfoil import threads
from counterfoil.broker.budgets import Budget
from counterfoil.broker.calls import Authority, Proposal
from counterfoil.broker.grants import Grant
from counterfoil.broker.perform import Admission, Attempted, Backoff, Ended, Intended, Performed, admit, attempts, work
from counterfoil.broker.reports import Report
from counterfoil.effects import activation as flows
from counterfoil.effects.scope import Scope
from counterfoil.errors import CounterfoilError, LedgerError, UsageError
from counterfoil.outcomes import Outcome
from counterfoil.ports.recipient import Operation
from counterfoil.protocol import keys
from counterfoil.runtime.arguments import Retry
from counterfoil.runtime.brokerage import Brokerage, Effort, Trail
from counterfoil.runtime.proposals import Proposed, proposed
from counterfoil.runtime.sync import Runtime
from counterfoil.runtime.tracing import calling

P = TypeVar("P")
DRAIN_S = 30.0


class Broker:
    """Immediate operations: who may ask for what, how much of it, and what became of it; blocking.

    It may be used from any number of threads, and needs no `with` block; leaving one shuts it down.

    Args:
        runtime: where the audit is recorded; None: there is no audit.
        policy: is asked about every call with a `Proposal`, up to three times, in addition to the grants; only True
            lets it pass. It decides at once, from what it is given, and must not block.
        audit: `off`; `best-effort`: recorded beside the call, which does not wait for it; `required`: an attempt is
            durable in the ledger before it goes out, or does not go out.
        concurrency: operations at once, those included whose physical work goes on after their caller has left.

    Raises:
        UsageError: an argument is wrong.
    """

    def __init__(
        self,
        runtime: Runtime | None = None,
        *,
        policy: Callable[[Proposal], Any] | None = None,
        audit: str = "off",
        concurrency: int = 64,
    ) -> None:
        if runtime is not None and not isinstance(runtime, Runtime):
            raise UsageError(
                f"Broker takes a Runtime or None, not {type(runtime).__name__}",
                hint="AsyncBroker takes an AsyncRuntime",
            )
        self._runtime = runtime
        self._shared = Brokerage(
            None if runtime is None else runtime._session, policy=policy, audit=audit, concurrency=concurrency
        )
        self._clearing = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def activation(
        self,
        *,
        principal: str = "default",
        grants: Iterable[Grant] = (),
        budget: Budget | None = None,
        deadline_s: float = 30.0,
    ) -> Activation:
        """Make the scope in which operations may be performed; enter it in a `with` block.

        Args:
            principal: on whose behalf; principals take turns where permits are scarce.
            grants: what may be asked for. Nothing else is.
            budget: how much may be used; None: not limited here.
            deadline_s: seconds from entering it until everything in it has an outcome.

        Raises:
            UsageError: an argument is wrong.
        """
        authority, trail = self._shared.authority(principal, grants=grants, budget=budget, deadline_s=deadline_s)
        return Activation(self, authority, trail)

    def report(self) -> Report:
        """Say what is still owned: permits, callers that wait, work whose caller has left, audit records."""
        return self._shared.report()

    def close(self, *, timeout_s: float = DRAIN_S) -> Report:
        """Shut down: take no new calls, wait for those under way, and end what is left at the deadline.

        Args:
            timeout_s: seconds to wait.

        Returns:
            What is still owned then; work that cannot be stopped goes on, and is in it.
        """
        keys.seconds(timeout_s, "timeout_s")
        self._shared.desk.shut()
        self._shared.wait_idle(timeout_s)
        self._shared.desk.end_all()
        return self.report()

    # --- the audit

    def _clear_up(self) -> None:
        """Once for each broker: record what a life that is gone left without an outcome."""
        with self._clearing:
            for scope in self._leftovers():
                # What cannot be cleared up now is left as it is; new calls meet the same ledger.
                with suppress(CounterfoilError):
                    self._recorded(scope, flows.clear_up(scope))

    def _leftovers(self) -> list[Scope]:
        try:
            return self._shared.leftovers()
        except LedgerError:
            if self._shared.required:
                raise
            return []

    def _recorded(self, scope: Scope, flow: Any) -> Any:
        assert self._runtime is not None
        return self._runtime._driver.run(scope, flow)

    def _conclude(self, made: Effort, late: Outcome[Any] | None) -> None:
        error: BaseException | None = None
        try:
            assert made.scope is not None
            self._recorded(made.scope, self._shared.concluding(made, late))
        except Exception as raised:  # noqa: BLE001 - the caller is told how it ended, recorded or not
            error = raised
        if self._shared.concluded(made, error):
            self._finish(made.trail)

    def _abandon(self, made: Effort, reason: str) -> None:
        """Have it recorded that the attempt was due and is not made."""
        assert made.scope is not None
        assert made.entry is not None
        with suppress(CounterfoilError):
            self._recorded(made.scope, flows.abandon(made.entry, reason))

    def _finish(self, trail: Trail) -> None:
        with suppress(CounterfoilError):
            self._recorded(self._shared.scope(trail), flows.finish())


class Activation:
    """The scope in which grants and budget are valid; made by `Broker.activation`. Any thread may use it."""

    def __init__(self, broker: Broker, authority: Authority, trail: Trail) -> None:
        self._broker = broker
        self._shared = broker._shared
        self._authority = authority
        self._trail = trail

    def __enter__(self) -> Self:
        if self._trail.desk is not None:
            raise UsageError("this activation was entered before", hint="make another one", code="entered-twice")
        self._broker._clear_up()
        self._shared.begin(self._authority, self._trail)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shared.desk.end(self._authority, "activation-over")
        if self._shared.left(self._trail):
            self._broker._finish(self._trail)

    def revoke(self) -> None:
        """Take its authority away. On return nothing that was not dispatched can be dispatched any more.

        What was dispatched is told to stop and ends as uncertain, if its recipient has not answered yet.
        """
        self._shared.desk.end(self._authority, "revoked")

    def cancel(self) -> None:
        """End the calls under way, as a cancelled task does, and take no new ones."""
        self._shared.desk.end(self._authority, "cancelled")

    def perform(
        self, operation: Operation[P], *, timeout_s: float | None = None, retry: Retry | None = None
    ) -> Outcome[P]:
        """Perform an operation now, and say how it ended. It never raises for what the recipient did.

        The work is done in a thread of the library's, so that the caller gets its answer at the deadline, whatever
        the recipient does. Nothing is durable on return but what the audit records.

        Args:
            operation: what to do.
            timeout_s: seconds at most, within the activation's deadline.
            retry: allows further attempts after one that provably did not happen: one that was rejected before
                dispatch, or failed where the contract calls that retryable. The answer counts all of them as one.

        Returns:
            `Accepted`, `Failed`, `Uncertain`, or `Rejected` where nothing reached the recipient.

        Raises:
            UsageError: an argument is wrong; nothing was sent.
        """
        self._shared.check(self._trail)
        asked = proposed(operation, principal=self._authority.principal, retry=retry, whole=self._shared.whole)
        of, verb = asked.proposal.recipient, asked.proposal.operation
        with calling(f"perform {of}.{verb}", {"counterfoil.recipient": of, "counterfoil.operation": verb}) as called:
            found: Outcome[P] = called.over(_Performing(self, asked, timeout_s).outcome())
        return found


class _Performing:
    """One operation's attempts, driven from the caller's thread."""

    def __init__(self, activation: Activation, asked: Proposed, timeout_s: float | None) -> None:
        self._broker = activation._broker
        self._shared = activation._shared
        self._authority = activation._authority
        self._trail = activation._trail
        self._asked = asked
        self._terms = self._shared.terms(self._authority, asked, timeout_s)
        self._name = self._shared.name(self._trail, asked)
        self._bell = threading.Event()

    def outcome(self) -> Outcome[Any]:
        """Make the attempts that the policy allows."""
        flow = attempts()
        answer: Any = None
        while True:
            try:
                request = flow.send(answer)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            answer = None
            if isinstance(request, Attempted):
                answer = self._attempt(request.number)
            else:
                assert isinstance(request, Backoff)
                self._back_off(request)

    def _back_off(self, request: Backoff) -> None:
        self._bell.clear()
        if not self._shared.ended(self._authority, self._bell.set, listening=True):
            self._bell.wait(request.seconds)
        self._shared.ended(self._authority, self._bell.set, listening=False)

    def _attempt(self, number: int) -> tuple[Outcome[Any], float | None]:
        made = self._shared.attempt(
            self._trail,
            self._authority,
            self._asked,
            terms=self._terms,
            name=self._name,
            number=number,
            wake=self._bell.set,
        )
        call, desk = made.call, self._shared.desk
        handed = False
        try:
            if (refused := self._admitted(made)) is not None:
                if number > 1 and self._shared.audited:
                    self._broker._abandon(made, refused.evidence.kind)
                return refused, None
            context = copy_context()
            handed = True
            threads.submit(lambda: context.run(self._work, made))
            self._until(made, lambda: call.told)
        except BaseException:
            # An interrupt of the caller's thread: what it may have sent is told to stop, and is on record.
            desk.close(call, "cancelled")
            if not handed:
                desk.withdraw(call)
            raise
        finally:
            self._owed(made)
        if made.interrupt is not None:
            raise made.interrupt
        assert call.outcome is not None
        return call.outcome, call.pause_s

    def _owed(self, made: Effort) -> None:
        """Have it recorded what the caller is told who leaves before the work is over."""
        if self._shared.owes(made):
            threads.submit(lambda: self._broker._conclude(made, None))

    def _until(self, made: Effort, holds: Callable[[], bool]) -> None:
        desk, call = self._shared.desk, made.call
        while True:
            self._bell.clear()
            if holds():
                return
            if not self._bell.wait(max(0.0, call.deadline - desk.now())) and desk.now() >= call.deadline:
                desk.close(call, "deadline")

    def _admitted(self, made: Effort) -> Any:
        flow = admit(self._shared.desk, made.call)
        while True:
            try:
                request = flow.send(None)
            except StopIteration as done:
                return done.value
            assert isinstance(request, Admission)
            self._until(made, lambda: made.call.permitted or made.call.outcome is not None)

    def _work(self, made: Effort) -> None:
        """In a worker thread: do the work to its end, whatever becomes of the caller."""
        flow = work(self._shared.desk, made.call, terms=self._terms)
        answer: Any = None
        while True:
            try:
                request = flow.send(answer)
            except StopIteration:
                return
            if isinstance(request, Performed):
                answer = made.judged(made.work.blocking())
            elif isinstance(request, Intended):
                answer = self._intended(made)
            else:
                assert isinstance(request, Ended)
                self._ended(made, request.late)
                answer = None

    def _intended(self, made: Effort) -> Any:
        shared = self._shared
        if not shared.required:
            shared.expect(made)
            return None
        assert made.scope is not None
        assert made.entry is not None
        try:
            self._broker._recorded(made.scope, flows.intend(made.entry))
        except Exception as error:  # noqa: BLE001 - whatever a ledger raises, nothing goes out unrecorded
            return shared.refused(made, error)
        shared.expect(made)
        return None

    def _ended(self, made: Effort, late: Outcome[Any] | None) -> None:
        if self._shared.required or self._terms.retry is not None:
            # Attempts of one operation are recorded one after the other.
            self._broker._conclude(made, late)
        else:
            threads.submit(lambda: self._broker._conclude(made, late))
