"""When flows wait, how long, and what they do then: seen on a clock that only waiting moves."""

from __future__ import annotations

import math
from typing import Any

import pytest

from counterfoil import Evidence, UsageError
from counterfoil.effects import decide, park
from counterfoil.effects.step import StepCall, longest, step, until
from counterfoil.protocol import codec, records, slots
from counterfoil.protocol.codec import RetryBody
from counterfoil.protocol.requests import Append, Pause
from counterfoil.protocol.retries import next_due, wished_s
from tests.protocol.play import Play

BEGAN = 1000.0


def failing(play: Play, retry: RetryBody | None) -> list[float]:
    """Run a step that always fails; when each attempt was made."""
    made: list[float] = []

    def body() -> Any:
        made.append(play.wall)
        raise ConnectionError

    call = StepCall(name="sum", body=body, inputs=None, retry=retry, encode=lambda value: b"null")
    with pytest.raises(ConnectionError):
        play.run(step(play.scope, call))
    return made


@pytest.mark.rule("S4")
def test_the_time_for_the_attempts_of_a_step_begins_with_the_first_failure() -> None:
    play = Play()
    made = failing(play, RetryBody(attempts=9, backoff_s=10.0, backoff_max_s=10.0, within_s=25.0))
    assert made == [BEGAN, BEGAN + 10, BEGAN + 20]
    dues = [play.body(slots.step_failed("sum", number), codec.StepFailedBody).due for number in (1, 2, 3)]
    assert dues == [BEGAN + 10, BEGAN + 20, None]


@pytest.mark.rule("S4")
def test_attempts_of_a_step_are_numbered_and_name_what_was_raised() -> None:
    play = Play()
    assert failing(play, RetryBody(attempts=3)) == [BEGAN] * 3
    assert [draft.slot for draft in play.appended()] == [slots.step_failed("sum", number) for number in (1, 2, 3)]
    assert {play.body(draft.slot, codec.StepFailedBody).error for draft in play.appended()} == {"ConnectionError"}


@pytest.mark.rule("S4")
def test_without_a_policy_a_failure_is_not_recorded() -> None:
    play = Play()
    assert failing(play, None) == [BEGAN]
    assert play.records == []


@pytest.mark.rule("E14", "S4")
def test_a_policy_draws_waits_that_double_up_to_the_longest() -> None:
    retry = RetryBody(attempts=9, backoff_s=2.0, backoff_max_s=15.0)
    dues = [next_due(retry, number, now=100.0, began=0.0) for number in range(1, 10)]
    assert dues == [102.0, 104.0, 108.0, 115.0, 115.0, 115.0, 115.0, 115.0, None]
    assert (longest(retry), longest(None)) == (15.0, math.inf)
    # Two to the power of a thousand is no float.
    assert next_due(RetryBody(attempts=5000, backoff_s=1e-30), 4000, now=0.0, began=0.0) == 2.0**60 * 1e-30


@pytest.mark.rule("E14", "S4")
def test_no_attempt_is_due_after_the_time_for_all_of_them() -> None:
    retry = RetryBody(attempts=9, backoff_s=5.0, within_s=30.0)
    assert next_due(retry, 1, now=25.0, began=0.0) == 30.0
    assert next_due(retry, 1, now=25.1, began=0.0) is None
    assert next_due(None, 1, now=0.0, began=0.0) is None


@pytest.mark.rule("E14")
@pytest.mark.parametrize(
    ("details", "wished"),
    [
        (None, 0.0),
        ({}, 0.0),
        ({"retry_after_s": 7}, 7.0),
        ({"retry_after_s": 0.5}, 0.5),
        ({"retry_after_s": 0}, 0.0),
        ({"retry_after_s": -1}, 0.0),
        ({"retry_after_s": True}, 0.0),
        ({"retry_after_s": "7"}, 0.0),
        ({"retry_after_s": math.inf}, 0.0),
        ({"retry_after_s": math.nan}, 0.0),
    ],
)
def test_what_a_recipient_asked_for_counts_if_it_is_a_time(details: Any, wished: float) -> None:
    evidence = Evidence("status", details=details)
    assert wished_s(evidence) == wished
    retry = RetryBody(attempts=3, backoff_s=0.25, backoff_max_s=5.0)
    assert next_due(retry, 1, now=0.0, began=0.0, evidence=evidence) == max(0.25, min(wished, 5.0))
    assert wished_s(None) == 0.0


