"""HTTP/2 as a fault peer speaks it, by `h2`, which is imported here only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from counterfoil.errors import UsageError
from counterfoil.testing.peers.http1 import Malformed, bombed
from counterfoil.testing.peers.moves import (
    Answer,
    Bomb,
    CutBody,
    CutHead,
    Drop,
    GoAway,
    Hang,
    Move,
    ResetStream,
    Script,
    Trickle,
    reading,
)
from counterfoil.testing.peers.seen import Request
from counterfoil.testing.peers.stage import Stage
from counterfoil.testing.peers.wire import Wire

try:
    import h2.config
    import h2.connection
    import h2.events
    import h2.exceptions
except ImportError as missing:
    raise UsageError("the client wants HTTP/2, and h2 is not installed", hint="pip install h2") from missing


class Ended(Exception):
    """A move ended the connection."""


@dataclass(slots=True, kw_only=True)
class Stream:
    """One request, and what is still to be sent for it."""

    request: Request
    script: Script
    made: bool = False
    unsent: bytes = b""
    closing: bool = False
    hanging: Answer | None = field(default=None)


class Conversation:
    """A connection."""

    def __init__(self, wire: Wire, stage: Stage, first: Script) -> None:
        self.wire = wire
        self.stage = stage
        self.streams: dict[int, Stream] = {}
        self._first: Script | None = first
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="latin-1"))

    def hold(self) -> None:
        """Speak until a move or the client ends it."""
        self._h2.initiate_connection()
        self._flush()
        while True:
            if self._hanging() and self.wire.wait(self.stage.released, reading=True) == "bell":
                self._go_on()
            try:
                events = self._h2.receive_data(self.wire.read())
            except h2.exceptions.ProtocolError as error:
                raise Malformed(f"no HTTP/2: {error}") from error
            for event in events:
                self._take(event)
            self._send_rest()
            self._flush()

    def _hanging(self) -> bool:
        return any(stream.hanging is not None for stream in self.streams.values())

    # --- what arrives

    def _take(self, event: Any) -> None:
        if isinstance(event, h2.events.RequestReceived):
            self._begin(event)
        elif isinstance(event, h2.events.DataReceived):
            self._receive(event)
        elif isinstance(event, h2.events.StreamEnded):
            stream = self.streams[_id(event)]
            self.wire.seen.body(stream.request, b"", complete=True)
            self._make_once(stream)
        elif isinstance(event, h2.events.StreamReset):
            self.streams.pop(_id(event), None)

    def _begin(self, event: Any) -> None:
        fields = [(str(name), str(value)) for name, value in event.headers]
        said = dict(fields)
        request = Request(
            connection=self.wire.connection.number,
            stream=_id(event),
            method=said.get(":method", ""),
            target=said.get(":path", ""),
            headers=[(name, value) for name, value in fields if not name.startswith(":")],
        )
        script, self._first = self._first or self.stage.take(), None
        stream = self.streams[_id(event)] = Stream(request=self.wire.seen.requested(request), script=script)
        if not callable(script) and (reading(script) == "head" or reading(script) == 0):
            self._make_once(stream)

    def _receive(self, event: Any) -> None:
        stream = self.streams.get(_id(event))
        if stream is None:
            return
        self.wire.seen.body(stream.request, event.data)
        how = "all" if callable(stream.script) else reading(stream.script)
        if not isinstance(how, int):
            self._h2.acknowledge_received_data(event.flow_controlled_length, _id(event))
        elif stream.request.body_bytes >= how:
            self._make_once(stream)
        else:
            self._h2.acknowledge_received_data(event.flow_controlled_length, _id(event))

    # --- what is done

    def _make_once(self, stream: Stream) -> None:
        if not stream.made:
            stream.made = True
            self._make(stream, self.stage.decide(stream.script, stream.request))

    def _make(self, stream: Stream, move: Move) -> None:
        match move:
            case Answer():
                self.stage.act(stream.request, acts=move.acting)
                if move.delay_s:
                    self.wire.pause(move.delay_s)
                self._answer(stream, move)
            case Drop():
                self.stage.act(stream.request, acts=move.acting)
                self._interim(stream, move.interim)
                self._flush()
                self._end(reset=move.reset)
            case Hang():
                self.stage.act(stream.request, acts=move.acting)
                stream.hanging = move.then or Answer(then="close")
            case CutHead():
                self.stage.act(stream.request, acts=move.answer.acting)
                self._head(stream, move.answer)
                self.wire.send(self._h2.data_to_send()[: move.sent_bytes])
                self._end(reset=move.reset)
            case CutBody():
                self.stage.act(stream.request, acts=move.answer.acting)
                self._head(stream, move.answer)
                self._h2.send_data(stream.request.stream, move.answer.content()[: move.sent_bytes])
                self._flush()
                self._end(reset=move.reset)
            case Trickle():
                self._trickle(stream, move)
            case Bomb():
                self.stage.act(stream.request, acts=True)
                self._head(stream, Answer(move.status, headers={"content-encoding": move.encoding}), sized=False)
                self._body(stream, b"".join(bombed(move)))
            case GoAway():
                self._go_away(stream, move)
            case ResetStream():
                self.stage.act(stream.request, acts=move.acting)
                self._h2.reset_stream(stream.request.stream, move.error_code)
            case _:
                raise TypeError("a connection that was accepted cannot be refused")

    def _answer(self, stream: Stream, answer: Answer) -> None:
        self._interim(stream, answer.interim)
        self._head(stream, answer, sized=not answer.chunked)
        stream.closing = answer.then != "keep"
        self._body(stream, b"" if stream.request.method == "HEAD" else answer.content())
        if stream.closing:
            self._flush()
            self._end(reset=answer.then == "reset")

    def _interim(self, stream: Stream, statuses: Iterable[int]) -> None:
        for status in statuses:
            self._h2.send_headers(stream.request.stream, [(":status", str(status))])

    def _head(self, stream: Stream, answer: Answer, *, sized: bool = True) -> None:
        fields = [(":status", str(answer.status)), *((name.lower(), value) for name, value in answer.fields())]
        if sized:
            fields.append(("content-length", str(len(answer.content()))))
        self._h2.send_headers(stream.request.stream, fields)

    def _body(self, stream: Stream, data: bytes) -> None:
        stream.unsent = data
        self._send_some(stream)

    def _send_some(self, stream: Stream) -> None:
        """Send as much of a body as the client's window takes."""
        number = stream.request.stream
        while True:
            room = max(0, min(self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size))
            part, stream.unsent = stream.unsent[:room], stream.unsent[room:]
            if part or not stream.unsent:
                self._h2.send_data(number, part, end_stream=not stream.unsent)
            if not stream.unsent:
                self.streams.pop(number, None)
            if not part or not stream.unsent:
                return

    def _send_rest(self) -> None:
        for stream in [stream for stream in self.streams.values() if stream.unsent]:
            self._send_some(stream)

    def _trickle(self, stream: Stream, move: Trickle) -> None:
        self.stage.act(stream.request, acts=move.answer.acting)
        self._head(stream, move.answer)
        if move.part == "head":
            self._slowly(self._h2.data_to_send(), move)
        self._flush()
        body = move.answer.content()
        for start in range(0, len(body), move.step_bytes):
            self.wire.pause(move.every_s)
            self._h2.send_data(stream.request.stream, body[start : start + move.step_bytes])
            self._flush()
        self._body(stream, b"")

    def _slowly(self, data: bytes, move: Trickle) -> None:
        for start in range(0, len(data), move.step_bytes):
            self.wire.pause(move.every_s)
            self.wire.send(data[start : start + move.step_bytes])

    def _go_away(self, stream: Stream, move: GoAway) -> None:
        processed = stream.request.stream <= move.last_stream_id
        self.stage.act(stream.request, acts=processed if move.acts is None else move.acts)
        self._flush()
        # h2 sends nothing on a connection that it has closed, so what else is to be sent is made before.
        if move.then is not None:
            self._answer(stream, move.then)
        answer = self._h2.data_to_send()
        self._h2.close_connection(move.error_code, last_stream_id=move.last_stream_id)
        self.wire.send(self._h2.data_to_send() + answer)
        self.wire.close(draining=True)
        raise Ended

    def _go_on(self) -> None:
        for stream in list(self.streams.values()):
            if stream.hanging is not None:
                answer, stream.hanging = stream.hanging, None
                if answer == Answer(then="close"):
                    self._end(reset=False)
                self._answer(stream, answer)
        self._flush()

    def _flush(self) -> None:
        self.wire.send(self._h2.data_to_send())

    def _end(self, *, reset: bool) -> None:
        if reset:
            self.wire.reset()
        else:
            self.wire.close(draining=True)
        raise Ended


def _id(event: Any) -> int:
    return cast(int, event.stream_id)


def converse(wire: Wire, stage: Stage, *, first: Script) -> None:
    """Speak HTTP/2 on a connection, with this first move."""
    try:
        Conversation(wire, stage, first).hold()
    except Ended:
        return
