"""A long life: many short runs in one process, and whether it grows or slows down.

`python -m benchmarks.endurance FOLDER EFFECTS` is that process; it prints one JSON object for each sample.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import ours

CALLERS = 64
RUN_SIZE = 10
SAMPLES = 50

Sample = dict[str, float]


def measure(folder: str, effects: int) -> list[Sample]:
    """Live that long in a fresh process; each sample is about the effects since the one before it."""
    command = [sys.executable, "-m", "benchmarks.endurance", folder, str(effects)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def summary(samples: list[Sample]) -> dict[str, float]:
    """How the last fifth of a life compares with its first fifth, the warm-up left out.

    The cost is the median of the processor time for an effect: what others do on this machine changes it least.
    """
    warm = samples[1:]
    fifth = max(1, len(warm) // 5)
    early, late = warm[:fifth], warm[-fifth:]
    return {
        "runs": samples[-1]["runs"],
        "cost_ratio": _median(late, "cpu_us") / _median(early, "cpu_us"),
        "rate_ratio": _median(late, "per_s") / _median(early, "per_s"),
        "grown_mib": _median(late, "rss_mib") - _median(early, "rss_mib"),
        "rss_mib": samples[-1]["rss_mib"],
    }


def _median(samples: list[Sample], what: str) -> float:
    values = sorted(sample[what] for sample in samples)
    return values[len(values) // 2]


def _live(folder: str, effects: int) -> Iterator[Sample]:
    step = max(1, effects // SAMPLES // (CALLERS * RUN_SIZE)) * CALLERS * RUN_SIZE
    with ours.looped(CALLERS, run_size=RUN_SIZE)(folder) as slice_:
        done = 0
        while done < effects:
            wall, cpu = time.perf_counter(), time.process_time()
            slice_(step)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            done += step
            yield {
                "effects": done,
                "runs": done // RUN_SIZE,
                "per_s": step / wall,
                "cpu_us": cpu / step * 1e6,
                "rss_mib": _rss_mib(),
            }


def _rss_mib() -> float:
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"VmRSS:\s+(\d+) kB", status.read_text(encoding="utf-8"))
        return int(found[1]) / 1024 if found else 0.0
    # The peak, where the present size cannot be read: it does not fall, but a leak shows.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


if __name__ == "__main__":
    for sample in _live(sys.argv[1], int(sys.argv[2])):
        print(json.dumps(sample), flush=True)
