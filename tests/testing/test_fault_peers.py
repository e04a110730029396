"""Fault peers do what their script says, and their log says what reached them."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from http import HTTPStatus
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest
import trustme

from counterfoil import UsageError
from counterfoil.testing.peers import (
    CANCEL,
    METADATA_URL,
    Answer,
    Bomb,
    CutBody,
    CutHead,
    Drop,
    FaultPeer,
    GoAway,
    Hang,
    Refuse,
    Request,
    ResetStream,
    Trickle,
    redirect,
)

HEAD = b"POST /pay?x=1 HTTP/1.1\r\nHost: peer\r\nIdempotency-Key: k-1\r\nContent-Length: 5\r\n\r\n"
WHOLE = HEAD + b"hello"


@contextmanager
def dial(peer: FaultPeer) -> Iterator[socket.socket]:
    with closing(socket.create_connection(("127.0.0.1", peer.port), timeout=60)) as sock:
        yield sock


def everything(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(65_536), b""))


def said(peer: FaultPeer, data: bytes = WHOLE) -> bytes:
    with dial(peer) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR) if not data else None
        return everything(sock)


def test_a_peer_notes_what_it_saw() -> None:
    with FaultPeer(Answer(201, json={"id": "ch_1"}, then="close")) as peer:
        answer = said(peer)
    (request,) = peer.requests
    assert answer.startswith(b"HTTP/1.1 201 Created\r\ncontent-type: application/json\r\n")
    assert answer.endswith(b'\r\n\r\n{"id": "ch_1"}')
    assert (request.method, request.target, request.key) == ("POST", "/pay?x=1", "k-1")
    assert (request.header("HOST"), request.body, request.body_complete) == ("peer", b"hello", True)
    assert [(item.effect_key, item.item) for item in peer.items] == [("k-1", "item-1")]
    assert peer.bytes_received == len(WHOLE)
    assert (len(peer.connections), peer.connections[0].protocol, peer.open) == (1, "http/1.1", 0)


def test_a_head_that_was_cut_is_no_request_and_a_cut_body_is_an_incomplete_one() -> None:
    with FaultPeer() as peer:
        with dial(peer) as one, dial(peer) as other:
            one.sendall(HEAD[:20])
            other.sendall(HEAD + b"he")
            peer.until(lambda peer: peer.bytes_received == 20 + len(HEAD) + 2)
        peer.until(lambda peer: peer.open == 0)
    assert [(request.body, request.body_complete) for request in peer.requests] == [(b"he", False)]
    assert [connection.ended for connection in peer.connections] == ["client", "client"]
    assert peer.items == []


def test_a_refused_port_takes_no_connection() -> None:
    with FaultPeer(Refuse()) as peer, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", peer.port), timeout=60)
    assert peer.connections == []
    with pytest.raises(UsageError, match="the whole script"):
        FaultPeer([Answer(), Refuse()])


@pytest.mark.parametrize(
    ("move", "sent", "requests", "acted"),
    [
        (Drop(read="nothing"), b"", 0, 0),
        (Drop(read="head"), HEAD, 1, 0),
        (Drop(), WHOLE, 1, 1),
        (Drop(acts=False), WHOLE, 1, 0),
        (Drop(read=3), HEAD + b"hel", 1, 0),
    ],
)
@pytest.mark.parametrize("reset", [False, True])
def test_a_peer_hangs_up_where_it_is_told_to(
    move: Drop, sent: bytes, requests: int, acted: int, *, reset: bool
) -> None:
    with (
        FaultPeer(Drop(read=move.read, reset=reset, acts=move.acts)) as peer,
        # A reset may be there before connecting is over.
        pytest.raises(ConnectionResetError) if reset else nullcontext(),
        dial(peer) as sock,
    ):
        sock.sendall(sent) if sent else None
        assert sock.recv(100) == b""
    assert (len(peer.requests), len(peer.items)) == (requests, acted)


LENGTH = b"\r\ncontent-length: %d\r\n\r\n"
CHUNKED = b"\r\ntransfer-encoding: chunked\r\n\r\n"
EARLY = b"HTTP/1.1 413 %b\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % HTTPStatus(413).phrase.encode()
MOVED = b"HTTP/1.1 308 Permanent Redirect\r\nlocation: %b" % METADATA_URL.encode()


@pytest.mark.parametrize(
    ("move", "answer"),
    [
        (Drop(interim=(100, 103)), b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n"),
        (CutHead(sent_bytes=14), b"HTTP/1.1 200 O"),
        (CutBody(Answer(503, body=b"sorry"), sent_bytes=2), b"HTTP/1.1 503 Service Unavailable" + LENGTH % 5 + b"so"),
        (CutBody(Answer(body=b"sorry", chunked=True), sent_bytes=5), b"HTTP/1.1 200 OK" + CHUNKED + b"5\r\nso"),
        (Answer(413, read="head", then="reset"), EARLY),
        (redirect(status=308), MOVED + LENGTH % 0),
        (Answer(204), b"HTTP/1.1 204 No Content\r\n\r\n"),
        (
            Answer(299, interim=(102,), chunked=True, body=b"x"),
            b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 299 Whatever" + CHUNKED + b"1\r\nx\r\n0\r\n\r\n",
        ),
    ],
)
def test_an_answer_has_exactly_the_bytes_of_its_move(move: Any, answer: bytes) -> None:
    with FaultPeer(move) as peer, dial(peer) as sock:
        sock.sendall(WHOLE)
        got = b""
        while len(got) < len(answer):
            got += sock.recv(1000)
        assert got == answer
        assert len(peer.requests) == 1


def test_each_connection_and_each_further_request_takes_the_next_move() -> None:
    with FaultPeer([Answer(), Drop(), Answer(404, then="close")]) as peer:
        assert said(peer, WHOLE + WHOLE).count(b"HTTP/1.1") == 1
        assert said(peer).startswith(b"HTTP/1.1 404")
        assert said(peer).startswith(b"HTTP/1.1 404")
    assert [request.connection for request in peer.requests] == [1, 1, 2, 3]


def test_a_function_decides_for_each_request() -> None:
    def shop(request: Request) -> Any:
        return Answer(json={"was": request.json()}, then="close") if request.method == "PUT" else Drop()

    with FaultPeer(shop) as peer:
        body = b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n[1\r\n1;x\r\n]\r\n0\r\nTrailer: x\r\n\r\n"
        assert said(peer, body).endswith(b'{"was": [1]}')
        assert said(peer) == b""
    assert [request.body_complete for request in peer.requests] == [True, True]


def test_what_a_script_cannot_do_is_raised_when_the_peer_is_left() -> None:
    with pytest.raises(TypeError, match="a move of HTTP/2"), FaultPeer(GoAway()) as peer:
        said(peer)


def test_a_client_is_told_to_continue_before_it_sends_its_body() -> None:
    with FaultPeer(Answer(then="close")) as peer, dial(peer) as sock:
        sock.sendall(HEAD.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"hello")
        assert everything(sock).startswith(b"HTTP/1.1 200 OK")


def test_a_peer_hangs_until_it_is_released() -> None:
    with FaultPeer(Hang(then=Answer(201, then="close"))) as peer, dial(peer) as sock:
        sock.sendall(WHOLE)
        peer.until(lambda peer: len(peer.items) == 1)
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.recv(1)
        sock.settimeout(60)
        peer.release()
        assert everything(sock).startswith(b"HTTP/1.1 201")


@pytest.mark.parametrize("read", ["nothing", "head", 3, "all"])
@pytest.mark.parametrize("reset", [False, True])
def test_a_hanging_peer_sees_how_its_client_goes(read: Any, *, reset: bool) -> None:
    with FaultPeer(Hang(read=read)) as peer:
        with dial(peer) as sock:
            sock.sendall(WHOLE)
            peer.until(lambda peer: len(peer.connections) == 1 and len(peer.requests) == (read != "nothing"))
            if reset:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.until(lambda peer: peer.open == 0)
    assert peer.connections[0].ended == ("client-reset" if reset else "client")


def test_a_peer_that_reads_no_further_stops_its_client() -> None:
    with FaultPeer(Hang(read=1000)) as peer, dial(peer) as sock:
        sock.sendall(HEAD.replace(b": 5", b": 90000000"))
        sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            sock.sendall(bytes(90_000_000))
        peer.until(lambda peer: [request.body_bytes for request in peer.requests] == [1000])


def test_an_answer_trickles() -> None:
    with FaultPeer(Trickle(Answer(body=b"abcd"), step_bytes=2, every_s=0.05)) as peer, dial(peer) as sock:
        began = time.monotonic()
        sock.sendall(WHOLE)
        assert everything(sock).endswith(b"abcd")
        assert time.monotonic() - began >= 0.1
    with FaultPeer(Trickle(part="head", every_s=60)) as peer, dial(peer) as sock:
        sock.sendall(WHOLE)
        peer.until(lambda peer: len(peer.requests) == 1)
    assert peer.connections[0].ended is not None


def test_a_bomb_is_small_on_the_wire() -> None:
    with FaultPeer(Bomb(decoded_bytes=3_000_000)) as peer:
        raw = http.client.HTTPConnection("127.0.0.1", peer.port)
        raw.request("GET", "/")
        answer = raw.getresponse()
        body = answer.read()
        raw.close()
    assert answer.headers["content-encoding"] == "gzip"
    assert len(body) < 10_000
    assert gzip.decompress(body) == bytes(3_000_000)


def test_a_wait_that_is_in_vain_says_what_the_peer_had_seen() -> None:
    with FaultPeer() as peer:
        said(peer, WHOLE.replace(b"Host: peer", b"Connection: close"))
        with pytest.raises(TimeoutError, match=r"1 connections \(0 open\), 1 requests, \d+ bytes, 1 items"):
            peer.until(lambda peer: len(peer.requests) == 2, timeout_s=0.05)


async def test_asyncio_waits_without_blocking_the_loop() -> None:
    with FaultPeer(Hang(then=Answer(then="close"))) as peer:
        reader, writer = await asyncio.open_connection("127.0.0.1", peer.port)
        writer.write(WHOLE)
        await peer.awaited.until(lambda peer: len(peer.requests) == 1)
        peer.release()
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
        with pytest.raises(TimeoutError):
            await peer.awaited.until(lambda peer: len(peer.requests) == 2, timeout_s=0.01)


def test_leaving_a_peer_leaves_no_thread() -> None:
    with FaultPeer([Hang(), Hang(read="nothing"), Hang(read=2), Answer(delay_s=60)]) as peer:
        socks = [socket.create_connection(("127.0.0.1", peer.port)) for _ in range(5)]
        for sock in socks[:4]:
            sock.sendall(WHOLE)
        peer.until(lambda peer: len(peer.connections) == 5 and len(peer.requests) == 3)
    assert not [thread.name for thread in threading.enumerate() if "fault-peer" in thread.name]
    for sock in socks:
        sock.close()


# --- TLS and HTTP/2


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def trusting(authority: trustme.CA, *protocols: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    context.set_alpn_protocols(list(protocols))
    return context


def test_a_peer_speaks_tls(authority: trustme.CA, server: ssl.SSLContext) -> None:
    with FaultPeer(Answer(then="close"), tls=server) as peer:
        assert peer.url.startswith("https://127.0.0.1:")
        client = trusting(authority, "http/1.1")
        with dial(peer) as raw, client.wrap_socket(raw, server_hostname="127.0.0.1") as sock:
            sock.sendall(WHOLE)
            assert everything(sock).startswith(b"HTTP/1.1 200")
        # A client that does not trust it never sends anything.
        with dial(peer) as raw, pytest.raises(ssl.SSLCertVerificationError):
            ssl.create_default_context().wrap_socket(raw, server_hostname="127.0.0.1")
        peer.until(lambda peer: peer.open == 0 and len(peer.connections) == 2)
    assert len(peer.requests) == 1


def test_a_peer_hangs_up_before_the_handshake(authority: trustme.CA, server: ssl.SSLContext) -> None:
    with FaultPeer(Drop(read="nothing"), tls=server) as peer, dial(peer) as raw, pytest.raises(OSError):
        trusting(authority).wrap_socket(raw, server_hostname="127.0.0.1")


class Http2:
    """A client of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.wire = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.wire.initiate_connection()
        self.events: list[Any] = []

    def request(self, body: bytes = b"hello") -> int:
        number = self.wire.get_next_available_stream_id()
        fields = [
            (":method", "POST"),
            (":path", "/pay"),
            (":scheme", "http"),
            (":authority", "p"),
            ("idempotency-key", "k"),
        ]
        self.wire.send_headers(number, fields, end_stream=not body)
        if body:
            self.wire.send_data(number, body, end_stream=True)
        self.sock.sendall(self.wire.data_to_send())
        return number

    def until(self, *kinds: type) -> Any:
        """Speak until such an event, and return it; None when the connection ended."""
        while True:
            for event in self.events:
                if isinstance(event, kinds):
                    self.events.remove(event)
                    return event
            data = self.sock.recv(65_536)
            if not data:
                return None
            for event in self.wire.receive_data(data):
                self.events.append(event)
                if isinstance(event, h2.events.DataReceived):
                    self.wire.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            self.sock.sendall(self.wire.data_to_send())


