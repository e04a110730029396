"""What a life answers from its records without a flow."""

from __future__ import annotations

import msgspec
import pytest

from counterfoil import LedgerCorrupt, NameConflict, RunPruned
from counterfoil.effects.effect import effect, recorded
from counterfoil.outcomes import Accepted, Uncertain
from counterfoil.protocol import codec, records, slots
from counterfoil.protocol.history import look
from tests.protocol.play import Play, call

PROOF = msgspec.Raw(b'"item-1"')


def ended(play: Play, phase: str, *, attempts: int = 1) -> None:
    """An effect for the request [1] that ended so, with its last attempt."""
    for number in range(1, attempts + 1):
        last = number == attempts
        intent = codec.IntentBody(fingerprint=play.scope.fingerprint(b"[1]"), retry=codec.RetryBody(attempts=9))
        play.known(slots.intent("pay", number), "intent", intent)
        evidence = codec.EvidenceBody(kind="status")
        body = (
            codec.OutcomeBody(proof=PROOF, evidence=evidence) if last else codec.OutcomeBody(evidence=evidence, due=1.0)
        )
        play.known(slots.outcome("pay", number), phase if last else "failed", body)


def pruned(play: Play) -> None:
    play.known(slots.FINISHED, "finished", codec.FinishedBody(), kind=records.RUN)
    play.known(slots.TOMBSTONE, "tombstone", codec.TombstoneBody(), kind=records.RUN)


@pytest.mark.rule("E1")
@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("phase", ["accepted", "rejected", "failed", "uncertain"])
def test_a_final_outcome_is_drawn_from_the_records_for_each_call_anew(phase: str, attempts: int) -> None:
    play = Play()
    ended(play, phase, attempts=attempts)
    first = recorded(play.scope, "pay", None)
    assert first is not None
    assert first == look(play.scope.history, "pay").outcome()
    again = recorded(play.scope, "pay", b"[1]")
    assert again == first
    assert again is not first
    assert play.requests == []


@pytest.mark.rule("E12")
@pytest.mark.parametrize("attempts", [1, 2])
def test_an_outcome_that_is_on_record_for_another_request_is_refused_by_its_name(attempts: int) -> None:
    play = Play()
    ended(play, "accepted", attempts=attempts)
    with pytest.raises(NameConflict, match="effect 'pay'"):
        recorded(play.scope, "pay", b"[2]")


@pytest.mark.rule("L10")
@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize(("phase", "outcome"), [("accepted", Accepted), ("uncertain", Uncertain)])
def test_a_pruned_run_answers_with_what_it_still_holds(phase: str, outcome: type, attempts: int) -> None:
    play = Play()
    ended(play, phase, attempts=attempts)
    pruned(play)
    assert isinstance(recorded(play.scope, "pay", None), outcome)


@pytest.mark.rule("E1")
def test_nothing_is_answered_where_there_is_no_final_outcome() -> None:
    play = Play()
    assert recorded(play.scope, "pay", b"[1]") is None
    play.known(slots.intent("pay", 1), "intent", codec.IntentBody())
    assert recorded(play.scope, "pay", b"[1]") is None


@pytest.mark.rule("E12")
@pytest.mark.parametrize("phase", [None, "accepted"])
def test_a_flow_refuses_another_request_before_it_sends_or_asks_anything(phase: str | None) -> None:
    play = Play()
    if phase is None:
        play.known(slots.intent("pay", 1), "intent", codec.IntentBody(fingerprint=play.scope.fingerprint(b"[1]")))
    else:
        ended(play, phase)
    with pytest.raises(NameConflict, match="effect 'pay'"):
        play.run(effect(play.scope, call(request=b"[2]")))
    assert play.requests == []


@pytest.mark.rule("L10")
def test_a_flow_sends_and_asks_nothing_for_an_effect_that_a_pruned_run_holds_without_an_outcome() -> None:
    play = Play()
    play.known(slots.intent("pay", 1), "intent", codec.IntentBody())
    pruned(play)
    with pytest.raises(RunPruned, match="effect 'pay'"):
        play.run(effect(play.scope, call()))
    assert play.requests == []


@pytest.mark.rule("L10")
def test_a_flow_begins_nothing_in_a_pruned_run() -> None:
    play = Play()
    pruned(play)
    with pytest.raises(RunPruned, match="nothing under effect 'pay'"):
        play.run(effect(play.scope, call()))
    assert play.requests == []


@pytest.mark.rule("L4")
def test_an_acceptance_that_says_when_the_next_attempt_is_due_is_no_plain_one_and_is_refused() -> None:
    play = Play()
    play.known(slots.intent("pay", 1), "intent", codec.IntentBody())
    play.known(slots.outcome("pay", 1), "accepted", codec.OutcomeBody(proof=PROOF, due=1.0))
    with pytest.raises(LedgerCorrupt, match="accepted-due"):
        recorded(play.scope, "pay", None)


@pytest.mark.rule("L10")
def test_what_a_pruned_run_keeps_of_an_attempt_alone_is_answered() -> None:
    play = Play()
    ending = codec.OutcomeBody(proof=PROOF)
    play.known(slots.buried("pay", 1), "buried", codec.BuriedBody(phase="accepted", at=1.0, outcome=ending))
    pruned(play)
    assert isinstance(recorded(play.scope, "pay", None), Accepted)
