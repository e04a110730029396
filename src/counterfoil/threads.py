"""The only module that starts threads and loops, so that what runs beside the caller can be found in one place."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

WORKERS_MAX: Final = 256
_IDLE_S: Final = 30.0


def start_daemon(name: str, target: Callable[[], None]) -> threading.Thread:
    """Start a daemon thread: it never keeps the process from ending.

    Args:
        name: shown by debuggers, after the library's own name.
        target: what it runs; its exceptions go to `threading.excepthook`.
    """
    thread = threading.Thread(target=target, name=f"counterfoil-{name}", daemon=True)
    thread.start()
    return thread


class Workers:
    """Daemon threads that grow with what waits and go away when idle."""

    def __init__(self) -> None:
        self._ready = threading.Condition()
        self._queue: deque[Callable[[], None]] = deque()
        self._idle = 0
        self._count = 0

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` in a thread; it must handle its own exceptions."""
        with self._ready:
            self._queue.append(work)
            if self._idle >= len(self._queue) or self._count >= WORKERS_MAX:
                self._ready.notify()
                return
            self._count += 1
        start_daemon("worker", self._work)

    def _work(self) -> None:
        while True:
            with self._ready:
                if not self._queue:
                    self._idle += 1
                    self._ready.wait(_IDLE_S)
                    self._idle -= 1
                if not self._queue:
                    self._count -= 1
                    return
                work = self._queue.popleft()
            work()


class _Shared:
    """What the process shares: made on first use, and made anew in a forked child."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.workers = Workers()
        self.loop: asyncio.AbstractEventLoop | None = None


_shared = _Shared()


def _after_fork() -> None:
    global _shared  # noqa: PLW0603 - threads do not survive a fork, so neither may what knows them
    _shared = _Shared()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def submit(work: Callable[[], None]) -> None:
    """Run `work` in a daemon thread of the process's own pool."""
    _shared.workers.submit(work)


class Running:
    """A coroutine on a loop in another thread; it starts at once, with the caller's context variables."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._loop = _loop()
        self._task: asyncio.Task[Any] | None = None
        from concurrent.futures import Future

        self._future: Future[Any] = Future()
        self._loop.call_soon_threadsafe(self._begin, _kept(coroutine))

    def result(self) -> Any:
        """Wait for its result. Where this thread is interrupted, it is cancelled and waited for first."""
        try:
            value, error = self._future.result()
        except BaseException:
            if not self._future.done():
                from concurrent.futures import wait

                self.cancel()
                wait([self._future])
            raise
        if error is not None:
            raise error
        return value

    def cancel(self) -> None:
        """Cancel it, if it has not ended."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _begin(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._task = self._loop.create_task(coroutine)
        self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        import asyncio

        if self._loop is not _shared.loop:
            self._loop.stop()
        if task.cancelled():
            self._future.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self._future.set_exception(error)
        else:
            self._future.set_result(task.result())

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


async def _kept(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    try:
        return await coroutine, None
    except (KeyboardInterrupt, SystemExit) as error:
        # A task that raises these ends its loop, and whoever waits would wait for ever.
        return None, error


def _loop() -> asyncio.AbstractEventLoop:
    """Return the private loop, or a new one where the private loop itself is going to wait."""
    import asyncio

    with _shared.lock:
        if _shared.loop is None:
            _shared.loop = asyncio.new_event_loop()
            start_daemon("loop", _shared.loop.run_forever)
        elif _shared.loop is asyncio._get_running_loop():
            nested = asyncio.new_event_loop()
            start_daemon("nested-loop", lambda: _until_stopped(nested))
            return nested
        return _shared.loop


def _until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()