def test_http2_is_spoken_with_who_asks_for_it(authority: trustme.CA, server: ssl.SSLContext) -> None:
    with (
        FaultPeer(Answer(201, json={"id": 1}), tls=server) as peer,
        dial(peer) as raw,
        trusting(authority, "h2").wrap_socket(raw, server_hostname="127.0.0.1") as sock,
    ):
        client = Http2(sock)
        for _ in range(2):
            client.request()
            headers = dict(client.until(h2.events.ResponseReceived).headers)
            assert headers[b":status"] == b"201"
            assert client.until(h2.events.DataReceived).data == b'{"id": 1}'
            client.until(h2.events.StreamEnded)
    assert [(request.stream, request.method, request.target, request.key) for request in peer.requests] == [
        (1, "POST", "/pay", "k"), (3, "POST", "/pay", "k")]  # fmt: skip
    assert [request.body for request in peer.requests] == [b"hello"] * 2
    assert peer.connections[0].protocol == "h2"


@pytest.mark.parametrize(
    ("move", "acted"), [(ResetStream(), 0), (ResetStream(CANCEL), 1), (ResetStream(CANCEL, acts=False, read="head"), 0)]
)
def test_a_stream_is_reset_with_the_code_that_was_chosen(move: ResetStream, acted: int) -> None:
    with FaultPeer([move, Answer()]) as peer, dial(peer) as sock:
        client = Http2(sock)
        client.request()
        assert client.until(h2.events.StreamReset).error_code == move.error_code
        client.request(b"")
        assert client.until(h2.events.ResponseReceived)
    assert (len(peer.requests), len(peer.items)) == (2, acted + 1)


