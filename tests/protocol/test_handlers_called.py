"""What each handler of an effect is called with, and what is said when it does not settle anything."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from counterfoil import EffectUnresolved, Evidence
from counterfoil.effects.conclude import append_held
from counterfoil.effects.effect import effect
from counterfoil.effects.scope import Held, Verifier
from counterfoil.effects.step import StepCall, step
from counterfoil.errors import LedgerUnavailable
from counterfoil.protocol import codec, records, slots
from counterfoil.protocol.records import Draft
from counterfoil.protocol.requests import Call
from tests.protocol.play import ME, Play, call, overrunning

PROOF = msgspec.Raw(b'"item-1"')


def second_attempt(play: Play, *, keep_key: bool, released: bool) -> None:
    """A first attempt that failed, and, where it is released, a second one."""
    first = codec.IntentBody(retry=codec.RetryBody(attempts=9), keep_key=keep_key)
    play.known(slots.intent("pay", 1), "intent", first)
    failed = codec.OutcomeBody(evidence=codec.EvidenceBody(kind="status"), due=play.wall, retryable=True)
    play.known(slots.outcome("pay", 1), "failed", failed)
    if released:
        play.known(slots.intent("pay", 2), "intent", codec.IntentBody(keep_key=keep_key))
        play.known(slots.released("pay", 2), "released", codec.ReleasedBody(why="run-raised"))


def called(play: Play) -> list[tuple[Any, str | None, int | None, float | None]]:
    calls = [request for request in play.requests if isinstance(request, Call)]
    return [(each.handler, each.key, each.attempt, each.timeout_s) for each in calls]


@pytest.mark.rule("E11", "E14", "E19")
@pytest.mark.parametrize("keep_key", [False, True])
@pytest.mark.parametrize("by", ["run", "reconcile"])
def test_every_handler_is_told_the_key_and_the_number_of_the_attempt_that_it_is_about(by: str, keep_key: bool) -> None:
    play = Play()
    second_attempt(play, keep_key=keep_key, released=by == "reconcile")

    def handler() -> str:
        return "item-1"

    def verify(proof: Any) -> bool:
        return True

    checks = Verifier(check=verify, decode=codec.decode, timeout_s=7.0)
    play.run(effect(play.scope, call(run=handler, reconcile=handler, verifier=checks, reconcile_timeout_s=3.0)))
    key = play.scope.key("pay", 1 if keep_key else 2)
    first = (handler, key, 2, None if by == "run" else 3.0)
    assert called(play) == [first, (verify, key, 2, 7.0)]


def undecodable(proof: bytes) -> Any:
    raise ValueError


@pytest.mark.rule("E5", "E19", "E20")
@pytest.mark.parametrize("why", ["undecodable", "raises", "overruns"])
@pytest.mark.parametrize(("by", "ran"), [("run", "yes"), ("reconcile", "unknown")])
def test_a_proof_that_cannot_be_checked_leaves_the_effect_unresolved_and_says_what_is_known(
    by: str, ran: str, why: str
) -> None:
    play = Play()
    if by == "reconcile":
        play.known(slots.intent("pay", 1), "intent", codec.IntentBody())
        play.known(slots.released("pay", 1), "released", codec.ReleasedBody(why="run-raised"))
    failure = ConnectionError()

    def verify(proof: Any) -> bool:
        raise failure

    checks = Verifier(
        check=overrunning if why == "overruns" else verify,
        decode=undecodable if why == "undecodable" else codec.decode,
        timeout_s=7.0,
    )
    with pytest.raises(EffectUnresolved) as raised:
        play.run(effect(play.scope, call(run=lambda: "item-1", reconcile=lambda: "item-1", verifier=checks)))
    reason = {"undecodable": "proof-rejected", "raises": "reconcile-failed", "overruns": "reconcile-timeout"}[why]
    error = raised.value
    assert (error.reason, error.name, error.effect_ran) == (reason, "pay", ran)
    if why == "raises":
        assert error.__cause__ is failure
    if by == "run":
        assert play.body(slots.released("pay", 1), codec.ReleasedBody).why == "verify-raised"
    assert play.appended("outcome") == []


@pytest.mark.rule("E4", "E20")
@pytest.mark.parametrize(("why", "reason"), [("raises", "reconcile-failed"), ("overruns", "reconcile-timeout")])
def test_a_look_up_that_does_not_answer_settles_nothing(why: str, reason: str) -> None:
    play = Play()
    play.known(slots.intent("pay", 1), "intent", codec.IntentBody())
    play.known(slots.released("pay", 1), "released", codec.ReleasedBody(why="run-raised"))
    failure = ConnectionError()

    def find() -> Any:
        raise failure

    with pytest.raises(EffectUnresolved) as raised:
        play.run(effect(play.scope, call(reconcile=overrunning if why == "overruns" else find)))
    error = raised.value
    assert (error.reason, error.name, error.effect_ran) == (reason, "pay", "unknown")
    assert error.__cause__ is (failure if why == "raises" else None)
    assert play.appended() == []


@pytest.mark.rule("E3", "O6")
def test_a_run_that_raised_is_recorded_as_over_with_what_it_knew() -> None:
    play = Play()
    failure = ConnectionError()
    failure.evidence = Evidence("timeout", phase="dispatched", bytes_offered=3)  # type: ignore[attr-defined]

    def pay() -> Any:
        raise failure

    with pytest.raises(EffectUnresolved) as raised:
        play.run(effect(play.scope, call(run=pay)))
    assert (raised.value.reason, raised.value.effect_ran) == ("run-failed", "unknown")
    assert raised.value.__cause__ is failure
    body = play.body(slots.released("pay", 1), codec.ReleasedBody)
    assert body.why == "run-raised"
    assert body.evidence == codec.EvidenceBody(kind="timeout", phase="dispatched", bytes_offered=3)
    (draft,) = play.appended("released")
    assert (draft.kind, draft.phase, draft.decision) == (records.EFFECT, "released", False)


@pytest.mark.rule("E17", "E20")
@pytest.mark.parametrize(("phase", "ran"), [("accepted", "yes"), ("failed", "yes"), ("rejected", "no")])
def test_a_fact_that_is_still_held_says_what_became_of_the_effect(phase: str, ran: str) -> None:
    play = Play()
    slot = slots.outcome("pay", 1)
    play.known(slots.intent("pay", 1), "intent", codec.IntentBody(), epoch=ME)
    body = codec.body_of(codec.OutcomeBody(via="run", proof=PROOF))
    draft = Draft(slot=slot, kind=records.EFFECT, phase=phase, body=body)
    play.scope.memory.held[slot] = Held("pay", 1, draft, None, "item-1")
    refusal = LedgerUnavailable("no")
    play.refusing = lambda draft: refusal
    with pytest.raises(LedgerUnavailable) as raised:
        play.run(append_held(play.scope, "pay", 1))
    assert (raised.value.effect_ran, raised.value.proof) == (ran, "item-1")
    assert raised.value.__cause__ is refusal
    assert list(play.scope.memory.held) == [slot]


@pytest.mark.rule("S4")
def test_a_step_waits_no_longer_than_its_policy_can_have_meant_where_the_clock_was_set_back() -> None:
    play = Play()
    failed = codec.StepFailedBody(error="ConnectionError", due=play.wall + 1000.0)
    play.known(slots.step_failed("sum", 1), "failed", failed, kind=records.STEP)
    retry = codec.RetryBody(attempts=9, backoff_s=1.0, backoff_max_s=20.0)
    began = play.mono
    play.run(step(play.scope, StepCall(name="sum", body=lambda: 1, inputs=None, retry=retry, encode=lambda _: b"1")))
    assert play.mono - began == 20.0
