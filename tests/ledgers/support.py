"""What the tests of ledgers are written with: entries, other processes, and a connection that fails on demand."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from counterfoil.ledgers.sqlite import SqliteLedger
from counterfoil.ledgers.sqlite.engines import Connection, Row, connect
from counterfoil.protocol.records import EFFECT, STEP, Entry, Record, checksum

SRC = str(Path(__file__).resolve().parents[2] / "src")
ROOT = str(Path(__file__).resolve().parents[2])
PATIENCE_S = 60.0
CHECKED = ("kind", "phase", "body", "epoch", "append_id")
_numbers = count(1)

T = TypeVar("T")


def entry(slot: str, epoch: str = "", *, run: str = "run", body: bytes = b"null", **more: Any) -> Entry:
    """An entry with a checksum and an append id of its own."""
    values: dict[str, Any] = {
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


def intent(slot: str, epoch: str, **more: Any) -> Entry:
    """An entry that is a right to send."""
    return entry(slot, epoch, kind=EFFECT, phase="intent", decision=True, **more)


def sound(record: Record, run: str = "run") -> bool:
    """Whether a record passes its checksum."""
    return bool(record.check == checksum("n", run, record.slot, **{key: getattr(record, key) for key in CHECKED}))


def slots_of(ledger: SqliteLedger, run: str = "run") -> list[str]:
    """The slots of a run in order of position."""
    return [record.slot for record in ledger.read("n", run)]


def raw(ledger_path: str, engine: str, *statements: str) -> list[Row]:
    """Runs statements on a connection of its own and returns the rows of the last."""
    connection = connect(engine, ledger_path)
    rows: list[Row] = []
    try:
        for statement in statements:
            rows = connection.execute(statement)
    finally:
        connection.close()
    return rows


def python(source: str, *arguments: str, **options: Any) -> Any:
    """Starts another Python on a script that can import what the tests can."""
    return subprocess.Popen(
        [sys.executable, "-u", "-c", source, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{SRC}{os.pathsep}{ROOT}"},
        **options,
    )


def outcome(process: Any) -> str:
    """Waits for a script, which must succeed, and returns what it printed."""
    out: str
    out, err = process.communicate(timeout=2 * PATIENCE_S)
    assert process.returncode == 0, f"{out}\n{err}"
    return out


def line(process: Any) -> str:
    """The next line that a script prints."""
    text: str = process.stdout.readline()
    assert text, process.communicate()[1]
    return text.strip()


def end(process: Any) -> None:
    """Kills a script and forgets it."""
    process.kill()
    process.communicate()


def hurry(ledger: Any, timeout_s: float) -> None:
    """Let questions of a JetStream ledger that is open already take no longer than that."""
    for part in (ledger, ledger._writer, ledger._reader):
        part._timeout_s = timeout_s


class Meddler:
    """A connection between the ledger and SQLite. `before` and `after` see each statement and may raise."""

    def __init__(self, real: Connection) -> None:
        self.real = real
        self.engine = real.engine
        self.statements: list[str] = []
        self.before: Callable[[str], None] = lambda sql: None
        self.after: Callable[[str], None] = lambda sql: None

    @classmethod
    def into(cls, ledger: SqliteLedger) -> "Meddler":
        """Puts one before the connection that writes."""
        with ledger._database.write_lock:
            meddler = cls(ledger._database.writing())
            ledger._database._writes = meddler
        return meddler

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return self._around(sql, lambda: self.real.execute(sql, parameters))

    def command(self, sql: str) -> None:
        self._around(sql, lambda: self.real.command(sql))

    def insert(self, sql: str, parameters: Sequence[Any]) -> tuple[int, int]:
        return self._around(sql, lambda: self.real.insert(sql, parameters))

    def version(self) -> int:
        return self.real.version()

    def in_transaction(self) -> bool:
        return self.real.in_transaction()

    def lend(self, refuses: Callable[[int], bool]) -> Any:
        return self.real.lend(refuses)

    def take_back(self) -> None:
        self.real.take_back()

    def close(self) -> None:
        self.real.close()

    def commits(self) -> int:
        """How many COMMITs were sent."""
        return self.statements.count("COMMIT")

    def _around(self, sql: str, work: Callable[[], T]) -> T:
        self.statements.append(sql)
        self.before(sql)
        result = work()
        self.after(sql)
        return result
