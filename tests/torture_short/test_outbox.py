"""The outbox's campaign of `make torture`, as short as still means something, in every test run."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.servers.finding import Missing, missing, postgres_bin
from tests.torture import outbox
from tests.torture.arena import Arena

SEED = 1

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture
def arena() -> Iterator[Arena]:
    # The address of a socket must be short, and pytest's folders have long names.
    with TemporaryDirectory(prefix="cf-") as folder:
        yield Arena("short", SEED, seconds=3.0, folder=Path(folder), quiet=True)


@pytest.mark.rule("X1", "X3", "X4", "X5", "X6", "X7", "X11", "T2")
def test_dispatchers_that_are_killed_and_stopped_send_nothing_twice_and_lose_nothing(arena: Arena) -> None:
    outbox.campaign(arena, dispatchers=3, engines=("apsw",))
    counts = arena.counts
    assert not counts.problems, "\n".join(["", *counts.problems, f"seed {SEED}"])
    assert counts.kills
    assert counts.acknowledged


@pytest.mark.rule("L3", "T2", "X1", "X3", "X4", "X5", "X6", "X7", "X11")
def test_on_postgresql_neither_kills_nor_lost_commits_send_anything_twice(arena: Arena) -> None:
    try:
        for major in (16, 18):
            postgres_bin(major)
    except Missing as error:
        missing(error)
    outbox.postgres_campaign(arena, dispatchers=3)
    counts = arena.counts
    assert not counts.problems, "\n".join(["", *counts.problems, f"seed {SEED}"])
    assert counts.kills
    assert counts.acknowledged
