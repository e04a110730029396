"""SIGSTOP at every request of every flow; another process takes over and finishes; then the first goes on.

Whatever the first does when it wakes, nothing is sent twice, and all callers are told the same.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

from counterfoil import AsyncRuntime, Runtime
from tests.torture.arena import Arena
from tests.torture.points import COLOURS, Point
from tests.torture.postgres.place import PostgresSite, cluster_of, persistent, postgres_site
from tests.torture.processes import Crew, Worker
from tests.torture.programs import Journal, Silent, carry, carry_async
from tests.torture.scenarios import MAIN, SCENARIOS

AT_ONCE: Final = 6
PATIENCE_S: Final = 120.0
BEAT_S: Final = 0.2
# Its body asks what was sent so far, and its owner may wake and send after that: then both are right.
MOVING: Final = "settled"


class Ice:
    """Stops this process at the n-th event."""

    def __init__(self, n: int) -> None:
        self._left = n

    def __call__(self, moment: str, run: str, request: Any) -> None:
        """Count one event."""
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGSTOP)


def victim(connection: Connection, place: PostgresSite, point: Point) -> None:
    """Carry out a scenario, and be stopped in the middle; says what it came to and whether it was stopped."""
    journal, ice = Journal(place.told), Ice(point.n)
    body = partial(SCENARIOS[point.scenario], place.client, point.run)
    if point.colour == "blocking":
        with Runtime(place.url) as runtime:
            runtime._driver.watch = ice
            result = carry(runtime, point.run, body, journal=journal, patience=persistent)
    else:
        result = asyncio.run(_victim_async(place, point, journal=journal, ice=ice))
    connection.send(("victim", result, ice._left <= 0))


async def _victim_async(place: PostgresSite, point: Point, *, journal: Journal, ice: Ice) -> Any:
    async with AsyncRuntime(place.url) as runtime:
        runtime._driver.watch = ice
        body = partial(SCENARIOS[point.scenario], place.client, point.run)
        return await carry_async(runtime, point.run, body, journal=journal, patience=persistent)


def finisher(connection: Connection, place: PostgresSite, point: Point) -> None:
    """Take over and finish; says what it came to, and again when told to replay."""
    body = partial(SCENARIOS[point.scenario], place.client, point.run)
    with Runtime(place.url) as runtime:
        connection.send(("finished", carry(runtime, point.run, body, journal=Journal(place.told), patience=persistent)))
    connection.recv()
    with Runtime(place.url) as runtime:
        connection.send(("replayed", carry(runtime, point.run, body, journal=Silent(), patience=persistent)))


class Freezing:
    """One point: who is stopped, who takes over, and what they said."""

    def __init__(self, point: Point, crew: Crew, place: PostgresSite) -> None:
        self.point = point
        self._crew = crew
        self._place = place
        self.victim = crew.start(victim, place, point)
        self.finisher: Worker | None = None
        self.said: list[Any] = []
        self.clean = False

    @property
    def connections(self) -> list[Connection]:
        """What may be heard."""
        return [worker.connection for worker in (self.victim, self.finisher) if worker is not None]

    def step(self, ready: Sequence[Any]) -> bool:
        """Go on as far as possible; True when it is over."""
        if self.finisher is None and _stopped(self.victim.pid):
            self.finisher = self._crew.start(finisher, self._place, self.point)
        if self.finisher is None and self.victim.connection in ready:
            # It ended before its point came.
            self.said.append(self.victim.receive(1.0))
            self.clean = True
            return True
        if self.finisher is not None and not self.said and self.finisher.connection in ready:
            self.said.append(self.finisher.receive(1.0))
            self.victim.signal(signal.SIGCONT)
        elif self.finisher is not None and len(self.said) == 1 and self.victim.connection in ready:
            self.said.append(self.victim.receive(1.0))
            self.finisher.send("replay")
        elif self.finisher is not None and len(self.said) == 2 and self.finisher.connection in ready:
            self.said.append(self.finisher.receive(1.0))
            return True
        return False

    def verdict(self) -> str | None:
        """Return what was wrong."""
        if any(said is None or said[0] == "broke" for said in self.said):
            return f"{self.point.run}: {self.said}"
        results = [said[1] for said in self.said]
        if self.point.scenario == MOVING:
            results = [result for result in results if result != ["nothing was sent"]]
        return None if all(result == results[0] for result in results[1:]) else f"{self.point.run}: {self.said}"

    def end(self) -> None:
        """End both."""
        for worker in (self.victim, self.finisher):
            if worker is not None:
                self._crew.kill(worker)


def _stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False


def walk(arena: Arena, crew: Crew, place: PostgresSite, *, scenario: str, colour: str) -> int:
    """Go through all points of one scenario in one colour, a few at once; return how many there are."""
    going: list[Freezing] = []
    n, clean, began = 1, False, time.monotonic()
    while going or not clean:
        while not clean and len(going) < AT_ONCE:
            going.append(Freezing(Point(scenario, colour, n), crew, place))
            n += 1
        ready = wait([connection for each in going for connection in each.connections], timeout=0.02)
        for each in [each for each in going if each.step(ready)]:
            going.remove(each)
            clean = clean or each.clean
            arena.counts.kills += not each.clean
            if (wrong := each.verdict()) is not None:
                arena.problem(wrong)
            each.end()
        if time.monotonic() - began > PATIENCE_S:
            arena.problem(f"no progress at {[(each.point, each.said) for each in going]}")
            for each in going:
                each.end()
            break
    return n - 1


def campaign(arena: Arena, *, scenarios: Sequence[str] | None = None) -> None:
    """Walk the main scenario in both colours, and the others as far as time goes."""
    others = [(name, colour) for name in SCENARIOS if name != MAIN for colour in COLOURS]
    arena.random.shuffle(others)
    lines = [(MAIN, colour) for colour in COLOURS]
    points = walked = 0
    with cluster_of(arena, durable=False) as cluster, Crew() as crew:
        place = postgres_site(arena, crew, cluster, options=f"?beat={BEAT_S}")
        for name, colour in lines + others if scenarios is None else [(s, c) for s in scenarios for c in COLOURS]:
            if walked >= len(lines) and scenarios is None and arena.left_s == 0:
                break
            points += walk(arena, crew, place, scenario=name, colour=colour)
            walked += 1
            arena.progress(f"{points} points of {walked} flows")
        counts = place.judge()
    arena.counts.add(counts)
    arena.say(
        f"PostgreSQL {cluster.major}: stopped at {points} points of {walked} of {len(lines + others)} (flow, colour)"
    )


__all__ = ["campaign"]
