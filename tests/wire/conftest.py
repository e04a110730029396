"""Every test of what reaches the wire is made in both colours."""

from __future__ import annotations

import pytest

from tests.wire.scene import Scene


@pytest.fixture(params=["blocking", "asyncio"])
def scene(request: pytest.FixtureRequest) -> Scene:
    return Scene(request.param)
