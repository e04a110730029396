"""Contracts in use: an operation as an effect of a run, and now, against a local recipient, in both colours."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from counterfoil import HTTP, AsyncBroker, AsyncRuntime, Broker, Grant, Runtime, Secret
from counterfoil.testing.peers import FaultPeer
from tests.contracts.files import contract
from tests.contracts.servers import Server

SECRET = "s3cr3t-t0k3n"


class World:
    """A recipient under its contract.

    Args:
        name: which contract.
        server: who answers.
        peer: where.
        below: the path of the base URL.
        auth: how it is spoken to: arguments of `HTTP`.
    """

    def __init__(self, name: str, server: Server, peer: FaultPeer, *, below: str, **auth: Any) -> None:
        self.server = server
        self.peer = peer
        self.contract = contract(name)
        self.http = HTTP(name, base_url=f"{peer.url}{below}", contract=self.contract, timeout_s=10.0, **auth)
        self.grant = Grant(name, operations=("POST",), targets=(f"{peer.url}/",), allow_addresses=("127.0.0.1/32",))

    @property
    def sends(self) -> int:
        return sum(request.method == "POST" for request in self.peer.requests)

    def now(self, operation: Any, colour: str) -> Any:
        """Perform an operation in an activation."""
        if colour == "sync":
            with Broker().activation(grants=[self.grant]) as activation:
                return activation.perform(operation)

        async def perform() -> Any:
            async with AsyncBroker() as broker, broker.activation(grants=[self.grant]) as activation:
                return await activation.perform(operation)

        return asyncio.run(perform())

    def once(self, url: str, name: str, operation: Any, colour: str, **more: Any) -> Any:
        """Perform an operation as an effect, in a life of its own."""
        if colour == "sync":
            with Runtime(url) as runtime, runtime.run("order-42") as run:
                return run.effect(name, operation, **more)

        async def effect() -> Any:
            async with AsyncRuntime(url) as runtime, runtime.run("order-42") as run:
                return await run.effect(name, operation, **more)

        return asyncio.run(effect())


@contextmanager
def world(name: str, server: Server, *, below: str, **auth: Any) -> Iterator[World]:
    with FaultPeer(server) as peer:
        yield World(name, server, peer, below=below, **auth)


def token() -> Secret:
    return Secret(lambda: SECRET)
