"""The campaign against three NATS servers, as short as still means something, in every test run."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.servers.finding import Missing, missing, nats_server
from tests.torture import failovers
from tests.torture.arena import Arena

SEED = 1

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.mark.rule("L2", "L3", "E8")
def test_two_processes_contest_effects_while_the_leader_dies_and_each_is_sent_once() -> None:
    try:
        nats_server()
    except Missing as error:
        missing(error)
    with TemporaryDirectory(prefix="cf-") as folder:
        arena = Arena("short", SEED, seconds=1.0, folder=Path(folder), quiet=True)
        failovers.campaign(arena, contested=20, disasters=1)
    counts = arena.counts
    assert not counts.problems, "\n".join(["", *counts.problems, f"seed {SEED}"])
    assert (counts.kills, counts.sends, counts.acknowledged) == (1, 20, 20)
