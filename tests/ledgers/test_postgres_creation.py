"""One PostgreSQL ledger that many create at the same moment."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from counterfoil.ledgers.postgres import PostgresLedger
from counterfoil.ledgers.postgres.migrations import LEDGER

OPENERS = 8


@pytest.mark.rule("L11")
def test_many_that_open_a_new_ledger_at_once_make_it_once(database: str) -> None:
    for number in range(5):
        schema = f"new_{number}"
        together = threading.Barrier(OPENERS)

        def opened(_: int, schema: str = schema, together: threading.Barrier = together) -> None:
            together.wait()
            PostgresLedger(database, schema=schema).close()

        with ThreadPoolExecutor(OPENERS) as threads:
            list(threads.map(opened, range(OPENERS)))
        with psycopg.connect(database) as connection:
            made = connection.execute(f"SELECT version FROM {schema}.migration ORDER BY version".encode()).fetchall()
        assert made == [(version,) for version in range(1, len(LEDGER.scripts) + 1)]
