"""A raw TCP peer that does to its clients what networks and servers do, and counts what it saw."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from counterfoil import threads
from counterfoil.errors import UsageError
from counterfoil.protocol.checker import Item
from counterfoil.testing.peers import http1
from counterfoil.testing.peers.moves import Answer, Refuse, Script, reading
from counterfoil.testing.peers.seen import Connection, Request, Seen
from counterfoil.testing.peers.stage import Stage
from counterfoil.testing.peers.wire import ClientGone, Stopped, Wire

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
BACKLOG: Final = 4096
LEAVE_S: Final = 30.0


class FaultPeer:
    """A peer on the loopback interface that follows a script while a `with` block lasts.

        with FaultPeer(Drop()) as peer:
            outcome = activation.perform(http.post(peer.url, json={"cents": 700}))
        assert len(peer.requests) == 1

    Each connection takes the next move of the script, and so does each further request on a connection that stayed
    open; the last move holds for everything that follows. A function in the place of a move gets the whole request
    and returns the move.

    Args:
        script: a move, a function, or several of them; nothing: plain answers.
        tls: the server's side of TLS; None: plain TCP. HTTP/2 is spoken with those who ask for it by ALPN (if the
            context offers it), or by its preface.
        host: the address to listen at.
        key_header: the header in which the peer looks for an idempotency key.

    Attributes:
        url: where it listens, without a path.
        port: its port.
    """

    def __init__(
        self,
        script: Script | Sequence[Script] = (),
        *,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
        key_header: str = "idempotency-key",
    ) -> None:
        moves = list(script) if isinstance(script, Sequence) else [script]
        self._script: list[Script] = moves or [Answer()]
        self._refusing = any(isinstance(move, Refuse) for move in self._script)
        if self._refusing and len(self._script) > 1:
            raise UsageError("a peer that refuses connections does nothing else: Refuse() is the whole script")
        self._tls = tls
        self._host = host
        self._seen = Seen(key_header)
        self._stage = Stage(self._script, self._seen)
        self._listener: socket.socket | None = None
        self._lock = threading.Lock()
        self._open: dict[int, tuple[Wire, threading.Thread | None]] = {}
        self._accepting: threading.Thread | None = None
        self.url = ""
        self.port = 0

    def __enter__(self) -> Self:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.bind((self._host, 0))
        self._listener = listener
        self.port = listener.getsockname()[1]
        host = f"[{self._host}]" if family == socket.AF_INET6 else self._host
        self.url = f"{'https' if self._tls else 'http'}://{host}:{self.port}"
        if not self._refusing:
            listener.listen(BACKLOG)
            self._accepting = threads.start_daemon("fault-peer", self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stage.stopped.ring()
        self._close_listener()
        with self._lock:
            left = list(self._open.values())
        for wire, _ in left:
            wire.wake()
        for _, thread in left:
            if thread is not None:
                thread.join(LEAVE_S)
        self._stage.close()
        if self._seen.mistakes and error is None:
            raise self._seen.mistakes[0]

    # --- what it saw

    @property
    def connections(self) -> list[Connection]:
        """Every connection that a client opened."""
        return self._seen.connections

    @property
    def requests(self) -> list[Request]:
        """Every request whose head arrived whole."""
        return self._seen.requests

    @property
    def acted(self) -> list[Request]:
        """The requests that it carried out, in the order of its `items`."""
        return self._seen.acted

    @property
    def items(self) -> list[Item]:
        """What it carried out, in the form that the history checker reads."""
        return self._seen.items

    @property
    def mistakes(self) -> list[BaseException]:
        """Where the script could not be followed; the first is raised when the peer is left."""
        return self._seen.mistakes

    @property
    def bytes_received(self) -> int:
        """Everything that was read, without TLS."""
        return sum(connection.bytes_received for connection in self.connections)

    @property
    def open(self) -> int:
        """How many connections are open, as far as the peer knows."""
        return sum(connection.ended is None for connection in self.connections)

    def until(self, true: Callable[[Self], bool], *, timeout_s: float = 30.0) -> None:
        """Wait until something is true of it: `peer.until(lambda peer: len(peer.requests) == 1)`.

        Raises:
            TimeoutError: it did not come true in that time.
        """
        if not self._seen.until(lambda: true(self), timeout_s):
            raise TimeoutError(f"after {timeout_s} s the peer had seen {self}")

    @property
    def awaited(self) -> _Awaited:
        """The same for asyncio: `await peer.awaited.until(…)`."""
        return _Awaited(self)

    def release(self) -> None:
        """Let every connection that hangs go on, and every later one."""
        self._stage.released.ring()

    def __repr__(self) -> str:
        return (
            f"<FaultPeer {self.url}: {len(self.connections)} connections ({self.open} open), "
            f"{len(self.requests)} requests, {self.bytes_received} bytes, {len(self.items)} items>"
        )

    # --- its threads

    def _close_listener(self) -> None:
        if self._listener is None:
            return
        # A thread inside accept() wakes by this; on some systems closing alone wakes it.
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            self._listener.close()
        if self._accepting is not None:
            self._accepting.join(LEAVE_S)
        self._listener.close()

    def _accept(self) -> None:
        listener = self._listener
        assert listener is not None
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire = Wire(sock, self._seen.connected(), seen=self._seen, stopped=self._stage.stopped)
            number = wire.connection.number
            with self._lock:
                self._open[number] = (wire, None)
                thread = threads.start_daemon("fault-peer-connection", partial(self._serve, wire))
                if number in self._open:
                    self._open[number] = (wire, thread)

    def _serve(self, wire: Wire) -> None:
        try:
            self._follow(wire)
        except (ClientGone, Stopped):
            pass
        except http1.Malformed:
            wire.reset()
        except BaseException as error:  # noqa: BLE001 - whoever leaves the peer gets it
            self._seen.mistaken(error)
        finally:
            wire.shut()
            with self._lock:
                self._open.pop(wire.connection.number, None)

    def _follow(self, wire: Wire) -> None:
        script = self._stage.take()
        going = True
        if not callable(script) and reading(script) == "nothing":
            going = http1.Exchange(wire, self._stage).make(script)
            if not going:
                return
        agreed = wire.secure(self._tls) if self._tls is not None else ""
        if agreed == "h2" or wire.starts_with(PREFACE):
            wire.connection.protocol = "h2"
            from counterfoil.testing.peers import http2

            http2.converse(wire, self._stage, first=script)
            return
        wire.connection.protocol = "http/1.1"
        while going:
            exchange = http1.Exchange(wire, self._stage)
            exchange.read("all" if callable(script) else reading(script))
            going = exchange.make(self._stage.decide(script, exchange.request))
            if going:
                wire.starts_with(b"\0")
                script = self._stage.take()


class _Awaited:
    """Waits on the loop for what a peer sees."""

    def __init__(self, peer: FaultPeer) -> None:
        self._peer = peer

    async def until(self, true: Callable[[FaultPeer], bool], *, timeout_s: float = 30.0) -> None:
        """Wait until something is true of the peer, in a thread beside the loop.

        Raises:
            TimeoutError: it did not come true in that time.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        found: asyncio.Future[Any] = loop.create_future()

        def tell(error: BaseException | None) -> None:
            if not found.done():
                found.set_result(None) if error is None else found.set_exception(error)

        def wait() -> None:
            try:
                self._peer.until(true, timeout_s=timeout_s)
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                loop.call_soon_threadsafe(tell, error)
            else:
                loop.call_soon_threadsafe(tell, None)

        threads.submit(wait)
        await found
