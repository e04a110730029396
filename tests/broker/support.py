"""What the tests of the broker share: brokers of either colour behind one face, and a recipient on a real socket."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self

from counterfoil import (
    UNASKABLE,
    Accepted,
    AsyncBroker,
    AsyncRuntime,
    Broker,
    Evidence,
    Grant,
    Recipient,
    Rejected,
    Runtime,
    Uncertain,
)
from tests.support import PATIENCE_S, Colour, eventually, in_thread

GRANT = Grant("desk", operations=("send", "raise_", "stop", "hold", "empty"))


class Post:
    """A recipient made of functions of the colour's own kind; it logs what was asked of it."""

    def __init__(self, colour: Colour) -> None:
        self.log: list[str] = []
        self.keys: list[str] = []
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.ended = threading.Event()
        self.cancelled = False
        self._colour = colour
        self.recipient = Recipient("desk")
        for function in (self._send(), self._raise(), self._hold()):
            self.recipient.operation(reconcile=UNASKABLE)(function)

    def send(self, item: Any = "a") -> Any:
        """An operation that is acknowledged at once."""
        return self.recipient.operations["send"](item=item)

    def raises(self, error: BaseException) -> Any:
        """An operation that logs and raises."""
        self.error = error
        return self.recipient.operations["raise_"]()

    def hold(self) -> Any:
        """An operation that works until it is let go, whatever becomes of its caller; `ended` says that it is over."""
        return self.recipient.operations["hold"]()

    async def arrival(self) -> None:
        """Wait until an operation works that is to be let go."""
        assert await in_thread(lambda: self.reached.wait(PATIENCE_S))

    def _send(self) -> Any:
        def send(ctx: Any, item: Any) -> Any:
            self.log.append(f"send {item}")
            self.keys.append(ctx.key)
            return item

        async def send_async(ctx: Any, item: Any) -> Any:
            return send(ctx, item)

        send_async.__name__ = "send"
        return send if self._colour.blocking else send_async

    def _raise(self) -> Any:
        def raise_() -> Any:
            self.log.append("raise")
            raise self.error

        async def raise_async() -> Any:
            return raise_()

        raise_async.__name__ = "raise_"
        return raise_ if self._colour.blocking else raise_async

    def _hold(self) -> Any:
        # A thread in both colours: what a library does that cannot be stopped.
        def hold(ctx: Any) -> Any:
            self.log.append("hold")
            self.reached.set()
            assert self.opened.wait(PATIENCE_S)
            self.cancelled = ctx.cancelled
            self.ended.set()
            return "held"

        return hold


@dataclass
class Desk:
    """A broker of either colour, and one activation at a time."""

    colour: Colour
    inner: Any

    @staticmethod
    def make(colour: Colour, runtime: Any = None, **options: Any) -> Desk:
        return Desk(colour, (Broker if colour.blocking else AsyncBroker)(runtime, **options))

    def activation(self, **options: Any) -> Act:
        return Act(self.inner.activation(**{"grants": [GRANT], **options}))

    def report(self) -> Any:
        return self.inner.report()

    async def close(self, **options: Any) -> Any:
        if self.colour.blocking:
            return await in_thread(lambda: self.inner.close(**options))
        return await self.inner.close(**options)

    async def idle(self) -> None:
        """Wait until nothing is owned."""
        await eventually(lambda: self.inner.report().idle)


@dataclass
class Act:
    """An activation of either colour: a blocking one performs in threads, so that several calls may be under way."""

    inner: Any

    async def __aenter__(self) -> Self:
        if hasattr(self.inner, "__aenter__"):
            await self.inner.__aenter__()
        else:
            await in_thread(self.inner.__enter__)
        return self

    async def __aexit__(self, *error: object) -> None:
        if hasattr(self.inner, "__aexit__"):
            await self.inner.__aexit__(*error)
        else:
            await in_thread(lambda: self.inner.__exit__(*error))

    async def perform(self, operation: Any, **options: Any) -> Any:
        if asyncio.iscoroutinefunction(self.inner.perform):
            return await self.inner.perform(operation, **options)
        return await in_thread(lambda: self.inner.perform(operation, **options))

    def begin(self, operation: Any, **options: Any) -> asyncio.Task[Any]:
        """Start a call; its outcome is the task's result."""
        return asyncio.ensure_future(self.perform(operation, **options))

    def revoke(self) -> None:
        self.inner.revoke()

    def cancel(self) -> None:
        self.inner.cancel()


def runtime_of(colour: Colour, target: Any) -> Any:
    return (Runtime if colour.blocking else AsyncRuntime)(target)


# --- a recipient on a real socket


