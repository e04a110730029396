"""What the tests of effects share: each of them runs in both colours and on every ledger unless it says less."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import Clock, Colour, Life, Payee, Store


@pytest.fixture(params=["blocking", "asyncio"])
def colour(request: pytest.FixtureRequest) -> Colour:
    return Colour(request.param)


@pytest.fixture(params=["memory", "sqlite", "sqlite3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(request.param, tmp_path)


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
