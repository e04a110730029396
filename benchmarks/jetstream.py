"""Events and the ledger on NATS JetStream beside `js.publish` of nats-py, on one server, with the same syncing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import nats

from benchmarks import ours
from benchmarks.measure import Contender, Opened, Slice
from benchmarks.tables import raced
from counterfoil import Accepted, AsyncBroker, Broker, Budget, Events, Grant
from tests.servers.finding import Missing
from tests.servers.nats import NatsCluster

MANY = 256
CALLERS = 64
SUBJECT = "orders.eu.placed"
PAYLOAD = b'{"order":"order-42","cents":1250,"currency":"eur"}'
# About what a record of an effect is on the wire.
RECORD = b"x" * 200
SETTLED = {"Nats-Expected-Last-Subject-Sequence": "0"}


def parts() -> dict[str, Callable[..., dict[str, Any]]]:
    """The parts, by title."""
    return {
        "jetstream events, one in flight": served(alone),
        f"jetstream events, {MANY} in flight": served(many),
        "jetstream events, one in flight, each synced": served(alone, sync_always=True),
        f"jetstream events, {MANY} in flight, each synced": served(many, sync_always=True),
        "jetstream ledger, one caller, each synced": served(recorded_alone, sync_always=True),
        f"jetstream ledger, {CALLERS} callers, each synced": served(recorded, sync_always=True),
        f"jetstream ledger, {CALLERS} callers": served(recorded),
    }


def served(part: Callable[..., dict[str, Any]], *, sync_always: bool = False) -> Callable[..., dict[str, Any]]:
    """A part that has a server of its own, `part(cluster, folder, hurried=…)`; without one here it says so."""

    def alone_(folder: str, *, hurried: bool) -> dict[str, Any]:
        try:
            with NatsCluster(sync_always=sync_always) as cluster:
                asyncio.run(_streams(cluster.url))
                return part(cluster, folder, hurried=hurried)
        except Missing as error:
            print(f"  did not run: {error}")
            return {}

    return alone_


async def _streams(url: str) -> None:
    async with await nats.connect(url) as client:
        stream = client.jetstream()
        await stream.add_stream(name="orders", subjects=["orders.>"])
        await stream.add_stream(name="raw", subjects=["raw.>"])


# --- what it is compared with


def raw(url: str, callers: int, *, publishes: int = 1, slots: bool = False) -> Opened:
    """`js.publish`, by so many callers.

    Args:
        url: the server's address.
        callers: how many publish at once.
        publishes: for each that is counted, one after the other.
        slots: as the ledger must: a subject for each, on which nothing may be yet.
    """

    @contextmanager
    def opened(_folder: str) -> Iterator[Slice]:
        numbers = count()
        with asyncio.Runner() as runner:
            client = runner.run(nats.connect(url))
            stream = client.jetstream()

            async def caller(each: int) -> None:
                for _ in range(each * publishes):
                    if slots:
                        subject = f"raw.{callers}.{publishes}.{next(numbers)}"
                        await stream.publish(subject, RECORD, stream="raw", headers=dict(SETTLED))
                    else:
                        await stream.publish(SUBJECT, PAYLOAD, stream="orders")

            async def together(effects: int) -> None:
                await asyncio.gather(*(caller(effects // callers) for _ in range(callers)))

            yield lambda effects: runner.run(together(effects))
            runner.run(client.close())

    return opened


# --- ours


def _grants() -> tuple[Grant, ...]:
    return (Grant("events", operations=("publish",)),)


def performed(url: str, callers: int) -> Opened:
    """Immediate operations of that many asyncio callers in one activation."""

    @contextmanager
    def opened(_folder: str) -> Iterator[Slice]:
        with asyncio.Runner() as runner, Events(url, stream="orders") as events:
            broker = AsyncBroker(concurrency=callers)

            async def caller(activation: Any, effects: int) -> None:
                for _ in range(effects):
                    outcome = await activation.perform(events.publish(SUBJECT, PAYLOAD))
                    assert isinstance(outcome, Accepted), outcome

            async def together(effects: int) -> None:
                async with broker.activation(grants=_grants(), budget=Budget()) as activation:
                    await asyncio.gather(*(caller(activation, effects // callers) for _ in range(callers)))

            yield lambda effects: runner.run(together(effects))

    return opened


def recipient(url: str, callers: int) -> Opened:
    """The same by the recipient's own operations, with no activation around them."""

    @contextmanager
    def opened(_folder: str) -> Iterator[Slice]:
        numbers = count()
        with asyncio.Runner() as runner, Events(url, stream="orders") as events:

            async def caller(effects: int) -> None:
                for _ in range(effects):
                    outcome = await events.publish(SUBJECT, PAYLOAD).run_async(Context(f"{callers}-{next(numbers)}"))
                    assert isinstance(outcome, Accepted), outcome

            async def together(effects: int) -> None:
                await asyncio.gather(*(caller(effects // callers) for _ in range(callers)))

            yield lambda effects: runner.run(together(effects))

    return opened


@dataclass
class Context:
    """What an operation sees of an effect."""

    key: str
    cancelled: bool = False
    deadline: float | None = None


def performed_blocking(url: str) -> Opened:
    """Immediate operations of one blocking caller."""

    @contextmanager
    def opened(_folder: str) -> Iterator[Slice]:
        with Events(url, stream="orders") as events:
            broker = Broker()

            def slice_(effects: int) -> None:
                with broker.activation(grants=_grants(), budget=Budget()) as activation:
                    for _ in range(effects):
                        outcome: Any = activation.perform(events.publish(SUBJECT, PAYLOAD))
                        assert isinstance(outcome, Accepted), outcome

            yield slice_

    return opened


# --- the parts


def alone(cluster: NatsCluster, folder: str, *, hurried: bool) -> dict[str, Any]:
    """One event after the other."""
    contenders = [
        Contender("js.publish", raw(cluster.url, 1)),
        Contender("the recipient, asyncio", recipient(cluster.url, 1)),
        Contender("in an activation, asyncio", performed(cluster.url, 1)),
        Contender("in an activation, blocking", performed_blocking(cluster.url)),
    ]
    return _raced(contenders, folder, aims={"the recipient, asyncio": 0.8}, hurried=hurried)


def many(cluster: NatsCluster, folder: str, *, hurried: bool) -> dict[str, Any]:
    """As many events in flight as callers."""
    contenders = [
        Contender("js.publish", raw(cluster.url, MANY), MANY),
        Contender("the recipient, asyncio", recipient(cluster.url, MANY), MANY),
        Contender("in an activation, asyncio", performed(cluster.url, MANY), MANY),
    ]
    return _raced(contenders, folder, aims={"the recipient, asyncio": 0.8}, hurried=hurried)


def recorded_alone(cluster: NatsCluster, folder: str, *, hurried: bool) -> dict[str, Any]:
    """One caller's effects, of two records each."""
    contenders = [
        Contender("two js.publish per effect", raw(cluster.url, 1, publishes=2, slots=True)),
        Contender("counterfoil, blocking", ours.blocking(url=_ledger(cluster, "blocking"))),
        Contender("counterfoil, asyncio", ours.looped(1, url=_ledger(cluster, "looped"))),
    ]
    return _raced(contenders, folder, aims={"counterfoil, blocking": 0.7}, hurried=hurried)


def recorded(cluster: NatsCluster, folder: str, *, hurried: bool) -> dict[str, Any]:
    """Many callers' effects, of two records each."""
    one, own = f"counterfoil, {CALLERS} callers, one run", f"counterfoil, {CALLERS} callers, a run for each"
    contenders = [
        Contender("two js.publish per effect", raw(cluster.url, CALLERS, publishes=2, slots=True), CALLERS),
        Contender(one, ours.looped(CALLERS, url=_ledger(cluster, "one")), CALLERS),
        Contender(own, ours.looped(CALLERS, url=_ledger(cluster, "own"), run_size=1000), CALLERS),
    ]
    return _raced(contenders, folder, aims={one: 0.7, own: 0.7}, hurried=hurried)


def _ledger(cluster: NatsCluster, stream: str) -> str:
    monitor = f"http://127.0.0.1:{cluster.nodes[0].monitor}"
    return f"{cluster.url}/{stream}?monitor={monitor}&allow_lazy_sync=1"


def _raced(contenders: list[Contender], folder: str, *, aims: dict[str, float], hurried: bool) -> dict[str, Any]:
    rounds, slice_s = (4, 0.15) if hurried else (16, 0.4)
    return raced(contenders, folder, base="js.publish", aims=aims, rounds=rounds, slice_s=slice_s)
