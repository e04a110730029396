"""Waiting on an asyncio loop."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from counterfoil import threads
from counterfoil.recipients.http.wire import Stopped, Stopping, Waiting, given_up


class LoopedWaiting(Waiting):
    """Waits on the running loop.

    Args:
        deadline: on `time.monotonic()`.
        told: says whether nobody waits any more, beyond what `stop` says.
    """

    def __init__(self, deadline: float, told: Callable[[], bool] | None = None) -> None:
        self.deadline = deadline
        self._told = told
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[Any] | None = None
        self._why: Stopping | None = None

    def check(self) -> None:
        """Raise `Stopped` if nobody waits any more."""
        if time.monotonic() >= self.deadline:
            raise Stopped("deadline")
        if self._why is not None or (self._told is not None and self._told()):
            raise Stopped(self._why or "cancelled")

    async def until(
        self, sock: socket.socket, *, readable: bool, writable: bool, at_most_until: float | None = None
    ) -> None:
        """Return when the socket may have become readable or writable."""
        self.check()
        loop, file = self._loop, sock.fileno()
        waiter = loop.create_future()
        if readable:
            loop.add_reader(file, _wake, waiter)
        if writable:
            loop.add_writer(file, _wake, waiter)
        giving_up = None
        if at_most_until is not None:
            giving_up = loop.call_later(max(0.0, at_most_until - time.monotonic()), _fail, waiter)
        try:
            await self._wait(waiter)
        finally:
            if giving_up is not None:
                giving_up.cancel()
            # Before anybody can close the socket: its number may be another one's next.
            if readable:
                loop.remove_reader(file)
            if writable:
                loop.remove_writer(file)

    async def call(self, work: Callable[[], Any], hold: Callable[[], Callable[[], None]]) -> Any:
        """Do blocking work in a thread that may outlive this call."""
        self.check()
        waiter = self._loop.create_future()
        release = hold()

        def run() -> None:
            try:
                value = work()
            finally:
                release()
            # A loop that is closed has nobody who waits.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_wake, waiter, value)

        threads.submit(run)
        return await self._wait(waiter)

    async def _wait(self, waiter: asyncio.Future[Any]) -> Any:
        self._waiter = waiter
        timer = self._loop.call_later(max(0.0, self.deadline - time.monotonic()), self._stop, "deadline")
        try:
            return await waiter
        except asyncio.CancelledError:
            if self._why is None:
                raise
            # The task was cancelled because we were told to stop: whoever cancelled it waits for the outcome.
            raise Stopped(self._why) from None
        finally:
            timer.cancel()
            self._waiter = None

    def _stop(self, why: Stopping) -> None:
        self._why = self._why or why
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(Stopped(self._why))

    def stop(self) -> None:
        """Make the waiting end; from any thread."""
        if self._why is None:
            self._why = "deadline" if time.monotonic() >= self.deadline else "cancelled"
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop, self._why)


def _wake(waiter: asyncio.Future[Any], value: Any = None) -> None:
    if not waiter.done():
        waiter.set_result(value)


def _fail(waiter: asyncio.Future[Any]) -> None:
    if not waiter.done():
        waiter.set_exception(given_up())
