"""What the stories share: each is told in both colours and on every ledger that it makes sense on."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.stories.actors import NAMESPACE, Troupe
from tests.stories.recipient import Recipient
from tests.support import Clock, Colour, Life, Store, other_colour

# JetStream tells each story in one colour, since waiting for beats to fail takes time; `NATS_IN_FULL=1`: in both.
_IN_FULL: Final = bool(os.environ.get("NATS_IN_FULL"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On NATS each story is told in one colour, by its name; `NATS_IN_FULL=1` tells it in both."""
    other = {item for item in items if not _IN_FULL and _left_out(item)}
    config.hook.pytest_deselected(items=list(other))
    items[:] = [item for item in items if item not in other]


def _left_out(item: pytest.Item) -> bool:
    chosen = getattr(getattr(item, "callspec", None), "params", {})
    return chosen.get("store") == "nats" and "colour" in chosen and other_colour(item, chosen["colour"])


@pytest.fixture(params=["blocking", "asyncio"])
def colour(request: pytest.FixtureRequest) -> Colour:
    return Colour(request.param)


@pytest.fixture
def beat_s() -> float:
    """How often a life beats on a server: lives that go on together must not take each other for gone."""
    return 30.0


@pytest.fixture(params=["memory", "sqlite", "sqlite3", "postgres", "nats"])
def store(request: pytest.FixtureRequest, tmp_path: Path, beat_s: float) -> Store:
    if request.param not in ("postgres", "nats"):
        return Store(request.param, tmp_path)
    postgres = request.param == "postgres"
    server = request.getfixturevalue("shared_database") if postgres else request.getfixturevalue("nats").url
    store = Store(request.param, tmp_path, server)
    store.url += f"&beat={beat_s}"
    return store


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recipient(tmp_path: Path, clock: Clock) -> Recipient:
    return Recipient(tmp_path / "recipient.jsonl", clock.time)


@pytest.fixture
def make(colour: Colour, store: Store, clock: Clock) -> Callable[..., Life]:
    """Makes lives on the story's ledger; enter them with `async with`."""

    def made(**options: object) -> Life:
        return colour.life(options.pop("target", store.target), **{"namespace": NAMESPACE, "clock": clock, **options})

    return made


@pytest.fixture
def troupe(store: Store, recipient: Recipient, colour: Colour) -> Iterator[Troupe]:
    """Starts lives elsewhere."""
    with Troupe(store, recipient, colour) as troupe:
        yield troupe
