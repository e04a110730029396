"""Three NATS servers under two contesting processes: the leader is killed, one is stopped and resumed, two are gone."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, Final

from counterfoil import Accepted, EffectUnresolved, LedgerUnavailable, OwnerRetired, Runtime
from tests.servers.nats import NatsCluster, NatsNode
from tests.torture import arena as arenas
from tests.torture.arena import Arena, Site
from tests.torture.bodies import finding, making
from tests.torture.postgres.place import Errors, until_told
from tests.torture.processes import Crew, Worker
from tests.torture.programs import PAUSE_S, Journal, effect

CONTESTED: Final = 500
AT_ONCE: Final = 8
TIMEOUT_S: Final = 20.0
PATIENCE_S: Final = 300.0
STREAM: Final = "torture"
SHORT_BEAT_S: Final = 0.5


@dataclass(frozen=True)
class NatsSite(Site):
    """A site whose ledger is a stream.

    Args:
        address: of the ledger.
    """

    address: str = ""

    @property
    def url(self) -> str:
        """The ledger's URL."""
        return self.address


def nats_url(cluster: NatsCluster) -> str:
    """Return the URL of a ledger on a cluster, all of whose servers say how they sync."""
    servers = ",".join(node.url.removeprefix("nats://") for node in cluster.nodes)
    monitors = ",".join(f"http://127.0.0.1:{node.monitor}" for node in cluster.nodes)
    return f"nats://{servers}/{STREAM}?monitor={monitors}&timeout={TIMEOUT_S}"


@contextmanager
def nats_site(arena: Arena, crew: Crew) -> Iterator[tuple[NatsCluster, NatsSite]]:
    """Start three servers that sync each write, and make a ledger and a site around it."""
    with NatsCluster(3, sync_always=True) as cluster:
        made = arenas.site(arena, crew, "nats")
        url = nats_url(cluster)
        with Runtime(url) as runtime:
            runtime.effects()
        yield cluster, NatsSite(made.folder, made.engine, made.client, made.database, url)


def leader(cluster: NatsCluster) -> NatsNode | None:
    """Return the node that leads the ledger's stream, as far as one says it."""
    for node in cluster.nodes:
        with suppress(OSError, ValueError, KeyError, IndexError):
            question = f"http://127.0.0.1:{node.monitor}/jsz?accounts=1&streams=1"
            with urllib.request.urlopen(question, timeout=1) as said:
                streams = json.load(said)["account_details"][0]["stream_detail"]
            name = next(stream["cluster"]["leader"] for stream in streams if stream["name"] == STREAM)
            return next(one for one in cluster.nodes if one.name == name)
    return None


def contestant(connection: Connection, place: NatsSite, numbers: range) -> None:
    """Ask for every effect, a few at once, until each has an outcome; says what it got and what it met."""
    journal, errors = Journal(place.told), Errors()
    got: dict[str, Any] = {}
    slowest = [0.0]

    def one(runtime: Runtime, run: str) -> None:
        began = time.monotonic()
        try:
            with runtime.run(run) as handle:
                outcome = handle.effect(
                    "charge", run=making(place.client), reconcile=finding(place.client), request={"run": run}
                )
            journal.tell(run, effect("charge"), outcome)
            got[run] = outcome.proof if isinstance(outcome, Accepted) else repr(outcome)
        except (EffectUnresolved, LedgerUnavailable, OwnerRetired) as error:
            errors.note(error)
            time.sleep(PAUSE_S)
        slowest[0] = max(slowest[0], time.monotonic() - began)

    def lane(runtime: Runtime, lane_of: int) -> None:
        for number in numbers[lane_of::AT_ONCE]:
            give_up = time.monotonic() + PATIENCE_S
            while f"contested-{number}" not in got and time.monotonic() < give_up:
                one(runtime, f"contested-{number}")

    with Runtime(place.url) as runtime:
        connection.send("ready")
        connection.recv()
        lanes = [Thread(target=lane, args=(runtime, number)) for number in range(AT_ONCE)]
        for each in lanes:
            each.start()
        for each in lanes:
            each.join()
        connection.send((got, dict(errors), slowest[0]))


def _kill_leader(arena: Arena, cluster: NatsCluster) -> str:
    node = leader(cluster) or arena.random.choice(cluster.nodes)
    node.stop(signal.SIGKILL)
    time.sleep(arena.random.uniform(1.0, 4.0))
    node.start()
    return "the leader was killed"


