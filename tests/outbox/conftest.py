"""A shop: an application's database with a table of its own, an outbox in it, and a recipient that keeps a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.outbox.shop import FileShop, PostgresShop, Shop
from tests.support import Clock

_numbers = count(1)

Opens = Callable[..., Shop]


@pytest.fixture
def opens(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Opens]:
    """Opens a shop on a store, perhaps with a clock of its own."""
    shops: list[Shop] = []

    def opened(store: str, *, clock: Clock | None = None) -> Shop:
        shop: Shop
        if store == "postgres":
            shop = PostgresShop(request.getfixturevalue("shared_database"), f"shop{next(_numbers)}", clock=clock)
        else:
            shop = FileShop(tmp_path / f"shop{len(shops)}.db", store, clock=clock)
        shops.append(shop)
        return shop

    yield opened
    for shop in shops:
        shop.close()


@pytest.fixture(params=["apsw", "sqlite3", "postgres"])
def shop(opens: Opens, request: pytest.FixtureRequest) -> Shop:
    """A shop on every store."""
    return opens(request.param)


@pytest.fixture(params=["apsw", "postgres"])
def lone(opens: Opens, request: pytest.FixtureRequest) -> Shop:
    """A shop for what does not depend on which SQLite library it is."""
    return opens(request.param)


@pytest.fixture(params=["apsw", "postgres"])
def timed(opens: Opens, request: pytest.FixtureRequest) -> Shop:
    """A shop where time stands still until a test moves it."""
    return opens(request.param, clock=Clock())


@pytest.fixture(params=["apsw", "sqlite3"])
def file(opens: Opens, request: pytest.FixtureRequest) -> Any:
    """A shop for what is so in SQLite alone."""
    return opens(request.param)


@pytest.fixture
def server(opens: Opens) -> Any:
    """A shop for what is so in PostgreSQL alone."""
    return opens("postgres")
