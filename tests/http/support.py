"""Performs HTTP operations under a permit that a test holds, in either colour."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from counterfoil import Evidence, Rejected
from counterfoil.runtime.handlers import Context
from tests.support import PATIENCE_S, in_thread

KEY = "cf-0123456789abcdef0123456789abcdef01234567"


class HeldPermit:
    """A permit as the broker gives it, which remembers what it was asked, and can be taken away."""

    def __init__(
        self, *, timeout_s: float = PATIENCE_S, opens: tuple[str, ...] = ("127.", "::1"), refuses: str = ""
    ) -> None:
        self.deadline = time.monotonic() + timeout_s
        self.opens = opens
        self.refuses = refuses
        self.targets: list[str] = []
        self.addresses: list[str] = []
        self.gates = 0
        self.bytes_out = 0
        self.bytes_in = 0
        self.bytes_in_max: int | None = None
        self.bytes_out_max: int | None = None
        self.held = 0
        self.dispatched = False
        self.closed: str | None = None
        self._stops: list[Callable[[], None]] = []
        self._changed = threading.Condition()

    def _note(self, **counts: int) -> None:
        with self._changed:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)
            self._changed.notify_all()

    def until(self, holds: Callable[[Any], Any]) -> None:
        """Wait until something is true of it."""
        give_up = time.monotonic() + PATIENCE_S
        with self._changed:
            while not holds(self):
                assert time.monotonic() < give_up
                self._changed.wait(0.02)

    def cancel(self) -> None:
        """Say that nobody waits any more."""
        with self._changed:
            if not self.dispatched:
                self.closed = "cancelled"
            stops, self._stops = self._stops, []
        for stop in stops:
            stop()

    # --- the port

    def authorise(self, target: str) -> bool:
        self.targets.append(target)
        if self.refuses and target.startswith(self.refuses):
            if self.dispatched:
                return False
            raise Rejected(Evidence("refused-by-policy", phase="not-dispatched", details={"attempts": 0}))
        return True

    def allows_address(self, address: str) -> bool:
        self.addresses.append(address)
        self._note()
        return address.startswith(self.opens)

    def dispatch(self, *, peer: str | None = None, contract: str | None = None) -> None:
        with self._changed:
            if self.closed:
                raise Rejected(Evidence(self.closed, phase="not-dispatched", details={"attempts": 0}))
            self.dispatched = True
            self.gates += 1
            self._changed.notify_all()

    def offered(self, count: int) -> bool:
        if self.bytes_out_max is not None and self.bytes_out + count > self.bytes_out_max:
            return False
        self._note(bytes_out=count)
        return True

    def received(self, count: int) -> bool:
        self._note(bytes_in=count)
        return self.bytes_in_max is None or self.bytes_in <= self.bytes_in_max

    def on_cancel(self, stop: Callable[[], None]) -> None:
        self._stops.append(stop)

    def hold(self) -> Callable[[], None]:
        self._note(held=1)
        return lambda: self._note(held=-1)


@contextmanager
def deaf_listener(address: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """A listener whose queue is full: what comes then is not answered at all. Gives its port."""
    listener = socket.create_server((address, port), backlog=0)
    waiting = []
    try:
        while True:
            sock = socket.socket()
            waiting.append(sock)
            sock.settimeout(0.2)
            sock.connect(listener.getsockname())
    except TimeoutError:
        pass
    yield int(listener.getsockname()[1])
    for sock in (*waiting, listener):
        sock.close()


class Colour:
    """Performs in one colour."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    async def perform(
        self,
        operation: Any,
        permit: HeldPermit | None = None,
        *,
        attempt: int = 1,
        cancel_when: Callable[[], None] | None = None,
    ) -> Any:
        """Perform an operation; `cancel_when` blocks until it is to be cancelled."""
        permit = permit or HeldPermit()
        context = Context(KEY, attempt, None)
        if self.name == "asyncio":
            task = asyncio.create_task(outcome_of(operation.perform_async(context, permit)))
            if cancel_when is not None:
                await in_thread(cancel_when)
                permit.cancel()
                task.cancel()
            return await task
        ended: asyncio.Future[Any] = asyncio.ensure_future(in_thread(lambda: blocking(operation, context, permit)))
        if cancel_when is not None:
            await in_thread(cancel_when)
            permit.cancel()
        return await ended


def blocking(operation: Any, context: Any, permit: Any) -> Any:
    try:
        return operation.perform(context, permit)
    except Rejected as rejected:
        return rejected


async def outcome_of(coroutine: Any) -> Any:
    try:
        return await coroutine
    except Rejected as rejected:
        return rejected


def told(outcome: Any) -> tuple[str, str, str | None]:
    """An outcome in short: class, kind of evidence, and how far it got."""
    return type(outcome).__name__, outcome.evidence.kind, (outcome.evidence.details or {}).get("reached")