class Peer:
    """A server that counts the lines that reach it, and answers each as told: `ok`, `hang`, `drop`, or `stall`.

    A peer that stalls reads a little, and all that there is when it is released.
    """

    def __init__(self, answer: str = "ok") -> None:
        self.answer = answer
        self.lines: list[bytes] = []
        self.gone = threading.Event()
        self.released = threading.Event()
        self.bytes_read = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if self.answer == "stall":
                self.bytes_read = len(connection.recv(1000))
                assert self.released.wait(PATIENCE_S)
                while read := len(connection.recv(65_536)):
                    self.bytes_read += read
                self.gone.set()
                return
            line = connection.makefile("rb").readline()
            if line.endswith(b"\n"):
                self.lines.append(line)
            if self.answer == "drop":
                return
            if self.answer == "ok":
                connection.sendall(b"ok\n")
            connection.settimeout(PATIENCE_S)
            # Until the other side is really gone.
            while connection.recv(65_536):
                pass
        self.gone.set()

    def close(self) -> None:
        # A blocked accept notices nothing of a close, but of this.
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


@contextmanager
def peer(answer: str = "ok") -> Iterator[Peer]:
    found = Peer(answer)
    try:
        yield found
    finally:
        found.close()


@dataclass(frozen=True)
class WireSettings:
    recipient: str = "wire"
    operation: str = "LINE"
    visibility_s: float = 0.0
    retryable: bool = False
    keep_key: bool = False
    proof_type: Any = None


@dataclass
class Line:
    """An operation that knows its own dispatch line: one line over a real socket, in either colour."""

    port: int
    text: bytes = b"hello\n"
    bytes_out: int | None = None
    settings: WireSettings = field(default_factory=WireSettings)
    before: Callable[[], None] = lambda: None
    hops: tuple[str, ...] = ()
    hopped: list[bool] = field(default_factory=list)

    verify = None
    reconcile = UNASKABLE
    request: Any = None

    @property
    def target(self) -> str:
        return f"tcp://127.0.0.1:{self.port}/"

    def run(self, context: Any) -> Any:
        raise AssertionError("the broker calls perform")

    def perform(self, context: Any, permit: Any) -> Any:
        permit.authorise(self.target)
        if not permit.allows_address("127.0.0.1"):
            raise Rejected(Evidence("refused-by-policy", phase="not-dispatched", details={"address": "127.0.0.1"}))
        try:
            connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        except OSError:
            raise Rejected(Evidence("connect-failed", phase="not-dispatched")) from None
        with connection:
            permit.on_cancel(lambda: _abort(connection))
            self.before()
            permit.dispatch(peer=f"127.0.0.1:{self.port}", contract="line-1")
            sent = 0
            for start in range(0, len(self.text), 1000):
                part = self.text[start : start + 1000]
                if not permit.offered(len(part)):
                    return Uncertain(Evidence("cut-request", phase="dispatched", bytes_offered=sent))
                connection.sendall(part)
                sent += len(part)
            self.hopped.extend(permit.authorise(hop) for hop in self.hops)
            try:
                answer = connection.recv(100)
            except OSError:
                answer = b""
            if answer and not permit.received(len(answer)):
                return Uncertain(Evidence("cut-response", phase="dispatched", bytes_offered=sent))
        if answer == b"ok\n":
            return Accepted({"answer": "ok"}, evidence=Evidence("status", phase="acknowledged", bytes_offered=sent))
        return Uncertain(Evidence("no-response", phase="dispatched", bytes_offered=sent))


class LoopLine(Line):
    """The same on the loop's own sockets; asyncio drivers prefer it."""

    async def perform_async(self, context: Any, permit: Any) -> Any:
        permit.authorise(self.target)
        if not permit.allows_address("127.0.0.1"):
            raise Rejected(Evidence("refused-by-policy", phase="not-dispatched", details={"address": "127.0.0.1"}))
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            raise Rejected(Evidence("connect-failed", phase="not-dispatched")) from None
        try:
            permit.on_cancel(writer.transport.abort)
            self.before()
            permit.dispatch(peer=f"127.0.0.1:{self.port}", contract="line-1")
            sent = 0
            for start in range(0, len(self.text), 1000):
                part = self.text[start : start + 1000]
                if not permit.offered(len(part)):
                    return Uncertain(Evidence("cut-request", phase="dispatched", bytes_offered=sent))
                writer.write(part)
                await writer.drain()
                sent += len(part)
            self.hopped.extend(permit.authorise(hop) for hop in self.hops)
            answer = await reader.read(100)
            if answer and not permit.received(len(answer)):
                return Uncertain(Evidence("cut-response", phase="dispatched", bytes_offered=sent))
        finally:
            writer.transport.abort()
        if answer == b"ok\n":
            return Accepted({"answer": "ok"}, evidence=Evidence("status", phase="acknowledged", bytes_offered=sent))
        return Uncertain(Evidence("no-response", phase="dispatched", bytes_offered=sent))


def _abort(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def wire_grant(port: int, **options: Any) -> Grant:
    made = {"operations": ("LINE",), "targets": (f"tcp://127.0.0.1:{port}",), "allow_addresses": ("127.0.0.1/32",)}
    return Grant("wire", **{**made, **options})
