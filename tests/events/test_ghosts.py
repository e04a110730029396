"""Nothing is published after the caller was told otherwise (V2): servers that die, stall and freeze."""

from __future__ import annotations

import asyncio
import json
import signal
import time
import urllib.request
from collections import Counter
from functools import partial
from typing import Any

import nats.errors
import pytest
from nats import connect

from counterfoil import UNASKABLE, Accepted, Events, Rejected, Runtime, Uncertain
from counterfoil.recipients.events import connection as connections
from counterfoil.recipients.events import wire
from counterfoil.threads import run_apart
from tests.events.support import Brokered, Stream, context, through, until
from tests.servers.nats import NatsCluster
from tests.servers.proxy import Act, On, Proxy
from tests.support import Colour, eventually


@pytest.mark.rule("V2", "B3")
async def test_what_was_published_while_the_server_was_dead_never_appears_and_the_stock_clients_ghost_does(
    own_nats: NatsCluster, colour, make
):
    stream = await Stream.make(own_nats.url)
    node = own_nats.nodes[0]
    events = make(stream)
    stock = await connect(own_nats.url, reconnect_time_wait=0.05, error_cb=_quiet)
    async with Brokered(colour) as brokered:
        assert isinstance(await brokered.perform(events.publish(stream.subject("before"), b"1")), Accepted)
        node.stop(signal.SIGKILL)
        began = time.monotonic()
        outcome = await brokered.perform(events.publish(stream.subject("ours"), b"2"), timeout_s=5)
        if isinstance(outcome, Uncertain):
            # The connection's end had not come yet: it was offered to a dead socket, and nobody says otherwise.
            outcome = await brokered.perform(events.publish(stream.subject("ours"), b"2"), timeout_s=5)
        assert (type(outcome), outcome.evidence.kind) == (Rejected, "connect-failed")
        assert (outcome.evidence.details or {})["error"] == "ECONNREFUSED"
        assert time.monotonic() - began < 2
        with pytest.raises(nats.errors.TimeoutError):
            await stock.jetstream().publish(stream.subject("stock"), b"3", timeout=0.3)
        node.start()
        own_nats.ready()
        # The stock client told its caller that it timed out, and publishes now.
        await until(lambda: subjects(stream, ["before", "stock"]))
        assert isinstance(await brokered.perform(events.publish(stream.subject("after"), b"4")), Accepted)
        await stock.close()
    assert [message.data for message in await stream.messages()] == [b"1", b"3", b"4"]


async def _quiet(_: Exception) -> None:
    return


@pytest.mark.rule("V2", "V3", "B5", "B6")
async def test_a_server_that_does_not_read_is_cut_off_so_that_nothing_lands_later(
    stream, colour, nats_proxy: Proxy, make, monkeypatch
):
    monkeypatch.setattr(connections, "RETIRE_S", 0.2)
    events = make(stream, through(nats_proxy.port))
    async with Brokered(colour) as brokered:
        assert isinstance(await brokered.perform(events.publish(stream.subject(), b"1")), Accepted)
        nats_proxy.rule = On(rb"HPUB", Act.DROP)
        began = time.monotonic()
        # Dropped together with the ping that asks whether it was read.
        calls = [brokered.begin(events.publish(stream.subject(), b"2"), timeout_s=1) for _ in range(3)]
        outcomes = await asyncio.gather(*calls)
        assert [(type(one), one.evidence.kind) for one in outcomes] == [(Uncertain, "deadline")] * 3
        assert time.monotonic() - began < 2
        await brokered.idle()
        nats_proxy.rule = None
        assert isinstance(await brokered.perform(events.publish(stream.subject(), b"3")), Accepted)
    assert [message.data for message in await stream.messages()] == [b"1", b"3"]


