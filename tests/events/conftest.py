"""Each test of events runs in both colours unless it says less, on a stream of its own."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from counterfoil import Events
from tests.events import support
from tests.events.support import Brokered, Stream
from tests.servers.nats import NatsCluster
from tests.support import Colour


@pytest.fixture(params=["blocking", "asyncio"])
def colour(request: pytest.FixtureRequest) -> Colour:
    return Colour(request.param)


@pytest.fixture
async def stream(nats: NatsCluster) -> Stream:
    return await Stream.make(nats.url)


@pytest.fixture
async def brokered(colour: Colour) -> AsyncIterator[Brokered]:
    async with Brokered(colour) as made:
        yield made


@pytest.fixture
def make() -> Iterator[Callable[..., Events]]:
    """Makes recipients that are closed when the test is over."""
    made: list[Events] = []

    def events(stream: Any, url: str | None = None, **options: Any) -> Events:
        made.append(support.events(stream, url, **options))
        return made[-1]

    yield events
    for each in made:
        each.close()
