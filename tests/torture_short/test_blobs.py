"""The campaigns of blobs of `make torture`, as short as still means something, in every test run."""

from pathlib import Path

import pytest

from tests.servers.finding import Missing, missing
from tests.torture import blobs, buckets
from tests.torture.arena import Arena

SEED = 1

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.mark.rule("K1", "K2", "K5", "K6")
def test_writers_that_are_killed_lose_no_sealed_blob_and_leave_nothing_that_is_not_cleaned_up(tmp_path: Path) -> None:
    arena = Arena("short", SEED, seconds=2.0, folder=tmp_path, quiet=True)
    blobs.campaign(arena, writers=2)
    counts = arena.counts
    assert not counts.problems, "\n".join(["", *counts.problems, f"seed {SEED}"])
    assert counts.kills
    assert counts.acknowledged


@pytest.mark.rule("K1", "K3", "K4", "K5", "K6")
def test_in_a_bucket_too_what_was_told_is_there_and_bytes_of_no_blob_are_cleaned_up(tmp_path: Path) -> None:
    arena = Arena("short", SEED, seconds=1.0, folder=tmp_path, quiet=True)
    try:
        buckets.campaign(arena, names=("ministack",), writers=2, kills_min=5)
    except Missing as error:
        missing(error)
    counts = arena.counts
    assert not counts.problems, "\n".join(["", *counts.problems, f"seed {SEED}"])
    assert counts.kills >= 5
    assert counts.acknowledged
