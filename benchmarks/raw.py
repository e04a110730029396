"""The floor: the same rows in the same tables, written with nothing between the program and SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import apsw

from benchmarks.measure import Opened, Slice
from counterfoil.ledgers.sqlite import migrations

INSERT = (
    "INSERT INTO counterfoil_record (run, slot, kind, body, owner, append_id, at, check_sum, format)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
# As long as what an effect without a request, whose run returns 1, records.
INTENT = b"{}"
OUTCOME = b'{"proof":1}'


def _connection(folder: str) -> apsw.Connection:
    Path(folder).mkdir(parents=True)
    connection = apsw.Connection(f"{folder}/raw.db")
    connection.execute("PRAGMA journal_mode = wal").fetchall()
    connection.execute("PRAGMA synchronous = full").fetchall()
    connection.execute(migrations.LEDGER.sql()).fetchall()
    return connection


def group(size: int) -> Opened:
    """Two commits for every `size` effects: all their intents, then all their outcomes."""

    @contextmanager
    def opened(folder: str) -> Iterator[Slice]:
        connection = _connection(folder)
        cursor = connection.cursor()
        effects_named, ids = count(), count(1)

        def commit(names: list[str], kind: int, what: str, body: bytes) -> None:
            cursor.execute("BEGIN IMMEDIATE")
            values = (
                (1, f"effect/{name}/1/{what}", kind, body, 1, next(ids), 1.7e9, 1_234_567_890, 1) for name in names
            )
            if size == 1:
                cursor.execute(INSERT, next(values))
            else:
                cursor.executemany(INSERT, values)
            cursor.execute("COMMIT")

        def slice_(effects: int) -> None:
            for _ in range(effects // size):
                names = [f"e{next(effects_named)}" for _ in range(size)]
                commit(names, 5, "intent", INTENT)
                commit(names, 6, "outcome", OUTCOME)

        yield slice_
        connection.close()

    return opened
