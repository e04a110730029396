"""Bytes in the ledger, and milliseconds to import."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
from pathlib import Path

import apsw

from benchmarks import ours

RUN_SIZE = 1000


def bytes_per_effect(folder: str, *, runs: int) -> float:
    """The file's size by the number of its effects, in runs of 1,000 with a request."""
    callers = runs
    with ours.looped(callers, request=ours.REQUEST, run_size=RUN_SIZE)(folder) as slice_:
        slice_(callers * RUN_SIZE)
    file = f"{folder}/ours.db"
    connection = apsw.Connection(file)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    return Path(file).stat().st_size / (callers * RUN_SIZE)


def import_ms(times: int = 5) -> float:
    """The median of `python -X importtime -c "import counterfoil"`."""
    taken = []
    for _ in range(times):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-c", "import counterfoil"], capture_output=True, check=True, text=True
        )
        found = re.search(r"\|\s+(\d+) \| counterfoil$", done.stderr, re.MULTILINE)
        assert found is not None, done.stderr
        taken.append(int(found[1]) / 1000)
    return statistics.median(taken)
