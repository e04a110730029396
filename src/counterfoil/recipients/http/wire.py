"""One connection for one request: a socket that never waits by itself, so that both colours share all of it.

What differs between the colours is `Waiting`: how to wait for a socket, and how to be told to stop meanwhile.
"""

from __future__ import annotations

import errno
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Literal, Protocol

Stopping = Literal["cancelled", "deadline"]

READ_BYTES: Final = 65_536
# Close without waiting, and tell the peer by a reset: what the kernel still holds is not sent.
_RESET: Final = struct.pack("ii", 1, 0)
_RESETS: Final = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ESHUTDOWN, errno.EPROTOTYPE})

# OpenSSL's codes for certificates that do not verify; its texts are for people, and differ between versions.
_UNTRUSTED: Final = {
    9: "certificate-not-yet-valid",
    10: "certificate-expired",
    18: "certificate-self-signed",
    19: "certificate-self-signed",
    20: "certificate-of-unknown-authority",
    21: "certificate-of-unknown-authority",
    62: "certificate-of-another-host",
    64: "certificate-of-another-host",
}


class Stopped(Exception):
    """Nobody waits any more."""

    def __init__(self, why: Stopping) -> None:
        super().__init__(why)
        self.why: Stopping = why


class Lost(Exception):
    """The connection is gone: `reset` by the peer, or in another way that the operating system names."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.errno)
        self.reset = error.errno in _RESETS
        self.error = name_of(error)


class TLSFailed(Exception):
    """No TLS session: `reason` is OpenSSL's name for it, or says what is wrong with the certificate."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def name_of(error: OSError) -> str:
    """Name an error of the operating system: `ECONNREFUSED`."""
    return errno.errorcode.get(error.errno or 0, type(error).__name__)


def given_up() -> Lost:
    """Make the error of a connection that nobody answered in time."""
    return Lost(OSError(errno.ETIMEDOUT, ""))


class Waiting(Protocol):
    """How one colour waits, until a deadline or until it is told to stop."""

    deadline: float

    async def until(
        self, sock: socket.socket, *, readable: bool, writable: bool, at_most_until: float | None = None
    ) -> None:
        """Return when the socket may have become readable or writable.

        Args:
            sock: the socket.
            readable: wait until it is.
            writable: wait until it is.
            at_most_until: when to give up before the deadline, on `time.monotonic()`.

        Raises:
            Stopped: nobody waits any more.
            Lost: it was given up.
        """
        ...

    async def call(self, work: Callable[[], Any], hold: Callable[[], Callable[[], None]]) -> Any:
        """Do work that blocks, in a thread that may outlive this call; `hold` keeps what it uses meanwhile.

        Raises:
            Stopped: nobody waits any more.
        """
        ...

    def check(self) -> None:
        """Raise `Stopped` if nobody waits any more."""
        ...

    def stop(self) -> None:
        """Make the waiting end; from any thread."""
        ...


class Wire:
    """A connection to one address.

    Args:
        waiting: how to wait.
    """

    def __init__(self, waiting: Waiting) -> None:
        self.waiting = waiting
        self._socket: socket.socket | ssl.SSLSocket | None = None
        # Guards the socket against being aborted from another thread while it is closed in this one.
        self._lock = threading.Lock()

    @property
    def _open(self) -> socket.socket | ssl.SSLSocket:
        assert self._socket is not None
        return self._socket

    async def connect(self, address: str, port: int, *, at_most_until: float | None = None) -> None:
        """Connect to an address.

        Args:
            address: the address.
            port: the port.
            at_most_until: when to give up before the deadline, on `time.monotonic()`.

        Raises:
            Lost: that did not work; nothing was sent.
        """
        self.waiting.check()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            raise Lost(error) from None
        with self._lock:
            self._socket = sock
        try:
            sock.settimeout(0.0)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = sock.connect_ex((address, port))
            if code in (errno.EINPROGRESS, errno.EWOULDBLOCK):
                await self.waiting.until(sock, readable=False, writable=True, at_most_until=at_most_until)
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        except OSError as error:
            raise Lost(error) from None
        if code:
            raise Lost(OSError(code, ""))

    async def secure(self, wrap: Callable[[socket.socket], ssl.SSLSocket]) -> str | None:
        """Put TLS on the connection; return the protocol that was agreed upon, None if the peer does not say.

        Raises:
            TLSFailed, Lost: that did not work; nothing but the handshake was sent.
        """
        try:
            with self._lock:
                wrapped = self._socket = wrap(self._open)
            while True:
                wants = _handshake(wrapped)
                if not wants:
                    return wrapped.selected_alpn_protocol()
                await self.waiting.until(wrapped, readable=wants == "read", writable=wants == "write")
        except ssl.SSLCertVerificationError as error:
            raise TLSFailed(_UNTRUSTED.get(error.verify_code, f"certificate-refused-{error.verify_code}")) from None
        except ssl.SSLError as error:
            raise TLSFailed(error.reason or type(error).__name__) from None
        except ValueError:
            raise TLSFailed("bad-server-name") from None
        except OSError as error:
            raise Lost(error) from None

    def try_send(self, data: memoryview) -> int:
        """Offer bytes; return how many were taken, 0 if none can be now.

        Raises:
            Lost: the connection is gone.
        """
        try:
            return self._open.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            raise Lost(error) from None

    def try_receive(self) -> bytes | None:
        """Return what has arrived, b"" at the end, None if nothing has.

        Raises:
            Lost: the connection is gone.
        """
        try:
            return self._open.recv(READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except ssl.SSLEOFError:
            # TLS that ends without saying so: whoever frames the answer knows whether it was whole.
            return b""
        except OSError as error:
            raise Lost(error) from None

    async def receive(self) -> bytes:
        """Return what arrives next, b"" at the end.

        Raises:
            Lost: the connection is gone.
            Stopped: nobody waits any more.
        """
        while True:
            # A peer that trickles keeps us reading without ever waiting.
            self.waiting.check()
            data = self.try_receive()
            if data is not None:
                return data
            await self.ready()

    async def ready(self, *, writable: bool = False) -> None:
        """Wait until something can be read or, with `writable`, sent."""
        await self.waiting.until(self._open, readable=True, writable=writable)

    def abort(self) -> None:
        """Make whoever waits for the connection stop, who then cuts it hard; from any thread."""
        self.waiting.stop()
        with self._lock:
            if self._socket is not None:
                with suppress(OSError):
                    # It wakes whoever polls, and tells the peer nothing: the reset that follows shall be the first it
                    # hears. The plain socket's: that of a TLS socket would take the session from whoever is using it.
                    socket.socket.shutdown(self._socket, socket.SHUT_RD)

    def close(self, *, hard: bool = False) -> None:
        """Let go of the connection; `hard`: by a reset, so that what the kernel still holds is not sent."""
        with self._lock:
            sock, self._socket = self._socket, None
        if sock is not None:
            if hard:
                with suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            sock.close()


def _handshake(sock: ssl.SSLSocket) -> Literal["", "read", "write"]:
    try:
        sock.do_handshake()
    except ssl.SSLWantReadError:
        return "read"
    except ssl.SSLWantWriteError:
        return "write"
    return ""
