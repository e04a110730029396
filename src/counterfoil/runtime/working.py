"""Doing the work of one call of a broker: its recipient's code, and what its answer is worth as a proof."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from counterfoil import threads
from counterfoil.broker.calls import Call
from counterfoil.broker.desk import Desk
from counterfoil.broker.permits import Permit
from counterfoil.effects.evidence import proof_of
from counterfoil.errors import NotSerializable
from counterfoil.outcomes import Accepted, Evidence, Outcome, Uncertain
from counterfoil.runtime.handlers import Context, arguments
from counterfoil.runtime.proposals import Proposed


class Work:
    """One call's work.

    Args:
        desk: where its permit is from.
        call: the call.
        asked: what the recipient is to do.
    """

    def __init__(self, desk: Desk, call: Call, asked: Proposed) -> None:
        self.desk = desk
        self.call = call
        self.operation: Any = asked.operation
        self._coder = asked.coder
        self.context = Context(call.key, call.number, call.deadline)
        self.permit = Permit(desk, call)
        # Nobody else knows this call yet.
        call.stops = [self.context.cancel]

    def blocking(self) -> Any:
        """Do it in this thread; returns an outcome, or what was raised."""
        try:
            operation = self.operation
            if (perform := getattr(operation, "perform", None)) is not None:
                return perform(self.context, self.permit)
            if (perform := getattr(operation, "perform_async", None)) is not None:
                return self._wait(perform(self.context, self.permit))
            self.take_gate()
            value = operation.run(self.context)
            if inspect.isawaitable(value):
                value = self._wait(value)
            if (check := self.checker(value)) is None:
                return self.acknowledged(value)
            verdict = check()
            return self.acknowledged(value, verdict=self._wait(verdict) if inspect.isawaitable(verdict) else verdict)
        except BaseException as error:  # noqa: BLE001 - it is the flow's to judge
            return error

    def _wait(self, value: Any) -> Any:
        running = threads.Running(_awaited(value))
        self.desk.on_cancel(self.call, running.cancel)
        return running.result()

    def take_gate(self) -> None:
        """Take the gate for a recipient that does not know its own dispatch line.

        Raises:
            Rejected: something came first; the recipient's code must not be called.
        """
        self.call.gate_here = True
        self.permit.dispatch()

    def checker(self, value: Any) -> Callable[[], Any] | None:
        """Return what asks the operation's `verify` about what a function returned; None: nobody is to be asked."""
        verify: Any = getattr(self.operation, "verify", None)
        if verify is None:
            return None
        proof = self._proof(value)
        if isinstance(proof, Uncertain):
            return None
        given = arguments(verify, (proof.proof,), self.context)
        return lambda: verify(*given)

    def acknowledged(self, value: Any, *, verdict: Any = True) -> Outcome[Any]:
        """Say what a function's return comes to: its value is the proof, if `verify` held and it can be kept."""
        return self._proof(value) if verdict else Uncertain(self.call.evidence("proof-refused"))

    def _proof(self, value: Any) -> Accepted[Any] | Uncertain:
        try:
            proof = self._coder.decode(proof_of(self._coder.encode, value))
        except NotSerializable:
            # What cannot be kept proves nothing (rule O5).
            return Uncertain(self.call.evidence("proof-rejected", type=type(value).__name__))
        details = {"attempts": 1, "key": self.call.key}
        return Accepted(proof, evidence=Evidence("acknowledged", phase="acknowledged", details=details))


async def _awaited(value: Any) -> Any:
    return await value
