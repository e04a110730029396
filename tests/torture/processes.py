"""Processes that a campaign starts, kills, stops and ends: none survives it."""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Final, Self

# A server process forks each worker from a state in which everything is imported and nothing is open.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.torture.preload"])

_PR_SET_PDEATHSIG: Final = 1


class Worker:
    """A process that runs `target(connection, *args)`, and our end of its pipe."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.connection, theirs = _context.Pipe()
        self.process = _context.Process(target=_enter, args=(target, theirs, args), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid or 0

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self.process.is_alive()

    def send(self, message: Any) -> bool:
        """Send it a message; False if it is gone."""
        try:
            self.connection.send(message)
        except OSError:
            return False
        return True

    def receive(self, timeout_s: float) -> Any:
        """Return its next message, or None if it ended or said nothing in time."""
        try:
            return self.connection.recv() if self.connection.poll(timeout_s) else None
        except (EOFError, OSError):
            return None

    def signal(self, number: int) -> None:
        """Send it a signal, if it still lives."""
        if self.process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it and wait for its end; it may be stopped."""
        self.signal(signal.SIGKILL)
        self.process.join()
        self.connection.close()

    def ended(self, timeout_s: float) -> bool:
        """Wait for its end; False if it takes longer."""
        self.process.join(timeout_s)
        return not self.process.is_alive()


class Crew:
    """The processes of one campaign. Leaving the block kills what is left of them."""

    def __init__(self) -> None:
        self._workers: set[Worker] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.signal(signal.SIGKILL)
        for worker in self._workers:
            worker.kill()

    def start(self, target: Callable[..., None], *args: Any) -> Worker:
        """Start a worker."""
        worker = Worker(target, args)
        self._workers.add(worker)
        return worker

    def kill(self, worker: Worker) -> None:
        """Kill a worker with SIGKILL."""
        self._workers.discard(worker)
        worker.kill()

    def dismiss(self, worker: Worker) -> None:
        """Forget a worker that ended by itself."""
        worker.process.join()
        self._workers.discard(worker)
        worker.connection.close()


def _enter(target: Callable[..., None], connection: Connection, args: tuple[Any, ...]) -> None:
    # Ctrl-C is for the campaign, which ends its workers. If the campaign itself is killed, the server process sees
    # that nobody holds its pipe any more and ends; with it end the workers, stopped ones too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe = getattr(vars(forkserver)["_forkserver"], "_forkserver_alive_fd", None)
    if pipe is not None and sys.platform == "linux":
        os.close(pipe)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    faulthandler.register(signal.SIGUSR1)  # so that a worker that hangs can be asked where
    logging.getLogger("counterfoil").setLevel(logging.ERROR)
    try:
        target(connection, *args)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except BaseException as error:
        with suppress(OSError):
            connection.send(("broke", "".join(traceback.format_exception(error, limit=-5, chain=False))))
        sys.exit(1)


class Budget:
    """How long a campaign may go on."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.began = time.monotonic()

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self.seconds - self.spent)
