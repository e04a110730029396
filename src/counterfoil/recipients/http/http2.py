"""HTTP/2, for reads: one stream on a connection of its own."""

from __future__ import annotations

from typing import Any, Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, ResponseReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from counterfoil.recipients.http.facts import Facts
from counterfoil.recipients.http.headers import Headers
from counterfoil.recipients.http.talk import Body, Cut, Limits, Talk, Unprocessed
from counterfoil.recipients.http.urls import Url

STREAM: Final = 1
GOAWAY: Final = 7
# The protocol's own 64 KiB would make a large answer wait for us dozens of times.
FRAMING_BYTES: Final = 65_536
WINDOW_BYTES: Final = 1 << 20


class Http2(Talk):
    """HTTP/2: what proves that the recipient did not process the request is told apart from all the rest."""

    def __init__(self, facts: Facts, limits: Limits) -> None:
        self._facts = facts
        self._limits = limits
        self._state = H2Connection(H2Configuration(client_side=True, header_encoding="latin-1"))
        self._body = Body(facts, limits)
        self._unread = bytearray()
        self._fed = 0
        self._ended = False

    def head(self, method: str, url: Url, *, headers: Headers) -> bytes:
        """Return the connection's opening and the request, which has no body."""
        state = self._state
        bounds = {
            SettingCodes.ENABLE_PUSH: 0,
            SettingCodes.MAX_CONCURRENT_STREAMS: 1,
            SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
            SettingCodes.MAX_HEADER_LIST_SIZE: self._limits.head_bytes,
        }
        state.local_settings = Settings(client=True, initial_values=bounds)
        state.initiate_connection()
        state.increment_flow_control_window(WINDOW_BYTES)
        pseudo = [(":method", method), (":authority", url.authority), (":scheme", url.scheme), (":path", url.wire)]
        lines = [*pseudo, *((name.lower(), value) for name, value in headers)]
        state.send_headers(STREAM, [(n.encode(), v.encode("latin-1")) for n, v in lines], end_stream=True)
        return state.data_to_send()

    @property
    def ended(self) -> bool:
        """Whether the answer is whole."""
        return self._ended

    def to_send(self) -> bytes:
        """Return acknowledgements of settings, pings and data."""
        return self._state.data_to_send()

    def feed(self, data: bytes) -> None:
        """Take in what arrived."""
        facts = self._facts
        if not data:
            raise Cut("cut-response" if facts.status is not None else "no-response")
        self._fed += len(data)
        # Before it is decoded, which takes far longer than receiving it.
        if facts.status is None and self._fed > self._limits.head_bytes + FRAMING_BYTES:
            raise Cut("malformed-response", reason="head-bound")
        self._unread += data
        while (frame := self._frame()) is not None:
            if frame[3] == GOAWAY and not self._ended:
                self._goes_away(frame[9:])
                continue
            try:
                events = self._state.receive_data(frame)
            except ProtocolError:
                raise Cut("malformed-response") from None
            for event in events:
                self._event(event)

    def _frame(self) -> bytes | None:
        """Take the next whole frame of what has arrived.

        One at a time, because what one says must not be lost to a fault in the next.
        """
        unread = self._unread
        if len(unread) < 9:
            return None
        end = 9 + int.from_bytes(unread[:3], "big")
        if end > 9 + self._state.max_inbound_frame_size:
            raise Cut("malformed-response", reason="frame-size")
        if len(unread) < end:
            return None
        frame = bytes(unread[:end])
        del unread[:end]
        return frame

    def _goes_away(self, said: bytes) -> None:
        """Take in that the recipient takes no more streams; h2 would read nothing after it, and an answer may come."""
        if len(said) < 8:
            raise Cut("malformed-response")
        last = int.from_bytes(said[:4], "big") & 0x7FFFFFFF
        code = _named(_error_code(int.from_bytes(said[4:8], "big")))
        self._facts.more |= {"goaway": {"last_stream": last, "code": code}}
        if last < STREAM and self._facts.status is None:
            raise Unprocessed("goaway")

    def _event(self, event: Any) -> None:
        facts = self._facts
        if isinstance(event, ResponseReceived) and event.stream_id == STREAM:
            lines = [(str(name), str(value)) for name, value in event.headers or ()]
            codes = [value for name, value in lines if name == ":status"]
            if len(codes) != 1 or len(codes[0]) != 3 or not codes[0].isdigit():
                raise Cut("malformed-response")
            facts.status = int(codes[0])
            facts.headers = tuple((name, value) for name, value in lines if not name.startswith(":"))
            facts.reached = "answer-body"
        elif isinstance(event, DataReceived) and event.stream_id == STREAM:
            self._state.acknowledge_received_data(event.flow_controlled_length or 0, STREAM)
            self._body.add(event.data or b"")
        elif isinstance(event, StreamEnded) and event.stream_id == STREAM:
            self._ended = facts.status is not None
        elif isinstance(event, StreamReset) and event.stream_id == STREAM:
            code = _named(event.error_code)
            if event.error_code == ErrorCodes.REFUSED_STREAM and facts.status is None:
                raise Unprocessed("refused-stream", code=code)
            raise Cut("reset", code=code)

    def finish(self) -> None:
        """Put the body into the facts."""
        self._body.finish()


def _error_code(code: int) -> ErrorCodes | int:
    try:
        return ErrorCodes(code)
    except ValueError:
        return code


def _named(code: Any) -> str:
    return code.name if isinstance(code, ErrorCodes) else str(code)
