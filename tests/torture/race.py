"""Two processes ask for one effect at the same moment: one sends, and both get the same outcome.

Variants: the winner is killed in the middle, stopped and continued, or its `run` raises.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from counterfoil import Accepted, EffectUnresolved, Runtime
from tests.torture.arena import Arena, Site, site
from tests.torture.processes import Crew, Worker
from tests.torture.programs import Journal, effect

AT_ONCE: Final = 16
PATIENCE_S: Final = 120.0
VARIANTS: Final = ("plain", "killed", "stopped", "raises")


@dataclass(frozen=True)
class Order:
    """What a racer is told to do.

    Args:
        run: the run's id.
        offset_s: how long to wait before asking.
        run_s: how long the recipient takes.
        raises: `run` is to raise after the recipient has answered.
    """

    run: str
    offset_s: float
    run_s: float
    raises: bool


def racer(connection: Connection, place: Site) -> None:
    """Ask for effects as told. Says `running` when its `run` is called, and how each ended."""
    journal = Journal(place.told)
    with Runtime(place.url, drain_timeout=5) as runtime:
        connection.send(("ready",))
        while (order := connection.recv()) is not None:
            time.sleep(order.offset_s)
            connection.send(("ended", _asked(connection, runtime, place, order=order, journal=journal)))


def _asked(connection: Connection, runtime: Runtime, place: Site, *, order: Order, journal: Journal) -> Any:
    def send(context: Any) -> str:
        connection.send(("running",))
        item = place.client.make(context.key, land_s=order.run_s)
        if order.raises:
            raise ConnectionResetError("the answer was lost")
        return item

    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            with runtime.run(order.run) as run:
                outcome = run.effect(
                    "charge",
                    run=send,
                    reconcile=lambda context: place.client.find(context.key),
                    request={"run": order.run},
                    visibility=order.run_s + 2.0,
                    wait=PATIENCE_S,
                )
            journal.tell(order.run, effect("charge"), outcome)
            proof = outcome.proof if isinstance(outcome, Accepted) else None
            return type(outcome).__name__, proof
        except EffectUnresolved as error:
            if error.reason not in ("run-failed", "too-early") or time.monotonic() > give_up:
                return error.reason, None
            time.sleep(error.retry_after_s or 0.05)


@dataclass
class Pair:
    """Two racers for one effect."""

    order: Order
    variant: str
    workers: list[Worker]
    outcomes: dict[int, Any] = field(default_factory=dict)
    winner: int | None = None
    strike_at: float | None = None
    continue_at: float | None = None

    @property
    def ended(self) -> bool:
        """Whether both have an outcome."""
        return len(self.outcomes) == len(self.workers)


class Race:
    """Runs pairs, some at once, with workers that live on."""

    def __init__(self, arena: Arena, crew: Crew, place: Site) -> None:
        self._arena = arena
        self._crew = crew
        self._place = place
        self._idle: list[Worker] = []
        self._count = 0
        self.doubted: list[str] = []

    def heat(self, variants: list[str], run_s: float, end: float) -> int:
        """Let pairs race, `AT_ONCE` at once, one of each of `variants` or until the time is over; return how many."""
        queue = list(variants)
        going: list[Pair] = []
        done = 0
        while going or queue:
            while queue and len(going) < AT_ONCE:
                going.append(self._start(queue.pop(0), run_s))
            self._listen(going)
            now = time.monotonic()
            if now > end:
                queue.clear()
            for pair in going:
                self._strike(pair, now)
            for pair in [pair for pair in going if pair.ended]:
                going.remove(pair)
                self._judge(pair)
                done += 1
            self._arena.progress(f"{self._count} races begun, {len(going)} under way")
        return done

    def _racer(self) -> Worker:
        return self._idle.pop() if self._idle else self._crew.start(racer, self._place)

    def warm_up(self, races: int) -> None:
        """Start the racers, so that none has to wait for the start of another."""
        self._idle = [self._crew.start(racer, self._place) for _ in range(2 * min(races, AT_ONCE))]
        for worker in self._idle:
            if worker.receive(PATIENCE_S) != ("ready",):
                raise RuntimeError("a racer did not start")

    def _start(self, variant: str, run_s: float) -> Pair:
        chance = self._arena.random
        self._count += 1
        order = Order(f"race-{self._count}-{variant}", 0.0, run_s, variant == "raises")
        pair = Pair(order, variant, [self._racer(), self._racer()])
        for worker, offset_s in zip(pair.workers, _offsets(chance, run_s), strict=True):
            worker.send(Order(order.run, offset_s, run_s, order.raises))
        return pair

    def _listen(self, going: list[Pair]) -> None:
        of = {worker.connection: (pair, place) for pair in going for place, worker in enumerate(pair.workers)}
        waiting = [each for each, (pair, place) in of.items() if place not in pair.outcomes]
        for ready in wait(waiting, timeout=0.02):
            assert isinstance(ready, Connection)
            pair, place = of[ready]
            try:
                message = ready.recv()
            except (EOFError, OSError):
                pair.outcomes[place] = ("died", None)
                continue
            if message[0] == "ready":
                continue
            if message[0] == "running":
                pair.winner = place
                if pair.variant in ("killed", "stopped"):
                    pair.strike_at = time.monotonic() + self._arena.random.uniform(0, pair.order.run_s * 0.9)
            else:
                pair.outcomes[place] = message[1]

    def _strike(self, pair: Pair, now: float) -> None:
        if pair.winner is None:
            return
        winner = pair.workers[pair.winner]
        if pair.strike_at is not None and now >= pair.strike_at and pair.winner not in pair.outcomes:
            pair.strike_at = None
            if pair.variant == "stopped":
                winner.signal(signal.SIGSTOP)
                pair.continue_at = now + self._arena.random.uniform(0.1, pair.order.run_s)
            else:
                self._crew.kill(winner)
                self._arena.counts.kills += 1
                pair.workers[pair.winner] = self._racer()
                pair.workers[pair.winner].send(pair.order)
        if pair.continue_at is not None and now >= pair.continue_at:
            pair.continue_at = None
            winner.signal(signal.SIGCONT)

    def _judge(self, pair: Pair) -> None:
        first, second = pair.outcomes.values()
        if first != second or first[0] != "Accepted":
            line = f"{pair.order.run}: {first} and {second}"
            # A killed winner's request may reach a busy recipient later than it promised: that is uncertain, for both.
            if pair.variant == "killed" and first == second == ("Uncertain", None):
                self.doubted.append(line)
            else:
                self._arena.problem(line)
        self._idle += [worker for worker in pair.workers if worker.alive]


def asked_too_soon(place: Site) -> list[str]:
    """Return the races in which the recipient was asked although the winner lived and its `run` returned."""
    asked = {line["key"] for line in place.log() if line["what"] == "asked"}
    with Runtime(place.url) as runtime:
        views = [view for view in runtime.effects() if view.run_id.endswith(("plain", "stopped"))]
    return [
        f"{view.run_id}: {view.outcome}"
        for view in views
        if view.effect_key in asked or not isinstance(view.outcome, Accepted) or view.outcome.via != "run"
    ]


def _offsets(chance: random.Random, run_s: float) -> Iterator[float]:
    late = chance.choice((0.0, 0.0, chance.uniform(0, 0.02), chance.uniform(0, run_s * 1.2)))
    offsets = [0.0, late]
    chance.shuffle(offsets)
    return iter(offsets)


def campaign(arena: Arena, *, races: int | None = None, run_s: float | None = None) -> None:
    """Race: 200 times with a `run` of 6 s where there is the time for it, shorter and fewer where there is not."""
    long = arena.seconds >= 140
    races = races or (200 if long else 10)
    run_s = run_s or (6.0 if long else max(0.3, min(2.0, arena.seconds / 8)))
    others = 16 if long else 2
    for engine in ("apsw", "sqlite3") if long else (arena.random.choice(("apsw", "sqlite3")),):
        with Crew() as crew:
            place = site(arena, crew, engine)
            race = Race(arena, crew, place)
            share = races if engine == "apsw" or not long else races // 4
            variants = ["plain"] * share + [name for name in VARIANTS[1:] for _ in range(others)]
            arena.random.shuffle(variants)
            race.warm_up(len(variants))
            done = race.heat(variants, run_s, arena.share(10.0))
        counts = place.judge()
        if counts.sends != done:
            arena.problem(f"{done} races, and the recipient received {counts.sends} requests")
        for line in asked_too_soon(place):
            arena.problem(f"the recipient was asked while the owner lived: {line}")
        arena.counts.add(counts)
        text = f"{engine}: {done} races of {run_s:g} s ({share} plain, {others} each of {', '.join(VARIANTS[1:])})"
        if race.doubted:
            text += f", {len(race.doubted)} of them uncertain for both"
        arena.say(f"{text}: {counts.sends} sends, both got the same outcome {done - len(arena.counts.problems)} times")


__all__ = ["campaign"]
