"""A run's start and its end, as its own records say them."""

from __future__ import annotations

import msgspec
import pytest

from counterfoil import RunPruned
from counterfoil.effects import lifetime
from counterfoil.protocol import codec, records, slots
from tests.protocol.play import OTHER, Play


def of_run(play: Play, slot: str, phase: str, body: msgspec.Struct) -> None:
    play.known(slot, phase, body, kind=records.RUN)


@pytest.mark.rule("E6", "E8")
@pytest.mark.parametrize("ended", [False, True])
def test_a_run_that_was_started_is_claimed_unless_it_has_ended(ended: bool) -> None:
    play = Play()
    play.gone.add(OTHER)
    of_run(play, slots.STARTED, "started", codec.StartedBody(body="shop:order", args=msgspec.Raw(b"[]")))
    if ended:
        of_run(play, slots.FINISHED, "finished", codec.FinishedBody(result=msgspec.Raw(b"7")))
    assert play.run(lifetime.start(play.scope, "shop:order", b"[]")) == (b"7" if ended else None)
    assert [draft.slot for draft in play.appended()] == ([] if ended else [slots.claim(1)])


@pytest.mark.rule("L10")
@pytest.mark.parametrize(("result", "kept"), [(b'{"sum":3}', {"sum": 3}), (None, None)])
def test_a_pruned_run_answers_with_the_result_that_its_tombstone_keeps(result: bytes | None, kept: object) -> None:
    play = Play()
    if result is not None:
        of_run(play, slots.FINISHED, "finished", codec.FinishedBody(result=msgspec.Raw(result)))
    of_run(play, slots.TOMBSTONE, "tombstone", codec.TombstoneBody())
    with pytest.raises(RunPruned) as raised:
        play.run(lifetime.finish(play.scope, b"1"))
    assert raised.value.outcome == kept
    assert play.appended() == []


@pytest.mark.rule("E6")
def test_a_run_that_has_ended_is_not_ended_again() -> None:
    play = Play()
    of_run(play, slots.FINISHED, "finished", codec.FinishedBody(result=msgspec.Raw(b"7")))
    play.run(lifetime.finish(play.scope, b"7"))
    assert play.requests == []
