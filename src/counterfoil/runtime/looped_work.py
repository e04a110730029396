"""Doing the work of one call on a loop, and waking whoever waits for it from any thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from counterfoil import threads
from counterfoil.runtime.working import Work


class Bell:
    """Wakes one task of the running loop, from any thread."""

    __slots__ = ("_future", "_loop", "_thread")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._future: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Have the task look again."""
        if threading.get_ident() == self._thread:
            self._wake()
            return
        with suppress(RuntimeError):  # the loop is closed, so nobody waits
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def rung(self) -> asyncio.Future[None]:
        """Return what is over when it rings next; what is waited for is looked at before, in the same turn."""
        self._future = self._loop.create_future()
        return self._future

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds; whoever makes it hold rings after that."""
        while not holds():
            await self.rung()


async def looped(work: Work) -> Any:
    """Do it on this loop, or in a thread where its code is synchronous; returns an outcome, or what was raised."""
    operation = work.operation
    try:
        if (perform := getattr(operation, "perform_async", None)) is not None:
            return await _stoppable(work, perform(work.context, work.permit))
        if hasattr(operation, "perform"):
            return await _in_thread(work, work.blocking)
        if (run := getattr(operation, "run_async", None)) is not None:
            work.take_gate()
            value = await _stoppable(work, run(work.context))
        else:
            value = await _in_thread(work, lambda: _taken(work))
            if inspect.isawaitable(value):
                value = await _stoppable(work, value)
        if (check := work.checker(value)) is None:
            return work.acknowledged(value)
        verdict = await _in_thread(work, check)
        if inspect.isawaitable(verdict):
            verdict = await _stoppable(work, verdict)
        return work.acknowledged(value, verdict=verdict)
    except BaseException as error:  # noqa: BLE001 - it is the flow's to judge
        return error


def _taken(work: Work) -> Any:
    work.take_gate()
    return work.operation.run(work.context)


class _Stop:
    """Cancels the task that awaits a recipient's own coroutine, from any thread, as long as it does."""

    __slots__ = ("loop", "task")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        # Only while this very coroutine is awaited: what records its end is not to be cut.
        self.task = asyncio.current_task()

    def __call__(self) -> None:
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


async def _stoppable(work: Work, awaitable: Any) -> Any:
    """Await the recipient's own coroutine in this task, which is cancelled when nobody waits any more."""
    stop = _Stop()
    work.desk.on_cancel(work.call, stop)
    try:
        return await awaitable
    finally:
        stop.task = None


async def _in_thread(work: Work, function: Callable[[], Any]) -> Any:
    """Run synchronous code in a worker thread and wait for it; the permit is held as long as the thread works."""
    let_go = work.permit.hold()
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = copy_context()

    def tell(value: Any, error: BaseException | None) -> None:
        if future.done():
            return
        # Not as the future's exception: StopIteration cannot be one, and a KeyboardInterrupt would end the loop.
        future.set_result((value, error))

    def call() -> None:
        value, error = None, None
        try:
            value = context.run(function)
        except BaseException as raised:  # noqa: BLE001 - whoever waits gets it
            error = raised
        let_go()
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, value, error)

    threads.submit(call)
    value, error = await future
    if error is not None:
        raise error
    return value
