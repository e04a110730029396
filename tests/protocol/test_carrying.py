"""Who carries a run's body, as its records say it, and whether deaths are held against it."""

from __future__ import annotations

import pytest

from counterfoil import LedgerCorrupt
from counterfoil.effects import carry
from counterfoil.protocol import codec, records, slots
from tests.protocol.play import ME, OTHER, Play

THIRD = "2.third"


def of_run(play: Play, slot: str, phase: str, body: object = None, *, epoch: str = OTHER) -> None:
    play.known(slot, phase, body or codec.EmptyBody(), epoch=epoch, kind=records.RUN)  # type: ignore[arg-type]


def started(*, epoch: str = OTHER, **more: bool) -> Play:
    play = Play(**more)  # type: ignore[arg-type]
    of_run(play, slots.STARTED, "started", codec.StartedBody(body="shop:order"), epoch=epoch)
    return play


def stepped(play: Play, name: str, *, epoch: str) -> None:
    play.known(slots.step(name), "result", codec.StepBody(), epoch=epoch, kind=records.STEP)


def deaths(play: Play) -> int:
    found = carry.carrier_of(play.scope.history)
    assert found is not None
    return found.deaths


@pytest.mark.rule("E8")
def test_a_life_that_let_go_is_not_counted_as_a_death() -> None:
    play = started()
    of_run(play, slots.claim_released(0), "released")
    assert deaths(play) == 0
    of_run(play, slots.claim(1), "claimed", epoch=THIRD)
    assert deaths(play) == 1


@pytest.mark.rule("E8")
def test_only_what_the_carrying_life_recorded_of_the_body_begins_the_count_again() -> None:
    play = started()
    of_run(play, slots.claim(1), "claimed", epoch=THIRD)
    stepped(play, "by-the-life-before", epoch=OTHER)
    play.known(slots.event("paid", "1"), "delivered", codec.DeliveredBody(), epoch=THIRD, kind=records.EVENT)
    assert deaths(play) == 2
    stepped(play, "by-this-life", epoch=THIRD)
    assert deaths(play) == 1
    of_run(play, slots.claim_released(1), "released", epoch=THIRD)
    stepped(play, "just-before-it-ended", epoch=THIRD)
    assert deaths(play) == 0


@pytest.mark.rule("E8", "L4")
def test_who_carries_a_run_is_not_drawn_from_a_record_of_another_kind_in_its_own_slots() -> None:
    play = started()
    play.known(slots.claim(1), "claimed", codec.EmptyBody(), epoch=THIRD, kind=records.STEP)
    with pytest.raises(LedgerCorrupt):
        carry.carrier_of(play.scope.history)


@pytest.mark.rule("E8")
def test_without_owners_a_run_of_any_of_this_lifes_epochs_is_its_own() -> None:
    play = started(epoch=ME, owned=False)
    assert play.run(carry.claim(play.scope)) is True
    assert play.appended() == []


@pytest.mark.rule("E8")
def test_nobody_claims_a_run_that_was_not_started_or_that_is_quarantined() -> None:
    assert play_claims(Play()) is False
    play = started()
    play.gone.add(OTHER)
    of_run(play, slots.quarantine(1), "quarantined", codec.QuarantinedBody(deaths=5))
    assert play_claims(play) is False
    of_run(play, slots.lifted(1), "lifted", codec.LiftedBody(by="ada", reason="mended"))
    assert play_claims(play) is True


def play_claims(play: Play) -> bool:
    return bool(play.run(carry.claim(play.scope)))


@pytest.mark.rule("E8", "L8")
def test_to_quarantine_and_to_lift_are_decisions_and_are_numbered_without_gaps() -> None:
    play = started()
    play.gone.add(OTHER)
    for number in (1, 2, 3):
        assert play.run(carry.claim(play.scope, deaths_max=1)) is False
        play.run(carry.lift(play.scope, by="ada", reason="mended"))
        of_run(play, slots.claim(number), "claimed")
    wanted = [slot for number in (1, 2, 3) for slot in (slots.quarantine(number), slots.lifted(number))]
    assert [(draft.slot, draft.decision) for draft in play.appended()] == [(slot, True) for slot in wanted]


@pytest.mark.rule("E8")
def test_a_run_stands_at_a_park_until_that_park_has_passed() -> None:
    play = started()
    assert not carry.parked(play.scope.history)
    play.known(slots.wait("paid", "1"), "armed", codec.ArmedBody(), kind=records.PARK)
    assert carry.parked(play.scope.history)
    play.known(slots.event("paid", "1"), "delivered", codec.DeliveredBody(), kind=records.EVENT)
    assert not carry.parked(play.scope.history)
    play.known(slots.sleep("rest"), "armed", codec.ArmedBody(deadline=1.0), kind=records.PARK)
    assert carry.parked(play.scope.history)
    play.known(slots.woken("rest"), "woken", codec.EmptyBody(), kind=records.PARK)
    assert not carry.parked(play.scope.history)
