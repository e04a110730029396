"""Parks and deliveries: what they record and refuse, and how long they wait."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from counterfoil import DeliveryConflict, LedgerCorrupt, Runtime, UsageError
from counterfoil.effects import park
from counterfoil.effects.park import deliver, delivered, slept, wait_for
from counterfoil.effects.step import ARM_S_MAX
from counterfoil.protocol import codec, records, slots
from counterfoil.protocol.records import Record
from counterfoil.protocol.requests import Append, Now, Pause, Read, Request
from tests.protocol.play import Play

WAIT, EVENT = slots.wait("paid", "7"), slots.event("paid", "7")
NAP = slots.sleep("nap"), "armed", codec.ArmedBody(deadline=5.0)
WOKEN = slots.woken("nap"), "woken", codec.EmptyBody()
WHAT = "under event 'paid', id '7', and"


@pytest.mark.rule("P1")
def test_a_sleep_that_has_passed_meanwhile_ends_without_a_request():
    with Runtime("memory:") as runtime, runtime.run("r") as run:
        run.sleep(0.0, name="nap")
        with pytest.raises(StopIteration):
            park.sleep(run._load(), "nap", 1.0).send(None)


def delivery(play: Play, payload: bytes = b"[1]") -> Record:
    """Let somebody else deliver."""
    body = codec.DeliveredBody(payload=msgspec.Raw(payload), by="bob")
    return play.record(EVENT, "delivered", body, kind=records.EVENT)


def finished(play: Play) -> None:
    play.known(slots.FINISHED, "finished", codec.FinishedBody(), kind=records.RUN)


def damaged(play: Play, slot: str, phase: str, body: msgspec.Struct, *, kind: str = records.PARK) -> None:
    """A record that this life has read, and whose checksum does not match."""
    play.scope.history.take(msgspec.structs.replace(play.record(slot, phase, body, kind=kind), check=1))


def at_pause(play: Play, number: int, act: Any) -> None:
    """Let something happen during the n-th pause."""

    def before(request: Request[Any]) -> None:
        if isinstance(request, Pause) and len(pauses(play)) == number:
            act()

    play.before = before


def pauses(play: Play) -> list[float]:
    return [request.seconds for request in play.requests if isinstance(request, Pause)]


def waiting(play: Play, timeout_s: float | None = None) -> Any:
    return play.run(wait_for(play.scope, "paid", "7", timeout_s=timeout_s))


# --- waiting


@pytest.mark.rule("P2")
def test_a_wait_looks_before_it_is_recorded_and_after_it_and_after_each_pause() -> None:
    play = Play()
    at_pause(play, 2, lambda: delivery(play))
    assert waiting(play) == b"[1]"
    kinds = [type(request) for request in play.requests]
    assert kinds == [Now, Read, Now, Append, Read, Now, Pause, Read, Now, Pause, Read]
    assert pauses(play) == [ARM_S_MAX] * 2
    (armed,) = play.appended()
    assert (armed.slot, armed.kind, armed.phase, armed.decision) == (WAIT, records.PARK, "armed", False)
    assert play.body(WAIT, codec.ArmedBody) == codec.ArmedBody()


@pytest.mark.rule("P3")
def test_a_wait_that_is_on_record_is_taken_up_again() -> None:
    play = Play()
    play.known(WAIT, "armed", codec.ArmedBody(), kind=records.PARK)
    at_pause(play, 1, lambda: delivery(play))
    assert waiting(play) == b"[1]"
    assert play.appended() == []


@pytest.mark.rule("P2")
@pytest.mark.parametrize("known", [False, True])
def test_what_was_delivered_before_is_returned_at_once(known: bool) -> None:
    play = Play()
    delivery(play)
    if known:
        play.scope.history.add(play.records)
    assert waiting(play) == b"[1]"
    assert [type(request) for request in play.requests] == ([Now] if known else [Now, Read])


@pytest.mark.rule("P2")
@pytest.mark.parametrize(
    ("timeout_s", "waits"),
    [(0.0, []), (0.5, [0.5]), (2.5, [2.5]), (ARM_S_MAX + 2.0, [ARM_S_MAX, 2.0])],
)
def test_a_wait_with_a_limit_ends_at_it_and_records_nothing(timeout_s: float, waits: list[float]) -> None:
    play = Play()
    with pytest.raises(TimeoutError, match="nothing was delivered for 'paid', id '7', in"):
        waiting(play, timeout_s)
    assert pauses(play) == waits
    assert play.records == []


@pytest.mark.rule("P2")
def test_what_comes_within_the_limit_is_returned() -> None:
    play = Play()
    at_pause(play, 1, lambda: delivery(play))
    assert waiting(play, 3.0) == b"[1]"


@pytest.mark.rule("P2")
def test_a_finished_run_answers_what_was_delivered_and_waits_for_nothing_else() -> None:
    play = Play()
    finished(play)
    with pytest.raises(UsageError, match=WHAT) as raised:
        waiting(play)
    assert raised.value.code == "run-finished"
    assert play.appended() == []
    delivery(play)
    assert waiting(play) == b"[1]"


@pytest.mark.rule("P2")
def test_a_run_that_is_finished_just_before_its_wait_is_recorded_waits_for_nothing() -> None:
    play = Play()

    def before(request: Request[Any]) -> None:
        if isinstance(request, Now) and len(play.requests) > 1:
            finished(play)

    play.before = before
    with pytest.raises(UsageError, match=WHAT):
        waiting(play)
    assert play.appended() == []


@pytest.mark.rule("P4")
def test_a_damaged_wait_or_delivery_fails_closed() -> None:
    play = Play()
    damaged(play, WAIT, "armed", codec.ArmedBody())
    delivery(play)
    with pytest.raises(LedgerCorrupt):
        waiting(play)
    play = Play()
    damaged(play, EVENT, "delivered", codec.DeliveredBody(payload=msgspec.Raw(b"1"), by="bob"), kind=records.EVENT)
    with pytest.raises(LedgerCorrupt):
        waiting(play)


@pytest.mark.rule("P2")
def test_of_a_wait_and_its_delivery_either_may_be_on_record_alone() -> None:
    play = Play()
    assert delivered(play.scope, "paid", "7") is None
    play.known(WAIT, "armed", codec.ArmedBody(), kind=records.PARK)
    assert delivered(play.scope, "paid", "7") is None
    delivery(play)
    play.scope.history.add(play.records)
    assert delivered(play.scope, "paid", "7") == b"[1]"


# --- having slept


@pytest.mark.rule("P1")
def test_a_sleep_has_passed_when_that_is_on_record() -> None:
    play = Play()
    assert not slept(play.scope, "nap")
    play.known(*NAP, kind=records.PARK)
    assert not slept(play.scope, "nap")
    play.known(*WOKEN, kind=records.PARK)
    assert slept(play.scope, "nap")


@pytest.mark.rule("P4")
@pytest.mark.parametrize(("sound", "bad"), [(NAP, WOKEN), (WOKEN, NAP)])
def test_a_sleep_with_a_damaged_record_fails_closed(sound: Any, bad: Any) -> None:
    play = Play()
    play.known(*sound, kind=records.PARK)
    damaged(play, *bad)
    with pytest.raises(LedgerCorrupt):
        slept(play.scope, "nap")


# --- delivering


def delivering(play: Play, payload: bytes = b"[1]") -> Any:
    return play.run(deliver(play.scope, "paid", "7", payload=payload, by="ann"))


@pytest.mark.rule("P2")
def test_a_delivery_is_recorded_once_with_who_made_it() -> None:
    play = Play()
    assert delivering(play) is True
    (draft,) = play.appended()
    assert (draft.slot, draft.kind, draft.phase) == (EVENT, records.EVENT, "delivered")
    assert play.body(EVENT, codec.DeliveredBody) == codec.DeliveredBody(payload=msgspec.Raw(b"[1]"), by="ann")
    assert delivering(play) is False
    assert len(play.appended()) == 1


@pytest.mark.rule("P2")
@pytest.mark.parametrize("when", ["before", "race"])
@pytest.mark.parametrize("payload", [b"[1]", b"[2]"])
def test_the_first_delivery_wins_and_an_equal_one_is_told_so(when: str, payload: bytes) -> None:
    play = Play()
    if when == "before":
        delivery(play, payload)
    else:

        def before(request: Request[Any]) -> None:
            if isinstance(request, Append):
                delivery(play, payload)

        play.before = before
    if payload == b"[1]":
        assert delivering(play) is False
    else:
        with pytest.raises(DeliveryConflict, match="first for 'paid', id '7', by bob; ids are single-use") as raised:
            delivering(play)
        assert (raised.value.by, raised.value.at) == ("bob", 1000.0)
    assert len(play.records) == 1


@pytest.mark.rule("P2")
def test_to_a_finished_run_nothing_new_is_delivered() -> None:
    play = Play()
    delivery(play)
    finished(play)
    assert delivering(play) is False
    play = Play()
    finished(play)
    with pytest.raises(UsageError, match=WHAT):
        delivering(play)
    assert play.appended() == []
