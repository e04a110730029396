"""A process with threads forks at random moments, with effects under way: the child is refused, the parent unharmed."""

from __future__ import annotations

import asyncio
import os
import random
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final

from counterfoil import UNASKABLE, AsyncRuntime, EffectUnresolved, ForkedLedger, Runtime
from tests.torture.arena import Arena, Site, site
from tests.torture.bodies import finding, making
from tests.torture.processes import Crew
from tests.torture.programs import Body, Journal, carry, carry_async, effect, finish, step

PATIENCE_S: Final = 90.0
THREADS: Final = 4
RUN_S: Final = 0.05
FORKS: Final = 8


def body(place: Site, run: str) -> Body:
    """Do a little of everything that writes."""
    yield step("total", lambda: [run])
    yield effect("charge", run=making(place.client, land_s=RUN_S), reconcile=finding(place.client))
    yield effect("blind", run=making(place.client, land_s=RUN_S / 2), reconcile=UNASKABLE)
    yield finish([run])


def parent(connection: Connection, place: Site, colour: str, seed: int) -> None:
    """Work in several runs at once and fork meanwhile; says how many children were refused, and what was not right."""
    warnings.simplefilter("ignore", DeprecationWarning)
    while (names := connection.recv()) is not None:
        chance = random.Random(f"{seed} {names}")
        forked = _threads(place, names, chance) if colour == "blocking" else asyncio.run(_loop(place, names, chance))
        connection.send(("forked", forked))


def _threads(place: Site, names: list[str], chance: random.Random) -> list[str]:
    journal = Journal(place.told)
    with Runtime(place.url) as runtime, ThreadPoolExecutor(THREADS) as threads:
        doing = [threads.submit(carry, runtime, run, partial(body, place, run), journal=journal) for run in names]
        found = []
        for _ in range(FORKS):
            time.sleep(chance.uniform(0, 0.03))
            found.append(_fork(runtime, place.url))
        for done in doing:
            done.result()
    return found


async def _loop(place: Site, names: list[str], chance: random.Random) -> list[str]:
    journal = Journal(place.told)
    found = []
    async with AsyncRuntime(place.url) as runtime, asyncio.TaskGroup() as group:
        for run in names:
            group.create_task(carry_async(runtime, run, partial(body, place, run), journal=journal))
        for _ in range(FORKS):
            await asyncio.sleep(chance.uniform(0, 0.03))
            found.append(_fork(runtime, place.url))
            await asyncio.sleep(0)
    return found


def _fork(runtime: Any, url: str) -> str:
    """Fork, use the runtime in the child, and return what the child found."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(theirs, _child(runtime).encode()[:2000])
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as said:
        found = said.read().decode()
    os.waitpid(child, 0)
    return found


def _child(runtime: Any) -> str:
    try:
        runtime.run("of-the-child")
    except ForkedLedger:
        pass
    except BaseException as error:
        return f"run: {error!r}"
    else:
        return "run: not refused"
    try:
        runtime.ledger.read("", "ledger")
    except ForkedLedger:
        return "refused"
    except BaseException as error:
        return f"ledger: {error!r}"
    return "ledger: not refused"


def watcher(connection: Connection, place: Site) -> None:
    """Ask for what a parent is performing, with no patience: after a fork it must not be taken for gone."""

    def never(_: Any) -> str:
        raise AssertionError("it was under way in another process")

    with Runtime(place.url) as runtime:
        while (names := connection.recv()) is not None:
            said: list[str] = []
            for run in names:
                if not runtime.effects(run_id=run):
                    continue  # asking now would begin it
                try:
                    with runtime.run(run) as handle:
                        handle.effect("charge", run=never, reconcile=finding(place.client), wait=0.0)
                    said.append("accepted")
                except EffectUnresolved as error:
                    said.append(error.reason)
            connection.send(("said", said))


def campaign(arena: Arena) -> None:
    """Fork in both colours and on both engines while the time lasts, with another process looking on."""
    rounds = forks = watched = 0
    with Crew() as crew:
        places = [site(arena, crew, engine) for engine in ("apsw", "sqlite3")]
        cells = [
            (place, colour, crew.start(parent, place, colour, arena.seed), crew.start(watcher, place))
            for place in places
            for colour in ("blocking", "asyncio")
        ]
        arena.random.shuffle(cells)
        while rounds < 2 or arena.left_s > 1.0:
            place, colour, worker, other = cells[rounds % len(cells)]
            rounds += 1
            names = [f"{colour}-{rounds}-{count}" for count in range(THREADS)]
            worker.send(names)
            give_up = time.monotonic() + PATIENCE_S
            while not worker.connection.poll(0.01) and time.monotonic() < give_up:
                other.send(names)
                reply = other.receive(PATIENCE_S)
                if reply is None or reply[0] != "said" or set(reply[1]) - {"accepted", "in-flight"}:
                    arena.problem(f"{place.engine}, {names}: another process got {reply}")
                else:
                    watched += reply[1].count("in-flight")
            reply = worker.receive(1.0)
            if reply is None or reply[0] != "forked" or set(reply[1]) != {"refused"}:
                arena.problem(f"{place.engine}, {names}: {reply}")
                break
            forks += len(reply[1])
            arena.progress(f"{forks} forks")
        for _, _, worker, other in cells:
            worker.send(None)
            other.send(None)
            worker.ended(PATIENCE_S)
            other.ended(PATIENCE_S)
    for place in places:
        counts = place.judge()
        asked = [line for line in place.log() if line["what"] == "asked"]
        if asked or counts.uncertain:
            counts.problems.append(f"{place.folder}: asked {len(asked)} times, and no parent had died")
        arena.counts.add(counts)
    arena.say(f"{forks} forks, all children refused; others said in-flight {watched} times and never asked")


__all__ = ["campaign"]
