"""A TCP proxy in threads that breaks the wire where a rule says so: it cuts, delays, drops and stalls.

A rule sees each piece of bytes before it is passed on and says what becomes of it:

    proxy.rule = lose_reply(rb"COMMIT", times=1)     # the server commits, the client never hears of it
    proxy.rule = lose_request(rb"COMMIT")            # the server never hears of it
    proxy.rule = None                                # everything passes again
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from types import TracebackType
from typing import Final, Self

_PIECE: Final = 1 << 20
_RESET: Final = struct.pack("ii", 1, 0)
_READY: Final = re.compile(rb"Z\x00\x00\x00\x05[ITE]\Z")


class Act(Enum):
    """What becomes of a piece of bytes."""

    PASS = auto()
    DROP = auto()
    """It is swallowed; the connection stays."""
    CUT = auto()
    """It is swallowed, and both sides are reset."""
    PASS_THEN_CUT = auto()
    """It is passed on, and both sides are reset at once."""
    LOSE_REPLY = auto()
    """It is passed on; both sides are reset when the answer has come, which is swallowed."""
    SWALLOW_REPLY = auto()
    """It is passed on; the answer and all that follows is swallowed, and the connection stays."""
    LOSE_END = auto()
    """It is passed on, and so is the answer, except for PostgreSQL's word that it is ready again, which follows the
    commit; then both sides are reset."""
    STALL = auto()
    """It waits, as does all else, until the proxy is told to `resume`, and is passed on then."""
    HOLD = auto()
    """The client is reset at once; the server keeps its connection, and gets this when told to `resume`."""


@dataclass
class Link:
    """One connection through the proxy, and what has passed."""

    number: int
    client: socket.socket
    server: socket.socket
    sent: bytearray = field(default_factory=bytearray)
    answered: bytearray = field(default_factory=bytearray)
    on_reply: Act = Act.PASS
    cut: bool = False

    def reset(self, *sides: socket.socket) -> None:
        """Cut both sides with a reset, or some."""
        self.cut = True
        for side in sides or (self.client, self.server):
            with suppress(OSError):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            with suppress(OSError):
                side.shutdown(socket.SHUT_RD)
            with suppress(OSError):
                side.close()


@dataclass(frozen=True)
class Piece:
    """Bytes on their way; `request` says from the client to the server."""

    link: Link
    request: bool
    data: bytes


# What becomes of the answer to a request.
_ON_REPLY: Final = {Act.LOSE_REPLY: Act.CUT, Act.SWALLOW_REPLY: Act.DROP, Act.LOSE_END: Act.LOSE_END}

Rule = Callable[[Piece], "Act | float"]


class Proxy:
    """Passes connections on to a server, as its rule allows.

    Args:
        port: of the server, on 127.0.0.1.
        keep: remember the bytes that passed, for `sent` and `answered`.
    """

    def __init__(self, port: int, *, keep: bool = True) -> None:
        self.target = port
        self.rule: Rule | None = None
        self.refuses = False
        self.links: list[Link] = []
        self._keep = keep
        self._lock = threading.Lock()
        self._held: list[threading.Event] = []
        self._running = threading.Event()
        self._running.set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True, name="proxy").start()

    @property
    def sent(self) -> bytes:
        """Everything that clients sent, one connection after another."""
        with self._lock:
            return b"".join(bytes(link.sent) for link in self.links)

    @property
    def stalled(self) -> bool:
        """Whether nothing passes."""
        return not self._running.is_set()

    def cut(self) -> None:
        """Cut all connections."""
        with self._lock:
            links = list(self.links)
        for link in links:
            link.reset()

    def stall(self) -> None:
        """From now on nothing passes in either direction, and nothing is lost."""
        self._running.clear()

    def resume(self) -> None:
        """Let everything pass that waits or is held."""
        self._running.set()
        with self._lock:
            held, self._held = self._held, []
        for released in held:
            released.set()

    def close(self) -> None:
        """Cut everything and stop listening."""
        self.resume()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self.refuses:
                    raise ConnectionRefusedError
                server = socket.create_connection(("127.0.0.1", self.target), timeout=60)
            except OSError:
                client.close()
                continue
            for side in (client, server):
                side.settimeout(None)
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                link = Link(len(self.links), client, server)
                self.links.append(link)
            for request in (True, False):
                threading.Thread(target=self._pump, args=(link, request), daemon=True, name="pump").start()

    def _pump(self, link: Link, request: bool) -> None:
        source, sink = (link.client, link.server) if request else (link.server, link.client)
        with suppress(OSError):
            while data := source.recv(_PIECE):
                if not self._pass(Piece(link, request, data), sink):
                    return
        # One side has ended: let the other side read what is left, and end too.
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _pass(self, piece: Piece, sink: socket.socket) -> bool:
        link, rule = piece.link, self.rule
        act = link.on_reply if not piece.request else Act.PASS
        if act is Act.PASS and rule is not None:
            said = rule(piece)
            if isinstance(said, float):
                threading.Event().wait(said)
                said = Act.PASS
            act = said
        if act is Act.HOLD:
            released = threading.Event()
            with self._lock:
                self._held.append(released)
            link.on_reply = Act.DROP
            link.reset(link.client)
            released.wait()
        if act is Act.STALL:
            self._running.clear()
        self._running.wait()
        if piece.request and act in _ON_REPLY:
            link.on_reply = _ON_REPLY[act]
        elif act is Act.LOSE_END:
            whole = _READY.sub(b"", piece.data)
            sink.sendall(whole)
            if whole != piece.data:
                link.reset()
            return whole == piece.data
        if act is Act.CUT:
            link.reset()
            return False
        if act is Act.DROP:
            return True
        if self._keep:
            (link.sent if piece.request else link.answered).extend(piece.data)
        sink.sendall(piece.data)
        if act is Act.PASS_THEN_CUT:
            link.reset()
            return False
        return True


class On:
    """A rule that does something to requests that match a pattern; `links` are the connections that it did it to.

    Args:
        pattern: what the bytes of a request must contain.
        act: what becomes of it; a number delays it by so many seconds.
        times: how often, at most.
        skip: how many matches pass first.
    """

    def __init__(self, pattern: bytes, act: Act | float, *, times: int = 1 << 30, skip: int = 0) -> None:
        self._pattern = re.compile(pattern, re.DOTALL)
        self._act = act
        self._lock = threading.Lock()
        self._left = times
        self._skip = skip
        self.links: list[Link] = []

    def __call__(self, piece: Piece) -> Act | float:
        """Decide about one piece."""
        if not piece.request or not self._pattern.search(piece.data):
            return Act.PASS
        with self._lock:
            if self._skip:
                self._skip -= 1
                return Act.PASS
            if not self._left:
                return Act.PASS
            self._left -= 1
            self.links.append(piece.link)
            return self._act


def lose_reply(pattern: bytes, *, times: int = 1 << 30, skip: int = 0) -> On:
    """Return a rule by which the server does what matching requests say and nobody hears of it."""
    return On(pattern, Act.LOSE_REPLY, times=times, skip=skip)


def lose_request(pattern: bytes, *, times: int = 1 << 30, skip: int = 0) -> On:
    """Return a rule by which matching requests never reach the server, and both sides are cut."""
    return On(pattern, Act.CUT, times=times, skip=skip)


__all__ = ["Act", "Link", "On", "Piece", "Proxy", "Rule", "lose_reply", "lose_request"]
