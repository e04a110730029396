"""RabbitMQ (V6): what its confirms, returns and silences prove, on a real broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest

from counterfoil import UNASKABLE, Accepted, EffectUnresolved, Events, Failed, Rejected, Uncertain
from tests.servers.finding import Missing, missing
from tests.servers.proxy import Act, On, Proxy
from tests.servers.rabbitmq import RabbitMQ

aio_pika = pytest.importorskip("aio_pika", reason="aio-pika is not installed: no test with a real RabbitMQ")
from counterfoil.recipients.events import rabbit  # noqa: E402

# A loop that ends may not run any more what aio-pika itself begins then.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .Connection.close. was never awaited")

_numbers = count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[RabbitMQ]:
    try:
        server = RabbitMQ()
    except Missing as error:
        missing(error, optional=True)
    with server:
        yield server


@pytest.fixture
def rabbit_proxy(broker: RabbitMQ) -> Iterator[Proxy]:
    with Proxy(broker.port) as between:
        yield between


@asynccontextmanager
async def admin(broker: RabbitMQ) -> AsyncIterator[Any]:
    connection = await aio_pika.connect(broker.url)
    try:
        yield await connection.channel()
    finally:
        await connection.close()


async def declare(broker: RabbitMQ, **arguments: Any) -> str:
    """Make an exchange with a queue of the same name behind it."""
    name = f"x{next(_numbers)}"
    async with admin(broker) as channel:
        exchange = await channel.declare_exchange(name, aio_pika.ExchangeType.TOPIC, durable=True)
        queue = await channel.declare_queue(name, durable=True, arguments=arguments)
        await queue.bind(exchange, "orders.#")
    return name


async def messages(broker: RabbitMQ, name: str) -> list[Any]:
    """All that is in a queue; it is empty then."""
    found = []
    async with admin(broker) as channel:
        queue = await channel.declare_queue(name, passive=True)
        while (message := await queue.get(fail=False, no_ack=True)) is not None:
            found.append(message)
    return found


def events(broker: RabbitMQ, name: str, proxy: Proxy | None = None) -> Events:
    return Events(broker.url if proxy is None else broker.at(proxy.port), stream=name)


@pytest.mark.rule("V6", "V5", "O6")
async def test_a_confirm_is_accepted_and_the_message_is_persistent(broker, brokered):
    name = await declare(broker)
    with events(broker, name) as recipient:
        outcome = await brokered.perform(recipient.publish("orders.new", {"n": 1}, headers={"A": "b"}))
    assert isinstance(outcome, Accepted)
    assert outcome.proof == {"stream": name, "seq": None, "duplicate": False}
    assert set(rabbit.PROMISES) <= set(outcome.evidence.promises)
    (message,) = await messages(broker, name)
    assert (message.body, message.headers, message.delivery_mode) == (b'{"n":1}', {"A": "b"}, 2)
    assert message.message_id == (outcome.evidence.details or {})["key"]


@pytest.mark.rule("V6")
async def test_what_no_queue_takes_is_returned_and_has_failed(broker, brokered):
    name = await declare(broker)
    with events(broker, name) as recipient:
        await brokered.perform(recipient.publish("orders.new", b"1"))
        began = time.monotonic()
        outcome = await brokered.perform(recipient.publish("elsewhere", b"2"))
        assert time.monotonic() - began < 1
        assert (type(outcome), outcome.evidence.kind, outcome.evidence.status) == (Failed, "returned", 312)
        assert isinstance(await brokered.perform(recipient.publish("orders.new", b"3")), Accepted)
    assert [message.body for message in await messages(broker, name)] == [b"1", b"3"]


@pytest.mark.rule("V6", "O2")
async def test_a_negative_acknowledgement_is_uncertain(broker, brokered):
    name = await declare(broker, **{"x-max-length": 1, "x-overflow": "reject-publish"})
    with events(broker, name) as recipient:
        assert isinstance(await brokered.perform(recipient.publish("orders.new", b"1")), Accepted)
        outcome = await brokered.perform(recipient.publish("orders.new", b"2"))
    assert (type(outcome), outcome.evidence.kind) == (Uncertain, "nack")


@pytest.mark.rule("V6", "B3")
async def test_without_an_exchange_or_a_broker_nothing_is_sent(broker, brokered, rabbit_proxy):
    with events(broker, "nothing-here") as recipient:
        outcome = await brokered.perform(recipient.publish("orders.new", b"1"))
        assert (type(outcome), outcome.evidence.kind) == (Rejected, "connect-failed")
    rabbit_proxy.close()
    with Events(broker.at(rabbit_proxy.port), stream="x") as recipient:
        outcome = await brokered.perform(recipient.publish("orders.new", b"1"))
        assert (type(outcome), outcome.evidence.kind) == (Rejected, "connect-failed")


@pytest.mark.rule("V6", "V2")
async def test_a_confirm_that_is_lost_is_uncertain(broker, brokered, rabbit_proxy: Proxy, monkeypatch):
    monkeypatch.setattr(rabbit, "RETIRE_S", 0.2)
    name = await declare(broker)
    with events(broker, name, rabbit_proxy) as recipient:
        assert isinstance(await brokered.perform(recipient.publish("orders.new", b"first")), Accepted)
        for act, kind in ((Act.LOSE_REPLY, "connection-lost"), (Act.SWALLOW_REPLY, "deadline")):
            rabbit_proxy.rule = On(b"ours", act, times=1)
            outcome = await brokered.perform(recipient.publish("orders.new", b"ours"), timeout_s=1)
            assert (type(outcome), outcome.evidence.kind) == (Uncertain, kind)
            await brokered.idle()
            rabbit_proxy.rule = None
        assert isinstance(await brokered.perform(recipient.publish("orders.new", b"last")), Accepted)
    assert [message.body for message in await messages(broker, name)] == [b"first", b"ours", b"ours", b"last"]


@pytest.mark.rule("V6", "E2")
async def test_it_cannot_be_asked_so_what_is_lost_stays_uncertain(broker, colour, rabbit_proxy: Proxy):
    name = await declare(broker)
    rabbit_proxy.rule = On(b"ours", Act.LOSE_REPLY, times=1)
    with events(broker, name, rabbit_proxy) as recipient:
        event = recipient.publish("orders.new", b"ours")
        assert event.reconcile is event.reconcile_async is UNASKABLE
        async with colour.life("memory:") as life, life.run("order-42") as run:
            with pytest.raises(EffectUnresolved):
                await run.effect("placed", event)
            outcome = await run.effect("placed", event)
            assert (type(outcome), outcome.evidence.kind) == (Uncertain, "unaskable")
    assert len(await messages(broker, name)) == 1


@pytest.mark.rule("V6")
async def test_many_at_once_are_each_confirmed(broker, brokered):
    name = await declare(broker)
    with events(broker, name) as recipient:
        outcomes = await asyncio.gather(
            *(brokered.perform(recipient.publish(f"orders.{n}" if n % 2 else "no", str(n))) for n in range(20))
        )
    assert [type(one) for one in outcomes] == [Failed, Accepted] * 10
    assert len(await messages(broker, name)) == 10
