"""Stories of events: what a caller is told, beside what the stream has."""

from __future__ import annotations

import signal
import sqlite3
import threading
from collections import Counter
from typing import Any

import pytest

from counterfoil import Accepted, Dispatcher, EffectUnresolved, Events, Outbox
from tests.events.support import Stream, through
from tests.servers.nats import NatsCluster
from tests.servers.proxy import Act, On, Proxy
from tests.support import Colour, eventually


@pytest.mark.rule("V3", "V4", "E2")
async def test_s65_a_lost_puback_is_settled_by_the_last_message(colour: Colour, nats: NatsCluster):
    """nats-io/nats.node#628: the PubAck is lost, and the client cannot tell whether the message is there."""
    stream = await Stream.make(nats.url)
    with Proxy(nats.nodes[0].port) as proxy, Events(through(proxy.port), stream=stream.name) as events:
        proxy.rule = On(rb"HPUB", Act.LOSE_REPLY, times=1)
        async with colour.life("memory:") as life, life.run("r") as run:
            with pytest.raises(EffectUnresolved) as caught:
                await run.effect("placed", events.publish(stream.subject(), {"order": 42}))
            assert caught.value.effect_ran == "unknown"
            outcome = await run.effect("placed", events.publish(stream.subject(), {"order": 42}))
    assert isinstance(outcome, Accepted)
    assert (outcome.via, outcome.proof["seq"]) == ("reconcile", 1)
    assert len(await stream.messages()) == 1


@pytest.mark.rule("X3", "X10", "V2")
async def test_s59_what_is_committed_while_the_broker_is_down_is_delivered_afterwards_once(
    own_nats: NatsCluster, tmp_path: Any
):
    """openedx/openedx-events#292: the broker is down for a while, and what is committed meanwhile is lost."""
    stream = await Stream.make(own_nats.url)
    url = f"sqlite:///{tmp_path}/shop.db?engine=sqlite3"
    outbox = Outbox(url)
    outbox.migrate()
    with Events(own_nats.url, stream=stream.name) as events:
        dispatcher = Dispatcher(url, [events], poll_s=0.02)
        running = threading.Thread(target=dispatcher.run)
        running.start()
        try:
            for number in range(30):
                if number == 10:
                    # Nothing is in flight, and the end of the connection is known, when the next event comes.
                    await eventually(lambda: all(settled(outbox, f"order-{n}") for n in range(10)))
                    own_nats.nodes[0].stop(signal.SIGKILL)
                    await eventually(lambda: not connected(events))
                if number == 25:
                    own_nats.nodes[0].start()
                    own_nats.ready()
                with sqlite3.connect(tmp_path / "shop.db", isolation_level=None) as connection:
                    connection.execute("BEGIN IMMEDIATE")
                    outbox.stage(connection, events.publish(stream.subject(), number), key=f"order-{number}")
                    connection.execute("COMMIT")
                connection.close()
            states = [f"order-{number}" for number in range(30)]
            await eventually(lambda: all(settled(outbox, key) for key in states))
        finally:
            dispatcher.stop()
            running.join()
        ended = Counter(receipt.state for key in states if (receipt := outbox.receipt(key)) is not None)
    stored = Counter(int(message.data) for message in await stream.messages())
    assert ended == {"accepted": 30}
    assert stored == dict.fromkeys(range(30), 1)


def connected(events: Events) -> bool:
    lines: Any = events.broker
    return any(place.line.alive for place in lines._lines._places.values())


def settled(outbox: Outbox, key: str) -> bool:
    receipt = outbox.receipt(key)
    return receipt is not None and receipt.state not in ("pending", "dispatching", "retry-scheduled")
