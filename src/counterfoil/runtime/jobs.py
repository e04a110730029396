"""One call of a handler by a dispatcher: what is called, with what, until when."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import Context as Context_
from typing import Any

from counterfoil.outbox.requests import Unsent
from counterfoil.ports.clock import Clock
from counterfoil.protocol.requests import Raised, Reply, Returned
from counterfoil.runtime.handlers import Context, arguments

Replied = Reply | Unsent


def boot_s(clock: Clock) -> float:
    """Return seconds that also pass while the machine sleeps, where the system counts them."""
    if clock is time and hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return clock.monotonic()


class Job:
    """A handler to be called once.

    Args:
        handler: the callable.
        given: its arguments before the context, which it gets if it requires it; None: the context alone.
        context: what it is told.
        done: takes the reply, from any thread, once; what comes after `abandon` is dropped.
        until: (boot clock, wall clock) after which it must not begin any more, or None.
        clock: where these come from.
        function: what says whether calling the handler gives a coroutine.
        scope: what it is to run in, or None.
    """

    __slots__ = ("_clock", "_done", "_given", "_until", "cancelled", "context", "function", "handler", "scope")

    def __init__(
        self,
        handler: Callable[..., Any],
        given: tuple[Any, ...] | None,
        context: Context,
        *,
        done: Callable[[Job, Replied], None],
        until: tuple[float, float] | None,
        clock: Clock,
        function: Callable[..., Any] | None = None,
        scope: Context_ | None = None,
    ) -> None:
        self.handler = handler
        self.function = function or handler
        self.context = context
        self.scope = scope
        self.cancelled: Callable[[], None] | None = None
        self._given = given
        self._done = done
        self._until = until
        self._clock = clock

    def within(self, work: Callable[[Job], None]) -> None:
        """Do something with it, in its scope."""
        if self.scope is None:
            work(self)
        else:
            self.scope.run(work, self)

    def begin(self) -> Any:
        """Call the handler, in this thread: an awaitable, a reply, or that it was too late.

        What the handler returned is wrapped as `Returned` unless it must be awaited.
        """
        until = self._until
        # The last thing before it is sent: a holder that was suspended must not send late.
        if until is not None and (boot_s(self._clock) >= until[0] or self._clock.time() >= until[1]):
            return Unsent()
        try:
            if self._given is None:
                value = self.handler(self.context)
            else:
                value = self.handler(*arguments(self.handler, self._given, self.context))
        except BaseException as error:  # noqa: BLE001 - it is the flow's to judge
            return Raised(error)
        return value if hasattr(value, "__await__") else Returned(value)

    def end(self, reply: Replied) -> None:
        """Hand over the reply."""
        self._done(self, reply)

    def abandon(self) -> None:
        """Tell the handler to stop; nobody waits for it any more, but its place is taken until it has ended."""
        self.context.cancel()
        if self.cancelled is not None:
            self.cancelled()
