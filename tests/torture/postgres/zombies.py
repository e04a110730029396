"""Owners are declared gone while alive and busy: what they send is sent once, and their late proofs are kept."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from threading import Lock, Thread
from typing import Any, Final

from counterfoil import Accepted, EffectUnresolved, LedgerUnavailable, OwnerRetired, Runtime
from tests.torture.arena import Arena
from tests.torture.bodies import finding
from tests.torture.postgres.place import Errors, PostgresSite, cluster_of, postgres_site
from tests.torture.processes import Crew, Worker
from tests.torture.programs import PAUSE_S, Journal, effect

EFFECTS: Final = 3_000
EFFECTS_PER_S: Final = 25
# Three beats of silence, and an owner is taken for gone.
BEAT_S: Final = 0.2
SILENCE_S: Final = 3 * BEAT_S
OWNERS: Final = 6
AT_ONCE: Final = 6
BLOCK: Final = 30
FROZEN_MAX: Final = 3
PATIENCE_S: Final = 180.0
LAND_S: Final = 0.02
# One effect in so many is slow to land: whoever takes it over in time finds nothing.
SLOW_ONE_IN: Final = 4


@dataclass(frozen=True)
class Part:
    """What one owner does.

    Args:
        number: who it is.
        effects: how many there are.
        slow_s: how long the slow ones take to land, in seconds.
    """

    number: int
    effects: int
    slow_s: float


def owner(connection: Connection, place: PostgresSite, part: Part) -> None:
    """Ask for all effects, beginning at its own place; keeps a log of the proofs that its `run` brought."""
    journal, errors, lock = Journal(place.told), Errors(), Lock()
    todo = _order(part)
    proofs = os.open(place.folder / "proofs.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    epochs: set[str] = set()

    def send(context: Any) -> str:
        slow = sum(context.key.encode()) % SLOW_ONE_IN == 0
        item = place.client.make(context.key, land_s=part.slow_s if slow else LAND_S)
        os.write(proofs, json.dumps({"key": context.key, "item": item, "pid": os.getpid()}).encode() + b"\n")
        return item

    def lane(runtime: Runtime) -> None:
        while True:
            with lock:
                if not todo:
                    return
                run = f"effect-{todo.pop(0)}"
            began = time.monotonic()
            while True:
                try:
                    with runtime.run(run) as handle:
                        outcome = handle.effect("charge", run=send, reconcile=finding(place.client), wait=2.0)
                    journal.tell(run, effect("charge"), outcome)
                    break
                except (EffectUnresolved, LedgerUnavailable, OwnerRetired) as error:
                    errors.note(error)
                    if time.monotonic() - began > PATIENCE_S:
                        raise
                    time.sleep(getattr(error, "retry_after_s", None) or PAUSE_S)

    failed: list[BaseException] = []

    def guarded(runtime: Runtime) -> None:
        try:
            lane(runtime)
        except BaseException as error:
            failed.append(error)

    with Runtime(place.url, owner=f"owner {part.number}") as runtime:
        lanes = [Thread(target=guarded, args=(runtime,)) for _ in range(AT_ONCE)]
        for one in lanes:
            one.start()
        for one in lanes:
            one.join()
        epochs |= runtime._session.own_epochs
        if failed:
            raise failed[0]
        # A life that was declared gone with a proof in its hands keeps trying to record it while it lives.
        give_up = time.monotonic() + PATIENCE_S
        while runtime._session.pinned and time.monotonic() < give_up:
            time.sleep(0.05)
        left = sum(len(state.memory.held) for state in runtime._session.pinned.values())
    connection.send(("ended", dict(errors), len(epochs), left))


def _order(part: Part) -> list[int]:
    """Return the effects in an order of this owner's own, in which it still meets the others everywhere."""
    chance = random.Random(part.number)
    blocks = [list(range(first, min(first + BLOCK, part.effects))) for first in range(0, part.effects, BLOCK)]
    return [number for block in blocks for number in chance.sample(block, len(block))]