@pytest.mark.rule("P1")
@pytest.mark.parametrize(
    ("due", "at_most_s", "pauses"),
    [
        (None, math.inf, []),
        (BEGAN - 1, math.inf, []),
        (BEGAN + 5, math.inf, [5.0]),
        (BEGAN + 150, math.inf, [60.0, 60.0, 30.0]),
        (BEGAN + 150, 70.0, [60.0, 10.0]),
        (BEGAN + 5, 0.0, []),
    ],
)
def test_a_wait_is_armed_again_each_minute_and_ends_where_there_is_no_reason_for_more(
    due: float | None, at_most_s: float, pauses: list[float]
) -> None:
    play = Play()
    play.run(until(due, at_most_s=at_most_s))
    asked = [request for request in play.requests if isinstance(request, Pause)]
    assert [request.seconds for request in asked] == pauses
    # It waits for a time, not for news.
    assert not any(request.changes for request in asked)


@pytest.mark.rule("E16")
@pytest.mark.parametrize("state", ["intended", "released", "uncertain"])
def test_a_decision_is_waited_for_as_long_as_one_may_come_and_not_longer_than_asked(state: str) -> None:
    play = Play()
    play.known(slots.intent("pay", 1), "intent", codec.IntentBody())
    if state != "intended":
        play.known(slots.released("pay", 1), "released", codec.ReleasedBody(why="run-raised"))
    if state == "uncertain":
        body = codec.OutcomeBody(evidence=codec.EvidenceBody(kind="not-found"))
        play.known(slots.outcome("pay", 1), "uncertain", body)
    with pytest.raises(TimeoutError):
        play.run(decide.decision(play.scope, "pay", timeout_s=120.5))
    assert play.wall == BEGAN + 120.5


@pytest.mark.rule("E16")
@pytest.mark.parametrize("phase", ["absent", "accepted", "rejected", "failed"])
def test_no_decision_is_waited_for_where_none_can_come(phase: str) -> None:
    play = Play()
    if phase != "absent":
        play.known(slots.intent("pay", 1), "intent", codec.IntentBody())
        body = codec.OutcomeBody(evidence=codec.EvidenceBody(kind="status"))
        play.known(slots.outcome("pay", 1), phase, body)
    with pytest.raises(UsageError):
        play.run(decide.decision(play.scope, "pay", timeout_s=5.0))
    assert play.wall == BEGAN


@pytest.mark.rule("P1", "P4")
@pytest.mark.parametrize("set_back", [0.0, 500.0])
def test_a_sleep_takes_no_longer_for_a_clock_that_was_set_back_while_its_deadline_was_recorded(set_back: float) -> None:
    play = Play()

    def meddle(request: Any) -> None:
        if isinstance(request, Append) and request.draft.phase == "armed":
            play.wall -= set_back

    play.before = meddle
    play.run(park.sleep(play.scope, "rest", 30.0))
    assert play.mono == BEGAN + 30.0
    assert play.body(slots.sleep("rest"), codec.ArmedBody).deadline == BEGAN + 30.0
    assert play.body(slots.woken("rest"), codec.EmptyBody) == codec.EmptyBody()


@pytest.mark.rule("P1", "P4")
@pytest.mark.parametrize(("set_back", "waits"), [(0.0, 20.0), (500.0, 30.0)])
def test_a_sleep_of_an_earlier_life_is_waited_for_as_long_as_it_had_left_and_never_longer_than_it_was(
    set_back: float, waits: float
) -> None:
    play = Play()
    play.known(slots.sleep("rest"), "armed", codec.ArmedBody(deadline=BEGAN + 30.0), kind=records.PARK)
    play.pass_time(10.0)
    play.wall -= set_back
    began = play.mono
    play.run(park.sleep(play.scope, "rest", 5.0))
    assert play.mono - began == waits
    assert len(play.appended()) == 1


@pytest.mark.rule("P1")
def test_a_finished_run_takes_no_new_sleep() -> None:
    play = Play()
    play.known(slots.FINISHED, "finished", codec.FinishedBody(), kind=records.RUN)
    with pytest.raises(UsageError, match="rest"):
        play.run(park.sleep(play.scope, "rest", 5.0))
    assert play.appended() == []
