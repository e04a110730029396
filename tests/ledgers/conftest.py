"""What the tests of ledgers share: both SQLite engines, entries, and other processes."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from counterfoil.ledgers.sqlite import SqliteLedger
from counterfoil.protocol.records import EFFECT, STEP, Entry, checksum

SRC = str(Path(__file__).resolve().parents[2] / "src")
CHECKED = ("kind", "phase", "body", "epoch", "append_id")
_numbers = count(1)

Open = Callable[..., SqliteLedger]


@pytest.fixture(params=["apsw", "sqlite3"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each SQLite library in turn."""
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the database is; nothing is there yet."""
    return str(tmp_path / "ledger.db")


@pytest.fixture
def open_ledger(path: str, engine: str) -> Iterator[Open]:
    """Opens ledgers on `path` and closes them afterwards."""
    opened: list[SqliteLedger] = []

    def open_one(where: str = path, **options: object) -> SqliteLedger:
        ledger = SqliteLedger(where, **{"engine": engine, "timeout_s": 10.0, **options})
        opened.append(ledger)
        return ledger

    yield open_one
    for ledger in opened:
        ledger.close()


@pytest.fixture
def ledger(open_ledger: Open) -> SqliteLedger:
    """An open ledger."""
    return open_ledger()


def entry(slot: str, epoch: str = "", *, run: str = "run", body: bytes = b"null", **more: object) -> Entry:
    """An entry with a checksum and an append id of its own."""
    values = {
        "namespace": "n",
        "run": run,
        "slot": slot,
        "kind": STEP,
        "phase": "result",
        "body": body,
        "epoch": epoch,
        "append_id": next(_numbers),
        "at": 1.5,
        **more,
    }
    if "check" not in values:
        values["check"] = checksum("n", run, slot, **{key: values[key] for key in CHECKED})
    return Entry(**values)


def intent(slot: str, epoch: str, **more: object) -> Entry:
    """An entry that is a right to send."""
    return entry(slot, epoch, kind=EFFECT, phase="intent", decision=True, **more)


def sound(record: object, run: str = "run") -> bool:
    """Whether a record passes its checksum."""
    return record.check == checksum("n", run, record.slot, **{key: getattr(record, key) for key in CHECKED})


def python(source: str, *arguments: str, **options: object) -> subprocess.Popen:
    """Starts another Python on a script that can import what the tests can."""
    return subprocess.Popen(
        [sys.executable, "-c", source, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SRC},
        **options,
    )
