"""What the tests of effects share: each of them runs in both colours and on every ledger unless it says less."""

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import Clock, Colour, Life, Payee, Store


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On PostgreSQL each test runs in one colour, by its name; `POSTGRES_IN_FULL=1` runs it in both."""
    if os.environ.get("POSTGRES_IN_FULL"):
        return
    other = [item for item in items if _in_the_other_colour(item)]
    config.hook.pytest_deselected(items=other)
    left_out = set(other)
    items[:] = [item for item in items if item not in left_out]


def _in_the_other_colour(item: pytest.Item) -> bool:
    chosen = getattr(getattr(item, "callspec", None), "params", {})
    if chosen.get("store") != "postgres" or "colour" not in chosen:
        return False
    name = f"{item.path.name}::{getattr(item, 'originalname', item.name)}"
    return bool((zlib.crc32(name.encode()) % 2 == 0) == (chosen["colour"] == "blocking"))


@pytest.fixture(params=["blocking", "asyncio"])
def colour(request: pytest.FixtureRequest) -> Colour:
    return Colour(request.param)


@pytest.fixture(params=["memory", "sqlite", "sqlite3", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    database = request.getfixturevalue("shared_database") if request.param == "postgres" else ""
    return Store(request.param, tmp_path, database)


@pytest.fixture
def payee() -> Payee:
    return Payee()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(colour: Colour, store: Store) -> Callable[..., Life]:
    """Makes lives on the test's ledger; enter them with `async with`."""

    def made(**options: Any) -> Life:
        return colour.life(options.pop("target", store.target), **options)

    return made
