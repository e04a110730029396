"""What becomes of an attempt whose `run` is over: what the recipient says of it, or nothing, or nothing yet."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from counterfoil import UNASKABLE, Accepted, EffectUnresolved, Evidence, Uncertain
from counterfoil.effects.effect import POLL_S, effect
from counterfoil.effects.scope import Verifier
from counterfoil.errors import LedgerUnavailable
from counterfoil.protocol import codec, records, slots
from counterfoil.protocol.requests import Append, Call, Gone, Pause, Read, Request
from tests.protocol.play import OTHER, Play, call

OUTCOME, RELEASED, NOTE = slots.outcome("pay", 1), slots.released("pay", 1), slots.note("pay", 1)
PROOF = msgspec.Raw(b'"item-1"')


def sent(play: Play, number: int = 1, **intent: Any) -> None:
    play.known(slots.intent("pay", number), "intent", codec.IntentBody(**intent))


def released(play: Play, *, evidence: codec.EvidenceBody | None = None, **intent: Any) -> None:
    """An attempt of another life's whose `run` is over."""
    sent(play, **intent)
    play.known(RELEASED, "released", codec.ReleasedBody(why="run-raised", evidence=evidence))


def checks(*good: str) -> Verifier:
    return Verifier(check=lambda proof: proof in good, decode=codec.decode, timeout_s=5.0)


def failing_outcomes(play: Play) -> None:
    play.refusing = lambda draft: LedgerUnavailable("no", effect_ran="no") if draft.slot.endswith("outcome") else None


# --- found


@pytest.mark.rule("E2", "O6")
def test_what_a_look_up_finds_is_recorded_with_the_evidence_that_it_brings() -> None:
    play = Play()
    released(play)
    promised = Evidence("status", status=202, promises=("completion-not-established",))
    outcome = play.run(effect(play.scope, call(reconcile=lambda: Accepted("item-1", evidence=promised))))
    assert isinstance(outcome, Accepted)
    (draft,) = play.appended()
    assert (draft.slot, draft.kind, draft.phase, draft.decision) == (OUTCOME, records.EFFECT, "accepted", False)
    evidence = codec.EvidenceBody(kind="status", status=202, promises=("completion-not-established",))
    assert play.body(OUTCOME, codec.OutcomeBody) == codec.OutcomeBody(via="reconcile", proof=PROOF, evidence=evidence)


@pytest.mark.rule("E17", "E20")
def test_what_was_found_and_cannot_be_recorded_is_carried_by_the_error() -> None:
    play = Play()
    released(play)
    failing_outcomes(play)
    with pytest.raises(LedgerUnavailable) as raised:
        play.run(effect(play.scope, call(reconcile=lambda: "item-1")))
    assert (raised.value.effect_ran, raised.value.proof) == ("yes", "item-1")


@pytest.mark.rule("E19")
@pytest.mark.parametrize("visibility_s", [0.0, 10.0])
def test_a_find_that_verify_refuses_is_kept_and_counts_as_nothing_found(visibility_s: float) -> None:
    play = Play()
    released(play, visibility_s=visibility_s)
    made = call(reconcile=lambda: {"id": 2}, verifier=checks("item-1"), encode=lambda value: b'"item-2"')
    if visibility_s:
        with pytest.raises(EffectUnresolved) as raised:
            play.run(effect(play.scope, made))
        assert raised.value.reason == "too-early"
    else:
        assert isinstance(play.run(effect(play.scope, made)), Uncertain)
    note = play.body(NOTE, codec.LateBody)
    assert (note.attempt, note.claims, note.via) == (1, "refused", "reconcile")
    assert note.digest == codec.digest(b'"item-2"')
    assert note.evidence == codec.EvidenceBody(kind="refused-proof", details={"type": "dict"})


# --- not found


@pytest.mark.rule("E2", "O4")
@pytest.mark.parametrize(("kind", "reconcile"), [("not-found", lambda: None), ("unaskable", UNASKABLE)])
def test_nothing_found_is_uncertain_by_a_decision(kind: str, reconcile: Any) -> None:
    play = Play()
    released(play)
    assert isinstance(play.run(effect(play.scope, call(reconcile=reconcile))), Uncertain)
    (draft,) = play.appended()
    assert (draft.slot, draft.phase, draft.decision) == (OUTCOME, "uncertain", True)
    evidence = codec.EvidenceBody(kind=kind, phase="dispatched")
    assert play.body(OUTCOME, codec.OutcomeBody) == codec.OutcomeBody(via="reconcile", evidence=evidence)


@pytest.mark.rule("E2", "O4")
def test_of_an_attempt_that_nobody_released_nothing_more_is_known() -> None:
    play = Play()
    sent(play)
    play.gone.add(OTHER)
    assert isinstance(play.run(effect(play.scope, call(reconcile=lambda: None))), Uncertain)
    # Without visibility there is nothing to count from, so that its owner is gone is not recorded.
    assert [draft.slot for draft in play.appended()] == [OUTCOME]
    body = play.body(OUTCOME, codec.OutcomeBody)
    assert body.evidence == codec.EvidenceBody(kind="not-found", phase="dispatched")