@pytest.mark.rule("V2", "B5")
async def test_a_stalled_connection_keeps_nothing_for_later(stream, colour, nats_proxy: Proxy, make, monkeypatch):
    monkeypatch.setattr(connections, "RETIRE_S", 0.2)
    events = make(stream, through(nats_proxy.port))
    async with Brokered(colour) as brokered:
        assert isinstance(await brokered.perform(events.publish(stream.subject(), b"1")), Accepted)
        # The wire takes some of it; then the socket is full, and what comes after must not be put behind it.
        nats_proxy.rule = On(rb"HPUB", Act.STALL)
        big = b"x" * 900_000
        calls = [brokered.begin(events.publish(stream.subject(), big), timeout_s=0.5) for _ in range(12)]
        outcomes = await asyncio.gather(*calls)
        kinds = {(type(one).__name__, one.evidence.kind) for one in outcomes}
        assert kinds <= {
            ("Uncertain", "deadline"),
            ("Uncertain", "connection-lost"),
            ("Rejected", "deadline-before-dispatch"),
            ("Rejected", "connect-failed"),
        }
        assert any(isinstance(one, Rejected) for one in outcomes)
        await brokered.idle()
        dispatched = sum(isinstance(one, Uncertain) for one in outcomes)
        nats_proxy.rule = None
        nats_proxy.resume()
        assert isinstance(await brokered.perform(events.publish(stream.subject(), b"2")), Accepted)
    assert len(await stream.messages()) <= 2 + dispatched


@pytest.mark.rule("V2", "B5")
async def test_behind_a_socket_that_is_full_nothing_is_put_and_a_cut_one_sends_nothing_more(
    stream, nats, nats_proxy: Proxy, make, monkeypatch
):
    monkeypatch.setattr(connections, "RETIRE_S", 0.1)
    monkeypatch.setattr(wire, "GATHERED_BYTES", 1 << 40)
    events = make(stream, through(nats_proxy.port))
    before = connected(nats)
    async with Brokered(Colour("asyncio")) as brokered:
        assert isinstance(await brokered.perform(events.publish(stream.subject(), b"1")), Accepted)
        nats_proxy.rule = On(rb"HPUB", Act.STALL)
        full = [brokered.begin(events.publish(stream.subject(), b"x" * 900_000), timeout_s=1) for _ in range(20)]
        line = await events.broker._lines.get(time.monotonic() + 5)
        await eventually(lambda: line._wire.stalled)
        outcome = await brokered.perform(events.publish(stream.subject(), b"2"), timeout_s=0.2)
        # On a busy machine the others' second may be over by then, and with it the connection.
        assert (type(outcome), outcome.evidence.kind) in (
            (Rejected, "deadline-before-dispatch"),
            (Rejected, "connect-failed"),
        )
        assert all(isinstance(one, Uncertain) for one in await asyncio.gather(*full))
        await brokered.idle()
        nats_proxy.rule = None
        nats_proxy.resume()
        # What the proxy had read by then is on its way; what asyncio and the kernel still held is not.
        await eventually(lambda: connected(nats) <= before)
    assert len(await stream.messages()) <= 3


@pytest.mark.rule("V3", "O2")
async def test_a_disconnect_in_flight_is_uncertain_at_once(stream, colour, nats_proxy: Proxy, make):
    events = make(stream, through(nats_proxy.port))
    async with Brokered(colour) as brokered:
        assert isinstance(await brokered.perform(events.publish(stream.subject(), b"1")), Accepted)
        for act, stored in ((Act.CUT, 1), (Act.LOSE_REPLY, 2)):
            nats_proxy.rule = On(rb"HPUB", act, times=1)
            began = time.monotonic()
            outcome = await brokered.perform(events.publish(stream.subject(), b"2"), timeout_s=10)
            assert (type(outcome), outcome.evidence.kind) == (Uncertain, "connection-lost")
            assert time.monotonic() - began < 2
            assert (outcome.evidence.details or {})["attempts"] == 1
            assert outcome.evidence.bytes_offered > 0
            await until(partial(subjects, stream, ["a"] * stored))


