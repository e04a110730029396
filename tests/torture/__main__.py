"""`python -m tests.torture`: runs the campaigns, prints what they counted, and exits with 1 on any violation."""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.servers.finding import Missing
from tests.torture import (
    activations,
    blobs,
    buckets,
    clocks,
    failovers,
    fork,
    full,
    kills,
    outbox,
    points,
    race,
    stop,
    sync,
)
from tests.torture.arena import Arena
from tests.torture.judge import Counts
from tests.torture.postgres import frozen, machines, restarts, wires, zombies

# Each campaign with its share of the time.
CAMPAIGNS: Final[dict[str, tuple[Callable[[Arena], None], float]]] = {
    "race": (race.campaign, 0.25),
    "kills": (kills.campaign, 0.25),
    "points": (points.campaign, 0.2),
    "full": (full.campaign, 0.05),
    "stop": (stop.campaign, 0.08),
    "clocks": (clocks.campaign, 0.05),
    "fork": (fork.campaign, 0.04),
    "sync": (sync.campaign, 0.1),
    "outbox": (outbox.campaign, 0.2),
    "blobs": (blobs.campaign, 0.1),
    "buckets": (buckets.campaign, 0.15),
    "outbox-postgres": (outbox.postgres_campaign, 0.2),
    "restarts": (restarts.campaign, 0.15),
    "wires": (wires.campaign, 0.15),
    "machines": (machines.campaign, 0.05),
    "zombies": (zombies.campaign, 0.2),
    "frozen": (frozen.campaign, 0.2),
    "failovers": (failovers.campaign, 0.2),
    "murders": (failovers.murders, 0.1),
    "activations": (activations.campaign, 0.1),
}
PROBLEMS_SHOWN: Final = 20


def run(name: str, *, seed: int, seconds: float, folder: Path) -> Counts:
    """Run one campaign and print its line."""
    campaign, _ = CAMPAIGNS[name]
    arena = Arena(name, seed, seconds=seconds, folder=folder)
    try:
        campaign(arena)
    except Missing as error:
        if os.environ.get("REQUIRE_SERVERS") == "1":
            raise
        arena.say(f"skipped: {error}")
        return arena.counts
    arena.say(f"{'FAILED' if arena.counts.problems else 'ok'}: {arena.counts}")
    for problem in arena.counts.problems[:PROBLEMS_SHOWN]:
        print(f"    {problem}")
    if len(arena.counts.problems) > PROBLEMS_SHOWN:
        print(f"    and {len(arena.counts.problems) - PROBLEMS_SHOWN} more")
    return arena.counts


def parsed() -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--duration-s", type=float, default=120.0, help="seconds for all campaigns together")
    parser.add_argument("--seed", type=int, default=None, help="of everything that is left to chance")
    parser.add_argument("--only", choices=CAMPAIGNS, action="append", help="run this campaign only; may be repeated")
    return parser.parse_args()


def main() -> int:
    """Run what was asked for."""
    given = parsed()
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    names = given.only or list(CAMPAIGNS)
    whole = sum(CAMPAIGNS[name][1] for name in names)
    print(f"torture: {', '.join(names)} for {given.duration_s:g} s, seed {seed}", flush=True)
    # That the sqlite3 of some Pythons has a defect is known here; its engine is tortured all the same.
    logging.getLogger("counterfoil").setLevel(logging.ERROR)
    signal.signal(signal.SIGTERM, _interrupt)
    folder = Path(tempfile.mkdtemp(prefix="counterfoil-torture-"))
    total = Counts()
    clean = False
    try:
        for name in names:
            seconds = given.duration_s * CAMPAIGNS[name][1] / whole
            total.add(run(name, seed=seed, seconds=seconds, folder=folder))
        clean = not total.problems
    except KeyboardInterrupt:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("torture: interrupted", flush=True)
        clean = True
        return 130
    finally:
        if clean:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            again = f"make torture DURATION_S={given.duration_s:g} SEED={seed}"
            print(f"torture: FAILED; files are in {folder}; again: {again}", flush=True)
    print(f"torture: {'ok' if clean else 'FAILED'}: {total}", flush=True)
    return 0 if clean else 1


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
