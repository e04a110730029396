"""What becomes of what `run` returns: recorded, refused, or held; and what its caller is told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from counterfoil import Accepted, EffectUnresolved, NameConflict
from counterfoil.effects.effect import effect, recorded
from counterfoil.effects.scope import Verifier
from counterfoil.effects.step import StepCall, step
from counterfoil.errors import LedgerUnavailable
from counterfoil.protocol import codec, records, slots
from counterfoil.protocol.requests import Append, Call, Pause
from tests.protocol.play import Play, call, never, overrunning

OUTCOME, RELEASED, NOTE = slots.outcome("pay", 1), slots.released("pay", 1), slots.note("pay", 1)
REFUSES = Verifier(check=lambda proof: False, decode=codec.decode, timeout_s=5.0)


def failed_due(play: Play, *, due: float | None = None, **policy: Any) -> None:
    """A first attempt that failed, and may be followed by another at once or when it is due."""
    retry = codec.RetryBody(**{"attempts": 9, **policy})
    play.known(slots.intent("pay", 1), "intent", codec.IntentBody(retry=retry))
    evidence = codec.EvidenceBody(kind="status")
    body = codec.OutcomeBody(evidence=evidence, due=play.wall if due is None else due, retryable=True)
    play.known(OUTCOME, "failed", body)


@pytest.mark.rule("E1")
@pytest.mark.parametrize("told", [True, False])
def test_a_plain_effect_is_an_intent_a_call_and_an_outcome_and_nothing_more(told: bool) -> None:
    play = Play()
    outcome = play.run(effect(play.scope, call(run=lambda: "item-1", told=told)))
    assert isinstance(outcome, Accepted)
    assert [type(request) for request in play.requests] == [Append, Call, Append]
    # A key is derived for a `run` that takes it.
    assert play.requests[1].key == (play.scope.key("pay", 1) if told else "")  # type: ignore[attr-defined]
    assert [draft.slot for draft in play.appended()] == [slots.intent("pay", 1), OUTCOME]
    assert play.body(OUTCOME, codec.OutcomeBody) == codec.OutcomeBody(via="run", proof=msgspec.Raw(b'"item-1"'))


@pytest.mark.rule("E1", "E6")
def test_what_was_recorded_is_answered_from_the_records_with_its_request() -> None:
    play = Play()
    outcome = play.run(effect(play.scope, call(run=lambda: "item-1", request=b"[1]")))
    assert recorded(play.scope, "pay", b"[1]") == outcome
    with pytest.raises(NameConflict):
        recorded(play.scope, "pay", b"[2]")


@pytest.mark.rule("E1", "O3")
def test_what_a_later_attempt_brought_is_drawn_from_all_of_them() -> None:
    play = Play()
    failed_due(play)
    outcome = play.run(effect(play.scope, call(run=lambda: "item-1")))
    assert type(outcome) is Accepted
    assert recorded(play.scope, "pay", None) == outcome


@pytest.mark.rule("E11", "E14")
@pytest.mark.parametrize("keep", [True, False])
def test_a_later_attempt_has_a_key_of_its_own_unless_the_first_says_that_it_is_kept(keep: bool) -> None:
    play = Play()
    keys = [play.scope.key("pay", number, keep=keep) for number in (1, 2)]
    assert len(set(keys)) == (1 if keep else 2)
    assert keys[0] == play.scope.key("pay", 1)


@pytest.mark.rule("E5", "E20")
def test_what_cannot_be_kept_is_released_as_that_and_its_caller_is_told_what_to_mend() -> None:
    play = Play()
    with pytest.raises(EffectUnresolved) as raised:
        play.run(effect(play.scope, call(run=lambda: {1, 2})))
    error = raised.value
    assert (error.reason, error.effect_ran) == ("proof-rejected", "yes")
    assert error.hint == "it may have been sent: do not send it again; mend what the handler returns and call again"
    assert play.body(RELEASED, codec.ReleasedBody).why == "proof-rejected"


@pytest.mark.rule("E19", "E20")
def test_what_verify_refuses_of_run_is_kept_by_its_type_and_released_as_that() -> None:
    play = Play()
    with pytest.raises(EffectUnresolved) as raised:
        play.run(effect(play.scope, call(run=lambda: {"id": 1}, verifier=REFUSES)))
    assert (raised.value.reason, raised.value.effect_ran) == ("proof-rejected", "unknown")
    note = play.body(NOTE, codec.LateBody)
    assert (note.via, note.claims, note.digest) == ("run", "refused", codec.digest(b'{"id":1}'))
    assert note.evidence == codec.EvidenceBody(kind="refused-proof", details={"type": "dict"})
    assert play.body(RELEASED, codec.ReleasedBody).why == "proof-rejected"


@pytest.mark.rule("E3", "E4", "E20")
def test_a_caller_is_told_what_to_do_next() -> None:
    def hint(play: Play, **more: Any) -> str | None:
        with pytest.raises(EffectUnresolved) as raised:
            play.run(effect(play.scope, call(**more)))
        return raised.value.hint

    play = Play()
    sent = "it may have been sent: do not send it again; call again, and the recipient is asked"
    assert hint(play, run=never) == sent
    unasked = "not being able to ask proves nothing; "
    assert hint(play, reconcile=never) == unasked + "mend it and call again"
    assert hint(play, reconcile=overrunning) == unasked + "call again, or give reconcile_timeout= more time"
    assert hint(play, reconcile=lambda: None, visibility_s=9.0) == "call again after retry_after_s seconds"
    play = Play()
    play.known(slots.intent("pay", 1), "intent", codec.IntentBody())
    assert hint(play, wait_s=0.0) == "call again later, or wait longer with wait="


@pytest.mark.rule("E17")
def test_a_fact_that_is_held_is_appended_by_the_next_call_and_nobody_is_asked() -> None:
    play = Play()
    play.refusing = lambda draft: LedgerUnavailable("no") if draft.slot == OUTCOME else None
    with pytest.raises(LedgerUnavailable):
        play.run(effect(play.scope, call(run=lambda: "item-1")))
    play.refusing = lambda draft: None
    assert list(play.scope.memory.held) == [OUTCOME]
    outcome: Any = play.run(effect(play.scope, call(reconcile=never)))
    assert (outcome.via, bytes(outcome.proof)) == ("run", b'"item-1"')
    assert play.scope.memory.held == {}


@pytest.mark.rule("E14")
def test_the_next_attempt_waits_no_longer_than_the_policy_can_have_meant_where_the_clock_was_set_back() -> None:
    play = Play()
    failed_due(play, due=play.wall + 1000.0, backoff_max_s=5.0)
    assert isinstance(play.run(effect(play.scope, call(run=lambda: "item-1"))), Accepted)
    assert [request.seconds for request in play.requests if isinstance(request, Pause)] == [5.0]


@pytest.mark.rule("E8", "E14")
def test_who_finds_that_another_life_took_the_next_attempt_while_it_waited_does_not_compete() -> None:
    play = Play()
    failed_due(play, due=play.wall + 5.0)

    def before(request: Any) -> None:
        if isinstance(request, Pause) and len(play.requests) < 4:
            play.record(slots.intent("pay", 2), "intent", codec.IntentBody())

    play.before = before
    with pytest.raises(EffectUnresolved) as raised:
        play.run(effect(play.scope, call(wait_s=0.0)))
    assert raised.value.reason == "in-flight"
    assert play.appended() == []


@pytest.mark.rule("S1", "S6")
def test_a_step_records_its_result_and_for_which_inputs() -> None:
    play = Play()
    made = StepCall(name="sum", body=lambda: 3, inputs=b"[1,2]", retry=None, encode=lambda value: b"%d" % value)
    assert play.run(step(play.scope, made)) == b"3"
    assert play.body(slots.step("sum"), codec.StepBody) == codec.StepBody(
        result=msgspec.Raw(b"3"), fingerprint=play.scope.fingerprint(b"[1,2]")
    )
    (draft,) = play.appended()
    assert (draft.kind, draft.phase, draft.decision) == (records.STEP, "result", False)
