"""What the tests of events share: a stream on a real server, the server's own view of it, and both colours."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import Any, Self

from nats import connect

from counterfoil import AsyncBroker, Broker, Events, Grant
from tests.support import PATIENCE_S, Colour, eventually, in_thread

GRANT = Grant("events", operations=("publish",))
_numbers = count(1)


@dataclass
class Stream:
    """A stream of one test, and what the server has in it.

    Attributes:
        url: the server.
        name: the stream's.
        prefix: the first word of its subjects.
    """

    url: str
    name: str
    prefix: str

    @staticmethod
    async def make(url: str, **settings: Any) -> Stream:
        """Make a stream with a name of its own."""
        number = next(_numbers)
        made = Stream(url, f"S{number}", f"s{number}")
        async with admin(url) as client:
            settings = {"num_replicas": 1, **settings}
            await client.jetstream().add_stream(name=made.name, subjects=[f"{made.prefix}.>"], **settings)
        return made

    def subject(self, rest: str = "a") -> str:
        """A subject of it."""
        return f"{self.prefix}.{rest}"

    async def messages(self) -> list[Any]:
        """All messages, as the server keeps them."""
        async with admin(self.url) as client:
            js = client.jetstream()
            last = (await js.stream_info(self.name)).state.last_seq
            return [await js.get_msg(self.name, seq=number) for number in range(1, last + 1)]

    async def update(self, **settings: Any) -> None:
        """Change its configuration."""
        async with admin(self.url) as client:
            reply = await client.request(f"$JS.API.STREAM.INFO.{self.name}", b"", timeout=5)
            config = {**json.loads(reply.data)["config"], **settings}
            told = await client.request(f"$JS.API.STREAM.UPDATE.{self.name}", json.dumps(config).encode(), timeout=5)
            assert "error" not in json.loads(told.data), told.data


@asynccontextmanager
async def admin(url: str, **options: Any) -> AsyncIterator[Any]:
    """A stock client of the server."""
    client = await connect(url, allow_reconnect=False, **options)
    try:
        yield client
    finally:
        await client.close()


def context(key: str, **more: Any) -> Any:
    """What a handler is told."""
    return SimpleNamespace(**{"key": key, "attempt": 1, "deadline": None, "cancelled": False, **more})


async def asked(colour: Colour, operation: Any, key: str) -> Any:
    """What an operation's look-up finds."""
    if colour.blocking:
        return await in_thread(lambda: operation.reconcile(context(key)))
    return await operation.reconcile_async(context(key))


class Brokered:
    """Performs events in an activation, in either colour."""

    def __init__(self, colour: Colour, **options: Any) -> None:
        self.colour = colour
        self.broker: Any = Broker(**options) if colour.blocking else AsyncBroker(**options)
        self.activation: Any = None

    async def __aenter__(self) -> Self:
        self.activation = self.broker.activation(grants=[GRANT])
        if self.colour.blocking:
            self.activation.__enter__()
        else:
            await self.activation.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        if self.colour.blocking:
            await in_thread(lambda: self.activation.__exit__(*error))
            await in_thread(self.broker.close)
        else:
            await self.activation.__aexit__(*error)
            await self.broker.close()

    async def perform(self, operation: Any, **options: Any) -> Any:
        """Perform it now."""
        if self.colour.blocking:
            return await in_thread(lambda: self.activation.perform(operation, **options))
        return await self.activation.perform(operation, **options)

    def begin(self, operation: Any, **options: Any) -> asyncio.Task[Any]:
        """Start a call; its outcome is the task's result."""
        return asyncio.ensure_future(self.perform(operation, **options))

    async def idle(self) -> None:
        """Wait until nothing is owned any more."""
        await eventually(lambda: self.broker.report().idle)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something holds that the server says."""
    give_up = time.monotonic() + PATIENCE_S
    while not await holds():
        assert time.monotonic() < give_up
        await asyncio.sleep(0.02)


def events(stream: Stream, url: str | None = None, **options: Any) -> Events:
    """A recipient for a stream, perhaps through a proxy."""
    return Events(url or stream.url, stream=stream.name, **options)


def through(port: int) -> str:
    """The address of a proxy."""
    return f"nats://127.0.0.1:{port}"


__all__ = ["GRANT", "Brokered", "Stream", "admin", "asked", "context", "events", "through", "until"]
