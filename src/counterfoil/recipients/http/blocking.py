"""Waiting in the caller's thread."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from counterfoil import threads
from counterfoil.recipients.http.wire import Stopped, Waiting, given_up

T = TypeVar("T")

# A socket that is cut wakes its poll; the slice is for systems where that is not so.
SLICE_S: Final = 0.25


class BlockingWaiting(Waiting):
    """Waits in this thread.

    Args:
        deadline: on `time.monotonic()`.
        told: says whether nobody waits any more, beyond what `stop` says.
    """

    def __init__(self, deadline: float, told: Callable[[], bool] | None = None) -> None:
        self.deadline = deadline
        self._told = told
        self._stopped = threading.Event()

    def check(self) -> None:
        """Raise `Stopped` if nobody waits any more."""
        if time.monotonic() >= self.deadline:
            raise Stopped("deadline")
        if self._stopped.is_set() or (self._told is not None and self._told()):
            raise Stopped("cancelled")

    async def until(
        self, sock: socket.socket, *, readable: bool, writable: bool, at_most_until: float | None = None
    ) -> None:
        """Return when the socket may have become readable or writable."""
        poll = select.poll()
        poll.register(sock, (select.POLLIN if readable else 0) | (select.POLLOUT if writable else 0))
        while True:
            self.check()
            now = time.monotonic()
            if at_most_until is not None and now >= at_most_until:
                raise given_up()
            rest_s = (self.deadline if at_most_until is None else min(self.deadline, at_most_until)) - now
            if poll.poll(max(1.0, min(SLICE_S, rest_s) * 1000)):
                # What woke it may have been the cut.
                self.check()
                return

    async def call(self, work: Callable[[], Any], hold: Callable[[], Callable[[], None]]) -> Any:
        """Do blocking work in a thread that may outlive this call."""
        done = threading.Event()
        result: list[Any] = []
        release = hold()

        def run() -> None:
            try:
                result.append(work())
            finally:
                release()
                done.set()

        self.check()
        threads.submit(run)
        while not done.wait(max(0.001, min(SLICE_S, self.deadline - time.monotonic()))):
            self.check()
        return result[0]

    def stop(self) -> None:
        """Make the waiting end; from any thread."""
        self._stopped.set()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that only ever waits in this thread."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise RuntimeError("a coroutine of the blocking colour was suspended")
