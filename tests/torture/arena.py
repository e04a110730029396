"""Where a campaign takes place: its chance, its time, its folder, its processes and its line on the screen."""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.torture import recipient
from tests.torture.judge import Counts, judge
from tests.torture.processes import Crew

_EVERY_S: Final = 10.0
_READY_S: Final = 60.0
_cell = 0


class Arena:
    """What one campaign has.

    Args:
        name: of the campaign.
        seed: of everything that it leaves to chance.
        seconds: for how long it may go on.
        folder: where its files go.
        quiet: print nothing while it goes on.
    """

    def __init__(self, name: str, seed: int, *, seconds: float, folder: Path, quiet: bool = False) -> None:
        self.name = name
        self.seed = seed
        self.random = random.Random(f"{name} {seed}")
        self.seconds = seconds
        self.folder = folder
        self.counts = Counts()
        self._began = time.monotonic()
        self._said = self._began
        self._quiet = quiet

    @property
    def spent_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    @property
    def left_s(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self.seconds - self.spent_s)

    def share(self, part: float) -> float:
        """Return until when (`time.monotonic`) a part of the time lasts, from now on."""
        return time.monotonic() + self.seconds * part

    def progress(self, what: str) -> None:
        """Say how far it is, now and then."""
        now = time.monotonic()
        if not self._quiet and now - self._said >= (1.0 if sys.stdout.isatty() else _EVERY_S):
            self._said = now
            self.say(what)

    def say(self, text: str) -> None:
        """Print a line."""
        if not self._quiet:
            print(f"{self.name:<7} {self.spent_s:5.1f} s  {text}", flush=True)

    def problem(self, text: str) -> None:
        """Note a violation."""
        self.counts.problems.append(text)


@dataclass(frozen=True)
class Site:
    """One ledger, one recipient, one journal, in a folder of their own."""

    folder: Path
    engine: str
    client: recipient.Client
    database: Path

    @property
    def url(self) -> str:
        """The ledger's URL."""
        return f"sqlite:///{self.database}?engine={self.engine}&timeout=60"

    def opened_with(self, engine: str) -> str:
        """Return the ledger's URL for another library."""
        return f"sqlite:///{self.database}?engine={engine}&timeout=60"

    @property
    def told(self) -> Path:
        """The journal of what callers were told."""
        return self.folder / "told.jsonl"

    def log(self) -> list[dict[str, Any]]:
        """Read the recipient's log."""
        return recipient.read_log(self.folder / "recipient.jsonl")

    def judge(self) -> Counts:
        """Judge it, when everything has ended."""
        counts = judge(self.url, log=self.log(), told=recipient.read_log(self.told))
        counts.problems = [f"{self.folder}: {problem}" for problem in counts.problems]
        return counts


def site(arena: Arena, crew: Crew, engine: str) -> Site:
    """Make a site and start its recipient."""
    global _cell
    _cell += 1
    folder = arena.folder / f"{arena.name}-{_cell}-{engine}"
    folder.mkdir()
    address = str(folder / "socket")
    worker = crew.start(recipient.serve, address, folder / "recipient.jsonl")
    if worker.receive(_READY_S) != "ready":
        raise RuntimeError("the recipient did not start")
    return Site(folder, engine, recipient.Client(address), folder / "ledger.db")
