"""What a restart costs: a process of its own reads a long run and is answered from the records.

`python -m benchmarks.replay FILE EFFECTS` is that process; it prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import ours

CALLERS = 64


def write(folder: str, effects: int) -> str:
    """Record a run of that many effects and return the ledger's file."""
    with ours.looped(CALLERS)(folder) as slice_:
        slice_(effects // CALLERS * CALLERS)
    return f"{folder}/ours.db"


def measure(file: str, effects: int) -> dict[str, Any]:
    """Replay it in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.replay", file, str(effects // CALLERS * CALLERS)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _replay(file: str, effects: int) -> dict[str, float]:
    from counterfoil import UNASKABLE, AsyncRuntime, Runtime

    def never() -> int:
        raise AssertionError("sent again")

    names = [f"e{number}" for number in range(effects)]
    began = time.perf_counter()
    with Runtime(f"sqlite:///{file}") as runtime, runtime.run("r") as run:
        run.effect(names[0], run=never, reconcile=UNASKABLE)
        read = time.perf_counter()
        for name in names:
            run.effect(name, run=never, reconcile=UNASKABLE)
        first = time.perf_counter()
        peak = _peak_mib()
        for name in names:
            run.effect(name, run=never, reconcile=UNASKABLE)
        again = time.perf_counter()

    async def live() -> float:
        async with AsyncRuntime(f"sqlite:///{file}") as aruntime, aruntime.run("r") as arun:
            await arun.effect(names[0], run=never, reconcile=UNASKABLE)
            for name in names:
                await arun.effect(name, run=never, reconcile=UNASKABLE)
            began = time.perf_counter()
            for name in names:
                await arun.effect(name, run=never, reconcile=UNASKABLE)
            return len(names) / (time.perf_counter() - began)

    return {
        "effects": len(names),
        "first_read_s": read - began,
        "records_per_s": 2 * len(names) / (read - began),
        "replay_all_s": first - began,
        "peak_mib": peak,
        "live_per_s": len(names) / (again - first),
        "live_async_per_s": asyncio.run(live()),
    }


def _peak_mib() -> float:
    status = Path("/proc/self/status")
    if status.exists():
        # Not ru_maxrss, which Linux hands on from the parent that forked this process.
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text(encoding="utf-8"))
        return int(found[1]) / 1024 if found else 0.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


if __name__ == "__main__":
    print(json.dumps(_replay(sys.argv[1], int(sys.argv[2]))))
