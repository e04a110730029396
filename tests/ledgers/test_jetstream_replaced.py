"""A ledger whose stream was purged, or deleted and made again under its name: it is noticed, and nothing is decided."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import nats as nats_py
import pytest

from counterfoil.errors import LedgerError, LedgerReadOnly
from counterfoil.ledgers.jetstream import troubles
from tests.ledgers.postgres_support import opened, until
from tests.ledgers.support import entry, intent, slots_of
from tests.servers.nats import NatsCluster
from tests.servers.proxy import Proxy

_streams = count(1)
Open = Callable[..., Any]


@pytest.fixture
def stream() -> str:
    """The name of a stream of its own."""
    return f"replaced-{next(_streams)}"


@pytest.fixture
def proxy(nats: NatsCluster) -> Iterator[Proxy]:
    with Proxy(nats.nodes[0].port) as between:
        yield between


@pytest.fixture
def open_ledger(nats: NatsCluster, stream: str, proxy: Proxy) -> Iterator[Open]:
    """Opens ledgers on one stream; through the proxy, so that the connection can be cut."""
    made: list[Any] = []

    def open_one(*, beat_s: float = 60.0) -> Any:
        options = f"allow_lazy_sync=1&beat={beat_s}&timeout=5"
        made.append(opened(f"nats://127.0.0.1:{proxy.port}/{stream}?{options}"))
        return made[-1]

    yield open_one
    for ledger in made:
        ledger.close()


def asked(nats: NatsCluster, subject: str, body: bytes = b"") -> dict[str, Any]:
    """Ask the server something that an operator asks."""

    async def ask() -> bytes:
        async with await nats_py.connect(nats.url) as client:
            return (await client.request(f"$JS.API.{subject}", body, timeout=30)).data

    said: dict[str, Any] = json.loads(asyncio.run(ask()))
    assert "error" not in said, said
    return said


def replaced(nats: NatsCluster, stream: str, *, messages: int = 0) -> None:
    """Delete the stream, and make it again as another process does that opens it, perhaps with more in it."""
    asked(nats, f"STREAM.DELETE.{stream}")
    ledger = opened(f"{nats.url}/{stream}?allow_lazy_sync=1&beat=60")
    for number in range(messages):
        ledger.append(entry(f"theirs{number}", run="theirs"))
    ledger.close()


@pytest.mark.rule("L14")
@pytest.mark.parametrize("messages", [0, 40])
@pytest.mark.parametrize("cut", [False, True])
def test_a_stream_that_was_made_again_takes_no_decision_of_a_life_that_it_does_not_know(
    open_ledger, nats, proxy, stream, messages, cut
):
    ledger = open_ledger()
    epoch = ledger.register("before")
    ledger.append(intent("before", epoch))
    replaced(nats, stream, messages=messages)
    if cut:
        proxy.cut()
        until(lambda: not ledger._store._link.open)
    with pytest.raises(LedgerReadOnly):
        ledger.append(intent("slot", epoch))
    # Nor may a fresh life of the same process go on where nobody knows what was sent.
    with pytest.raises(LedgerReadOnly):
        ledger.register("after")
    assert ledger.restored() is not None


@pytest.mark.rule("L14")
def test_a_person_accepts_what_was_made_again(open_ledger, nats, stream):
    ledger = open_ledger()
    epoch = ledger.register("before")
    replaced(nats, stream, messages=40)
    with pytest.raises(LedgerReadOnly):
        ledger.append(intent("slot", epoch))
    ledger.accept_restore(by="me", reason="it was meant")
    assert ledger.restored() is None
    epoch = ledger.register("after")
    ledger.append(intent("slot", epoch))
    assert "slot" in slots_of(ledger)


@pytest.mark.rule("L14", "L7")
def test_the_heart_of_a_life_notices_too(open_ledger, nats, stream):
    ledger = open_ledger(beat_s=0.05)
    ledger.register("before")
    replaced(nats, stream, messages=40)
    until(ledger._restores.fault)
    assert isinstance(ledger._restores.fault(), LedgerReadOnly)


@pytest.mark.rule("L14")
def test_a_stream_that_was_purged_is_not_taken_for_a_new_one(open_ledger, nats, stream):
    ledger = open_ledger()
    ledger.append(entry("before"))
    ledger.close()
    asked(nats, f"STREAM.PURGE.{stream}")
    again = open_ledger()
    for _ in range(2):
        assert "purged" in again.restored()
        with pytest.raises(LedgerReadOnly):
            again.append(entry("slot"))
        with pytest.raises(LedgerReadOnly):
            again.register("after")
        again = open_ledger()
    again.accept_restore(by="me", reason="it was meant")
    again.append(entry("slot"))
    assert open_ledger().restored() is None


@pytest.mark.rule("L14")
def test_a_stream_that_is_purged_under_a_life_takes_no_decision_of_it(open_ledger, nats, stream):
    ledger = open_ledger()
    epoch = ledger.register("before")
    asked(nats, f"STREAM.PURGE.{stream}")
    with pytest.raises(LedgerError):
        ledger.append(intent("slot", epoch, run="another"))


@pytest.mark.rule("L3")
@pytest.mark.parametrize(("code", "unknown"), [(10023, True), (10077, True), (10060, False), (10071, False)])
def test_only_what_is_refused_before_anything_is_stored_is_definite(code, unknown):
    answer = json.dumps({"error": {"code": 503, "err_code": code, "description": "no"}, "stream": "s"}).encode()
    said = troubles.said(answer, status=None, stream="s")
    assert (said.unknown, said.sequence) == (unknown, 0)
