"""What the records of one run must not say, each on records that are otherwise sound."""

from __future__ import annotations

import pytest

from counterfoil.protocol import codec, records, slots
from counterfoil.protocol.legality import RunCheck
from tests.protocol.play import Play


def findings(play: Play) -> list[tuple[str, str, str]]:
    return [(found.rule, found.code, found.slot) for found in RunCheck("n", "r", play.records).findings]


@pytest.mark.rule("E8")
def test_the_first_life_may_let_go_of_the_run_that_it_started_and_only_of_that() -> None:
    play = Play()
    play.record(slots.STARTED, "started", codec.StartedBody(body="shop:order"), kind=records.RUN)
    play.record(slots.claim_released(0), "released", codec.EmptyBody(), kind=records.RUN)
    assert findings(play) == []
    play.record(slots.claim_released(1), "released", codec.EmptyBody(), kind=records.RUN)
    assert findings(play) == [("E8", "released-unclaimed", slots.claim_released(1))]
