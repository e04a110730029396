"""What the tests of ledgers share: both SQLite engines, and ledgers that are closed afterwards."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from counterfoil.ledgers.sqlite import SqliteLedger

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

    def open_one(where: str = path, **options: Any) -> SqliteLedger:
        ledger = SqliteLedger(where, **{"engine": engine, "timeout_s": 30.0, **options})
        opened.append(ledger)
        return ledger

    yield open_one
    for ledger in opened:
        ledger.close()


@pytest.fixture
def ledger(open_ledger: Open) -> SqliteLedger:
    """An open ledger."""
    return open_ledger()
