"""The server is stopped at once and started again, by the dozen, under eight writers: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from multiprocessing.connection import Connection
from typing import Any, Final

from counterfoil import AsyncRuntime, CounterfoilError, EffectUnresolved, LedgerUnavailable, OwnerRetired, Runtime
from tests.torture.arena import Arena
from tests.torture.bodies import finding, making
from tests.torture.postgres.place import (
    Errors,
    PostgresSite,
    Settlements,
    cluster_of,
    postgres_site,
    until_told,
)
from tests.torture.processes import Crew, Worker
from tests.torture.programs import PAUSE_S, Journal, effect

PATIENCE_S: Final = 120.0
CONCURRENT: Final = 4


def writer(connection: Connection, place: PostgresSite, number: int) -> None:
    """Perform one effect after another, in the colour of its number, until told to end; says what it met."""
    (_blocking if number % 2 else _on_a_loop)(connection, place, number)


def _named(number: int, count: int) -> str:
    """Every third run is shared with a neighbour of the other colour."""
    return f"shared-{number // 2}-{count}" if count % 3 == 0 else f"own-{number}-{count}"


def _again(error: CounterfoilError, errors: Errors, began: float) -> float:
    """Note an error; return how long to wait before the same is asked again."""
    errors.note(error)
    hopeful = isinstance(error, (EffectUnresolved, LedgerUnavailable, OwnerRetired))
    if not hopeful or time.monotonic() - began > PATIENCE_S:
        raise error
    return max(0.001, getattr(error, "retry_after_s", None) or PAUSE_S)


def _blocking(connection: Connection, place: PostgresSite, number: int) -> None:
    journal, errors, settlements, count = Journal(place.told), Errors(), Settlements(), 0
    with Runtime(place.url) as runtime:
        runtime._driver.watch = settlements
        connection.send("ready")
        while not connection.poll():
            run, count, began = _named(number, count), count + 1, time.monotonic()
            while True:
                try:
                    with runtime.run(run) as handle:
                        outcome = handle.effect("charge", run=making(place.client), reconcile=finding(place.client))
                    journal.tell(run, effect("charge"), outcome)
                    break
                except CounterfoilError as error:
                    time.sleep(_again(error, errors, began))
    connection.send((dict(errors), settlements.settled))


def _on_a_loop(connection: Connection, place: PostgresSite, number: int) -> None:
    journal, errors, settlements = Journal(place.told), Errors(), Settlements()
    ended = asyncio.run(_writing(connection, place, number, journal=journal, errors=errors, settlements=settlements))
    assert ended
    connection.send((dict(errors), settlements.settled))


async def _writing(connection: Connection, place: PostgresSite, number: int, **kept: Any) -> bool:
    numbers = iter(range(1 << 30))
    async with AsyncRuntime(place.url) as runtime:
        runtime._driver.watch = kept["settlements"]
        connection.send("ready")

        async def line() -> None:
            while not connection.poll():
                run, began = _named(number, next(numbers)), time.monotonic()
                while True:
                    try:
                        async with runtime.run(run) as handle:
                            outcome = await handle.effect(
                                "charge", run=making(place.client), reconcile=finding(place.client)
                            )
                        kept["journal"].tell(run, effect("charge"), outcome)
                        break
                    except CounterfoilError as error:
                        await asyncio.sleep(_again(error, kept["errors"], began))

        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENT):
                group.create_task(line())
    return True


def writing(crew: Crew, place: PostgresSite, count: int) -> list[Worker]:
    """Start writers; return them when each has opened the ledger."""
    workers = [crew.start(writer, place, number) for number in range(count)]
    for worker in workers:
        if (said := worker.receive(PATIENCE_S)) != "ready":
            raise RuntimeError(f"a writer did not start: {said}")
    return workers


def dismissed(arena: Arena, workers: list[Worker]) -> tuple[Counter[str], int]:
    """Let writers finish what they have begun; return what they met."""
    met: Counter[str] = Counter()
    settled = 0
    for worker in workers:
        worker.send("end")
    for worker in workers:
        said = worker.receive(PATIENCE_S)
        if not isinstance(said, tuple) or said[0] == "broke":
            arena.problem(f"a writer did not come to its end: {said}")
            continue
        met.update(said[0])
        settled += said[1]
        worker.ended(PATIENCE_S)
    return met, settled


def campaign(arena: Arena, *, restarts: int | None = None, writers: int = 8) -> None:
    """Restart while the time lasts (or so many times), then let everything come to its end and judge."""
    end = arena.share(0.8)
    done = 0
    with cluster_of(arena, durable=True) as cluster, Crew() as crew:
        place = postgres_site(arena, crew, cluster)
        workers = writing(crew, place, writers)
        while done < restarts if restarts is not None else time.monotonic() < end:
            if not until_told(place, writers):
                arena.problem(f"no progress after {done} restarts")
                break
            time.sleep(arena.random.uniform(0, 0.3))
            cluster.stop(arena.random.choice(("immediate", "immediate", "immediate", "kill")))
            time.sleep(arena.random.choice((0, 0, 0.2, 1.0)))
            cluster.start()
            done += 1
            arena.progress(f"{done} restarts")
        met, settled = dismissed(arena, workers)
        counts = place.judge()
    counts.kills = done
    arena.counts.add(counts)
    arena.say(f"PostgreSQL {cluster.major}: {done} restarts under {writers} writers, {settled} unknown commits settled")
    for what, number in met.most_common():
        arena.say(f"    {number:5d} {what}")


__all__ = ["campaign"]
