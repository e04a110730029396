"""Several processes work on one SQLite file and are killed at random moments, by the hundred."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Final

from counterfoil import AsyncRuntime, Runtime
from tests.torture import bodies
from tests.torture.arena import Arena, Site, site
from tests.torture.processes import Crew, Worker
from tests.torture.programs import Body, Journal, carry, carry_async

COLOURS: Final = ("blocking", "asyncio")
ORDERS_OPEN: Final = 6
BATCH: Final = 3
DRAIN_S: Final = 120.0


@dataclass(frozen=True)
class Job:
    """Carry one order (`order`, `steady`), or deliver what it waits for (`post`)."""

    what: str
    run: str


def work(connection: Connection, place: Site, colour: str) -> None:
    """Do batches of jobs, all jobs of a batch at once, until there are no more."""
    if colour == "asyncio":
        asyncio.run(_work_async(connection, place))
        return
    journal = Journal(place.told)
    with Runtime(place.url) as runtime, ThreadPoolExecutor(BATCH) as threads:
        while (batch := connection.recv()) is not None:
            doing = [
                threads.submit(carry, runtime, job.run, partial(_body, place, job), journal=journal) for job in batch
            ]
            for done in doing:
                done.result()
            connection.send(("done",))


async def _work_async(connection: Connection, place: Site) -> None:
    journal = Journal(place.told)
    async with AsyncRuntime(place.url) as runtime:
        while (batch := await asyncio.to_thread(connection.recv)) is not None:
            async with asyncio.TaskGroup() as group:
                for job in batch:
                    group.create_task(carry_async(runtime, job.run, partial(_body, place, job), journal=journal))
            connection.send(("done",))


def _body(place: Site, job: Job) -> Body:
    return bodies.BODIES[job.what](place.client, job.run)


@dataclass
class Bench:
    """One seat for a worker: who sits there, and what it has been given."""

    colour: str
    posts: bool
    worker: Worker
    batch: list[Job] = field(default_factory=list)


class Shop:
    """Orders on one site, worked off by workers that are killed and replaced."""

    def __init__(self, arena: Arena, crew: Crew, place: Site, *, workers: int, what: str = "order") -> None:
        self._arena = arena
        self._crew = crew
        self._place = place
        self._what = what
        self._orders: deque[Job] = deque()
        self._posts: deque[Job] = deque()
        self._made = 0
        self.kills = 0
        self._benches = [self._bench(COLOURS[count % 2], posts=count == 0) for count in range(workers)]

    @property
    def busy(self) -> bool:
        """Whether something is still to be done."""
        return bool(self._orders or self._posts or any(bench.batch for bench in self._benches))

    def take_orders(self) -> None:
        """Let new orders come in; two workers may get the same one."""
        chance = self._arena.random
        while len(self._orders) < ORDERS_OPEN:
            self._made += 1
            run = f"order-{self._made}"
            copies = chance.choice((1, 1, 2))
            self._orders.extend([Job(self._what, run)] * copies)
            self._posts.append(Job("post", run))

    def hand_out(self) -> None:
        """Give work to whoever has none, and see who is done."""
        for bench in self._benches:
            if not bench.batch:
                queue = self._posts if bench.posts else self._orders
                bench.batch = [queue.popleft() for _ in range(min(BATCH, len(queue)))]
                if bench.batch and not bench.worker.send(bench.batch):
                    self._replace(bench)
        waiting = {bench.worker.connection: bench for bench in self._benches}
        for ready in wait(list(waiting), timeout=0.02):
            assert isinstance(ready, Connection)
            bench = waiting[ready]
            try:
                message = ready.recv()
            except (EOFError, OSError):
                self._arena.problem(f"a worker died by itself during {bench.batch}")
                self._replace(bench)
                continue
            if message[0] == "done":
                bench.batch = []
            else:
                self._arena.problem(f"{bench.batch} broke:\n{message[1]}")
                bench.batch = []
                self._replace(bench)

    def kill(self) -> None:
        """Kill somebody, and put somebody else there with the same work."""
        bench = self._arena.random.choice(self._benches)
        self._replace(bench)
        self.kills += 1

    def close(self) -> None:
        """Let the workers go home."""
        for bench in self._benches:
            bench.worker.send(None)
            if not bench.worker.ended(DRAIN_S):
                self._arena.problem("a worker did not come to its end")

    def _bench(self, colour: str, *, posts: bool) -> Bench:
        return Bench(colour, posts, self._crew.start(work, self._place, colour))

    def _replace(self, bench: Bench) -> None:
        self._crew.kill(bench.worker)
        queue = self._posts if bench.posts else self._orders
        queue.extendleft(reversed(bench.batch))
        bench.batch = []
        bench.worker = self._crew.start(work, self._place, bench.colour)


def campaign(arena: Arena, *, engines: tuple[str, ...] = ("apsw", "sqlite3"), workers: int = 4) -> None:
    """Kill at random moments while the time lasts, then let all orders come to their end and judge."""
    with Crew() as crew:
        places = [site(arena, crew, engine) for engine in engines]
        shops = [Shop(arena, crew, place, workers=workers) for place in places]
        mean_s = 0.2 * len(shops)
        # The time counts from when there is somebody to be killed, and is too short for nobody.
        end = arena.share(0.8)
        due = [time.monotonic() + 0.5] * len(shops)
        while time.monotonic() < end or not all(shop.kills for shop in shops):
            for count, shop in enumerate(shops):
                shop.take_orders()
                shop.hand_out()
                if time.monotonic() >= due[count]:
                    shop.kill()
                    due[count] = time.monotonic() + arena.random.expovariate(1 / mean_s)
            arena.progress(f"{sum(shop.kills for shop in shops)} kills")
        give_up = time.monotonic() + DRAIN_S
        while any(shop.busy for shop in shops):
            for shop in shops:
                shop.hand_out()
            if time.monotonic() > give_up:
                arena.problem(f"no progress: {[bench.batch for shop in shops for bench in shop._benches]}")
                break
        for shop in shops:
            shop.close()
    for place, shop in zip(places, shops, strict=True):
        counts = place.judge()
        counts.kills = shop.kills
        arena.counts.add(counts)
        arena.say(f"{place.engine}: {counts}")


__all__ = ["campaign"]