@pytest.mark.rule("O6")
@pytest.mark.parametrize("phase", [None, "response"])
@pytest.mark.parametrize("details", [None, {"peer": "a"}])
def test_nothing_found_keeps_how_far_the_attempt_had_got(phase: str | None, details: Any) -> None:
    play = Play()
    released(play, evidence=codec.EvidenceBody(kind="timeout", phase=phase, bytes_offered=3, details=details))
    play.run(effect(play.scope, call(reconcile=lambda: None)))
    assert play.body(OUTCOME, codec.OutcomeBody).evidence == codec.EvidenceBody(
        kind="not-found",
        phase=phase or "dispatched",
        bytes_offered=3,
        details={**(details or {}), "run": "timeout"},
    )


@pytest.mark.rule("E20")
def test_that_nothing_was_found_and_cannot_be_recorded_leaves_it_unknown() -> None:
    play = Play()
    released(play)
    failing_outcomes(play)
    with pytest.raises(LedgerUnavailable) as raised:
        play.run(effect(play.scope, call(reconcile=lambda: None)))
    assert (raised.value.effect_ran, raised.value.proof) == ("unknown", None)


@pytest.mark.rule("E15", "E18")
def test_that_nothing_was_found_says_nothing_where_an_outcome_came_meanwhile() -> None:
    play = Play()
    released(play)

    def find() -> None:
        play.record(OUTCOME, "accepted", codec.OutcomeBody(via="evidence", proof=PROOF))

    outcome = play.run(effect(play.scope, call(reconcile=find)))
    assert (type(outcome), outcome.via) == (Accepted, "evidence")
    assert [record.phase for record in play.records] == ["intent", "released", "accepted"]


# --- too early


@pytest.mark.rule("E9", "E20")
@pytest.mark.parametrize(("recorded", "given"), [(10.0, 0.0), (0.0, 10.0), (10.0, 3.0), (3.0, 10.0), (0.5, 0.0)])
def test_the_larger_visibility_counts_from_the_end_of_run_on_the_ledgers_clock(recorded: float, given: float) -> None:
    play = Play()
    released(play, visibility_s=recorded or None)
    larger = max(recorded, given)
    play.pass_time(larger - 0.25)
    made = call(reconcile=lambda: None, visibility_s=given)
    with pytest.raises(EffectUnresolved) as raised:
        play.run(effect(play.scope, made))
    error = raised.value
    assert (error.reason, error.effect_ran, error.retry_after_s) == ("too-early", "unknown", 0.25)
    assert play.appended() == []
    play.pass_time(0.25)
    assert isinstance(play.run(effect(play.scope, made)), Uncertain)


@pytest.mark.rule("E9")
def test_a_look_up_counts_from_its_start_however_long_it_takes() -> None:
    play = Play()
    released(play, visibility_s=10.0)
    with pytest.raises(EffectUnresolved) as raised:
        play.run(effect(play.scope, call(reconcile=lambda: play.pass_time(60.0))))
    assert raised.value.retry_after_s == 10.0


# --- evidence that waited for somebody who can verify it


def pending(play: Play, proof: bytes = b'"item-1"', *, number: int = 1, attempt: int = 1, **more: Any) -> None:
    body = codec.LateBody(
        attempt=attempt, claims="accepted", proof=msgspec.Raw(proof), source="webhook", pending=True, **more
    )
    play.known(slots.note("pay", number), "late", body)


@pytest.mark.rule("E18", "E19")
@pytest.mark.parametrize("reconcile", [lambda: None, UNASKABLE])
def test_evidence_that_waited_for_a_verify_is_taken_up_before_anybody_is_asked(reconcile: Any) -> None:
    play = Play()
    released(play, verified=True)
    pending(play)
    outcome = play.run(effect(play.scope, call(reconcile=reconcile, verifier=checks("item-1"))))
    assert (type(outcome), outcome.via) == (Accepted, "evidence")
    (asked,) = [request for request in play.requests if isinstance(request, Call)]
    assert (asked.key, asked.attempt, asked.timeout_s) == (play.scope.key("pay", 1), 1, 5.0)
    (draft,) = play.appended()
    assert (draft.slot, draft.phase, draft.decision) == (OUTCOME, "accepted", False)
    expected = codec.OutcomeBody(via="evidence", proof=PROOF, source="webhook")
    assert play.body(OUTCOME, codec.OutcomeBody) == expected


@pytest.mark.rule("E18", "E19")
def test_evidence_that_is_refused_or_speaks_of_another_attempt_or_waits_for_nobody_is_passed_over() -> None:
    play = Play()
    retry = codec.RetryBody(attempts=3)
    sent(play, retry=retry)
    failed = codec.OutcomeBody(evidence=codec.EvidenceBody(kind="status"), due=play.wall, retryable=True)
    play.known(OUTCOME, "failed", failed)
    sent(play, 2, verified=True)
    play.known(slots.released("pay", 2), "released", codec.ReleasedBody(why="run-raised"))
    for number, (attempt, proof) in enumerate([(1, b'"of-1"'), (2, b'"bad"'), (2, b'"item-1"')], 1):
        pending(play, proof, number=number, attempt=attempt)
    played = play.run(effect(play.scope, call(reconcile=UNASKABLE, verifier=checks("of-1", "item-1"))))
    assert bytes(played.proof) == b'"item-1"'
    checked = [request.proof for request in play.requests if isinstance(request, Call)]
    assert checked == [("bad",), ("item-1",)]