def late_proofs(place: PostgresSite) -> tuple[int, list[str]]:
    """Return how many proofs came late and are kept, and those that are kept nowhere."""
    with Runtime(place.url) as runtime:
        views = {view.effect_key: view for view in runtime.effects()}
    kept, lost = 0, []
    lines = (place.folder / "proofs.jsonl").read_bytes().split(b"\n")[:-1]
    for line in map(json.loads, lines):
        view = views[line["key"]]
        if isinstance(view.outcome, Accepted) and view.outcome.proof == line["item"]:
            continue
        if any(line["item"] in json.dumps(late, default=repr) for late in view.late_evidence):
            kept += 1
        else:
            lost.append(f"{view.run_id}: the proof {line['item']} is kept nowhere: {view.outcome}")
    return kept, lost


class Reaper:
    """Freezes owners for longer than others have patience with a silent one, and lets them go on."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._frozen: dict[Worker, float] = {}
        self.times = 0

    def step(self, going: list[Worker]) -> None:
        """Freeze somebody now and then, and let go on whoever was silent for long enough."""
        now, chance = time.monotonic(), self._arena.random
        for worker in [each for each, until in self._frozen.items() if until <= now]:
            worker.signal(signal.SIGCONT)
            del self._frozen[worker]
        able = [worker for worker in going if worker not in self._frozen]
        if len(able) > 1 and len(self._frozen) < FROZEN_MAX and chance.random() < 0.2:
            worker = chance.choice(able)
            worker.signal(signal.SIGSTOP)
            self._frozen[worker] = now + SILENCE_S * chance.choice((0.5, 1.5, 2.0, 3.0))
            self.times += 1


def campaign(arena: Arena, *, effects: int | None = None) -> None:
    """Let owners work on the same effects and declare them gone at random, until all effects have their outcome."""
    effects = effects or min(EFFECTS, max(60, int(arena.seconds * EFFECTS_PER_S)))
    with cluster_of(arena, durable=False) as cluster, Crew() as crew:
        place = postgres_site(arena, crew, cluster, options=f"?beat={BEAT_S}")
        workers = [crew.start(owner, place, Part(number, effects, 1.5 * SILENCE_S)) for number in range(OWNERS)]
        reaper = Reaper(arena)
        said = _reaped(arena, workers, reaper)
        counts = place.judge()
        kept, lost = late_proofs(place)
    counts.kills = reaper.times
    counts.problems += lost
    arena.counts.add(counts)
    errors: Counter[str] = Counter()
    lives, left = 0, 0
    for _, met, epochs, held in said:
        errors.update(met)
        lives, left = lives + epochs, left + held
    if left:
        arena.problem(f"{left} proofs were still held at the end")
    arena.say(
        f"PostgreSQL {cluster.major}: {effects} effects, {OWNERS} owners frozen {reaper.times} times, {lives} epochs: "
        f"{counts.sends} sends, {counts.doubled} sent twice, {counts.uncertain} uncertain, {kept} late proofs kept, "
        f"{len(lost)} lost"
    )
    for what, number in errors.most_common():
        arena.say(f"    {number:5d} {what}")


def _reaped(arena: Arena, workers: list[Worker], reaper: Reaper) -> list[Any]:
    said: dict[Worker, Any] = {}
    give_up = time.monotonic() + PATIENCE_S + arena.seconds
    while len(said) < len(workers):
        going = [worker for worker in workers if worker not in said]
        reaper.step(going)
        for ready in wait([worker.connection for worker in going], timeout=0.05):
            worker = next(each for each in going if each.connection is ready)
            said[worker] = worker.receive(1.0)
            if said[worker] is None or said[worker][0] != "ended":
                arena.problem(f"an owner broke: {said[worker]}")
                said[worker] = ("ended", {}, 0, 0)
        if time.monotonic() > give_up:
            arena.problem("the owners do not come to their end")
            for worker in going:
                worker.signal(signal.SIGUSR1)
                said[worker] = ("ended", {}, 0, 0)
        arena.progress(f"{reaper.times} owners declared gone")
    return list(said.values())


__all__ = ["campaign"]
