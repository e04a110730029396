"""What every test shares: one way of using Hypothesis, and no thread left behind."""

import os
import threading
import time
from collections.abc import Iterator

import hypothesis
import pytest

# Durable commits take as long as the disk takes, so no example has a deadline. In CI the examples
# are the same in every run; elsewhere they differ, and what failed is tried again first.
hypothesis.settings.register_profile("developer", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True, database=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "developer")

# Real servers, started when a test asks for one.
pytest_plugins = ["tests.servers.fixtures"]

GRACE_S = 30.0


def lingering(before: set[threading.Thread]) -> list[threading.Thread]:
    """The threads started since that would keep the interpreter from ending."""
    return [
        thread for thread in threading.enumerate() if thread not in before and thread.is_alive() and not thread.daemon
    ]


@pytest.fixture(autouse=True)
def no_thread_is_left_behind() -> Iterator[None]:
    """Fails a test that leaves a thread behind which would keep the process alive."""
    before = set(threading.enumerate())
    yield
    give_up = time.monotonic() + GRACE_S
    while lingering(before) and time.monotonic() < give_up:
        time.sleep(0.01)
    left = [thread.name for thread in lingering(before)]
    assert not left, f"threads left behind: {', '.join(left)}"
