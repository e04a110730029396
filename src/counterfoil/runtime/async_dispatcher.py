"""`AsyncDispatcher`: the asyncio colour. Handlers may be blocking (they run in worker threads) or asynchronous."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from counterfoil import threads
from counterfoil.protocol import keys
from counterfoil.protocol.requests import Raised, Returned
from counterfoil.runtime.crew import PATIENCE_S, Crew
from counterfoil.runtime.dispatcher import LINGER_S, Shell
from counterfoil.runtime.dispatching import Engine
from counterfoil.runtime.handlers import is_async
from counterfoil.runtime.jobs import Job

T = TypeVar("T")


class AsyncDispatcher(Shell):
    """Delivers staged intents on the running loop; see `Dispatcher`. The store is worked on in a worker thread."""

    def __init__(
        self,
        url_or_runtime: Any,
        recipients: Iterable[Any] | Mapping[str, Any],
        *,
        batch: int = 100,
        concurrency: int = 64,
        poll_s: float = 0.2,
        **more: Any,
    ) -> None:
        super().__init__(url_or_runtime, recipients, batch=batch, concurrency=concurrency, poll_s=poll_s, **more)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event: asyncio.Event | None = None
        self._crew = Crew(lambda job: job.within(self._in_thread), wake=self._wake)

    async def __aenter__(self) -> Self:
        await self._begin()
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered = False
        await blocking(self._close)

    async def run(self) -> None:
        """Deliver until `stop` is called or the task is cancelled; see `Dispatcher.run`."""
        engine = await self._begin()
        try:
            while not engine.stopping:
                await self._round(engine, None)
            await self._drain(engine)
        finally:
            await self._left()

    async def run_until_idle(self, *, timeout_s: float | None = None) -> bool:
        """Deliver until nothing is in hand and nothing is due; see `Dispatcher.run_until_idle`."""
        end = None if timeout_s is None else time.monotonic() + keys.seconds(timeout_s, "timeout_s")
        engine = await self._begin()
        linger_s = 0.0 if self._opened.session.virtual else LINGER_S
        try:
            while not engine.stopping:
                await self._round(engine, end)
                if await blocking(lambda: engine.idle(linger_s)):
                    return True
                if end is not None and time.monotonic() >= end:
                    break
            await self._drain(engine)
            return False
        finally:
            await self._left()

    async def _begin(self) -> Engine:
        self._loop = asyncio.get_running_loop()
        if self._event is None:
            self._event = asyncio.Event()
        return await blocking(self._open)

    async def _left(self) -> None:
        if not self._entered:
            await blocking(self._close)

    async def _round(self, engine: Engine, end: float | None) -> None:
        assert self._event is not None
        self._event.clear()
        jobs, idle_s = await blocking(engine.turn)
        self._start(jobs)
        # What handlers do at once they have done by then.
        await asyncio.sleep(0)
        if end is not None:
            idle_s = min(idle_s, max(0.0, end - time.monotonic()))
        if idle_s > 0 and not self._event.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._event.wait(), idle_s)

    async def _drain(self, engine: Engine) -> None:
        stopping, engine.stopping = engine.stopping, True
        end = time.monotonic() + self._drain_s
        while engine.in_hand and time.monotonic() < end:
            await self._round(engine, end)
        if engine.in_hand:
            engine.abandon()
        engine.stopping = stopping

    def _start(self, jobs: Sequence[Job]) -> None:
        apart = []
        for job in jobs:
            if is_async(job.function):
                job.within(self._on_loop)
            else:
                apart.append(job)
        self._crew.spread()
        self._crew.start(apart)
        if apart and self._loop is not None:
            self._loop.call_later(2 * PATIENCE_S, self._crew.spread)

    def _on_loop(self, job: Job) -> None:
        self._await(job, job.begin())

    def _in_thread(self, job: Job) -> None:
        reply = job.begin()
        if hasattr(reply, "__await__"):
            # A function that returns a coroutine: the call was for the thread, the coroutine is for the loop.
            self._to_loop(lambda: self._await(job, reply))
        else:
            job.end(reply)

    def _await(self, job: Job, value: Any) -> None:
        if not hasattr(value, "__await__"):
            job.end(value)
            self._wake()
            return
        assert self._loop is not None
        task = self._loop.create_task(self._replied(job, value))
        # The engine holds the job for as long as it runs, and with it the task, of which the loop takes no care.
        job.cancelled = lambda: self._to_loop(task.cancel)

    async def _replied(self, job: Job, value: Any) -> None:
        assert self._event is not None
        try:
            job.end(Returned(await value))
        except asyncio.CancelledError as error:
            job.end(Raised(error))
        except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt out of a task would end the loop
            job.end(Raised(error))
        self._event.set()

    def _wake(self) -> None:
        event = self._event
        if event is not None:
            self._to_loop(event.set)

    def _to_loop(self, function: Callable[[], Any]) -> None:
        loop = self._loop
        if loop is not None:
            # A closed loop: for what is in hand the process has crashed, and the store knows all that counts.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(function)


async def blocking(work: Callable[[], T]) -> T:
    """Do blocking work in a worker thread; a cancelled caller waits for its end, since a commit is never cut."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def told(value: Any, error: BaseException | None) -> None:
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def done() -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = work()
        except BaseException as raised:  # noqa: BLE001 - the caller gets it
            error = raised
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(told, value, error)

    threads.submit(done)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return future.result()
