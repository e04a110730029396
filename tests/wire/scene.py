"""A broker, an HTTP recipient and a fault peer, the same for both colours: what a caller does is awaited in either."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from counterfoil import HTTP, AsyncBroker, AsyncRuntime, Broker, Grant, Runtime
from counterfoil.testing.peers import FaultPeer

LOOPBACK = ("127.0.0.0/8", "::1/128")
VERBS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


def grant(
    *targets: str, operations: Iterable[str] = VERBS, addresses: Iterable[str] = LOOPBACK, to: str = "http"
) -> Grant:
    """Allow everything at these origins."""
    return Grant(to, operations=tuple(operations), targets=targets, allow_addresses=tuple(addresses))


class Seat:
    """An activation that is awaited in both colours; blocking calls are made in threads."""

    def __init__(self, broker: Any, activation: Any) -> None:
        self.broker = broker
        self.activation = activation
        self.blocking = isinstance(broker, Broker)

    async def perform(self, operation: Any, **more: Any) -> Any:
        if self.blocking:
            return await asyncio.to_thread(self.activation.perform, operation, **more)
        return await self.activation.perform(operation, **more)

    async def revoke(self) -> None:
        if self.blocking:
            await asyncio.to_thread(self.activation.revoke)
        else:
            found = self.activation.revoke()
            if asyncio.iscoroutine(found):
                await found

    def report(self) -> Any:
        return self.broker.report()


class Scene:
    """Makes brokers of one colour.

    Args:
        colour: `blocking` or `asyncio`.
    """

    def __init__(self, colour: str) -> None:
        self.colour = colour

    def runtime(self, url: str) -> Any:
        return (Runtime if self.colour == "blocking" else AsyncRuntime)(url)

    def broker(self, runtime: Any = None, **options: Any) -> Any:
        return (Broker if self.colour == "blocking" else AsyncBroker)(runtime, **options)

    @asynccontextmanager
    async def entered(self, manager: Any) -> AsyncIterator[Any]:
        """Enter a context manager of either colour."""
        if hasattr(manager, "__aenter__"):
            async with manager as found:
                yield found
        else:
            found = await asyncio.to_thread(manager.__enter__)
            try:
                yield found
            finally:
                await asyncio.to_thread(manager.__exit__, None, None, None)

    @asynccontextmanager
    async def seat(self, *grants: Grant, broker: Any = None, **options: Any) -> AsyncIterator[Seat]:
        """Enter an activation, of a broker of its own if none is given."""
        if broker is not None:
            async with self.entered(broker.activation(grants=grants, **options)) as activation:
                yield Seat(broker, activation)
            return
        async with self.entered(self.broker()) as own, self.seat(*grants, broker=own, **options) as seat:
            yield seat

    async def told(self, peer: FaultPeer, method: str = "POST", *, http: HTTP | None = None, **more: Any) -> Any:
        """Perform one request against a peer, in an activation that allows it."""
        operation = (http or HTTP()).request(method, f"{peer.url}/charges", **more)
        async with self.seat(grant(f"{peer.url}/")) as seat:
            return await seat.perform(operation)
