"""Commits and their replies are lost, connections cut, stalled and terminated, at random, under eight writers."""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from typing import Final
from urllib.parse import urlsplit

import psycopg

from tests.servers.postgres import Cluster
from tests.servers.proxy import Act, Piece, Proxy
from tests.torture.arena import Arena
from tests.torture.postgres.place import cluster_of, postgres_site, until_told
from tests.torture.postgres.restarts import dismissed, writing
from tests.torture.processes import Crew

# Whatever ends a transaction of the ledger, and what fills a slot.
_WRITES: Final = re.compile(rb"\.append|COMMIT|INSERT", re.IGNORECASE)
_FAULTS: Final[dict[Act | float, float]] = {
    Act.LOSE_REPLY: 4.0,
    Act.CUT: 3.0,
    Act.PASS_THEN_CUT: 3.0,
    Act.SWALLOW_REPLY: 0.2,
    0.05: 2.0,
    0.3: 1.0,
}
# How long a life waits for an answer that never comes.
TIMEOUT_S: Final = 3
_OTHERS: Final = "FROM pg_stat_activity WHERE datname = '{0}' ORDER BY random() LIMIT 1"
_TERMINATE: Final = f"SELECT pg_terminate_backend(pid) {_OTHERS}"
_CANCEL: Final = f"SELECT pg_cancel_backend(pid) {_OTHERS}"


class Chaos:
    """A rule that breaks some of what writes to the ledger.

    Args:
        chance: where it takes its decisions from.
        share: how many of the requests it breaks.
    """

    def __init__(self, chance: random.Random, *, share: float) -> None:
        self._chance = chance
        self._share = share
        self._lock = threading.Lock()
        self.done: Counter[str] = Counter()

    def __call__(self, piece: Piece) -> Act | float:
        """Decide about one piece."""
        if not piece.request or not _WRITES.search(piece.data):
            return Act.PASS
        with self._lock:
            if self._chance.random() >= self._share:
                return Act.PASS
            act = self._chance.choices(list(_FAULTS), list(_FAULTS.values()))[0]
            self.done[act.name if isinstance(act, Act) else "DELAY"] += 1
            return act


def _meddle(arena: Arena, cluster: Cluster, proxy: Proxy, *, database: str) -> str:
    """Do one thing to the server's sessions, or to all connections at once."""
    what = arena.random.choice(("terminate", "terminate", "cancel", "cut all", "stall"))
    if what == "cut all":
        proxy.cut()
    elif what == "stall":
        proxy.stall()
        time.sleep(arena.random.choice((0.05, 0.5)))
        proxy.resume()
    else:
        statement = (_TERMINATE if what == "terminate" else _CANCEL).format(database)
        with psycopg.connect(cluster.url(), autocommit=True) as connection:
            connection.execute(statement.encode())
    return what


def campaign(arena: Arena, *, faults: int | None = None, writers: int = 8) -> None:
    """Break things while the time lasts (or so many of them), then heal, let everything come to its end and judge."""
    end = arena.share(0.8)
    done: Counter[str] = Counter()
    with cluster_of(arena, durable=False) as cluster, Proxy(cluster.port, keep=False) as proxy, Crew() as crew:
        direct = postgres_site(arena, crew, cluster, options=f"?timeout={TIMEOUT_S}")
        place = direct.at(direct.url.replace(f":{cluster.port}/", f":{proxy.port}/"))
        workers = writing(crew, place, writers)
        proxy.rule = chaos = Chaos(arena.random, share=0.05)
        while chaos.done.total() < faults if faults is not None else time.monotonic() < end:
            if not until_told(place, 2):
                arena.problem(f"no progress after {chaos.done.total()} faults")
                break
            time.sleep(arena.random.uniform(0, 0.2))
            done[_meddle(arena, cluster, proxy, database=urlsplit(direct.url).path[1:])] += 1
            arena.progress(f"{chaos.done.total()} faults on the wire")
        proxy.rule = None
        met, settled = dismissed(arena, workers)
        counts = direct.judge()
    counts.kills = chaos.done.total() + done.total()
    arena.counts.add(counts)
    text = ", ".join(f"{number} {what}" for what, number in (chaos.done + done).most_common())
    arena.say(f"PostgreSQL {cluster.major}: {text}; {settled} unknown commits settled")
    for what, number in met.most_common():
        arena.say(f"    {number:5d} {what}")


__all__ = ["campaign"]