async def subjects(stream: Stream, expected: list[str]) -> bool:
    found = [message.subject for message in await stream.messages()]
    return found == [stream.subject(one) for one in expected]


@pytest.mark.rule("V2", "V3", "B4")
async def test_whenever_a_connection_is_reset_each_event_ends_at_once_and_as_the_stream_says(
    stream, nats_proxy: Proxy, make
):
    events = make(stream, through(nats_proxy.port), timeout_s=20)
    told: dict[bytes, str] = {}
    async with Brokered(Colour("asyncio")) as brokered:
        for round_ in range(12):
            payloads = [f"{round_}-{n}".encode() for n in range(20)]
            nats_proxy.rule = On(rb"HPUB", Act.CUT if round_ % 2 else Act.LOSE_REPLY, times=1, skip=round_ // 2)
            calls = [brokered.begin(events.publish(stream.subject(), payload)) for payload in payloads]
            if round_ % 3 == 0:
                for _ in range(round_):
                    await asyncio.sleep(0)
                for link in nats_proxy.links:
                    link.reset()
            outcomes = await asyncio.wait_for(asyncio.gather(*calls), 10)
            told |= {payload: type(one).__name__ for payload, one in zip(payloads, outcomes, strict=True)}
        await brokered.idle()
    stored = Counter(message.data for message in await stream.messages())
    assert max(stored.values()) == 1
    for payload, outcome in told.items():
        assert outcome == "Uncertain" or stored[payload] == (outcome == "Accepted"), (payload, outcome)
    assert {"Accepted", "Uncertain"} <= set(told.values())


@pytest.mark.rule("B6", "B5", "V3")
async def test_an_acknowledgement_that_comes_late_is_late_evidence(stream, colour, nats_proxy: Proxy, make):
    events = make(stream, through(nats_proxy.port))
    async with colour.life("memory:") as life:
        async with Brokered(colour, runtime=life.inner, audit="required") as brokered:
            assert isinstance(await brokered.perform(events.publish(stream.subject(), b"1")), Accepted)
            nats_proxy.rule = On(rb"HPUB", 0.6, times=1)
            outcome = await brokered.perform(events.publish(stream.subject(), b"2"), timeout_s=0.2)
            assert (type(outcome), outcome.evidence.kind) == (Uncertain, "deadline")
            await brokered.idle()
        late = [one for view in await life.effects() for one in view.late_evidence]
        assert len(late) == 1
    assert len(await stream.messages()) == 2


@pytest.mark.rule("V2", "B2")
async def test_nothing_is_left_behind_by_a_loop_that_ends(stream, make, nats):
    events = make(stream)

    def alone() -> None:
        run_apart(events.publish(stream.subject(), b"1").run_async(context("k1")))

    before = connected(nats)
    alone()
    await eventually(lambda: connected(nats) <= before)
    assert len(await stream.messages()) == 1


@pytest.mark.rule("V2", "E1")
def test_nothing_is_left_behind_by_a_call_from_inside_the_librarys_own_loop(nats):
    stream = asyncio.run(Stream.make(nats.url))
    before = connected(nats)
    with Events(nats.url, stream=stream.name) as events, Runtime("memory:") as runtime, runtime.run("r") as run:

        async def inner(ctx: Any) -> Any:
            # Blocking, and so on a loop of its own.
            return events.publish(stream.subject(), b"1").run(ctx)

        outcome = run.effect("e", run=inner, reconcile=UNASKABLE)
        assert isinstance(outcome, Accepted)
    give_up = time.monotonic() + 10
    while connected(nats) > before:
        assert time.monotonic() < give_up


def connected(nats: NatsCluster) -> int:
    """How many connections of ours the server has."""
    url = f"http://127.0.0.1:{nats.nodes[0].monitor}/connz"
    with urllib.request.urlopen(url, timeout=5) as said:
        return sum(one.get("name") == "counterfoil" for one in json.load(said)["connections"])