@pytest.mark.rule("E18")
def test_late_evidence_that_does_not_wait_for_a_verify_is_not_taken_up() -> None:
    play = Play()
    released(play)
    body = codec.LateBody(attempt=1, claims="refused", proof=PROOF)
    play.known(NOTE, "late", body)
    assert isinstance(play.run(effect(play.scope, call())), Uncertain)


@pytest.mark.rule("E19", "E20")
@pytest.mark.parametrize("how", ["verify raises", "cannot be recorded"])
def test_evidence_that_waited_and_cannot_be_checked_or_recorded_settles_nothing(how: str) -> None:
    play = Play()
    released(play, verified=True)
    pending(play)

    def raises(proof: Any) -> bool:
        raise ConnectionError

    if how == "verify raises":
        broken = Verifier(check=raises, decode=codec.decode, timeout_s=5.0)
        with pytest.raises(EffectUnresolved) as raised:
            play.run(effect(play.scope, call(verifier=broken)))
        assert (raised.value.reason, raised.value.effect_ran) == ("reconcile-failed", "unknown")
    else:
        failing_outcomes(play)
        with pytest.raises(LedgerUnavailable) as unavailable:
            play.run(effect(play.scope, call(verifier=checks("item-1"))))
        assert (unavailable.value.effect_ran, unavailable.value.proof) == ("yes", "item-1")


# --- in flight


@pytest.mark.rule("E8")
def test_a_loser_looks_once_more_and_then_waits_for_as_long_as_it_says() -> None:
    play = Play()
    sent(play)
    with pytest.raises(EffectUnresolved) as raised:
        play.run(effect(play.scope, call(wait_s=2.5 * POLL_S)))
    assert (raised.value.reason, raised.value.effect_ran) == ("in-flight", "unknown")
    assert [request.seconds for request in play.requests if isinstance(request, Pause)] == [
        POLL_S,
        POLL_S,
        0.5 * POLL_S,
    ]
    assert [type(request) for request in play.requests][:2] == [Gone, Read]
    assert play.appended() == []


@pytest.mark.rule("E8")
def test_a_loser_that_does_not_wait_looks_once_more_all_the_same() -> None:
    play = Play()
    sent(play)
    with pytest.raises(EffectUnresolved):
        play.run(effect(play.scope, call(wait_s=0.0)))
    assert [request for request in play.requests if isinstance(request, Pause)] == []
    play = Play()
    sent(play)
    play.record(OUTCOME, "accepted", codec.OutcomeBody(proof=PROOF))
    assert isinstance(play.run(effect(play.scope, call(wait_s=0.0))), Accepted)


@pytest.mark.rule("E8")
@pytest.mark.parametrize("how", ["recorded", "released", "gone"])
def test_a_loser_goes_on_as_soon_as_the_winner_has_ended(how: str) -> None:
    play = Play()
    sent(play)

    def before(request: Request[Any]) -> None:
        if isinstance(request, Pause) and sum(isinstance(each, Pause) for each in play.requests) == 2:
            if how == "recorded":
                play.record(OUTCOME, "accepted", codec.OutcomeBody(proof=PROOF))
            elif how == "released":
                play.record(RELEASED, "released", codec.ReleasedBody(why="run-raised"))
            else:
                play.gone.add(OTHER)

    play.before = before
    outcome = play.run(effect(play.scope, call(reconcile=lambda: "item-1")))
    assert (type(outcome), outcome.via) == (Accepted, "run" if how == "recorded" else "reconcile")
    assert sum(isinstance(request, Pause) for request in play.requests) == 2


@pytest.mark.rule("E8", "S7")
@pytest.mark.parametrize("owned", [True, False])
def test_without_owners_an_intent_without_an_outcome_is_asked_about_at_once(owned: bool) -> None:
    play = Play(owned=owned)
    sent(play)
    made = call(wait_s=0.0, reconcile=lambda: "item-1")
    if owned:
        with pytest.raises(EffectUnresolved, match="still performing"):
            play.run(effect(play.scope, made))
    else:
        assert isinstance(play.run(effect(play.scope, made)), Accepted)
        assert not any(isinstance(request, Gone) for request in play.requests)


@pytest.mark.rule("L14")
def test_an_intent_of_an_accepted_generation_is_asked_about_and_never_sent() -> None:
    play = Play()
    sent(play, restored=True)
    assert isinstance(play.run(effect(play.scope, call(reconcile=lambda: "item-1"))), Accepted)
    assert [type(request) for request in play.requests if isinstance(request, (Gone, Append))] == [Append]
