"""The write-ahead log: a reader of somebody else's makes it grow, and does not keep it large."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from counterfoil.ledgers.sqlite.checkpoints import _COMMITS
from counterfoil.ledgers.sqlite.database import WAL_BYTES_MAX
from tests.ledgers.support import end, entry, line, python

READER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM counterfoil_record").fetchall()
print("reading", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
print("ended", flush=True)
sys.stdin.readline()
"""

# Seventy of these are more than the log may keep.
BODY = b'"' + b"x" * 1_000_000 + b'"'
BODIES = 70


def test_the_log_grows_while_a_foreign_reader_stays_and_one_checkpoint_after_it_ended_is_back_under_64_mib(
    path, open_ledger, request
):
    ledger = open_ledger()
    ledger.append(entry("first", ledger.register("x")))
    reader = python(READER, path)
    request.addfinalizer(partial(end, reader))
    assert line(reader) == "reading"
    for number in range(BODIES):
        ledger.append(entry(f"while-it-reads/{number}", body=BODY))
    # As long as it stays that is reported with the mend.
    found = {subject: (level, mend) for level, subject, _, mend in ledger.diagnose()}
    level, mend = found["wal-size"]
    assert level == "warning"
    assert "snapshot" in mend
    log = Path(f"{path}-wal")
    reader.stdin.write("\n")
    reader.stdin.flush()
    assert line(reader) == "ended"
    # The end of a reader shortens nothing: the next checkpoint does, and the commit after it.
    assert log.stat().st_size > WAL_BYTES_MAX
    checkpoint = _COMMITS if ledger._database.affected else 1
    for number in range(checkpoint + 1):
        ledger.append(entry(f"after/{number}"))
    assert log.stat().st_size <= WAL_BYTES_MAX == 64 * 1024 * 1024
    assert len(ledger.read("n", "run")) == 1 + BODIES + checkpoint + 1


def test_the_log_is_bounded_where_nobody_ever_registered(path, open_ledger):
    # Such a ledger has no folder beside it until the first checkpoint of ours needs its lock.
    ledger = open_ledger()
    largest = 0
    for number in range(3 * _COMMITS):
        ledger.append(entry(f"slot/{number}", body=BODY[:40_000] + b'"'))
        largest = max(largest, Path(f"{path}-wal").stat().st_size)
    assert largest < 2 * _COMMITS * 40_000
