"""One event with its arguments, in its three modes: now, once, and as what an outbox keeps."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from counterfoil import threads
from counterfoil.outcomes import Accepted, Outcome
from counterfoil.ports.recipient import Permit
from counterfoil.protocol.unaskable import UNASKABLE
from counterfoil.recipients.events.authority import CodeAuthority
from counterfoil.recipients.events.leaving import Leaving
from counterfoil.recipients.events.message import Message
from counterfoil.recipients.proving import proved

if TYPE_CHECKING:
    from counterfoil.recipients.events.recipient import Events

FORMAT: Final = 1
VERB: Final = "publish"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What holds for every event of a recipient."""

    recipient: str
    operation: str = VERB
    visibility_s: float = 0.0
    retryable: bool = False
    keep_key: bool = False
    proof_type: Any = None


class Operation:
    """One message to be published, as an effect.

    Args:
        events: the recipient.
        message: the message.
    """

    # The address is the recipient's own, and no grant is asked for it.
    target: None = None
    # Known only with the effect key, and then charged.
    bytes_out: None = None
    verify: None = None
    contract: None = None

    def __init__(self, events: Events, message: Message) -> None:
        self._events = events
        self._message = message
        self.settings = events.settings

    def __repr__(self) -> str:
        # Not the headers: they may hold what is nobody's business.
        return f"<{self._events.name}: publish {self._message.subject} ({len(self._message.payload)} bytes)>"

    @property
    def request(self) -> Any:
        """The request as a JSON value, for its fingerprint: the payload by its digest."""
        arguments = {"stream": self._events.stream, **self._message.fingerprinted()}
        return {"recipient": self._events.name, "operation": VERB, "arguments": arguments}

    # --- now

    def perform(self, context: Any, permit: Permit) -> Outcome[Any]:
        """Publish it under a permit, blocking: the work is done on the library's own loop.

        Returns:
            What became of it. It comes once nothing of it can reach the broker any more.

        Raises:
            Rejected: the permit refused it; nothing was sent.
        """
        leaving = self._leaving(context, permit)
        running = threads.Running(self._published(context, permit, leaving))

        def stop() -> None:
            leaving.stop()
            running.cancel()

        permit.on_cancel(stop)
        outcome: Outcome[Any] = running.result()
        return outcome

    async def perform_async(self, context: Any, permit: Permit) -> Outcome[Any]:
        """Publish it under a permit, on the running loop."""
        leaving = self._leaving(context, permit)
        # The task is cancelled after that, and then knows why.
        permit.on_cancel(leaving.stop)
        return await self._published(context, permit, leaving)

    def _published(self, context: Any, permit: Permit, leaving: Leaving) -> Coroutine[Any, Any, Outcome[Any]]:
        return self._events.broker.publish(self._message, key=context.key, permit=permit, leaving=leaving)

    def _leaving(self, context: Any, permit: Permit) -> Leaving:
        deadline = min(permit.deadline, time.monotonic() + self._events.timeout_s)
        return Leaving(deadline, lambda: bool(context.cancelled))

    # --- once

    def run(self, context: Any) -> Accepted[Any]:
        """Publish it as an effect: what is accepted is returned as `Accepted`, with its evidence.

        Raises:
            Rejected, Failed: proved; see their evidence.
            Unproved: nothing proves how it ended.
        """
        return proved(self.perform(context, self._authority(context)))

    async def run_async(self, context: Any) -> Accepted[Any]:
        """Publish it as an effect, on the running loop."""
        return proved(await self.perform_async(context, self._authority(context)))

    def _authority(self, context: Any) -> CodeAuthority:
        return CodeAuthority(self._until(context))

    def _until(self, context: Any) -> float:
        longest = time.monotonic() + self._events.timeout_s
        return longest if context.deadline is None else min(longest, float(context.deadline))

    @property
    def reconcile(self) -> Any:
        """Look it up in the stream; `UNASKABLE` where the broker keeps none."""
        return self._ask if self._events.broker.askable else UNASKABLE

    @property
    def reconcile_async(self) -> Any:
        """Look it up on the running loop."""
        return self._ask_async if self._events.broker.askable else UNASKABLE

    def _ask(self, context: Any) -> Accepted[Any] | None:
        found: Accepted[Any] | None = threads.Running(self._ask_async(context)).result()
        return found

    async def _ask_async(self, context: Any) -> Accepted[Any] | None:
        return await self._events.broker.look_up(self._message, key=context.key, deadline=self._until(context))

    # --- after commit

    def serialised(self) -> dict[str, Any]:
        """Return what an outbox keeps: a JSON value that `Events.restore` of a recipient of the same name takes."""
        return {
            "recipient": self._events.name,
            "operation": VERB,
            "format": FORMAT,
            "arguments": {"stream": self._events.stream, **self._message.serialised()},
        }
