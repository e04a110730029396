"""The wall clock jumps by years at random: no look-up settles anything too early, no sleep is cut or repeated."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final

from counterfoil import Accepted, EffectUnresolved, Retry, Runtime
from tests.torture.arena import Arena, Site, site
from tests.torture.bodies import Lost, finding, refusing
from tests.torture.processes import Crew
from tests.torture.programs import Journal, effect, sleep

PATIENCE_S: Final = 60.0
YEARS_S: Final = 10 * 365.25 * 86_400
MEAN_S: Final = 0.03
LAG_S: Final = 0.1
VISIBILITY_S: Final = 0.4
NAP_S: Final = 0.15
# What rounding a date far away may cost.
ROUNDING_S: Final = 0.001


class Jumping:
    """A wall clock that jumps now and then: within ten years of the truth, or only back.

    Its monotonic side is the machine's.
    """

    def __init__(self, chance: random.Random, *, back_only: bool) -> None:
        self._chance = chance
        self._offset = 0.0
        self._due = 0.0
        self.back_only = back_only
        self.jumps = 0

    def time(self) -> float:
        """Return seconds since 1970, or what the clock takes for them."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._chance.expovariate(1 / MEAN_S)
            self.jumps += 1
            if self.back_only:
                self._offset -= self._chance.choice((0.5, 3_600.0, self._chance.uniform(0, YEARS_S / 20)))
            else:
                self._offset = self._chance.uniform(-YEARS_S, YEARS_S)
        return time.time() + self._offset

    def monotonic(self) -> float:
        """Return seconds that only grow."""
        return time.monotonic()


class Life:
    """One life under such a clock."""

    def __init__(self, runtime: Runtime, place: Site, clock: Jumping) -> None:
        self._runtime = runtime
        self._place = place
        self._journal = Journal(place.told)
        self.clock = clock

    def visibility(self, run: str) -> str | None:
        """Ask again and again for what the recipient does not show yet."""
        sent: list[str] = []
        over = math.inf

        def send(context: Any) -> str:
            sent.append(context.key)
            self._place.client.make(context.key)
            raise Lost

        give_up = time.monotonic() + PATIENCE_S
        while True:
            asked = time.monotonic()
            try:
                with self._runtime.run(run) as handle:
                    outcome = handle.effect(
                        "charge",
                        run=send,
                        reconcile=finding(self._place.client, lag_s=LAG_S),
                        visibility=VISIBILITY_S,
                    )
                    self._journal.tell(run, effect("charge"), outcome)
                return (
                    None if isinstance(outcome, Accepted) and len(sent) == 1 else f"{outcome}, sent {len(sent)} times"
                )
            except EffectUnresolved as error:
                if error.reason not in ("run-failed", "too-early"):
                    return f"it is unresolved: {error.reason}"
                if error.reason == "run-failed":
                    over = time.monotonic()
                elif asked > over + VISIBILITY_S + 1.0:
                    return f"{asked - over:.1f} s after its run it is still too early"
                if time.monotonic() > give_up:
                    return "it was never resolved"
                time.sleep(0.02)

    def nap(self, run: str) -> str | None:
        """Sleep, and sleep again: the second time it is over."""
        times = []
        for _ in range(2):
            began = time.monotonic()
            with self._runtime.run(run) as handle:
                handle.sleep(NAP_S, name="nap")
            self._journal.tell(run, sleep(NAP_S, "nap"), None)
            times.append(time.monotonic() - began)
        with self._runtime.run(run) as handle:
            slots = [view.slot for view in self._runtime.show(run)]
        if slots != ["park/sleep/nap", "park/sleep/nap/woken"]:
            return f"a sleep left {slots}"
        if self.clock.back_only and times[0] < NAP_S - ROUNDING_S:
            return f"a sleep of {NAP_S} s took {times[0]:.3f} s when the clock went back"
        return None

    def retries(self, run: str) -> str | None:
        """Let attempts follow one another."""
        with self._runtime.run(run) as handle:
            outcome = handle.effect(
                "picky",
                run=refusing(self._place.client, until=3),
                reconcile=finding(self._place.client),
                retry=Retry(3, backoff_s=0.05, backoff_max_s=0.2),
            )
        self._journal.tell(run, effect("picky"), outcome)
        return None if isinstance(outcome, Accepted) else str(outcome)


STORIES: Final[dict[str, Callable[[Life, str], str | None]]] = {
    "visibility": Life.visibility,
    "nap": Life.nap,
    "retries": Life.retries,
}


def worker(connection: Connection, place: Site, seed: int) -> None:
    """Tell stories under a clock of its own."""
    chance = random.Random(seed)
    clock = Jumping(chance, back_only=chance.random() < 0.5)
    with Runtime(place.url, clock=clock) as runtime:
        life = Life(runtime, place, clock)
        while (asked := connection.recv()) is not None:
            story, run = asked
            connection.send(("told", STORIES[story](life, run), clock.jumps))


def campaign(arena: Arena) -> None:
    """Tell stories in several lives at once, each with its own clock, on one ledger for each engine."""
    told = jumps = 0
    with Crew() as crew:
        places = [site(arena, crew, engine) for engine in ("apsw", "sqlite3")]
        while told == 0 or arena.left_s > 2.0:
            lives = [
                (story, crew.start(worker, place, arena.random.randrange(1 << 30)))
                for place in places
                for story in STORIES
            ]
            for _ in range(3):
                runs = [f"{story}-{told + count}" for count, (story, _) in enumerate(lives)]
                for run, (story, life) in zip(runs, lives, strict=True):
                    life.send((story, run))
                for run, (_, life) in zip(runs, lives, strict=True):
                    said = life.receive(PATIENCE_S * 2)
                    told += 1
                    if said is None or said[0] != "told":
                        arena.problem(f"{run}: {said}")
                    elif said[1] is not None:
                        arena.problem(f"{run}: {said[1]}")
                    else:
                        jumps += said[2]
                if arena.counts.problems:
                    break
            for _, life in lives:
                life.send(None)
                life.ended(PATIENCE_S)
                crew.dismiss(life)
            arena.progress(f"{told} stories")
            if arena.counts.problems:
                break
    for place in places:
        counts = place.judge()
        if counts.uncertain:
            arena.problem(f"{place.folder}: {counts.uncertain} effects are uncertain, and nobody had died")
        arena.counts.add(counts)
    arena.say(f"{told} stories, at least {jumps} jumps of the clock")


__all__ = ["campaign"]
