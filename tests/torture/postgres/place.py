"""One ledger in a PostgreSQL database, with its recipient and its journal; and what the campaigns ask of both."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final

from counterfoil import LedgerUnavailable, Runtime
from counterfoil.protocol.requests import Append
from tests.servers.postgres import Cluster
from tests.torture import arena as arenas
from tests.torture.arena import Arena, Site
from tests.torture.judge import Counts
from tests.torture.processes import Crew
from tests.torture.programs import PAUSE_S, Ask, patient

FINAL: Final = ("accepted", "rejected", "failed", "uncertain")
_databases = count(1)


@dataclass(frozen=True)
class PostgresSite(Site):
    """A site whose ledger is in PostgreSQL.

    Args:
        address: of the ledger.
    """

    address: str = ""

    @property
    def url(self) -> str:
        """The ledger's URL."""
        return self.address

    def at(self, address: str) -> PostgresSite:
        """Return the same site, reached another way."""
        return replace(self, address=address)

    def judge(self) -> Counts:
        """Judge it, when everything has ended and everything is to be resolved."""
        counts = super().judge()
        with Runtime(self.url) as runtime:
            left = [view for view in runtime.effects() if view.state not in FINAL]
        counts.problems += [f"{self.folder}: {view.run_id}/{view.name} is still {view.state}" for view in left]
        return counts


def postgres_site(arena: Arena, crew: Crew, cluster: Cluster, *, options: str = "") -> PostgresSite:
    """Make a database, a ledger in it, and a site around it."""
    made = arenas.site(arena, crew, f"postgres{cluster.major}")
    name = f"{made.folder.name.replace('-', '_')}_{next(_databases)}"
    url = f"{cluster.database(name)}{options}"
    with Runtime(url) as runtime:
        runtime.effects()
    return PostgresSite(made.folder, made.engine, made.client, made.database, url)


@contextmanager
def cluster_of(arena: Arena, *, durable: bool, **settings: str) -> Iterator[Cluster]:
    """Start a cluster of a major version that chance picks."""
    with Cluster(arena.random.choice((16, 18)), durable=durable, settings=settings) as cluster:
        yield cluster


def persistent(error: BaseException, ask: Ask, began: float) -> float | None:
    """Like `patient`, and asks again when the ledger was not there."""
    if isinstance(error, LedgerUnavailable) and not ask.at_once:
        return None if time.monotonic() - began > 60.0 else PAUSE_S
    return patient(error, ask, began)


class Settlements:
    """Counts what a life could not know at once: appends that were appended again to learn how they ended."""

    def __init__(self) -> None:
        self.settled = 0

    def __call__(self, moment: str, run: str, request: Any) -> None:
        """See one event."""
        self.settled += moment == "before" and isinstance(request, Append) and request.settle is not None


class Errors(Counter[str]):
    """Counts errors by what they said."""

    def note(self, error: BaseException) -> None:
        """Count one."""
        self[f"{type(error).__name__}({getattr(error, 'code', '')}, {getattr(error, 'effect_ran', '')})"] += 1


def until_told(place: Site, more: int, *, patience_s: float = 100.0) -> bool:
    """Wait until callers were told of some more; False if that took too long."""

    def told() -> int:
        return place.told.read_bytes().count(b"\n") if place.told.exists() else 0

    goal, give_up = told() + more, time.monotonic() + patience_s
    while told() < goal:
        if time.monotonic() > give_up:
            return False
        time.sleep(0.01)
    return True


__all__ = ["Errors", "PostgresSite", "Settlements", "cluster_of", "persistent", "postgres_site", "until_told"]
