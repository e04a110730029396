"""What a fault peer saw: its log is the judge."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from counterfoil.protocol.checker import Item

BODY_KEPT_BYTES_MAX: Final = 1_000_000


@dataclass(slots=True, kw_only=True)
class Connection:
    """A connection that a client opened.

    Attributes:
        number: counted from 1.
        bytes_received: everything that was read from it, without TLS.
        protocol: `http/1.1` or `h2`; "" before that is known.
        ended: who ended it; None while it is open.
    """

    number: int
    bytes_received: int = 0
    protocol: str = ""
    ended: Literal["client", "client-reset", "peer"] | None = None


@dataclass(slots=True, kw_only=True)
class Request:
    """A request whose head arrived whole.

    Attributes:
        connection: the number of its connection.
        stream: its HTTP/2 stream; 0 for HTTP/1.1.
        method: as sent.
        target: path and query, as sent.
        headers: (name in lower case, value), in their order; pseudo headers of HTTP/2 are not among them.
        key: what its idempotency header says; "" without one.
        body: what arrived of the body, up to 1,000,000 bytes.
        body_bytes: how much arrived of it.
        body_complete: whether all of it arrived.
        at_s: when its head was complete, on the monotonic clock.
    """

    connection: int
    stream: int = 0
    method: str
    target: str
    headers: list[tuple[str, str]]
    key: str = ""
    body: bytes = b""
    body_bytes: int = 0
    body_complete: bool = False
    at_s: float = field(default_factory=time.monotonic)

    def header(self, name: str) -> str | None:
        """Return the value of a header field, or None."""
        return next((value for found, value in self.headers if found == name.lower()), None)

    def json(self) -> Any:
        """Return the body as a JSON value."""
        import json

        return json.loads(self.body)


class Seen:
    """Everything that a peer saw, kept in order; whoever waits for something is woken by each change."""

    def __init__(self, key_header: str) -> None:
        self.connections: list[Connection] = []
        self.requests: list[Request] = []
        self.acted: list[Request] = []
        self.items: list[Item] = []
        self.mistakes: list[BaseException] = []
        self._key_header = key_header.lower()
        self._changed = threading.Condition()

    def until(self, true: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something is true; return whether it is."""
        with self._changed:
            return self._changed.wait_for(true, timeout_s)

    def connected(self) -> Connection:
        """Note a new connection."""
        with self._changed:
            found = Connection(number=len(self.connections) + 1)
            self.connections.append(found)
            self._changed.notify_all()
        return found

    def received(self, connection: Connection, count: int) -> None:
        """Note bytes of a connection."""
        with self._changed:
            connection.bytes_received += count
            self._changed.notify_all()

    def ended(self, connection: Connection, by: Literal["client", "client-reset", "peer"]) -> None:
        """Note the end of a connection; the first who is named stays."""
        with self._changed:
            connection.ended = connection.ended or by
            self._changed.notify_all()

    def requested(self, request: Request) -> Request:
        """Note a request whose head is complete."""
        with self._changed:
            request.key = request.header(self._key_header) or ""
            self.requests.append(request)
            self._changed.notify_all()
        return request

    def body(self, request: Request, part: bytes, *, complete: bool = False) -> None:
        """Note a part of a request's body."""
        with self._changed:
            request.body_bytes += len(part)
            request.body += part[: max(0, BODY_KEPT_BYTES_MAX - len(request.body))]
            request.body_complete = request.body_complete or complete
            self._changed.notify_all()

    def act(self, request: Request) -> Item:
        """Note that a request was carried out."""
        with self._changed:
            item = Item(request.key, f"item-{len(self.items) + 1}")
            self.acted.append(request)
            self.items.append(item)
            self._changed.notify_all()
        return item

    def mistaken(self, error: BaseException) -> None:
        """Note that the script could not be followed."""
        with self._changed:
            self.mistakes.append(error)
            self._changed.notify_all()
