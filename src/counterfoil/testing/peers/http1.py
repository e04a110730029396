"""HTTP/1.1 as a fault peer speaks it: it reads what it must, and answers as the script says."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from http import HTTPStatus
from typing import Final

from counterfoil.testing.peers.moves import (
    Answer,
    Bomb,
    CutBody,
    CutHead,
    Drop,
    GoAway,
    Hang,
    Move,
    Read,
    Refuse,
    ResetStream,
    Trickle,
)
from counterfoil.testing.peers.seen import Request
from counterfoil.testing.peers.stage import Stage
from counterfoil.testing.peers.wire import Wire

HEAD_BYTES_MAX: Final = 1_000_000
_NO_CONTENT: Final = (204, 304)


class Malformed(Exception):
    """The client does not speak HTTP/1.1."""


class Exchange:
    """One request and what becomes of it."""

    def __init__(self, wire: Wire, stage: Stage) -> None:
        self.wire = wire
        self.stage = stage
        self.request: Request | None = None
        self._left = 0
        self._chunked = False

    # --- reading

    def read(self, how: Read) -> None:
        """Read the request, as far as it is said."""
        if how == "nothing":
            return
        self._read_head()
        if how == "all":
            self._continue()
            self._read_chunks() if self._chunked else self._read_length(self._left)
        elif isinstance(how, int):
            self._continue()
            self._read_length(how)

    def _read_head(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            if len(head) > HEAD_BYTES_MAX:
                raise Malformed("the head does not end")
            head += self.wire.read()
        head, _, rest = head.partition(b"\r\n\r\n")
        self.wire.unread(rest)
        line, *fields = head.decode("latin-1").split("\r\n")
        try:
            method, target, _ = line.split(" ")
        except ValueError:
            raise Malformed(f"no request line: {line[:80]!r}") from None
        headers = [(name.lower(), value.strip()) for name, _, value in (field.partition(":") for field in fields)]
        self.request = self.wire.seen.requested(
            Request(connection=self.wire.connection.number, method=method, target=target, headers=headers)
        )
        self._chunked = "chunked" in (self.request.header("transfer-encoding") or "").lower()
        self._left = _number(self.request.header("content-length") or "0", 10)
        if not self._chunked and not self._left:
            self.wire.seen.body(self.request, b"", complete=True)

    def _continue(self) -> None:
        if self.request is not None and (self.request.header("expect") or "").lower() == "100-continue":
            self.wire.send(interim(100))

    def _read_length(self, most: int) -> None:
        while most > 0 and (self._left or self._chunked):
            data = self.wire.read()
            part, rest = data[:most], data[most:]
            self.wire.unread(rest)
            most -= len(part)
            self._left -= len(part)
            self._note(part, complete=not self._chunked and self._left == 0)

    def _read_chunks(self) -> None:
        while True:
            size = _number(self._line().partition(b";")[0].decode("latin-1"), 16)
            if size == 0:
                while self._line():
                    pass
                self._note(b"", complete=True)
                return
            left = size
            while left:
                data = self.wire.read()
                self.wire.unread(data[left:])
                self._note(data[:left], complete=False)
                left -= len(data[:left])
            self._line()

    def _line(self) -> bytes:
        data = b""
        while b"\r\n" not in data:
            data += self.wire.read()
        line, _, rest = data.partition(b"\r\n")
        self.wire.unread(rest)
        return line

    def _note(self, part: bytes, *, complete: bool) -> None:
        if self.request is not None:
            self.wire.seen.body(self.request, part, complete=complete)

    # --- answering

    def make(self, move: Move) -> bool:
        """Make a move after the request was read; return whether the connection goes on."""
        match move:
            case Answer():
                return self._answer(move)
            case Drop():
                self._drop(move)
            case Hang():
                return self._hang(move)
            case CutHead():
                self._act(move.answer)
                self.wire.send(head(move.answer)[: move.sent_bytes])
                self._end(reset=move.reset)
            case CutBody():
                self._act(move.answer)
                body = framed(move.answer, self.request)
                self.wire.send(head(move.answer) + body[: move.sent_bytes])
                self._end(reset=move.reset)
            case Trickle():
                self._trickle(move)
            case Bomb():
                self._bomb(move)
            case GoAway() | ResetStream():
                raise TypeError(f"{type(move).__name__} is a move of HTTP/2, and the client speaks HTTP/1.1")
            case Refuse():
                raise TypeError("a connection that was accepted cannot be refused")
        return False

    def _answer(self, answer: Answer) -> bool:
        if answer.delay_s:
            self.wire.pause(answer.delay_s, reading=answer.read == "all")
        self._act(answer)
        going = not self._closing(answer)
        data = b"".join(map(interim, answer.interim)) + head(answer, closing=not going)
        self.wire.send(data + framed(answer, self.request))
        if answer.then == "reset":
            self.wire.reset()
        elif not going:
            self.wire.close(draining=True)
        return going

    def _closing(self, answer: Answer) -> bool:
        """A request that was not read to its end leaves nothing that could be read next."""
        asked = self.request is not None and (self.request.header("connection") or "").lower() == "close"
        return answer.then != "keep" or answer.read != "all" or asked

    def _act(self, move: Answer | Drop | Hang) -> None:
        self.stage.act(self.request, acts=move.acting)

    def _drop(self, drop: Drop) -> None:
        self._act(drop)
        self.wire.send(b"".join(map(interim, drop.interim)))
        self._end(reset=drop.reset)

    def _hang(self, hang: Hang) -> bool:
        self._act(hang)
        while self.wire.wait(self.stage.released, reading=hang.read == "all") != "bell":
            pass
        if hang.then is not None:
            self.wire.send(head(hang.then, closing=self._closing(hang.then)) + framed(hang.then, self.request))
            if not self._closing(hang.then):
                return True
        self._end(reset=False)
        return False

    def _end(self, *, reset: bool) -> None:
        if reset:
            self.wire.reset()
        else:
            self.wire.close()

    def _trickle(self, move: Trickle) -> None:
        self._act(move.answer)
        first, rest = head(move.answer, closing=True), framed(move.answer, self.request)
        if move.part == "head":
            first, rest = b"", first + rest
        self.wire.send(first)
        for start in range(0, len(rest), move.step_bytes):
            self.wire.pause(move.every_s)
            self.wire.send(rest[start : start + move.step_bytes])
        self._end(reset=False)

    def _bomb(self, bomb: Bomb) -> None:
        self.stage.act(self.request, acts=True)
        answer = Answer(bomb.status, headers={"content-encoding": bomb.encoding}, chunked=True)
        self.wire.send(head(answer, closing=True))
        for part in bombed(bomb):
            self.wire.send(b"%x\r\n%b\r\n" % (len(part), part))
        self.wire.send(b"0\r\n\r\n")
        self._end(reset=False)


def _number(text: str, radix: int) -> int:
    try:
        return int(text, radix)
    except ValueError:
        raise Malformed(f"no length: {text[:80]!r}") from None


def head(answer: Answer, *, closing: bool = False) -> bytes:
    """Write the head of an answer."""
    lines = [b"HTTP/1.1 %d %b" % (answer.status, _phrase(answer.status))]
    lines += [f"{name}: {value}".encode("latin-1") for name, value in answer.fields()]
    if answer.chunked:
        lines.append(b"transfer-encoding: chunked")
    elif answer.status not in _NO_CONTENT:
        lines.append(b"content-length: %d" % len(answer.content()))
    if closing:
        lines.append(b"connection: close")
    return b"\r\n".join(lines) + b"\r\n\r\n"


def interim(status: int) -> bytes:
    """Write an interim answer."""
    return b"HTTP/1.1 %d %b\r\n\r\n" % (status, _phrase(status))


def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b"Whatever"


def framed(answer: Answer, request: Request | None) -> bytes:
    """Write the body of an answer, in chunks if it is to be."""
    body = answer.content()
    if answer.status in _NO_CONTENT or (request is not None and request.method == "HEAD"):
        return b""
    if not answer.chunked:
        return body
    return (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"


def bombed(bomb: Bomb) -> Iterator[bytes]:
    """Compress zeros, some at a time."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31 if bomb.encoding == "gzip" else 15)
    zeros, left = bytes(1_000_000), bomb.decoded_bytes
    while left:
        part = packer.compress(zeros[: min(left, len(zeros))])
        left -= min(left, len(zeros))
        if part:
            yield part
    yield packer.flush()
