"""An append without an answer is settled; what a ledger's failure says about sending."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from counterfoil import NameConflict, UsageError
from counterfoil.effects.effect import effect
from counterfoil.effects.record import SETTLE_S, insist
from counterfoil.effects.step import StepCall, step, until
from counterfoil.errors import CommitUnknown, LedgerUnavailable
from counterfoil.protocol import codec, records, slots
from counterfoil.protocol.records import Draft
from counterfoil.protocol.requests import Append, Pause, Read, Request
from tests.protocol.play import ME, Play, call, never

DRAFT = Draft(slot=slots.step("sum"), kind=records.STEP, phase="result", body=codec.body_of(codec.StepBody()))


def lost() -> CommitUnknown:
    error = CommitUnknown("no answer")
    error.entry = None  # type: ignore[attr-defined]
    return error


def settles(play: Play) -> list[Any]:
    """The entries that appends were to settle."""
    return [request.settle for request in play.requests if isinstance(request, Append)]


@pytest.mark.rule("L3")
def test_the_first_append_without_an_answer_is_the_one_that_is_settled() -> None:
    play = Play()
    errors: list[BaseException | None] = [LedgerUnavailable("no"), lost(), lost(), None]
    answers = iter(errors)
    play.refusing = lambda draft: next(answers)
    filled = play.run(insist(DRAFT, None, CommitUnknown("lost")))
    assert (filled.ours, filled.settled) == (True, True)
    entry = getattr(errors[1], "entry", None)
    assert entry is not None
    assert settles(play) == [None, None, entry, entry]
    # It waits for a time: neither for news, nor as one that is idle.
    pauses = [request for request in play.requests if isinstance(request, Pause)]
    assert [(pause.seconds, pause.changes, pause.idle) for pause in pauses] == [
        (seconds, False, False) for seconds in (0.05, 0.1, 0.2)
    ]


@pytest.mark.rule("L3")
def test_each_wait_for_an_answer_is_twice_as_long_up_to_a_second_until_the_time_is_over() -> None:
    play = Play()
    play.refusing = lambda draft: LedgerUnavailable("no")
    with pytest.raises(CommitUnknown):
        play.run(insist(DRAFT, None, CommitUnknown("lost")))
    waits = [request.seconds for request in play.requests if isinstance(request, Pause)]
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, *[1.0] * 29]


@pytest.mark.rule("L3")
def test_settling_ends_when_its_time_is_over_with_what_was_unknown() -> None:
    play = Play()
    play.refusing = lambda draft: LedgerUnavailable("no")
    play.before = lambda request: play.pass_time(SETTLE_S) if isinstance(request, Append) else None
    unknown = CommitUnknown("lost")
    with pytest.raises(CommitUnknown) as raised:
        play.run(insist(DRAFT, None, unknown))
    assert raised.value is unknown
    assert len(settles(play)) == 1


def failing_reads(play: Play) -> None:
    def before(request: Request[Any]) -> None:
        if isinstance(request, Read):
            raise LedgerUnavailable("no", effect_ran="no")

    play.before = before


@pytest.mark.rule("E20")
def test_a_ledger_that_fails_where_another_life_may_be_sending_leaves_it_unknown() -> None:
    play = Play()
    play.known(slots.intent("pay", 1), "intent", codec.IntentBody())
    failing_reads(play)
    with pytest.raises(LedgerUnavailable) as raised:
        play.run(effect(play.scope, call()))
    assert raised.value.effect_ran == "unknown"


@pytest.mark.rule("E20", "L3")
def test_an_intent_of_ones_own_that_is_still_being_settled_was_not_sent() -> None:
    play = Play()
    play.refusing = lambda draft: lost()
    with pytest.raises(LedgerUnavailable):
        play.run(effect(play.scope, call()))
    assert list(play.scope.memory.unsent) == [slots.intent("pay", 1)]
    # It had landed, and this life reads it before it knows that it was its own append.
    play.known(slots.intent("pay", 1), "intent", codec.IntentBody(), epoch=ME)
    with pytest.raises(LedgerUnavailable) as raised:
        play.run(effect(play.scope, call()))
    assert raised.value.effect_ran == "no"


@pytest.mark.rule("E14", "E20")
def test_a_next_attempt_whose_intent_could_not_be_recorded_was_not_sent() -> None:
    play = Play()
    play.known(slots.intent("pay", 1), "intent", codec.IntentBody(retry=codec.RetryBody(attempts=9)))
    body = codec.OutcomeBody(evidence=codec.EvidenceBody(kind="status"), due=play.wall, retryable=True)
    play.known(slots.outcome("pay", 1), "failed", body)
    play.refusing = lambda draft: LedgerUnavailable("no")
    with pytest.raises(LedgerUnavailable) as raised:
        play.run(effect(play.scope, call()))
    assert raised.value.effect_ran == "no"


# --- steps


def summing(**more: Any) -> StepCall:
    return StepCall(
        **{"name": "sum", "body": never, "inputs": None, "retry": None, "encode": lambda value: b"1", **more}
    )


@pytest.mark.rule("S6")
def test_a_step_that_is_on_record_for_other_inputs_is_refused_by_the_flow_too() -> None:
    play = Play()
    body = codec.StepBody(result=msgspec.Raw(b"1"), fingerprint=play.scope.fingerprint(b"[1]"))
    play.known(slots.step("sum"), "result", body, kind=records.STEP)
    with pytest.raises(NameConflict):
        play.run(step(play.scope, summing(inputs=b"[2]")))
    assert play.run(step(play.scope, summing(inputs=b"[1]"))) == b"1"


def test_a_finished_run_says_which_step_it_does_not_take() -> None:
    play = Play()
    play.known(slots.FINISHED, "finished", codec.FinishedBody(), kind=records.RUN)
    with pytest.raises(UsageError, match="step 'sum'"):
        play.run(step(play.scope, summing()))


@pytest.mark.rule("S4", "P1")
@pytest.mark.parametrize(("forward", "pauses"), [(60.0, [60.0, 30.0]), (90.0, [60.0])])
def test_a_wait_ends_when_a_clock_that_was_set_forward_says_so(forward: float, pauses: list[float]) -> None:
    play = Play()

    def before(request: Request[Any]) -> None:
        assert len(play.requests) < 10
        if isinstance(request, Pause) and play.wall == 1000.0:
            play.wall += forward

    play.before = before
    play.run(until(1150.0, at_most_s=1000.0))
    assert [request.seconds for request in play.requests if isinstance(request, Pause)] == pauses
