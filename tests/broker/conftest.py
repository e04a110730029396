"""Each test of the broker runs in both colours unless it says less."""

import pytest

from tests.broker.support import Post
from tests.support import Colour


@pytest.fixture(params=["blocking", "asyncio"])
def colour(request: pytest.FixtureRequest) -> Colour:
    return Colour(request.param)


@pytest.fixture
def post(colour: Colour) -> Post:
    return Post(colour)
