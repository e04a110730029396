"""The campaigns against the PostgreSQL ledger, as short as still means something, in every test run."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.servers.finding import Missing, missing, postgres_bin
from tests.torture.arena import Arena
from tests.torture.judge import Counts
from tests.torture.postgres import frozen, machines, restarts, wires, zombies
from tests.torture.scenarios import MAIN

SEED = 1

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture
def arena() -> Iterator[Arena]:
    try:
        for major in (16, 18):
            postgres_bin(major)
    except Missing as error:
        missing(error)
    # The address of a socket must be short, and pytest's folders have long names.
    with TemporaryDirectory(prefix="cf-") as folder:
        yield Arena("short", SEED, seconds=1.0, folder=Path(folder), quiet=True)


def sound(arena: Arena) -> Counts:
    """Fails with what was violated, and returns what was counted."""
    counts = arena.counts
    assert not counts.problems, "\n".join(["", *counts.problems, f"seed {SEED}"])
    assert (counts.lost, counts.doubled) == (0, 0)
    return counts


@pytest.mark.rule("L2", "L3")
def test_a_server_that_crashes_under_writers_loses_nothing_that_was_answered(arena: Arena) -> None:
    restarts.campaign(arena, restarts=2, writers=4)
    counts = sound(arena)
    assert counts.kills == 2
    assert counts.acknowledged


@pytest.mark.rule("L2", "L3")
def test_broken_wires_lose_nothing_that_was_answered_and_send_nothing_twice(arena: Arena) -> None:
    wires.campaign(arena, faults=15, writers=4)
    assert sound(arena).kills >= 15


@pytest.mark.rule("E8", "L7")
def test_two_machines_whose_clocks_differ_send_each_effect_once(arena: Arena) -> None:
    machines.campaign(arena, contested=20)
    assert sound(arena).sends == 2 * 20


@pytest.mark.rule("L7", "L8", "E15")
def test_owners_that_are_declared_gone_while_alive_send_nothing_twice(arena: Arena) -> None:
    zombies.campaign(arena, effects=40)
    assert sound(arena).sends == 40


@pytest.mark.rule("L7", "L8", "E8")
def test_an_owner_that_is_stopped_anywhere_and_wakes_after_a_takeover_sends_nothing_twice(arena: Arena) -> None:
    frozen.campaign(arena, scenarios=[MAIN])
    assert sound(arena).kills >= 4 * 2  # an intent and an outcome, before and after, in both colours
