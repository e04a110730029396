"""Much at once: `python -m tests.explore.campaign [SEEDS] [FIRST]` explores and simulates on every core."""

from __future__ import annotations

import os
import sys
import time
from multiprocessing import Pool

from counterfoil.testing.simulate import Simulated, simulate
from tests.explore.scenarios import IN_FULL


def main(seeds: int = 20_000, first: int = 0) -> int:
    """Explore in full, simulate so many seeds, and print what they came to; 1 if a rule was broken."""
    began = time.monotonic()
    sends = crashes = uncertain = 0
    broken: list[Simulated] = []
    with Pool(os.cpu_count()) as pool:
        explored = dict(zip(IN_FULL, pool.map(_explored, IN_FULL), strict=True))
        for name, (said, _) in explored.items():
            print(f"{name}: {said}")
        for result in pool.imap_unordered(_without_timeline, range(first, first + seeds), chunksize=100):
            sends, crashes, uncertain = sends + result.sends, crashes + result.crashes, uncertain + result.uncertain
            if result.violation is not None:
                broken.append(result)
    print(
        f"{seeds:,} seeds in {time.monotonic() - began:.0f} s: {sends:,} sends, {crashes:,} crashes, "
        f"{uncertain:,} uncertain, {len(broken)} broke a rule"
    )
    for result in broken[:3]:
        print(simulate(result.seed))
    return 1 if broken or not all(held for _, held in explored.values()) else 0


def _explored(name: str) -> tuple[str, bool]:
    report = IN_FULL[name]()
    return str(report), report.violation is None


def _without_timeline(seed: int) -> Simulated:
    result = simulate(seed)
    result.timeline.clear()
    return result


if __name__ == "__main__":
    sys.exit(main(*(int(argument) for argument in sys.argv[1:])))
