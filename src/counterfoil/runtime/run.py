"""`Run`: a handle of one run, blocking."""

from __future__ import annotations

from collections.abc import Callable
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
from counterfoil.errors import LedgerUnavailable, RunPruned, UsageError
from counterfoil.outcomes import Accepted, Decision, Outcome
from counterfoil.ports.recipient import Operation
from counterfoil.protocol import codec, keys, slots
from counterfoil.runtime import arguments
from counterfoil.runtime.arguments import Retry
from counterfoil.runtime.blocking import run_cancelled
from counterfoil.runtime.coding import Coder
from counterfoil.runtime.handlers import not_in_transaction
from counterfoil.runtime.session import RunState, Session
from counterfoil.runtime.transactions import transactable

if TYPE_CHECKING:
    from counterfoil.runtime.sync import Runtime

T = TypeVar("T")
P = TypeVar("P")


class Run:
    """A handle of one run. Leaving its `with` block neither finishes nor locks the run."""

    def __init__(self, runtime: Runtime, run_id: str) -> None:
        self.id = run_id
        self._runtime = runtime
        self._session: Session = runtime._session
        self._driver = runtime._driver
        self._state: RunState = self._session.state(run_id)
        self._scope: Scope | None = None
        self._cancelled = False
        self._left = False

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    def __enter__(self) -> Self:
        self._session.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left = True
        self._driver.drain(self.id, self._runtime._drain_s)

    def cancel(self) -> None:
        """Cancel this handle: what is recorded is still answered, nothing new is started."""
        self._cancelled = True
        if self._scope is not None:
            self._scope.cancelled = True
            self._driver.wake()

    # --- steps and effects

    @overload
    def step(
        self,
        name: str,
        body: Callable[..., Any],
        *,
        inputs: Any = None,
        retry: Retry | None = None,
        result_type: type[T],
    ) -> T: ...
    @overload
    def step(
        self,
        name: str,
        body: Callable[..., T],
        *,
        inputs: Any = None,
        retry: Retry | None = None,
        result_type: None = None,
    ) -> T: ...

    def step(
        self,
        name: str,
        body: Callable[..., Any],
        *,
        inputs: Any = None,
        retry: Retry | None = None,
        result_type: Any = None,
    ) -> Any:
        """Run a computation and record its result after it; a replay returns the record.

        Args:
            name: unique among the run's steps.
            body: computes a JSON value (or a `result_type`); it may run again after a crash.
            inputs: a JSON value; another one under the same name is refused.
            retry: bounds for repeating a body that raises; None: it is not repeated.
            result_type: the type to decode the result into.

        Returns:
            The result, durable, as a copy of the caller's own.

        Raises:
            NameConflict: the name is recorded for other inputs.
            NotSerializable: the result is not a lossless JSON value; nothing was recorded.
        """
        call, coded = arguments.step_call(name, body, inputs=inputs, retry=retry, result_type=result_type)
        scope = self._load()
        scope.asks(slots.step(name))
        found = steps.recorded(scope, name, call.inputs)
        if found is None:
            self._not_cancelled()
            found = self._driver.shared(scope, "step", name, flow=partial(steps.step, scope, call), request=call.inputs)
        return coded.decode(found)

    @overload
    def effect(
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
    def effect(
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
    def effect(
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

    def effect(
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
        """Perform an effect at most once, and return how it ended.

        The intent is durable before `run` is called, and the outcome when this returns. An intent that is
        found without an outcome is settled by `reconcile`, never by `run`.

        Args:
            name: unique among the run's effects.
            operation: an operation with its arguments; or give `run` and `reconcile`.
            run: performs it and returns the recipient's name for it (a JSON value of at most 65,536 bytes).
                It gets the context if it requires a parameter. It may raise `Rejected` or `Failed` to prove
                that nothing happened.
            reconcile: asks the recipient: returns what it named the effect, None if it knows of none; or
                `UNASKABLE`.
            request: a JSON value; another one under the same name is refused.
            wait: seconds to wait for another process that is performing it.
            reconcile_timeout: seconds for a look-up.
            visibility: seconds that the recipient may take to show an effect.
            verify: checks a proof, from wherever it comes.
            retry: allows further attempts after `Rejected`, or a retryable `Failed`; recorded with the first.
            proof_type: the type to decode the proof into.

        Returns:
            `Accepted`, `Rejected`, `Failed` or `Uncertain`.

        Raises:
            EffectUnresolved: nobody knows yet; calling again asks again. See its `reason` and `effect_ran`.
            LedgerUnavailable: see its `effect_ran` and `proof`.
            NameConflict, UsageError, OwnerRetired, RunPruned: nothing was sent by this call.
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
        scope = self._load()
        if scope.memory.asked is not None:
            scope.asks(slots.effect_head(name))
        if call.verifier is not None:
            scope.memory.verifiers[name] = call.verifier
        outcome = effects.recorded(scope, name, call.request)
        if outcome is None:
            if self._cancelled:
                self._not_cancelled(partial(effects.recorded, scope, name, call.request))
            try:
                outcome = self._driver.shared(
                    scope,
                    "effect",
                    name,
                    # No lambda: what one refers to costs more wherever it is used.
                    flow=partial(effects.effect, scope, call),
                    request=call.request,
                    wait_s=call.wait_s,
                )
            except RunPruned as error:
                raise self._buried(scope, name, coded, error=error) from None
            except LedgerUnavailable:
                self._session.keep(self.id, self._state)
                self._runtime._keeper.wake()
                raise
        if scope.history.pruned:
            raise pruned(self.id, name, typed(outcome, coded))
        return typed(outcome, coded)

    def _buried(self, scope: Scope, name: str, coded: Coder, *, error: RunPruned) -> RunPruned:
        self._driver.refresh(scope)
        outcome = effects.recorded(scope, name, None)
        return error if outcome is None else pruned(self.id, name, typed(outcome, coded))

    # --- transactions

    @overload
    def transaction(
        self,
        name: str,
        body: Callable[[Any], Any],
        *,
        inputs: Any = None,
        result_type: type[T],
        connection: Literal["driver", "sqlalchemy"] = "driver",
    ) -> T: ...
    @overload
    def transaction(
        self,
        name: str,
        body: Callable[[Any], T],
        *,
        inputs: Any = None,
        result_type: None = None,
        connection: Literal["driver", "sqlalchemy"] = "driver",
    ) -> T: ...

    def transaction(
        self,
        name: str,
        body: Callable[[Any], Any],
        *,
        inputs: Any = None,
        result_type: Any = None,
        connection: Literal["driver", "sqlalchemy"] = "driver",
    ) -> Any:
        """Run `body(connection)` in one transaction of the database that is also the ledger.

        What it writes and the record of its result are committed together or not at all. It may run more than once;
        its writes are applied exactly once, and a replay returns the record.

        Args:
            name: unique among the run's transactions.
            body: writes through the connection, which is in an open transaction, and returns a JSON value (or a
                `result_type`). It may use savepoints, and must not commit or roll back: returning commits, raising
                rolls back. Steps and effects are refused inside it.
            inputs: a JSON value; another one under the same name is refused.
            result_type: the type to decode the result into.
            connection: what the body gets: the driver's own connection (apsw, sqlite3 or psycopg), or an SQLAlchemy
                `Connection` over it.

        Returns:
            The result. It and the writes are durable; it says nothing about what was staged to happen afterwards.

        Raises:
            UsageError: the ledger is not in a database (code `no-transactions`), or the body tried to end the
                transaction (`transaction-ended`); see `effect_ran`.
            NameConflict: the name is recorded for other inputs.
            NotSerializable: the result is not a lossless JSON value; nothing was written.
            LedgerUnavailable: see its `effect_ran`: `no`, nothing was written; `unknown`, the reply to the COMMIT was
                lost and nobody could be asked: calling again settles it.
        """
        call, coded = arguments.transaction_call(
            name, body, inputs=inputs, result_type=result_type, connection=connection
        )
        scope = self._load()
        scope.asks(slots.transaction_head(name))
        found = transactions.recorded(scope, name, call.inputs)
        if found is None:
            transactable(self._session)
            self._not_cancelled(partial(transactions.recorded, scope, name, call.inputs))
            flow = partial(transactions.transaction, scope, call)
            found = self._driver.shared(scope, "transaction", name, flow=flow, request=call.inputs)
        return coded.decode(found)

    # --- parks

    def sleep(self, seconds: float, *, name: str) -> None:
        """Return when `seconds` have passed since the first call under this name, also across restarts."""
        keys.seconds(seconds, "seconds")
        keys.name(name)
        scope = self._load()
        scope.asks(slots.sleep(name))
        if park.slept(scope, name):
            return
        self._not_cancelled(lambda: park.slept(scope, name) or None)
        self._driver.shared(scope, "sleep", name, flow=lambda: park.sleep(scope, name, seconds))

    def wait_for(self, event: str, id: str, *, timeout: float | None = None) -> Any:
        """Return the payload that is delivered for (event, id).

        Raises:
            TimeoutError: nothing came within `timeout` seconds; nothing was recorded.
        """
        keys.name(event, "event")
        keys.name(id, "id")
        timeout_s = arguments.timeout(timeout)
        scope = self._load()
        scope.asks(slots.wait(event, id))
        if park.delivered(scope, event, id) is None:
            self._not_cancelled(lambda: park.delivered(scope, event, id))
        return codec.decode(self._driver.run(scope, park.wait_for(scope, event, id, timeout_s=timeout_s)))

    def deliver(self, event: str, id: str, payload: Any = None) -> bool:
        """Record a delivery, durably: True if it was recorded, False if an equal one was there.

        Raises:
            DeliveryConflict: another payload came first; ids are single-use.
            UsageError: the run is finished and has nothing under this id.
        """
        keys.name(event, "event")
        keys.name(id, "id")
        encoded = codec.encode(payload, what="the payload")
        by = self._session.label
        return self._drive(lambda scope: park.deliver(scope, event, id, payload=encoded, by=by))  # type: ignore[no-any-return]

    # --- evidence and decisions

    def settle(self, name: str, proof: Any, *, key: str, source: str) -> bool:
        """Record evidence that came by another way (a webhook, a side channel), durably.

        Args:
            name: the effect.
            proof: what the recipient named it.
            key: the key that its attempt gave to the recipient.
            source: where the evidence came from.

        Returns:
            True if it became the outcome; False if it was kept as late evidence, or waits for a call that
            brings the effect's `verify`.

        Raises:
            UsageError: no attempt has this key; nothing was recorded.
        """
        keys.name(name)
        keys.name(source, "source")
        encoded = evidence.proof_of(lambda value: codec.encode(value, what="the proof"), proof)
        verifier = self._state.memory.verifiers.get(name)
        return self._drive(  # type: ignore[no-any-return]
            lambda scope: evidence.settle(scope, name, encoded, key=key, source=source, verifier=verifier)
        )

    def decision(self, name: str, *, timeout: float | None = None) -> Decision:
        """Wait for a person's decision about an uncertain effect; a replay gets the same one.

        Raises:
            TimeoutError: nobody decided within `timeout` seconds.
        """
        keys.name(name)
        timeout_s = arguments.timeout(timeout)
        self._load().asks(slots.effect_head(name))
        return self._drive(lambda scope: deciding.decision(scope, name, timeout_s=timeout_s))  # type: ignore[no-any-return]

    def finish(self, result: Any = None) -> None:
        """Record the run's end and result, durably. Afterwards it takes no new names.

        Raises:
            Conflict: it was finished with another result.
        """
        encoded = codec.encode(result, what="the run's result")
        self._drive(lambda scope: lifetime.finish(scope, encoded))

    # --- inside

    def _end(self, result: Any) -> None:
        """Finish with what the carried body returned; what is on record and was not asked for is noted."""
        encoded = codec.encode(result, what="the run's result")
        asked = self._state.memory.asked or set()
        self._drive(lambda scope: lifetime.finish(scope, encoded, unasked=carry.unasked(scope.history, asked)))

    def _load(self) -> Scope:
        if self._left:
            raise UsageError(f"this handle of run {self.id!r} was left", hint="open the run again", code="left")
        self._session.check()
        not_in_transaction()
        if self._scope is None:
            scope = self._session.scope(self.id, self._state)
            self._driver.refresh(scope)
            self._scope = scope
            # Looked at after that, since whoever cancels from another thread tells the handle first and the scope then.
            if self._cancelled:
                scope.cancelled = True
        return self._scope

    def _drive(self, flow: Callable[[Scope], Any]) -> Any:
        scope = self._load()
        return self._driver.run(scope, flow(scope))

    def _not_cancelled(self, recorded_meanwhile: Callable[[], object] | None = None) -> None:
        if not self._cancelled:
            return
        if recorded_meanwhile is not None:
            self._driver.refresh(self._load())
            if recorded_meanwhile() is not None:
                return
        raise run_cancelled(self.id)


def typed(outcome: Outcome[Any], coded: Coder) -> Outcome[Any]:
    """Decode an outcome's proof for a caller: a copy of its own."""
    if isinstance(outcome, Accepted):
        return Accepted(coded.decode(bytes(outcome.proof)), outcome.via, outcome.evidence)
    return outcome


def pruned(run_id: str, name: str, outcome: Outcome[Any] | None) -> RunPruned:
    """Make the error for a call on a pruned run."""
    return RunPruned(f"run {run_id!r} was pruned; its tombstone keeps the outcome of {name!r}", outcome=outcome)
