"""HTTP/1.1: one request for each connection."""

from __future__ import annotations

from typing import Any, Final

import h11

from counterfoil.recipients.http.facts import Facts
from counterfoil.recipients.http.headers import Headers
from counterfoil.recipients.http.talk import Body, Cut, Limits, Talk
from counterfoil.recipients.http.urls import Url

CLOSE: Final = (("Connection", "close"),)


def framed(method: str, url: Url, headers: Headers, *, body: bytes) -> Headers:
    """Put what routes and frames a request around its headers."""
    length = () if not body and method not in {"POST", "PUT", "PATCH"} else (("Content-Length", str(len(body))),)
    return (("Host", url.authority), *headers, *length, *CLOSE)


def bytes_of(method: str, url: Url, headers: Headers, *, body: bytes) -> int:
    """Count the bytes of a request, without making it."""
    lines = framed(method, url, headers, body=body)
    line = len(method) + len(url.wire) + len("  HTTP/1.1\r\n")
    return line + sum(len(name) + len(value) + len(": \r\n") for name, value in lines) + len("\r\n") + len(body)


class Http1(Talk):
    """HTTP/1.1, one request for each connection."""

    def __init__(self, facts: Facts, limits: Limits) -> None:
        self._facts = facts
        self._limits = limits
        self._state = h11.Connection(h11.CLIENT, max_incomplete_event_size=limits.head_bytes)
        self._body = Body(facts, limits)
        self._fed = 0
        self._ended = False

    def head(self, method: str, url: Url, *, headers: Headers, body: bytes) -> bytes:
        """Return the request's head; the body follows it as it is."""
        lines = framed(method, url, headers, body=body)
        encoded: list[tuple[bytes, bytes]] = [(name.encode(), value.encode("latin-1")) for name, value in lines]
        head = self._state.send(h11.Request(method=method, target=url.wire, headers=encoded))
        assert head is not None
        # h11 keeps count of the body; that we offer it ourselves, part by part, is all the same to it.
        if body:
            self._state.send(h11.Data(data=body))
        self._state.send(h11.EndOfMessage())
        return head

    @property
    def ended(self) -> bool:
        """Whether the answer is whole."""
        return self._ended

    def to_send(self) -> bytes:
        """Return nothing: HTTP/1.1 has nothing to say meanwhile."""
        return b""

    def feed(self, data: bytes) -> None:
        """Take in what arrived."""
        self._fed += len(data)
        try:
            self._state.receive_data(data)
            while not self._ended and self._event(self._state.next_event()):
                pass
        except h11.RemoteProtocolError:
            if not data:
                raise Cut("cut-response" if self._facts.answer_bytes else "no-response") from None
            raise Cut("malformed-response") from None
        if self._facts.status is None and self._fed > self._limits.head_bytes:
            raise Cut("malformed-response", reason="head-bound")

    def _event(self, event: Any) -> bool:
        facts = self._facts
        if isinstance(event, h11.Response):
            # The same answer must not be taken or not by how the network cut it into pieces.
            if sum(len(name) + len(value) for name, value in event.headers) > self._limits.head_bytes:
                raise Cut("malformed-response", reason="head-bound")
            facts.status = event.status_code
            facts.headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers)
            facts.reached = "answer-body"
        elif isinstance(event, h11.Data):
            self._body.add(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage):
            self._ended = True
        elif isinstance(event, h11.ConnectionClosed):
            raise Cut("cut-response" if facts.answer_bytes else "no-response")
        return event is not h11.NEED_DATA and event is not h11.PAUSED

    def finish(self) -> None:
        """Put the body into the facts."""
        self._body.finish()
