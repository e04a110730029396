"""What the tests of effects share: each of them runs in both colours and on every ledger unless it says less."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import Clock, Colour, Life, Payee, Store, other_colour

# What is run on JetStream too: the heart of the protocol. `NATS_IN_FULL=1` runs everything that needs no transactions.
_IN_FULL: Final = bool(os.environ.get("NATS_IN_FULL"))
_ON_NATS: Final = ("test_calls.py", "test_asking.py", "test_evidence.py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With the second SQLite engine, on PostgreSQL and on NATS each test runs in one colour, by its name.

    A ledger is below the same requests that a colour is above of. `POSTGRES_IN_FULL=1`, `NATS_IN_FULL=1` and
    `SQLITE3_IN_FULL=1` run both.
    """
    other = [item for item in items if _left_out(item)]
    config.hook.pytest_deselected(items=other)
    left_out = set(other)
    items[:] = [item for item in items if item not in left_out]


def _left_out(item: pytest.Item) -> bool:
    chosen = getattr(getattr(item, "callspec", None), "params", {})
    kind = chosen.get("store")
    if kind == "nats" and ("transaction" in item.path.name or (not _IN_FULL and item.path.name not in _ON_NATS)):
        return True
    if (
        kind not in ("sqlite3", "postgres", "nats")
        or "colour" not in chosen
        or os.environ.get(f"{kind.upper()}_IN_FULL")
    ):
        return False
    return other_colour(item, chosen["colour"])


@pytest.fixture(params=["blocking", "asyncio"])
def colour(request: pytest.FixtureRequest) -> Colour:
    return Colour(request.param)


@pytest.fixture(params=["memory", "sqlite", "sqlite3", "postgres", "nats"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    server = ""
    if request.param == "postgres":
        server = request.getfixturevalue("shared_database")
    elif request.param == "nats":
        server = request.getfixturevalue("nats").url
    return Store(request.param, tmp_path, server)


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
