"""One connection of a fault peer, as bytes: reading counts, and there are two ways of ending it."""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from contextlib import suppress
from typing import Final, Literal

from counterfoil.testing.peers.seen import Connection, Seen

CHUNK_BYTES: Final = 65_536
LINGER_S: Final = 1.0
_RESETTING: Final = struct.pack("ii", 1, 0)
# Where there is no such flag, the end of a client is seen when both directions are closed.
_CLIENT_GONE: Final = getattr(select, "POLLRDHUP", 0)


class ClientGone(Exception):
    """The client ended the connection."""


class Stopped(Exception):
    """The peer is being closed."""


class Bell:
    """Wakes every thread that waits on a connection, and stays rung."""

    def __init__(self) -> None:
        self._waiting, self._ringing = socket.socketpair()
        self.rung = False

    def fileno(self) -> int:
        """Return what becomes readable when it rings."""
        return self._waiting.fileno()

    def ring(self) -> None:
        """Wake everybody, now and later."""
        self.rung = True
        with suppress(OSError):
            self._ringing.send(b"!")

    def close(self) -> None:
        """Give its sockets back."""
        self._waiting.close()
        self._ringing.close()


class Wire:
    """A connection.

    Args:
        sock: its socket, blocking.
        connection: what is noted of it.
        seen: the log.
        stopped: rung when the peer is closed.
    """

    def __init__(self, sock: socket.socket, connection: Connection, *, seen: Seen, stopped: Bell) -> None:
        self.sock = sock
        self.connection = connection
        self.seen = seen
        self.stopped = stopped
        self._ahead = b""

    def secure(self, context: ssl.SSLContext) -> str:
        """Do the TLS handshake, and return the protocol that was agreed on; "" for none."""
        with self._client_may_go():
            secured = context.wrap_socket(self.sock, server_side=True, do_handshake_on_connect=False)
            self.sock = secured
            if self.stopped.rung:
                raise Stopped
            secured.do_handshake()
            return secured.selected_alpn_protocol() or ""

    def starts_with(self, wanted: bytes) -> bool:
        """Whether the client begins with these bytes; none are taken, and no more are read than it needs to know."""
        while True:
            if self._ahead and (found := self._ahead[: len(wanted)]) != wanted[: len(found)]:
                return False
            if len(self._ahead) >= len(wanted):
                return True
            self._ahead += self._receive()

    def read(self) -> bytes:
        """Return some bytes, at least one."""
        ahead, self._ahead = self._ahead, b""
        return ahead or self._receive()

    def unread(self, rest: bytes) -> None:
        """Give back what was read too far."""
        self._ahead = rest + self._ahead

    def send(self, data: bytes) -> None:
        """Send everything."""
        with self._client_may_go():
            self.sock.sendall(data)

    def wait(
        self, bell: Bell | None = None, *, reading: bool, timeout_s: float | None = None
    ) -> Literal["bell", "data", "time"]:
        """Wait until a bell rings, the client sends something, or a time has passed; return which it was.

        Args:
            bell: what is waited for.
            reading: whether what the client sends meanwhile is read; otherwise it is left in the buffers.
            timeout_s: how long.

        Raises:
            ClientGone: the client ended the connection.
        """
        poll = select.poll()
        poll.register(self.sock.fileno(), _CLIENT_GONE | (select.POLLIN if reading else 0))
        for each in (self.stopped, bell):
            if each is not None:
                poll.register(each.fileno(), select.POLLIN)
        events = dict(poll.poll(None if timeout_s is None else timeout_s * 1000))
        if self.stopped.rung:
            raise Stopped
        if bell is not None and bell.rung:
            return "bell"
        if self.sock.fileno() not in events:
            return "time"
        if not reading:
            gone = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self.seen.ended(self.connection, "client-reset" if gone else "client")
            raise ClientGone
        self._ahead += self._receive()
        return "data"

    def pause(self, seconds: float, *, reading: bool = True) -> None:
        """Let time pass.

        Raises:
            ClientGone: the client ended the connection.
        """
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.wait(reading=reading, timeout_s=left)

    def close(self, *, draining: bool = False) -> None:
        """End it.

        Args:
            draining: read on until the client closes too: the kernel makes a reset of a close that leaves bytes
                unread, and that takes what was sent away from the client.
        """
        with suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_WR)
            self.sock.settimeout(LINGER_S)
            while draining and (data := socket.socket.recv(self.sock, CHUNK_BYTES)):
                self.seen.received(self.connection, len(data))
        self.shut()

    def wake(self) -> None:
        """Let a thread that reads or writes find the connection ended."""
        with suppress(OSError):
            # Not the TLS socket's own method: it takes TLS away from under the thread that reads.
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def shut(self) -> None:
        """Close the socket now."""
        self.seen.ended(self.connection, "peer")
        self.sock.close()

    def reset(self) -> None:
        """End it with a reset."""
        self.seen.ended(self.connection, "peer")
        with suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESETTING)
        self.sock.close()

    def _receive(self) -> bytes:
        with self._client_may_go():
            data = self.sock.recv(CHUNK_BYTES)
            if not data:
                self.seen.ended(self.connection, "client")
                raise ClientGone
        self.seen.received(self.connection, len(data))
        return data

    def _client_may_go(self) -> _Going:
        return _Going(self)


class _Going:
    """Turns the errors of a socket into `ClientGone`, noting how the client went."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, OSError):
            return
        if self._wire.stopped.rung:
            raise Stopped from error
        self._wire.seen.ended(self._wire.connection, "client" if isinstance(error, ssl.SSLError) else "client-reset")
        raise ClientGone from error
