"""A shop: an application's database with a table of its own, an outbox in it, and a recipient that keeps a log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.outbox.shop import Shop


@pytest.fixture(params=["apsw", "sqlite3"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shop(tmp_path: Path, engine: str) -> Iterator[Shop]:
    shop = Shop(tmp_path / "shop.db", engine)
    yield shop
    shop.close()


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[Shop]:
    """A shop for what does not depend on the engine."""
    shop = Shop(tmp_path / "shop.db", "apsw")
    yield shop
    shop.close()
