"""The only module that starts threads and loops, so that what runs beside the caller can be found in one place."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio

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


os.register_at_fork(after_in_child=_after_fork)


def submit(work: Callable[[], None]) -> None:
    """Run `work` in a daemon thread of the process's own pool."""
    _shared.workers.submit(work)


def run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on the private loop and wait for its result; also from inside another running loop."""
    import asyncio

    return asyncio.run_coroutine_threadsafe(coroutine, _loop()).result()


def _loop() -> asyncio.AbstractEventLoop:
    import asyncio

    with _shared.lock:
        if _shared.loop is None:
            _shared.loop = asyncio.new_event_loop()
            start_daemon("loop", _shared.loop.run_forever)
        return _shared.loop
