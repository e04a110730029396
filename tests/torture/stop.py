"""Owners are stopped at random moments and continued: they are alive, so others wait and never ask the recipient."""

from __future__ import annotations

import signal
import time
from multiprocessing.connection import Connection
from typing import Any, Final

from counterfoil import Accepted, EffectUnresolved, Runtime
from tests.torture.arena import Arena, Site, site
from tests.torture.kills import Shop
from tests.torture.processes import Crew, Worker
from tests.torture.programs import Journal, effect

PATIENCE_S: Final = 60.0
RUN_S: Final = 0.3
WAIT_S: Final = 0.15


def owner(connection: Connection, place: Site) -> None:
    """Perform effects; says when `run` has been called, and ends it when told to."""
    journal = Journal(place.told)

    def send(context: Any) -> str:
        connection.send(("running",))
        item = place.client.make(context.key, land_s=RUN_S)
        connection.recv()
        return item

    with Runtime(place.url) as runtime:
        while (run := connection.recv()) is not None:
            with runtime.run(run) as handle:
                outcome = handle.effect("charge", run=send, reconcile=lambda context: place.client.find(context.key))
            journal.tell(run, effect("charge"), outcome)
            connection.send(("ended", outcome.proof if isinstance(outcome, Accepted) else outcome))


def other(connection: Connection, place: Site) -> None:
    """Ask for effects that somebody else performs, with little patience; says what came of it."""

    def send(context: Any) -> str:
        return f"sent by the other: {place.client.make(context.key)}"

    with Runtime(place.url) as runtime:
        while (asked := connection.recv()) is not None:
            run, wait_s = asked
            try:
                with runtime.run(run) as handle:
                    outcome = handle.effect(
                        "charge", run=send, reconcile=lambda context: place.client.find(context.key), wait=wait_s
                    )
                connection.send(("ended", outcome.proof if isinstance(outcome, Accepted) else outcome))
            except EffectUnresolved as error:
                connection.send((error.reason, None))


def stopped_in_the_middle(arena: Arena, workers: tuple[Worker, Worker], run: str) -> None:
    """Stop an owner inside its `run`; another life has to say `in-flight` until it goes on."""
    first, second = workers
    first.send(run)
    if first.receive(PATIENCE_S) != ("running",):
        arena.problem(f"{run}: the owner did not begin")
        return
    time.sleep(arena.random.uniform(0, RUN_S / 4))
    first.signal(signal.SIGSTOP)
    try:
        for _ in range(arena.random.choice((1, 2))):
            second.send((run, WAIT_S))
            if (said := second.receive(PATIENCE_S)) != ("in-flight", None):
                arena.problem(f"{run}: its owner is stopped, and another got {said}")
    finally:
        first.signal(signal.SIGCONT)
        first.send("go on")
    second.send((run, PATIENCE_S))
    ends = first.receive(PATIENCE_S), second.receive(PATIENCE_S)
    if ends[0] != ends[1] or ends[0] is None or ends[0][0] != "ended":
        arena.problem(f"{run}: {ends[0]} and {ends[1]}")


class StoppingShop(Shop):
    """A shop whose workers are stopped for a while instead of killed."""

    def stop(self) -> float:
        """Stop somebody and return how long for; the caller continues it with `go_on`."""
        bench = self._arena.random.choice(self._benches)
        bench.worker.signal(signal.SIGSTOP)
        self.kills += 1
        return self._arena.random.choice((0.02, 0.1, 0.4))

    def go_on(self) -> None:
        """Let everybody go on."""
        for bench in self._benches:
            bench.worker.signal(signal.SIGCONT)


def _shopping(arena: Arena, place: Site, crew: Crew) -> int:
    shop = StoppingShop(arena, crew, place, workers=4, what="steady")
    end = arena.share(0.5)
    due, going_on = time.monotonic() + 0.4, 0.0
    while time.monotonic() < end or shop.busy:
        now = time.monotonic()
        if now < end:
            shop.take_orders()
        shop.hand_out()
        if going_on and now >= going_on:
            shop.go_on()
            going_on, due = 0.0, now + arena.random.expovariate(1 / 0.1)
        if not going_on and now >= due and now < end:
            going_on = now + shop.stop()
        if now > end + PATIENCE_S:
            arena.problem("no progress after everybody went on")
            break
        arena.progress(f"{shop.kills} stops")
    shop.go_on()
    shop.close()
    return shop.kills


def campaign(arena: Arena) -> None:
    """Stop owners inside `run`, then workers anywhere, and see that nobody asked the recipient."""
    engines = ["apsw", "sqlite3"]
    arena.random.shuffle(engines)
    middle = 0
    with Crew() as crew:
        places = [site(arena, crew, engine) for engine in engines]
        pairs = [(crew.start(owner, place), crew.start(other, place)) for place in places]
        end = arena.share(0.3)
        while middle == 0 or time.monotonic() < end:
            for pair in pairs:
                middle += 1
                stopped_in_the_middle(arena, pair, f"middle-{middle}")
        stops = _shopping(arena, places[0], crew)
        for pair in pairs:
            for worker in pair:
                worker.send(None)
                worker.ended(PATIENCE_S)
    for place in places:
        counts = place.judge()
        asked = [line for line in place.log() if line["what"] == "asked"]
        if asked:
            counts.problems.append(f"{place.folder}: the recipient was asked {len(asked)} times, and nobody had died")
        if counts.uncertain:
            counts.problems.append(f"{place.folder}: {counts.uncertain} effects are uncertain, and nobody had died")
        arena.counts.add(counts)
    arena.say(f"{middle} owners stopped inside run, {stops} workers stopped anywhere")


__all__ = ["campaign"]
