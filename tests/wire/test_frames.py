"""Answers that no library would send, in one piece and byte by byte."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h2.config
import h2.connection
import pytest

from counterfoil import HTTP, Accepted, Failed, Uncertain
from tests.support import PATIENCE_S
from tests.wire.scene import Scene, grant

pytestmark = pytest.mark.rule("H3", "H7", "O5")

SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def frame(kind: int, payload: bytes, *, stream: int = 0, length: int | None = None) -> bytes:
    size = len(payload) if length is None else length
    return size.to_bytes(3, "big") + bytes([kind, 0]) + stream.to_bytes(4, "big") + payload


def answer(status: int = 200) -> bytes:
    state = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    state.initiate_connection()
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    client.send_headers(1, [(":method", "GET"), (":path", "/"), (":scheme", "http"), (":authority", "p")], True)
    state.receive_data(client.data_to_send())
    state.data_to_send()
    state.send_headers(1, [(":status", str(status))], end_stream=True)
    return state.data_to_send()


def goaway(last: int, code: int = 0) -> bytes:
    return frame(7, last.to_bytes(4, "big") + code.to_bytes(4, "big"))


@contextmanager
def saying(data: bytes, *, piece: int) -> Iterator[str]:
    """Serve one connection: read its request, say this in pieces, and wait for the client to go."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.recv(65_536)
                try:
                    for start in range(0, len(data), piece):
                        sock.sendall(data[start : start + piece])
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(65_536):
                        pass
                except OSError:
                    return

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        server.join(PATIENCE_S)


@pytest.mark.parametrize("piece", [1, 1_000_000])
@pytest.mark.parametrize(
    ("data", "kind", "why"),
    [
        (SETTINGS + goaway(0) + answer(), Failed, "goaway"),
        (SETTINGS + goaway(0, 0xFFFF) + b"\xff" * 40, Failed, "goaway"),
        (SETTINGS + goaway(0x80000000), Failed, "goaway"),
        (SETTINGS + goaway(1) + answer(503), Uncertain, "status"),
        (SETTINGS + goaway(1) + goaway(0), Failed, "goaway"),
        (SETTINGS + frame(7, b"\x00\x00"), Uncertain, "malformed-response"),
        (SETTINGS + frame(1, b"", stream=1, length=0xFFFFFF), Uncertain, "malformed-response"),
        (SETTINGS + frame(3, (7).to_bytes(4, "big"), stream=1) + b"junk", Failed, "refused-stream"),
        (SETTINGS + frame(3, (7).to_bytes(4, "big"), stream=3), Uncertain, "no-response"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", Uncertain, "malformed-response"),
        (SETTINGS + goaway(1)[:12], Uncertain, "no-response"),
    ],
    ids=[
        "goaway below, then an answer",
        "goaway below, then junk",
        "goaway below, with the reserved bit",
        "goaway at ours, then an answer",
        "goaway at ours, then below",
        "goaway that is too short",
        "frame that is too large",
        "refused stream, then junk",
        "reset of another stream",
        "HTTP/1.1",
        "goaway that is cut",
    ],
)
async def test_only_what_was_said_whole_proves_anything(
    scene: Scene, data: bytes, kind: type[Any], why: str, piece: int
) -> None:
    with saying(data, piece=piece) as url:
        async with scene.seat(grant(url)) as seat:
            outcome = await seat.perform(HTTP(http2=True).get(url))
    assert (type(outcome), outcome.evidence.kind) == (kind, why)


@pytest.mark.parametrize("piece", [7, 1_000_000])
@pytest.mark.parametrize(
    ("data", "kind", "why"),
    [
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200 + b"\r\nContent-Length: 0\r\n\r\n", Uncertain, "malformed-response"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 20 + b"\r\nContent-Length: 0\r\n\r\n", Accepted, "status"),
        (b"HTTP/1.1 102 Wait\r\n\r\n" * 50, Uncertain, "malformed-response"),
        (b"HTTP/1.1 422 No\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc", Uncertain, "malformed-response"),
        (b"HTTP/1.1 422 No\r\nContent-Length: 9\r\n\r\nabc", Failed, "status"),
        (b"SSH-2.0-OpenSSH_9.9\r\n", Uncertain, "cut-response"),
        (b"", Uncertain, "no-response"),
    ],
    ids=["head over its bound", "head below it", "heads without end", "two lengths", "cut refusal", "SSH", "nothing"],
)
async def test_an_answer_means_the_same_however_it_is_cut_into_pieces(
    scene: Scene, data: bytes, kind: type[Any], why: str, piece: int
) -> None:
    with saying(data, piece=piece) as url:
        async with scene.seat(grant(url)) as seat:
            outcome = await seat.perform(HTTP(head_bytes_max=100).post(url, json={}))
    assert (type(outcome), outcome.evidence.kind) == (kind, why)
