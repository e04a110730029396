"""The campaigns of `make torture`, as short as still means something, in every test run."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.torture import activations, clocks, fork, full, kills, points, race, stop, sync
from tests.torture.arena import Arena
from tests.torture.judge import Counts
from tests.torture.scenarios import MAIN

SEED = 1

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture
def arena() -> Iterator[Arena]:
    # The address of a socket must be short, and pytest's folders have long names.
    with TemporaryDirectory(prefix="cf-") as folder:
        yield Arena("short", SEED, seconds=1.0, folder=Path(folder), quiet=True)


def sound(arena: Arena) -> Counts:
    """Fails with what was violated, and returns what was counted."""
    counts = arena.counts
    assert not counts.problems, "\n".join(["", *counts.problems, f"seed {SEED}"])
    assert (counts.lost, counts.doubled) == (0, 0)
    return counts


@pytest.mark.rule("E8", "E3")
def test_of_two_processes_one_sends_and_both_get_the_same_outcome(arena: Arena) -> None:
    race.campaign(arena, races=10, run_s=0.5)
    assert sound(arena).sends == 16


@pytest.mark.rule("E1", "E2", "L2")
def test_workers_that_are_killed_at_random_lose_nothing_and_send_nothing_twice(arena: Arena) -> None:
    arena.seconds = 2.0
    kills.campaign(arena, workers=3)
    counts = sound(arena)
    assert counts.kills
    assert counts.acknowledged


@pytest.mark.rule("E1", "E2", "E21")
def test_every_request_of_an_effect_can_be_the_last_of_a_life(arena: Arena) -> None:
    points.campaign(arena, scenarios=[MAIN])
    assert sound(arena).kills >= 4 * 4  # an intent and an outcome, before and after, in both colours and engines


@pytest.mark.rule("E17", "E20")
def test_a_full_disk_sends_nothing_and_loses_no_proof(arena: Arena) -> None:
    full.campaign(arena, halved=True)
    sound(arena)


@pytest.mark.rule("E8", "L7")
def test_a_stopped_owner_is_alive_and_nobody_asks_the_recipient(arena: Arena) -> None:
    stop.campaign(arena)
    sound(arena)


@pytest.mark.rule("E9", "P4")
def test_a_clock_that_jumps_by_years_settles_nothing_too_early_and_repeats_no_sleep(arena: Arena) -> None:
    clocks.campaign(arena)
    sound(arena)


@pytest.mark.rule("L12")
def test_a_fork_with_effects_under_way_harms_nobody(arena: Arena) -> None:
    fork.campaign(arena)
    sound(arena)


@pytest.mark.rule("L2", "L3")
def test_failed_syncs_and_power_cuts_lose_no_record_that_was_answered(arena: Arena) -> None:
    sync.campaign(arena)
    sound(arena)


@pytest.mark.rule("B5", "B2", "B6")
def test_storms_of_cancelled_revoked_and_overdue_calls_lose_no_permit_and_send_nothing_that_was_rejected(
    arena: Arena,
) -> None:
    activations.campaign(arena, activations=1000)
    assert sound(arena).sends
