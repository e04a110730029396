"""SIGKILL at every request of every flow, before and after it; another process then finishes what was begun."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from counterfoil import AsyncRuntime, Runtime
from tests.torture.arena import Arena, Site, site
from tests.torture.processes import Crew, Worker
from tests.torture.programs import Journal, Silent, carry, carry_async
from tests.torture.scenarios import MAIN, SCENARIOS

AT_ONCE: Final = 4
PATIENCE_S: Final = 120.0
COLOURS: Final = ("blocking", "asyncio")


@dataclass(frozen=True)
class Point:
    """One scenario, in one colour, killed at the n-th event (two for each request); 0: not killed."""

    scenario: str
    colour: str
    n: int

    @property
    def run(self) -> str:
        """The run that it takes place in."""
        return f"{self.scenario}-{self.colour}-{self.n}"


class Trap:
    """Kills this process at the n-th event."""

    def __init__(self, n: int) -> None:
        self._left = n

    def __call__(self, moment: str, run: str, request: Any) -> None:
        """Count one event."""
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(PATIENCE_S)


def victim(connection: Connection, place: Site, point: Point) -> None:
    """Carry out a scenario until the trap closes; says `clean` if it did not."""
    journal = Journal(place.told)
    body = partial(SCENARIOS[point.scenario], place.client, point.run)
    if point.colour == "blocking":
        with Runtime(place.url) as runtime:
            runtime._driver.watch = Trap(point.n)
            carry(runtime, point.run, body, journal=journal)
    else:
        asyncio.run(_victim_async(place, point, journal))
    connection.send(("clean",))


async def _victim_async(place: Site, point: Point, journal: Journal) -> None:
    async with AsyncRuntime(place.url) as runtime:
        runtime._driver.watch = Trap(point.n)
        await carry_async(
            runtime, point.run, partial(SCENARIOS[point.scenario], place.client, point.run), journal=journal
        )


def finisher(connection: Connection, place: Site, point: Point) -> None:
    """Finish a scenario and replay it; says what both came to."""
    journal = Journal(place.told)
    results = []
    body = partial(SCENARIOS[point.scenario], place.client, point.run)
    for told in (journal, Silent()):
        with Runtime(place.url) as runtime:
            results.append(carry(runtime, point.run, body, journal=told))
    connection.send(("finished", *results))


class Line:
    """Goes through the points of one scenario in one colour, a few at once, until one is clean."""

    def __init__(self, arena: Arena, crew: Crew, place: Site, *, scenario: str, colour: str) -> None:
        self._arena = arena
        self._crew = crew
        self._place = place
        self._scenario = scenario
        self._colour = colour
        self._going: dict[Connection, tuple[Point, Worker]] = {}
        self._next = 1
        self._clean = False

    def walk(self) -> int:
        """Go through all points; return how many there are."""
        began = time.monotonic()
        while self._going or not self._clean:
            while not self._clean and len(self._going) < AT_ONCE:
                point = Point(self._scenario, self._colour, self._next)
                self._next += 1
                self._begin(victim, point)
            for ready in wait(list(self._going), timeout=1.0):
                assert isinstance(ready, Connection)
                self._ended(ready)
            if time.monotonic() - began > PATIENCE_S:
                self._arena.problem(f"no progress at {[point for point, _ in self._going.values()]}")
                break
        return self._next - 1

    def _begin(self, target: Any, point: Point) -> None:
        worker = self._crew.start(target, self._place, point)
        self._going[worker.connection] = (point, worker)

    def _ended(self, ready: Connection) -> None:
        point, worker = self._going.pop(ready)
        message = worker.receive(PATIENCE_S)
        self._crew.dismiss(worker)
        if message is None and worker.process.exitcode == -signal.SIGKILL:
            self._arena.counts.kills += 1
            self._begin(finisher, point)
        elif message is None or message[0] == "broke":
            text = "ended without a word" if message is None else message[1]
            self._arena.problem(f"{self._place.engine}, {point.run}: {text}")
            self._clean = True
        elif message[0] == "clean":
            self._clean = True
            self._begin(finisher, point)
        elif message[1] != message[2]:
            text = f"finished with {message[1]}, replayed with {message[2]}"
            self._arena.problem(f"{self._place.engine}, {point.run}: {text}")


def campaign(
    arena: Arena,
    *,
    scenarios: Sequence[str] | None = None,
    engines: Sequence[str] = ("apsw", "sqlite3"),
) -> None:
    """Walk all points of the main scenario in both colours and engines, and of the others as far as time goes."""
    with Crew() as crew:
        places = [site(arena, crew, engine) for engine in engines]
        lines = [(MAIN, colour, place) for place in places for colour in COLOURS]
        names = [name for name in SCENARIOS if name != MAIN]
        others = [(name, colour, place) for name in names for colour in COLOURS for place in places]
        if arena.seconds < PATIENCE_S:
            # Each scenario has its turn once, before any comes in its other colour or on the other engine.
            arena.random.shuffle(others)
            turn = {line: sum(other[0] == line[0] for other in others[:count]) for count, line in enumerate(others)}
            others.sort(key=lambda line: turn[line])
        if scenarios is not None:
            lines, others = [], [line for line in lines + others if line[0] in scenarios]
        points = walked = 0
        skipped: list[str] = []
        for name, colour, place in lines + others:
            if walked >= len(lines) and scenarios is None and arena.left_s == 0:
                skipped.append(f"{name} {colour} {place.engine}")
                continue
            points += Line(arena, crew, place, scenario=name, colour=colour).walk()
            walked += 1
            arena.progress(f"{points} points of {walked} flows")
    for place in places:
        arena.counts.add(place.judge())
    arena.say(f"{points} points in {walked} of {walked + len(skipped)} (flow, colour, engine)")


__all__ = ["campaign"]
