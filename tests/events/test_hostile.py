"""Events where the server or the wire misbehaves: half a message, a login that is taken away, a stream made again."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import suppress

import pytest

from counterfoil import Accepted, AsyncBroker, Rejected, Uncertain
from tests.events.support import GRANT, Brokered, Stream, admin, asked, context, through
from tests.servers.nats import NatsCluster
from tests.servers.proxy import Act, Piece, Proxy
from tests.support import Colour, eventually

USERS = """authorization {{ users: [
  {{ user: root, password: root }},
  {{ user: shop, password: {} }},
] }}"""


@pytest.mark.rule("V2", "V3", "B4")
@pytest.mark.parametrize("kept", [1, 40, -1, -2])
async def test_a_connection_that_ends_within_a_message_leaves_nothing_of_it(
    stream, colour, nats_proxy: Proxy, make, kept
):
    events = make(stream, through(nats_proxy.port))
    cut = threading.Event()

    def half(piece: Piece) -> Act:
        if not piece.request or b"HPUB" not in piece.data or cut.is_set():
            return Act.PASS
        cut.set()
        with suppress(OSError):
            piece.link.server.sendall(piece.data[:kept])
        return Act.CUT

    async with Brokered(colour) as brokered:
        assert isinstance(await brokered.perform(events.publish(stream.subject(), b"1")), Accepted)
        nats_proxy.rule = half
        outcome = await brokered.perform(events.publish(stream.subject(), b"2"))
        assert (type(outcome), outcome.evidence.kind) == (Uncertain, "connection-lost")
        assert isinstance(await brokered.perform(events.publish(stream.subject(), b"3")), Accepted)
        await brokered.idle()
    # All but the last byte is still no message; all but the line's end would be one for a server that forgave it.
    assert [message.data for message in await stream.messages()] == [b"1", b"3"]


@pytest.mark.rule("V3", "B3", "O2")
async def test_a_login_that_is_taken_away_ends_what_is_in_flight_as_uncertain_and_then_nothing_goes_out(make):
    with NatsCluster(1, more=USERS.format("shop")) as server:
        node = server.nodes[0]
        root = f"nats://root:root@127.0.0.1:{node.port}"
        stream = Stream(root, "S1", "s1")
        async with admin(root) as client:
            await client.jetstream().add_stream(name="S1", subjects=["s1.>"])
            with Proxy(node.port) as proxy:
                async with AsyncBroker() as broker, broker.activation(grants=[GRANT], deadline_s=90) as activation:
                    events = make(stream, f"nats://shop:shop@127.0.0.1:{proxy.port}", timeout_s=60)
                    assert isinstance(await activation.perform(events.publish("s1.a", b"1")), Accepted)
                    read = threading.Event()

                    def swallow(piece: Piece) -> Act:
                        if piece.request and b"HPUB" in piece.data:
                            read.set()
                            return Act.DROP
                        return Act.PASS

                    proxy.rule = swallow
                    flying = asyncio.ensure_future(activation.perform(events.publish("s1.a", b"2")))
                    await eventually(read.is_set)
                    config = node._config.read_text(encoding="utf-8")
                    node._config.write_text(config.replace("password: shop", "password: other"), encoding="utf-8")
                    node.send(signal.SIGHUP)
                    outcome = await flying
                    assert (type(outcome), outcome.evidence.kind) == (Uncertain, "connection-lost")
                    proxy.rule = None
                    outcome = await activation.perform(events.publish("s1.a", b"3"))
                    assert (type(outcome), outcome.evidence.kind) == (Rejected, "connect-failed")
        assert [message.data for message in await stream.messages()] == [b"1"]


@pytest.mark.rule("V4", "O4")
async def test_what_a_stream_had_that_was_made_again_is_not_found_and_not_somebody_elses(stream, colour, make):
    events = make(stream)
    published = events.publish(stream.subject(), b"ours")
    accepted = await published.run_async(context("key-1"))
    assert accepted.proof["seq"] == 1
    async with admin(stream.url) as client:
        js = client.jetstream()
        await js.delete_stream(stream.name)
        await js.add_stream(name=stream.name, subjects=[f"{stream.prefix}.>"])
        # Another message at the very place that the proof names.
        await js.publish(stream.subject(), b"theirs", headers={"Nats-Msg-Id": "key-2"})
    assert await asked(colour, published, "key-1") is None
    # The connection of before is still there, and says what this stream acknowledges.
    again = await events.publish(stream.subject(), b"more").run_async(context("key-3"))
    assert (again.proof["seq"], again.proof["duplicate"]) == (2, False)


@pytest.mark.rule("V1", "V4", "X9")
async def test_behind_the_duplicate_window_the_look_up_still_finds_the_one_that_was_sent(nats, colour: Colour, make):
    stream = await Stream.make(nats.url, duplicate_window=0.1)
    events = make(stream)
    published = events.publish(stream.subject(), b"once")
    first = await published.run_async(context("key-1"))
    # Many others, and the window is over: whoever asked by sending again would send twice.
    for number in range(30):
        await events.publish(stream.subject(), b"x").run_async(context(f"other-{number}"))
    await asyncio.sleep(0.3)
    found = await asked(colour, published, "key-1")
    assert found is not None
    assert found.proof["seq"] == first.proof["seq"]
    assert len(await stream.messages()) == 31
