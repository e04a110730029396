"""Two machines, made of two processes with other host names and clocks ten minutes apart, ask for the same effects."""

from __future__ import annotations

import ctypes
import os
import socket
import time
from collections import Counter
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, Final

from counterfoil import Accepted, EffectUnresolved, Runtime
from tests.servers.postgres import Cluster
from tests.torture.arena import Arena
from tests.torture.bodies import finding, making
from tests.torture.postgres.place import PostgresSite, cluster_of, postgres_site
from tests.torture.processes import Crew
from tests.torture.programs import Journal, effect

CONTESTED: Final = 500
AT_ONCE: Final = 8
PATIENCE_S: Final = 120.0
_CLONE_NEWUTS: Final = 0x04000000
_TEN_YEARS_S: Final = 10 * 365.25 * 86_400


class Wrong:
    """A clock that is wrong by so many seconds, and whose monotonic side began elsewhere.

    Args:
        by: how wrong it is, in seconds.
    """

    def __init__(self, by: float) -> None:
        self._by = by
        self._true = time.time
        self._mono = time.monotonic

    def time(self) -> float:
        """Return seconds since 1970, as this machine takes them."""
        return self._true() + self._by

    def monotonic(self) -> float:
        """Return seconds that only grow."""
        return self._mono()


def _another_machine(name: str, clock: Wrong) -> None:
    """Give this process another host name and another wall clock, as far as it can see."""
    with suppress(OSError, AttributeError):
        if ctypes.CDLL(None).unshare(_CLONE_NEWUTS) == 0:
            socket.sethostname(name)
    if socket.gethostname() != name:
        socket.gethostname = lambda: name
    vars(time)["time"] = clock.time
    vars(time)["time_ns"] = lambda: int(clock.time() * 1e9)


def machine(connection: Connection, place: PostgresSite, name: str, clock_s: float, numbers: range) -> None:
    """Ask for every effect, a few at once; says what it got."""
    clock = Wrong(clock_s)
    _another_machine(name, clock)
    journal = Journal(place.told)
    got: dict[str, Any] = {}
    errors: Counter[str] = Counter()

    def lane(runtime: Runtime, lane_of: int) -> None:
        for number in numbers[lane_of::AT_ONCE]:
            run = f"contested-{number}"
            while run not in got:
                try:
                    with runtime.run(run) as handle:
                        outcome = handle.effect(
                            "charge",
                            run=making(place.client, land_s=0.01),
                            reconcile=finding(place.client),
                            request={"run": run},
                        )
                    journal.tell(run, effect("charge"), outcome)
                    got[run] = outcome.proof if isinstance(outcome, Accepted) else repr(outcome)
                except EffectUnresolved as error:
                    errors[error.reason] += 1

    with Runtime(place.url, clock=clock, owner=f"{name} {os.getpid()}") as runtime:
        connection.send(("ready", socket.gethostname(), time.time()))
        connection.recv()
        lanes = [Thread(target=lane, args=(runtime, number)) for number in range(AT_ONCE)]
        for one in lanes:
            one.start()
        for one in lanes:
            one.join()
    connection.send(("ended", got, dict(errors)))


def campaign(arena: Arena, *, contested: int | None = None) -> None:
    """Contest effects from two machines with clocks ten minutes apart, then from two that are ten years apart."""
    contested = contested or (CONTESTED if arena.seconds >= 10 else 50)
    with cluster_of(arena, durable=False) as cluster:
        for apart_s in (600.0, _TEN_YEARS_S):
            _contest(arena, cluster, apart_s, contested=contested)


def _contest(arena: Arena, cluster: Cluster, apart_s: float, *, contested: int) -> None:
    with Crew() as crew:
        place = postgres_site(arena, crew, cluster)
        workers = [
            crew.start(machine, place, name, clock_s, range(contested))
            for name, clock_s in (("left", -apart_s / 2), ("right", apart_s / 2))
        ]
        ready = [worker.receive(PATIENCE_S) for worker in workers]
        if None in ready or ready[0][0] != "ready" or ready[1][0] != "ready":
            arena.problem(f"the machines did not start: {ready}")
            return
        assert ready[0][1] != ready[1][1]
        assert abs(ready[1][2] - ready[0][2] - apart_s) < PATIENCE_S
        for worker in workers:
            worker.send("go")
        said = [worker.receive(PATIENCE_S) for worker in workers]
        _compare(arena, place, said, contested=contested)
        arena.say(
            f"PostgreSQL {cluster.major}: {contested} effects contested by {ready[0][1]} and {ready[1][1]}, whose "
            f"clocks are {apart_s:g} s apart: {arena.counts.sends} sends so far"
        )


def _compare(arena: Arena, place: PostgresSite, said: list[Any], *, contested: int) -> None:
    if None in said or any(each[0] != "ended" for each in said):
        arena.problem(f"a machine did not come to its end: {said}")
        return
    (_, left, left_errors), (_, right, right_errors) = said
    if left != right or len(left) != contested:
        differ = [(run, left.get(run), right.get(run)) for run in {*left, *right} if left.get(run) != right.get(run)]
        arena.problem(f"the machines got different outcomes: {differ[:3]}")
    if left_errors or right_errors:
        arena.problem(f"nobody was late, and yet: {left_errors} and {right_errors}")
    counts = place.judge()
    if counts.sends != contested:
        arena.problem(f"{contested} effects, and the recipient received {counts.sends} requests")
    asked = [line for line in place.log() if line["what"] == "asked"]
    if asked:
        arena.problem(f"the recipient was asked {len(asked)} times although both machines lived")
    arena.counts.add(counts)


__all__ = ["campaign"]
