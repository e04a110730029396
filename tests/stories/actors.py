"""Actors: lives that a story starts elsewhere, in processes that can be killed (in memory: in threads).

A story gives an actor a part, an `async def` that gets its `Stage`, and the two speak over a pipe: no waiting until
something has probably happened.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import pytest

from counterfoil.protocol.requests import Append
from tests.stories.recipient import Recipient
from tests.support import PATIENCE_S, Awaited, Colour, Life, Store, in_thread
from tests.torture.processes import Crew, Worker

# One server process imports everything once; an actor is then a fork of it and costs milliseconds.
PRELOADED = [
    "tests.torture.preload",
    "pytest",
    "tests.support",
    "tests.stories.test_kills",
    "tests.stories.test_two_processes",
    "tests.stories.test_engines",
]
multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)

NAMESPACE = "stories"
LOOK_EVERY_S = 0.05
# A life that was killed or stopped is found gone when it has not beaten three times, and a story need not wait for
# long. Only where no two lives go on at once: a machine may stand still for longer.
FOUND_GONE_SOON = pytest.mark.parametrize("beat_s", [0.1], ids=["soon"])

# Every ledger that outlives its process. One colour on PostgreSQL and NATS: a killed life is found gone there after
# three beats.
OUTLIVING = pytest.mark.parametrize(
    ("store", "colour"),
    [*product(["sqlite", "sqlite3"], ["blocking", "asyncio"]), *product(["postgres", "nats"], ["blocking"])],
    indirect=True,
)

Part = Callable[..., Awaitable[Any]]


@dataclass
class Death:
    """SIGKILL at one moment of one request (of an append: to a slot that ends so), the n-th time it comes."""

    moment: str
    request: type
    slot: str = ""
    count: int = 1

    def __call__(self, moment: str, run: str, request: Any) -> None:
        if moment != self.moment or not isinstance(request, self.request):
            return
        if isinstance(request, Append) and not request.draft.slot.endswith(self.slot):
            return
        self.count -= 1
        if self.count == 0:
            die()


def die() -> None:
    """Die here, as by the hand of the operating system."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Role:
    """What an actor is told when it starts."""

    colour: str
    target: Any
    log: Path
    part: Part
    args: tuple[Any, ...]
    owner: str | None
    dies: Death | None


class Stage:
    """What a part has: its life, the recipient, and a line to the story."""

    def __init__(self, life: Life, role: Role, connection: Connection) -> None:
        self.life = life
        self.recipient = Recipient(role.log)
        self.colour = Colour(role.colour)
        self._connection = connection

    def tell(self, message: Any) -> None:
        """Tell the story something."""
        self._connection.send(message)

    def wait(self) -> Any:
        """Wait, blocking, for the story's next word."""
        assert self._connection.poll(PATIENCE_S), "the story said nothing"
        return self._connection.recv()

    async def heard(self) -> Any:
        """Wait for the story's next word."""
        return await in_thread(self.wait)

    async def execute(self, run_id: str, body: Part) -> Any:
        """Run a durable body."""
        return await self.life.beside.execute(run_id, in_colour(self.colour, body))

    async def recover(self, body: Part) -> Any:
        """Resume the runs of a body."""
        return await self.life.beside.recover([in_colour(self.colour, body)])

    async def recover_at_last(self, body: Part) -> Any:
        """Resume the runs of a body once the life that carried them is found gone."""
        give_up = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up:
            if results := await self.recover(body):
                return results
            await asyncio.sleep(LOOK_EVERY_S)
        raise AssertionError("it is never found gone")


def in_colour(colour: Colour, body: Part) -> Callable[..., Any]:
    """Make a durable body of the colour's own kind; it keeps its name. The blocking one needs a thread of its own."""
    if colour.blocking:

        @wraps(body)
        def blocking(run: Any, *args: Any) -> Any:
            return asyncio.run(_awaited(body(Awaited(run), *args)))

        return blocking

    @wraps(body)
    async def awaited(run: Any, *args: Any) -> Any:
        return await body(Awaited(run), *args)

    return awaited


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _act(connection: Connection, role: Role) -> None:
    connection.send(asyncio.run(_played(connection, role)))


async def _played(connection: Connection, role: Role) -> tuple[str, Any]:
    try:
        async with Colour(role.colour).life(role.target, namespace=NAMESPACE, owner=role.owner) as life:
            life.watch(role.dies)
            return "returned", await role.part(Stage(life, role, connection), *role.args)
    except Exception as error:
        return "raised", error


class Actor:
    """An actor as the story sees it."""

    def __init__(self, connection: Connection, worker: Worker | None) -> None:
        self._connection = connection
        self.worker = worker

    def says(self) -> Any:
        """Wait for what the actor tells next."""
        assert self._connection.poll(PATIENCE_S), "the actor said nothing"
        return self._connection.recv()

    def hears(self, message: Any = "go on") -> None:
        """Tell the actor something."""
        self._connection.send(message)

    def result(self) -> Any:
        """Wait for its end; what its part raised is raised here."""
        how, value = self.says()
        if self.worker is not None:
            assert self.worker.ended(PATIENCE_S)
        if how == "raised":
            raise value
        assert how == "returned", value
        return value

    def signal(self, number: int) -> None:
        """Send its process a signal."""
        assert self.worker is not None
        self.worker.signal(number)

    def died(self) -> None:
        """Wait until its process is dead by SIGKILL."""
        assert self.worker is not None
        assert self.worker.ended(PATIENCE_S), "it lives"
        assert self.worker.process.exitcode == -signal.SIGKILL, self.says()


class Troupe:
    """The actors of one story. Leaving the block kills the processes that are left."""

    def __init__(self, store: Store, recipient: Recipient, colour: Colour) -> None:
        self._store = store
        self._recipient = recipient
        self._colour = colour
        self._crew = Crew()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._crew.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._crew.__exit__(None, None, None)
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def start(
        self,
        part: Part,
        *args: Any,
        dies: Death | None = None,
        owner: str | None = None,
        colour: str | None = None,
    ) -> Actor:
        """Start an actor: a process, or for the ledger in memory a thread."""
        name = colour or self._colour.name
        role = Role(name, self._store.target, self._recipient.path, part, args, owner=owner, dies=dies)
        if self._store.kind != "memory":
            worker = self._crew.start(_act, role)
            return Actor(worker.connection, worker)
        ours, theirs = multiprocessing.Pipe()
        thread = threading.Thread(target=_act, args=(theirs, role), daemon=True, name="actor")
        self._threads.append(thread)
        thread.start()
        return Actor(ours, None)

    def plays(self, part: Part, *args: Any, **more: Any) -> Any:
        """Let an actor play its part to the end, and return what it returned."""
        return self.start(part, *args, **more).result()

    def dies(self, part: Part, *args: Any, **more: Any) -> None:
        """Let an actor play its part until it is killed."""
        self.start(part, *args, **more).died()
