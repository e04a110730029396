"""Each phase of an exchange, and what can end it there: class, evidence, and what the peer saw."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from counterfoil import HTTP, Contract
from counterfoil.recipients.http.wire import Wire
from counterfoil.testing.peers import Answer, CutBody, CutHead, Drop, FaultPeer, Hang, Trickle
from tests.http.support import HeldPermit, deaf_listener, told
from tests.support import GROWING_S, PATIENCE_S, tries

BIG = b"x" * 30_000_000
PAID = Answer(201, json={"id": "ch_1", "paid": True})
# Byte by byte it takes longer than anybody waits.
LONG = Answer(201, headers={"x-fill": "y" * 5000}, json={"id": "ch_1", "fill": "y" * 5000})


@dataclass
class Scene:
    """A peer and a request that comes to a halt in one phase."""

    operation: Any
    reached: Any = lambda permit: permit.gates
    requests: Any = lambda: 0
    connections: Any = lambda: 0
    permit: HeldPermit = field(default_factory=HeldPermit)


@contextlib.contextmanager
def peer(script: Any, *, content: bytes = b"{}", contract: Any = None, scheme: str = "http") -> Iterator[Scene]:
    with FaultPeer(script) as found:
        http = HTTP("payments", base_url=found.url.replace("http:", f"{scheme}:"), contract=contract)
        yield Scene(
            http.post("/charges", content=content),
            requests=lambda: len(found.requests),
            connections=lambda: len(found.connections),
        )


@contextlib.contextmanager
def resolving() -> Iterator[Scene]:
    asked, go_on = threading.Event(), threading.Event()

    def resolve(host: str, port: int) -> list[str]:
        asked.set()
        go_on.wait(PATIENCE_S)
        return ["127.0.0.1"]

    http = HTTP("payments", base_url="http://payments.test", resolve=resolve)
    yield Scene(http.post("/charges", content=b"{}"), reached=lambda permit: permit.held and asked.is_set())
    assert asked.wait(PATIENCE_S)
    go_on.set()


@contextlib.contextmanager
def connecting() -> Iterator[Scene]:
    with deaf_listener() as port:
        http = HTTP("payments", base_url=f"http://127.0.0.1:{port}")
        yield Scene(http.post("/charges", content=b"{}"), reached=lambda permit: permit.addresses)


@contextlib.contextmanager
def head(monkeypatch: pytest.MonkeyPatch, ending: str) -> Iterator[Scene]:
    """Buffers that are too small for a head, and a peer that reads only its beginning."""
    connect = Wire.connect

    async def narrow(self: Wire, address: str, port: int, **more: Any) -> None:
        await connect(self, address, port, **more)
        self._open.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)

    monkeypatch.setattr(Wire, "connect", narrow)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    taken: list[socket.socket] = []
    read = threading.Event()

    def serve() -> None:
        with contextlib.suppress(OSError):
            sock, _ = listener.accept()
            taken.append(sock)
            sock.recv(100)
            read.set()
            if ending == "reset":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            if ending in ("reset", "close"):
                sock.close()

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    http = HTTP("payments", base_url=f"http://127.0.0.1:{listener.getsockname()[1]}")
    long = {f"x-long-{number}": "v" * 3000 for number in range(10)}
    yield Scene(
        http.post("/charges", content=b"{}", headers=long),
        reached=lambda permit: permit.gates and read.is_set(),
        connections=lambda: len(taken),
    )
    for sock in (*taken, listener):
        sock.close()
    serving.join(PATIENCE_S)


def scene(phase: str, ending: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the scene in which a request comes to `phase`, and is ended there by `ending`."""
    told_to_stop, reset = ending in ("cancel", "deadline"), ending == "reset"
    match phase:
        case "resolving":
            return resolving()
        case "connecting":
            return connecting()
        case "tls":
            return peer(Hang(read="nothing") if told_to_stop else Drop(read="nothing", reset=reset), scheme="https")
        case "head":
            return head(monkeypatch, ending)
        case "body":
            return peer(Hang(read=1000) if told_to_stop else Drop(read=1000, reset=reset), content=BIG)
        case "sent":
            return peer(Hang() if told_to_stop else Drop(reset=reset))
        case "answer-head":
            return peer(Trickle(LONG, part="head") if told_to_stop else CutHead(PAID, reset=reset))
        case _:
            assert phase in ("answer-body", "proof in the body")
    contract = Contract(name="payments-1", proof="/id") if phase == "proof in the body" else None
    return peer(Trickle(LONG, part="body") if told_to_stop else CutBody(PAID, reset=reset), contract=contract)