@pytest.mark.parametrize(("last", "acted"), [(0, 0), (1, 1), (7, 1)])
def test_a_connection_goes_away_naming_its_last_stream(last: int, acted: int) -> None:
    with FaultPeer(GoAway(last, error_code=2)) as peer, dial(peer) as sock:
        client = Http2(sock)
        client.request()
        gone = client.until(h2.events.ConnectionTerminated)
        assert (gone.last_stream_id, gone.error_code) == (last, 2)
        assert client.until(h2.events.ResponseReceived) is None
    assert len(peer.items) == acted


@pytest.mark.parametrize(
    ("move", "kinds"),
    [
        (Drop(), []),
        (Drop(interim=(103,)), ["InformationalResponseReceived"]),
        (CutHead(sent_bytes=12), []),
        (CutBody(Answer(body=b"sorry"), sent_bytes=2), ["ResponseReceived", "DataReceived"]),
        (
            Trickle(Answer(body=b"ab"), every_s=0.01, part="head"),
            ["ResponseReceived", "DataReceived", "DataReceived", "StreamEnded"],
        ),
        (
            Answer(interim=(103,), body=b"x", then="close"),
            ["InformationalResponseReceived", "ResponseReceived", "DataReceived", "StreamEnded"],
        ),
    ],
)
def test_http2_has_the_faults_of_http1(move: Any, kinds: list[str]) -> None:
    with FaultPeer(move) as peer, dial(peer) as sock:
        client = Http2(sock)
        client.request()
        if kinds[-1:] == ["StreamEnded"]:
            client.until(h2.events.StreamEnded)
            kinds = kinds[:-1]
        else:
            assert client.until(h2.events.ConnectionTerminated) is None
        noise = ("SettingsAcknowledged", "RemoteSettingsChanged", "WindowUpdated")
        events = [event for event in client.events if getattr(event, "data", b"-")]
        assert [type(event).__name__ for event in events if type(event).__name__ not in noise] == kinds
    assert len(peer.requests) == 1


def test_an_http2_bomb_waits_for_the_window_of_its_client() -> None:
    with FaultPeer(Bomb(decoded_bytes=100_000_000)) as peer, dial(peer) as sock:
        client = Http2(sock)
        client.request()
        client.until(h2.events.StreamEnded)
        body = b"".join(event.data for event in client.events if isinstance(event, h2.events.DataReceived))
    assert 65_535 < len(body) < 200_000
    assert len(gzip.decompress(body)) == 100_000_000


def test_a_hanging_stream_is_released() -> None:
    with FaultPeer(Hang(then=Answer(204))) as peer, dial(peer) as sock:
        client = Http2(sock)
        client.request()
        peer.until(lambda peer: len(peer.items) == 1)
        peer.release()
        assert client.until(h2.events.ResponseReceived)
