"""The only module that starts threads and loops, so that what runs beside the caller can be found in one place."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

T = TypeVar("T")

_log: Final = logging.getLogger("counterfoil")

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
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        # Guards the counts: works that no thread has taken yet, threads, and those of them that wait for work.
        self._lock = threading.Lock()
        self._waiting = 0
        self._count = 0
        self._idle = 0

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` in a thread; it must handle its own exceptions."""
        with self._lock:
            self._waiting += 1
            grow = self._waiting > self._idle and self._count < WORKERS_MAX
            if grow:
                self._count += 1
                self._idle += 1
        self._queue.put(work)
        if grow:
            start_daemon("worker", self._work)

    def _work(self) -> None:
        while (work := self._next()) is not None:
            work()
            with self._lock:
                self._idle += 1

    def _next(self) -> Callable[[], None] | None:
        while True:
            try:
                work = self._queue.get(timeout=_IDLE_S)
            except Empty:
                work = None
            with self._lock:
                if work is None and self._waiting >= self._idle:
                    continue  # something is on its way to this very thread
                self._idle -= 1
                if work is None:
                    self._count -= 1
                else:
                    self._waiting -= 1
            return work


class _Estate:
    """Does for collected objects what they cannot do themselves, in a thread of its own."""

    def __init__(self) -> None:
        # Nothing but its `put` may run inside a collection: that interrupts a thread anywhere, holding any lock.
        self.left: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._lock = threading.Lock()
        self._started = False

    def open(self) -> None:
        """Start the thread, if there is none yet."""
        with self._lock:
            if not self._started:
                self._started = True
                start_daemon("estate", self._work)

    def _work(self) -> None:
        while True:
            work = self.left.get()
            try:
                work()
            except Exception:  # noqa: BLE001
                _log.warning("something that nobody closed could not be closed", exc_info=True)
            del work


class _Shared:
    """What the process shares: made on first use, and made anew in a forked child."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.workers = Workers()
        self.estate = _Estate()
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


def when_collected(owner: object, work: Callable[[], object]) -> weakref.finalize[..., object]:
    """Run `work` in a thread of its own soon after `owner` was collected; not at the end of the process.

    Args:
        owner: `work` must not hold it.
        work: may block and take locks, unlike what `weakref.finalize` itself runs.

    Returns:
        What takes this back with `detach`; in a forked child nothing is run for what its parent made.
    """
    estate = _shared.estate
    estate.open()
    finalizer = weakref.finalize(owner, estate.left.put, work)
    finalizer.atexit = False
    return finalizer


class Running:
    """A coroutine on a loop in another thread; it starts with `result`, in the caller's context variables."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._loop = _loop()
        self._task: asyncio.Task[Any] | None = None
        from concurrent.futures import Future

        self._future: Future[Any] = Future()
        self._coroutine = coroutine

    def result(self) -> Any:
        """Start it and wait for its result. Where this thread is interrupted, it is cancelled and waited for first."""
        try:
            # Not earlier: an interrupt between starting and waiting would leave it running with nobody to wait.
            self._loop.call_soon_threadsafe(self._begin)
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
        """Cancel it, if it has not ended; it does not start any more."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _begin(self) -> None:
        if self._future.done():
            return
        self._task = self._loop.create_task(_kept(self._coroutine))
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
        import asyncio

        if self._task is not None:
            self._task.cancel()
        elif not self._future.done():
            self._coroutine.close()
            self._future.set_exception(asyncio.CancelledError())


async def _kept(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    try:
        return await coroutine, None
    except (KeyboardInterrupt, SystemExit) as error:
        # A task that raises these ends its loop, and whoever waits would wait for ever.
        return None, error


class Loop:
    """An event loop in a daemon thread of its own, for a client library that knows only asyncio."""

    def __init__(self, name: str) -> None:
        import asyncio

        self._loop = asyncio.new_event_loop()
        self._last: Callable[[], Coroutine[Any, Any, None]] | None = None
        start_daemon(name, self._work)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on it and wait for its result; where the waiting is interrupted, the coroutine goes on."""
        import asyncio

        try:
            running = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:  # it is closed already
            coroutine.close()
            raise
        return running.result()

    def soon(self, work: Callable[[], None]) -> None:
        """Call a function on it, from any thread; not at all if it has stopped."""
        from contextlib import suppress

        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work)

    def stop(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Run one last coroutine on it, cancel what else runs, and let its thread end; nothing is waited for."""
        from contextlib import suppress

        self._last = last
        with suppress(RuntimeError):  # it is closed already
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _work(self) -> None:
        import asyncio

        loop = self._loop
        loop.run_forever()
        if self._last is not None:
            loop.run_until_complete(self._last())
        if tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks))
        loop.close()


def run_here(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a loop of its own in this thread, which may be the one that gets signals."""
    import asyncio

    return asyncio.run(coroutine)


def run_apart(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a loop and in a thread of its own, and wait for that."""
    import asyncio
    from concurrent.futures import Future

    future: Future[T] = Future()
    context = copy_context()

    def work() -> None:
        try:
            value = context.run(asyncio.run, coroutine)
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            future.set_exception(error)
        else:
            future.set_result(value)

    start_daemon("loop-apart", work)
    return future.result()


def _loop() -> asyncio.AbstractEventLoop:
    """Return the private loop, or a new one where the private loop itself is going to wait."""
    import asyncio

    with _shared.lock:
        if _shared.loop is None:
            _shared.loop = asyncio.new_event_loop()
            start_daemon("loop", _shared.loop.run_forever)
        elif _shared.loop is running_loop():
            nested = asyncio.new_event_loop()
            start_daemon("nested-loop", lambda: _until_stopped(nested))
            return nested
        return _shared.loop


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, if one does."""
    import asyncio

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    import asyncio

    loop.run_forever()
    # What looks after a connection on it lets go of it now.
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