BEFORE = "Rejected"
TABLE = {
    ("resolving", "cancel"): (BEFORE, "cancelled", "resolving"),
    ("resolving", "deadline"): (BEFORE, "deadline-before-dispatch", "resolving"),
    ("connecting", "cancel"): (BEFORE, "cancelled", "connecting"),
    ("connecting", "deadline"): (BEFORE, "deadline-before-dispatch", "connecting"),
    ("tls", "cancel"): (BEFORE, "cancelled", "tls"),
    ("tls", "deadline"): (BEFORE, "deadline-before-dispatch", "tls"),
    ("tls", "reset"): (BEFORE, "tls-failed", "tls"),
    ("tls", "close"): (BEFORE, "tls-failed", "tls"),
    ("head", "cancel"): ("Uncertain", "cancelled", "head"),
    ("head", "deadline"): ("Uncertain", "deadline", "head"),
    ("head", "reset"): ("Uncertain", "reset", "head"),
    ("head", "close"): ("Uncertain", "no-response", "head"),
    ("body", "cancel"): ("Uncertain", "cancelled", "body"),
    ("body", "deadline"): ("Uncertain", "deadline", "body"),
    ("body", "reset"): ("Uncertain", "reset", "body"),
    ("body", "close"): ("Uncertain", "no-response", "body"),
    ("sent", "cancel"): ("Uncertain", "cancelled", "sent"),
    ("sent", "deadline"): ("Uncertain", "deadline", "sent"),
    ("sent", "reset"): ("Uncertain", "reset", "sent"),
    ("sent", "close"): ("Uncertain", "no-response", "sent"),
    ("answer-head", "cancel"): ("Uncertain", "cancelled", "answer-head"),
    ("answer-head", "deadline"): ("Uncertain", "deadline", "answer-head"),
    ("answer-head", "reset"): ("Uncertain", "reset", "answer-head"),
    ("answer-head", "close"): ("Uncertain", "cut-response", "answer-head"),
    ("answer-body", "cancel"): ("Accepted", "status", "answer-body"),
    ("answer-body", "deadline"): ("Accepted", "status", "answer-body"),
    ("answer-body", "reset"): ("Accepted", "status", "answer-body"),
    ("answer-body", "close"): ("Accepted", "status", "answer-body"),
    ("proof in the body", "cancel"): ("Uncertain", "cut-response", "answer-body"),
    ("proof in the body", "deadline"): ("Uncertain", "cut-response", "answer-body"),
    ("proof in the body", "reset"): ("Uncertain", "cut-response", "answer-body"),
    ("proof in the body", "close"): ("Uncertain", "cut-response", "answer-body"),
}
# A peer that closes while bytes of ours lie unread resets: the kernel does, sooner or later.
ALSO = {
    ("head", "close"): ("Uncertain", "reset", "head"),
    ("body", "close"): ("Uncertain", "reset", "body"),
    # What the peer has seen, and what we have noted, are a moment apart.
    ("tls", "cancel"): (BEFORE, "cancelled", "connecting"),
    ("tls", "reset"): (BEFORE, "connect-failed", "connecting"),
    ("sent", "cancel"): ("Uncertain", "cancelled", "head"),
}
# What the peer saw: requests whose head came whole.
SEEN = {"resolving": 0, "connecting": 0, "tls": 0, "head": 0}


@pytest.mark.rule("H1", "H2", "B3", "B4", "O1", "O2")
@pytest.mark.parametrize(("phase", "ending"), TABLE)
async def test_each_phase_ends_as_what_can_be_known(colour, phase, ending, monkeypatch):
    rejected = TABLE[phase, ending][0] == BEFORE
    if ending != "deadline":
        with scene(phase, ending, monkeypatch) as at:
            check(at, await ended(at, colour, phase, ending), phase, ending)
        return
    ends: list[Any] = []

    def reached() -> bool:
        return told(ends[-1])[2] == TABLE[phase, ending][2] and (rejected or ends[-1].evidence.bytes_offered > 0)

    for soon_s in tries(reached, GROWING_S):
        with scene(phase, ending, monkeypatch) as at:
            at.permit.deadline = deadline = time.monotonic() + soon_s
            ends.append(await ended(at, colour, phase, ending))
            assert time.monotonic() >= deadline
            if reached():
                check(at, ends[-1], phase, ending)