def _stop_one(arena: Arena, cluster: NatsCluster) -> str:
    node = arena.random.choice(cluster.nodes)
    node.send(signal.SIGSTOP)
    time.sleep(arena.random.uniform(1.0, 6.0))
    node.send(signal.SIGCONT)
    return "one was stopped and resumed"


def _two_gone(arena: Arena, cluster: NatsCluster) -> str:
    nodes = arena.random.sample(cluster.nodes, 2)
    for node in nodes:
        node.stop(signal.SIGKILL)
    time.sleep(arena.random.uniform(1.0, 4.0))
    for node in nodes:
        node.start()
    return "two of three were killed"


DISASTERS: Final = (_kill_leader, _stop_one, _two_gone)


def campaign(arena: Arena, *, contested: int | None = None, disasters: int | None = None) -> None:
    """Contest effects, and let disasters come while they last (or so many); then judge."""
    contested = contested or (CONTESTED if arena.seconds >= 30 else 60)
    with Crew() as crew, nats_site(arena, crew) as (cluster, place):
        workers = [crew.start(contestant, place, range(contested)) for _ in range(2)]
        if any(worker.receive(PATIENCE_S) != "ready" for worker in workers):
            arena.problem("a process did not start")
            return
        for worker in workers:
            worker.send("go")
        done = 0
        while disasters is None or done < disasters:
            if not until_told(place, max(1, contested // 20), patience_s=100.0):
                break
            what = DISASTERS[done % len(DISASTERS)](arena, cluster)
            cluster.ready()
            done += 1
            arena.progress(f"{done} disasters: {what}")
        said = [worker.receive(PATIENCE_S) for worker in workers]
        _compare(arena, place, said, contested=contested)
    arena.counts.kills += done
    arena.say(f"{contested} effects contested through {done} disasters: {arena.counts.sends} sends")


def murders(arena: Arena, *, contested: int | None = None, kills: int | None = None) -> None:
    """Kill one of two contesting processes again and again; the other finds its lives gone, by their silence alone."""
    contested = contested or (200 if arena.seconds >= 30 else 40)
    with Crew() as crew, nats_site(arena, crew) as (_, site):
        place = replace(site, address=f"{site.url}&beat={SHORT_BEAT_S}")

        def started() -> Worker:
            worker = crew.start(contestant, place, range(contested))
            assert worker.receive(PATIENCE_S) == "ready"
            worker.send("go")
            return worker

        workers, done = [started(), started()], 0
        # Each new process is told of everything again, so what is told does not say when to end.
        while done < (kills or contested // 10):
            if not until_told(place, arena.random.randint(2, 10)):
                break
            time.sleep(arena.random.uniform(0, 0.1))
            which = arena.random.randrange(2)
            workers[which].kill()
            workers[which] = started()
            done += 1
        said = [worker.receive(PATIENCE_S) for worker in workers]
        counts = place.judge()
    if any(not isinstance(each, tuple) or len(each[0]) != contested for each in said):
        arena.problem(f"a process did not come to its end: {said}")
    if counts.sends > contested or counts.acknowledged + counts.uncertain != contested:
        arena.problem(f"{contested} effects: {counts}")
    counts.kills = done
    arena.counts.add(counts)
    arena.say(f"{contested} effects through {done} kills: {counts.sends} sends, {counts.uncertain} uncertain")


def _compare(arena: Arena, place: NatsSite, said: list[Any], *, contested: int) -> None:
    if any(not isinstance(each, tuple) or len(each) != 3 for each in said):
        arena.problem(f"a process did not come to its end: {said}")
        return
    (left, left_met, left_s), (right, right_met, right_s) = said
    differ = [run for run in {*left, *right} if left.get(run) != right.get(run)]
    if differ or len(left) != contested:
        shown = [(run, left.get(run), right.get(run)) for run in differ[:3]]
        arena.problem(f"they got different outcomes, {len(left)} and {len(right)} of {contested}: {shown}")
    counts = place.judge()
    if counts.sends != contested:
        arena.problem(f"{contested} effects, and the recipient received {counts.sends} requests")
    arena.counts.add(counts)
    for met in (left_met, right_met):
        arena.say(f"met {met}")
    arena.say(f"the slowest calls took {left_s:.1f} and {right_s:.1f} s")


__all__ = ["campaign", "murders"]
