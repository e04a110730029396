"""What the wire takes out of the server's bytes, and what it leaves to nats-py, wherever they are cut."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from counterfoil.nats_wire import Wire, headers

ANSWERS = [
    (b"1", b'{"stream":"S","seq":1}'),
    (b"22", b""),
    (b"3", b"a\r\nMSG _INBOX.us.9 1 1\r\nb\r\n"),
    (b"4", b"+OK"),
]
THEIRS = [
    b"PING\r\n",
    b"+OK\r\n",
    b"-ERR 'Permissions Violation for Publish to \"s.a\"'\r\n",
    b'INFO {"server_id":"' + b"x" * 5000 + b'"}\r\n',
    b"MSG somebody.else 2 11\r\nMSG _INBOX.\r\n",
    b"MSG _INBOX.us2.1 2 2\r\n{}\r\n",
    b"HMSG _INBOX.us.5 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n",
    b"PONG\r\n",
]


class Reader:
    """A socket that hands out these pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    async def read(self, _most: int) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


def told(pieces: list[bytes]) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """What is heard of these pieces, and what is left to nats-py."""

    async def read() -> Any:
        heard: list[tuple[bytes, bytes]] = []
        wire = Wire()
        wire._io_reader = Reader(pieces)  # type: ignore[assignment]
        wire.listen("_INBOX.us", lambda *answer: heard.append(answer))
        left = b""
        while part := await wire.read(1 << 15):
            left += part
        return heard, left

    return asyncio.run(read())  # type: ignore[no-any-return]


def stream() -> bytes:
    """Answers of ours between what is none."""
    ours = [b"MSG _INBOX.us.%b 1 %d\r\n%b\r\n" % (token, len(body), body) for token, body in ANSWERS]
    mixed = [piece for pair in zip(THEIRS, [*ours, *ours], strict=True) for piece in pair]
    return b"".join(mixed)


@pytest.mark.rule("V1", "O5")
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1 << 20])
def test_each_answer_is_heard_once_and_whole_wherever_the_bytes_are_cut(size):
    whole = stream()
    heard, left = told([whole[at : at + size] for at in range(0, len(whole), size)])
    assert heard == ANSWERS * 2
    assert left == b"".join(THEIRS)


@pytest.mark.rule("O5")
@pytest.mark.parametrize("damaged", [b"MSG _INBOX.us.1 1 x\r\n{}\r\n", b"MSG \r\n", b"HMSG _INBOX.us.1 1 4 -1\r\n"])
def test_what_cannot_be_read_is_left_to_nats_py_with_all_that_follows(damaged):
    assert told([damaged, b"MSG _INBOX.us.1 1 2\r\n{}\r\n"])[1].startswith(damaged)


@pytest.mark.rule("V2")
def test_what_was_gathered_goes_out_together_in_order_or_never():
    class Writer:
        def __init__(self) -> None:
            self.written: list[bytes] = []

        def write(self, data: bytes) -> None:
            self.written.append(data)

    async def offer() -> list[bytes]:
        wire, writer = Wire(), Writer()
        wire._io_writer = writer  # type: ignore[assignment]
        wire.listen("_INBOX.us", lambda *_: None)
        wire.publish("s.a", b"one", token=b"1", head=headers((("A", "b"),)))
        wire.publish("s.b", b"two", token=b"2")
        assert writer.written == []
        wire.write(b"PING\r\n")
        wire.publish("s.c", b"three", token=b"3")
        wire.forget()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert wire.gathered_bytes == 0
        return writer.written

    one = b"HPUB s.a _INBOX.us.1 18 21\r\nNATS/1.0\r\nA: b\r\n\r\none\r\n"
    assert asyncio.run(offer()) == [one + b"PUB s.b _INBOX.us.2 3\r\ntwo\r\n", b"PING\r\n"]
