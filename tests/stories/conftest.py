"""What the stories share: each is told in both colours and on every ledger that it makes sense on."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.stories.actors import NAMESPACE, Troupe
from tests.stories.recipient import Recipient
from tests.support import Clock, Colour, Life, Store


@pytest.fixture(params=["blocking", "asyncio"])
def colour(request: pytest.FixtureRequest) -> Colour:
    return Colour(request.param)


@pytest.fixture(params=["memory", "sqlite", "sqlite3", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param != "postgres":
        return Store(request.param, tmp_path)
    store = Store(request.param, tmp_path, request.getfixturevalue("shared_database"))
    # A life that was killed is found gone when it has not beaten three times; a story need not wait for 15 s.
    store.url += f"&beat={getattr(request.module, 'BEAT_S', 0.3)}"
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
