"""What the tests of HTTP share: each of them runs in both colours, against peers on real sockets."""

import pytest

from tests.http.support import Colour


@pytest.fixture(params=["blocking", "asyncio"])
def colour(request: pytest.FixtureRequest) -> Colour:
    return Colour(request.param)