async def ended(at, colour, phase, ending):
    """Perform it; what cancels it does so in its phase."""
    arrived = {
        "tls": lambda _: at.connections(),
        "body": lambda p: at.requests() and p.bytes_out > 200_000,
        "sent": lambda _: at.requests(),
        "answer-head": lambda p: p.bytes_in,
        "answer-body": lambda p: p.bytes_in > 60,
        "proof in the body": lambda p: p.bytes_in > 60,
    }.get(phase, at.reached)
    cancel_when = (lambda: at.permit.until(arrived)) if ending == "cancel" else None
    return await colour.perform(at.operation, at.permit, cancel_when=cancel_when)


def check(at, outcome, phase, ending):
    """Compare how it ended with the tables, and with what the peer saw."""
    permit, evidence = at.permit, outcome.evidence
    assert told(outcome) in (TABLE[phase, ending], ALSO.get((phase, ending)))
    rejected = TABLE[phase, ending][0] == BEFORE
    assert evidence.details["attempts"] == permit.gates == (0 if rejected else 1)
    assert evidence.phase == {"Rejected": "not-dispatched", "Accepted": "acknowledged"}.get(
        type(outcome).__name__, "dispatched"
    )
    assert (evidence.bytes_offered == 0) is rejected
    assert evidence.bytes_offered <= permit.bytes_out
    # A peer may take a while to read what has reached it.
    permit.until(lambda _: at.requests() == SEEN.get(phase, 1))
    assert at.connections() <= 1
    assert (evidence.details["peer"] is None) is (phase == "resolving")
    if phase == "body":
        assert 0 < evidence.bytes_offered < len(BIG)


@pytest.mark.rule("H1", "B3")
async def test_a_port_where_nobody_listens_is_rejected(colour):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        http = HTTP("payments", base_url=f"http://127.0.0.1:{taken.getsockname()[1]}")
        permit = HeldPermit()
        outcome = await colour.perform(http.post("/charges", json={}), permit)
    assert told(outcome) == ("Rejected", "connect-failed", "connecting")
    assert outcome.evidence.details["error"] == "ECONNREFUSED"
    assert permit.gates == permit.bytes_out == 0


@pytest.mark.rule("B5", "H1")
async def test_a_name_that_is_still_being_resolved_keeps_its_permit(colour):
    go_on = threading.Event()

    def resolve(host: str, port: int) -> list[str]:
        go_on.wait(PATIENCE_S)
        return []

    http = HTTP("p", base_url="http://payments.test", resolve=resolve)
    permit = HeldPermit()
    outcome = await colour.perform(http.post("/", json={}), permit, cancel_when=lambda: permit.until(lambda p: p.held))
    assert told(outcome) == ("Rejected", "cancelled", "resolving")
    assert permit.held == 1
    go_on.set()
    permit.until(lambda p: p.held == 0)


@pytest.mark.rule("B5", "B6")
async def test_an_upload_that_is_cancelled_early_stops(colour):
    with FaultPeer(Hang(read=1_000_000)) as found:
        http = HTTP("p", base_url=found.url)
        permit = HeldPermit()
        outcome = await colour.perform(
            http.put("/blob", content=BIG),
            permit,
            cancel_when=lambda: permit.until(lambda p: p.bytes_out > 1_000_000 and found.requests),
        )
        assert told(outcome) == ("Uncertain", "cancelled", "body")
        # What was offered is told; the kernel does not go on sending what it still held.
        found.until(lambda peer: peer.open == 0)
        (request,) = found.requests
        assert request.body_bytes <= outcome.evidence.bytes_offered < len(BIG)
        assert not request.body_complete
        assert found.connections[0].ended == "client-reset"


@pytest.mark.rule("B2", "H1")
async def test_a_gate_that_is_lost_sends_nothing(colour):
    with FaultPeer(Answer(200)) as found:
        permit = HeldPermit()
        permit.closed = "revoked"
        outcome = await colour.perform(HTTP("p", base_url=found.url).post("/", json={}), permit)
        assert (type(outcome).__name__, outcome.evidence.kind) == ("Rejected", "revoked")
        found.until(lambda peer: peer.open == 0)
        assert found.bytes_received == 0
