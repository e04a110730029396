"""Facts of the flows that are seen best where a test answers each request by itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from counterfoil import Accepted, Conflict, EffectUnresolved, Evidence, Failed, Rejected, Uncertain, UsageError
from counterfoil.effects import decide, evidence, lifetime
from counterfoil.effects.conclude import append_held
from counterfoil.effects.effect import effect
from counterfoil.effects.scope import Verifier
from counterfoil.errors import CommitUnknown, LedgerUnavailable, NameConflict
from counterfoil.outcomes import Decision
from counterfoil.protocol import codec, slots
from counterfoil.protocol.history import look
from counterfoil.protocol.requests import Append, Request
from tests.protocol.play import ME, OTHER, Play, call, never

PROOF = msgspec.Raw(b'"item-1"')
STATUS = Evidence("status", status=410)
VERDICT = decide.Verdict(happened=False, reason="looked", by="ada", expect_version=1)


def told(outcome: Any) -> Any:
    """An accepted outcome with its proof decoded, as a caller gets it."""
    return Accepted(codec.decode(bytes(outcome.proof)), outcome.via)


def closes() -> Any:
    raise Failed(STATUS)


def released(play: Play, number: int = 1, **intent: Any) -> None:
    """An attempt of another life's whose `run` is over."""
    play.known(slots.intent("pay", number), "intent", codec.IntentBody(**intent))
    play.known(slots.released("pay", number), "released", codec.ReleasedBody(why="run-raised"))


def failed_due(play: Play, number: int = 1, **intent: Any) -> None:
    """An attempt that failed, and may be followed by another at once."""
    retry = codec.RetryBody(attempts=9)
    play.known(slots.intent("pay", number), "intent", codec.IntentBody(**{"retry": retry, **intent}))
    body = codec.OutcomeBody(evidence=codec.EvidenceBody(kind="status"), due=play.wall, retryable=True)
    play.known(slots.outcome("pay", number), "failed", body)


def uncertain(play: Play, name: str, *, new_name: str | None) -> None:
    """An effect that nobody knows about, and a person's decision to repeat it under a new name, or not to."""
    play.known(slots.intent(name, 1), "intent", codec.IntentBody())
    play.known(slots.outcome(name, 1), "uncertain", codec.OutcomeBody(evidence=codec.EvidenceBody(kind="not-found")))
    body = codec.DecisionBody(happened=False, reason="x", by="ada", seen_version=2, new_name=new_name)
    play.known(slots.note(name, 1), "decision", body)


def unavailable(slot_ends: str) -> Any:
    def refusing(draft: Any) -> BaseException | None:
        return LedgerUnavailable("no") if draft.slot.endswith(slot_ends) else None

    return refusing


# --- a key that a look-up has closed at the recipient


@pytest.mark.rule("E13", "O4")
def test_a_closed_key_is_recorded_as_drawn_from_a_look_up() -> None:
    play = Play()
    released(play)
    outcome = play.run(effect(play.scope, call(reconcile=closes)))
    assert outcome == Failed(STATUS)
    body = play.body(slots.outcome("pay", 1), codec.OutcomeBody)
    assert (body.via, body.due, body.retryable) == ("reconcile", None, False)
    # A decision, not a fact: a life that was taken for gone may not draw it any more (rule L8).
    (draft,) = play.appended("outcome")
    assert draft.decision is True


@pytest.mark.rule("E20")
def test_a_closed_key_that_cannot_be_recorded_may_have_been_used() -> None:
    play = Play()
    released(play)
    play.refusing = unavailable("outcome")
    with pytest.raises(LedgerUnavailable) as raised:
        play.run(effect(play.scope, call(reconcile=closes)))
    assert raised.value.effect_ran == "unknown"
    # What a look-up says is asked for again, not held.
    assert play.scope.memory.held == {}


@pytest.mark.rule("E13")
def test_a_key_that_was_closed_while_another_outcome_came_gives_that_outcome() -> None:
    play = Play()
    released(play)

    def arrives() -> Any:
        play.record(slots.outcome("pay", 1), "accepted", codec.OutcomeBody(via="evidence", proof=PROOF))
        raise Failed(STATUS)

    outcome = play.run(effect(play.scope, call(reconcile=arrives)))
    assert outcome.via == "evidence"
    # A decision that comes second says nothing, so it is not kept as evidence either.
    assert play.appended("note/1") == []


@pytest.mark.rule("E14")
@pytest.mark.parametrize(("within_s", "phase_due"), [(60.0, True), (5.0, False)])
def test_the_attempt_after_a_closed_key_is_within_the_time_that_the_first_one_was_given(
    within_s: float, phase_due: bool
) -> None:
    play = Play()
    retry = codec.RetryBody(attempts=2, within_s=within_s, backoff_s=1.0)
    released(play, retry=retry)
    play.pass_time(10.0)
    made = call(reconcile=closes, run=lambda: "item-1", retryable=True)
    outcome = play.run(effect(play.scope, made))
    assert isinstance(outcome, Accepted if phase_due else Failed)
    due = play.body(slots.outcome("pay", 1), codec.OutcomeBody).due
    assert due == (1011.0 if phase_due else None)


@pytest.mark.rule("O3")
def test_the_last_attempt_fails_for_good_where_nothing_says_that_an_earlier_one_was_accepted() -> None:
    play = Play()
    failed_due(play)
    released(play, 2)
    assert play.run(effect(play.scope, call(reconcile=closes))) == Failed(STATUS)
    assert play.body(slots.outcome("pay", 2), codec.OutcomeBody).due is None


@pytest.mark.rule("O3", "E16")
def test_a_key_closed_under_a_linked_name_leaves_the_uncertainty_and_says_what_became_of_this_attempt() -> None:
    play = Play()
    uncertain(play, "old", new_name="pay")
    released(play)
    outcome = play.run(effect(play.scope, call(reconcile=closes)))
    assert outcome == Uncertain(
        Evidence("earlier-attempt-uncertain", details={"this_attempt": {"outcome": "failed"}}),
    )
    assert play.body(slots.outcome("pay", 1), codec.OutcomeBody).via == "reconcile"


# --- a fact that comes second


@pytest.mark.rule("E15", "E18", "L8")
def test_the_proof_of_ones_own_run_that_comes_second_is_kept_with_its_evidence_though_it_says_the_same() -> None:
    play = Play()
    promised = Evidence("status", status=202, promises=("completion-not-established",))

    def run() -> Any:
        play.record(slots.outcome("pay", 1), "accepted", codec.OutcomeBody(via="evidence", proof=PROOF))
        return Accepted("item-1", evidence=promised)

    outcome = play.run(effect(play.scope, call(run=run)))
    assert outcome.via == "evidence"
    late = play.body(slots.note("pay", 1), codec.LateBody)
    assert (late.attempt, late.claims, late.via, bytes(late.proof)) == (1, "accepted", "run", b'"item-1"')
    assert late.evidence is not None
    assert late.evidence.status == 202


@pytest.mark.rule("E15")
@pytest.mark.parametrize(("found", "kept"), [("item-1", False), ("item-2", True)])
def test_what_a_look_up_found_second_is_kept_only_where_it_says_something_else(found: str, kept: bool) -> None:
    play = Play()
    released(play)

    def find() -> str:
        play.record(slots.outcome("pay", 1), "accepted", codec.OutcomeBody(via="evidence", proof=PROOF))
        return found

    play.run(effect(play.scope, call(reconcile=find)))
    notes = [record for record in play.records if record.phase == "late"]
    assert len(notes) == kept
    if kept:
        late = play.body(slots.note("pay", 1), codec.LateBody)
        assert (late.via, bytes(late.proof)) == ("reconcile", b'"item-2"')


@pytest.mark.rule("E15")
def test_a_look_up_that_found_it_after_somebody_recorded_that_nobody_knows_is_kept() -> None:
    play = Play()
    released(play)
    unknown = codec.OutcomeBody(via="reconcile", evidence=codec.EvidenceBody(kind="not-found"))

    def find() -> str:
        play.record(slots.outcome("pay", 1), "uncertain", unknown)
        return "item-1"

    assert isinstance(play.run(effect(play.scope, call(reconcile=find))), Uncertain)
    assert play.body(slots.note("pay", 1), codec.LateBody).claims == "accepted"


@pytest.mark.rule("E15")
@pytest.mark.parametrize("error", [Failed(STATUS), Rejected(STATUS)])
def test_a_failure_that_comes_second_is_kept_as_what_it_would_have_been(error: Any) -> None:
    play = Play()

    def run() -> Any:
        play.record(slots.outcome("pay", 1), "accepted", codec.OutcomeBody(via="evidence", proof=PROOF))
        raise error

    assert isinstance(play.run(effect(play.scope, call(run=run))), Accepted)
    late = play.body(slots.note("pay", 1), codec.LateBody)
    assert late.claims == type(error).__name__.lower()
    assert late.evidence == codec.EvidenceBody(kind="status", status=410)


# --- evidence that closes what could still be sent


@pytest.mark.rule("E14", "O6")
def test_what_closes_the_next_attempt_says_where_it_came_from_and_what_it_rests_on() -> None:
    play = Play()
    rests_on = codec.EvidenceBody(kind="status", status=202, promises=("completion-not-established",))
    late = codec.LateBody(attempt=1, claims="accepted", proof=PROOF, evidence=rests_on, source="webhook")
    play.run(evidence.close("pay", 2, late))
    (draft,) = play.appended()
    assert (draft.slot, draft.phase, draft.decision) == (slots.intent("pay", 2), "closed", False)
    body = play.body(slots.intent("pay", 2), codec.OutcomeBody)
    assert body == codec.OutcomeBody(via="evidence", proof=PROOF, evidence=rests_on, source="webhook")


def late(play: Play, count: int, **body: Any) -> None:
    """A note that evidence came, and nothing else: whoever wrote it died before it closed the next attempt."""
    play.known(slots.note("pay", count), "late", codec.LateBody(**{"attempt": 1, "proof": PROOF, **body}))


def verifier(*refused: str, keys: list[str] | None = None) -> Verifier:
    def check(proof: Any, ctx: Any) -> bool:
        if keys is not None:
            keys.append(ctx.key)
        return proof not in refused

    return Verifier(check=check, decode=codec.decode, timeout_s=5.0)


@pytest.mark.rule("E14", "E15")
def test_evidence_on_record_takes_the_next_attempt_with_one_append_and_nothing_is_sent() -> None:
    play = Play()
    failed_due(play)
    late(play, 1, claims="refused", proof=msgspec.Raw(b'"x"'))
    late(play, 2, claims="accepted")
    outcome = told(play.run(effect(play.scope, call(verifier=verifier("item-1")))))
    # It was checked when it came, or there was nobody to check it: it is not checked once more.
    assert outcome == Accepted("item-1", "evidence")
    assert [(draft.slot, draft.phase) for draft in play.appended()] == [(slots.intent("pay", 2), "closed")]


@pytest.mark.rule("E18", "E19")
def test_evidence_that_waited_for_a_verify_is_checked_under_the_key_of_its_own_attempt() -> None:
    play = Play()
    failed_due(play)
    failed_due(play, 2)
    late(play, 1, attempt=1, claims="accepted", pending=True, proof=msgspec.Raw(b'"forged"'))
    late(play, 2, attempt=2, claims="accepted", pending=True)
    keys: list[str] = []
    outcome = told(play.run(effect(play.scope, call(verifier=verifier("forged", keys=keys)))))
    assert outcome == Accepted("item-1", "evidence")
    assert keys == [play.scope.key("pay", 1), play.scope.key("pay", 2)]


@pytest.mark.rule("E19", "E20")
def test_a_verify_that_raises_before_the_next_attempt_leaves_it_unknown_what_became_of_the_earlier_one() -> None:
    play = Play()
    failed_due(play)
    late(play, 1, claims="accepted", pending=True)

    def check(proof: Any) -> bool:
        raise ConnectionError

    made = call(verifier=Verifier(check=check, decode=codec.decode, timeout_s=5.0))
    with pytest.raises(EffectUnresolved) as raised:
        play.run(effect(play.scope, made))
    assert (raised.value.reason, raised.value.effect_ran) == ("reconcile-failed", "unknown")
    assert play.appended() == []


@pytest.mark.rule("O3", "E16")
def test_evidence_for_what_a_name_repeats_takes_its_first_attempt_with_one_append() -> None:
    play = Play()
    uncertain(play, "old", new_name="pay")
    play.known(slots.note("old", 2), "late", codec.LateBody(attempt=1, claims="accepted", proof=PROOF))
    assert told(play.run(effect(play.scope, call()))) == Accepted("item-1", "evidence")
    assert [(draft.slot, draft.phase) for draft in play.appended()] == [(slots.intent("pay", 1), "closed")]


@pytest.mark.rule("E16")
def test_a_decision_about_one_effect_does_not_concern_another() -> None:
    play = Play()
    uncertain(play, "old", new_name=None)
    assert told(play.run(effect(play.scope, call(run=lambda: "item-2")))) == Accepted("item-2")


# --- what a recipient asks for, and what is said of a failure that settles nothing


@pytest.mark.rule("E14")
@pytest.mark.parametrize("proved_by", ["run", "reconcile"])
def test_the_next_attempt_is_due_when_the_recipient_has_asked_for_it(proved_by: str) -> None:
    play = Play()
    busy = Failed(Evidence("status", status=503, details={"retry_after_s": 7}), retryable=True)
    sent: list[float] = []

    def run() -> Any:
        sent.append(play.wall)
        if len(sent) + (proved_by == "reconcile") == 1:
            raise busy
        return "item-1"

    def ask() -> Any:
        raise busy

    retry = codec.RetryBody(attempts=2, backoff_s=1.0)
    if proved_by == "reconcile":
        released(play, retry=retry)
    outcome = told(play.run(effect(play.scope, call(run=run, reconcile=ask, retry=retry))))
    assert outcome == Accepted("item-1")
    assert sent[-1] == 1007.0


@pytest.mark.rule("O3", "E16")
def test_a_failure_under_a_linked_name_says_what_it_rests_on_and_how_far_it_got() -> None:
    play = Play()
    uncertain(play, "old", new_name="pay")

    def run() -> Any:
        raise Failed(Evidence("status", status=409, phase="acknowledged"))

    outcome = play.run(effect(play.scope, call(run=run)))
    this = {"outcome": "failed", "kind": "status", "status": 409}
    assert outcome == Uncertain(
        Evidence("earlier-attempt-uncertain", phase="acknowledged", details={"this_attempt": this})
    )


@pytest.mark.rule("O3", "E16")
@pytest.mark.parametrize(("name", "linked"), [("x", True), ("y", True), ("pay", False)])
def test_only_the_name_that_a_decision_names_is_linked(name: str, linked: bool) -> None:
    play = Play()
    uncertain(play, "one", new_name="x")
    uncertain(play, "two", new_name="y")

    def run() -> Any:
        raise Failed(STATUS)

    outcome = play.run(effect(play.scope, call(name, run=run)))
    assert isinstance(outcome, Uncertain if linked else Failed)


# --- a run's own records


@pytest.mark.rule("L8")
def test_to_start_and_to_finish_a_run_are_decisions() -> None:
    play = Play()
    assert play.run(lifetime.start(play.scope, "shop:order", b"[7]")) is None
    play.run(lifetime.finish(play.scope, b'"done"', unasked=("step/old",)))
    of_the_run = [draft for draft in play.appended() if draft.slot in (slots.STARTED, slots.FINISHED)]
    assert [(draft.slot, draft.decision) for draft in of_the_run] == [(slots.STARTED, True), (slots.FINISHED, True)]
    started = play.body(slots.STARTED, codec.StartedBody)
    assert (started.body, bytes(started.args)) == ("shop:order", b"[7]")
    finished = play.body(slots.FINISHED, codec.FinishedBody)
    assert (bytes(finished.result), finished.unasked) == (b'"done"', ("step/old",))
    # Both are there for good: the same again changes nothing, anything else is refused.
    assert play.run(lifetime.start(play.scope, "shop:order", b"[7]")) == b'"done"'
    play.run(lifetime.finish(play.scope, b'"done"'))
    with pytest.raises(NameConflict):
        play.run(lifetime.start(play.scope, "shop:order", b"[8]"))
    with pytest.raises(Conflict):
        play.run(lifetime.finish(play.scope, b'"undone"'))


# --- what a life holds


@pytest.mark.rule("E17", "L3")
def test_a_fact_whose_recording_has_no_answer_is_settled_by_its_own_append_and_held_no_longer() -> None:
    play = Play()
    play.refusing = lambda draft: lost() if draft.slot.endswith("outcome") else None
    with pytest.raises(LedgerUnavailable) as raised:
        play.run(effect(play.scope, call(run=lambda: "item-1")))
    assert (raised.value.effect_ran, raised.value.proof) == ("yes", "item-1")
    (slot,) = play.scope.memory.held
    entry = play.scope.memory.held[slot].entry
    assert entry is not None
    play.refusing = lambda draft: None
    play.requests.clear()
    play.run(append_held(play.scope, "pay", 1))
    (request,) = [request for request in play.requests if isinstance(request, Append)]
    assert request.settle == entry
    assert play.scope.memory.held == {}
    assert told(play.run(effect(play.scope, call()))) == Accepted("item-1")


@pytest.mark.rule("E17")
def test_a_held_fact_that_another_flow_of_this_life_recorded_meanwhile_is_no_error() -> None:
    play = Play()
    play.refusing = unavailable("outcome")
    with pytest.raises(LedgerUnavailable):
        play.run(effect(play.scope, call(run=lambda: "item-1")))
    play.refusing = lambda draft: None
    play.before = lambda request: play.scope.memory.held.clear() if isinstance(request, Append) else None
    play.run(append_held(play.scope, "pay", 1))
    assert look(play.scope.history, "pay").state == "accepted"


def lost() -> CommitUnknown:
    error = CommitUnknown("no answer")
    error.entry = None  # type: ignore[attr-defined]
    return error


# --- what was returned and is refused


class Odd:
    """A value whose `repr` is no text that can be encoded."""

    def __repr__(self) -> str:
        return "<\ud800>"


class Shy:
    """A value whose `repr` is of no use."""

    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.rule("E5")
@pytest.mark.parametrize(
    ("value", "digested"),
    [
        ("x" * 70_000, b'"' + b"x" * 70_000 + b'"'),
        ({1}, b"{1}"),
        ("\ud800", b"'\\ud800'"),
        ("é\ud800", "'é\\ud800'".encode()),
        (Odd(), b"<\\ud800>"),
        (Shy(), b"Shy"),
    ],
)
@pytest.mark.parametrize("by", ["run", "reconcile"])
def test_what_cannot_be_a_proof_is_kept_by_its_digest_and_type(value: Any, digested: bytes, by: str) -> None:
    play = Play()
    if by == "reconcile":
        released(play)
    with pytest.raises(EffectUnresolved) as raised:
        play.run(effect(play.scope, call(run=lambda: value, reconcile=lambda: value)))
    assert raised.value.reason == "proof-rejected"
    note = play.body(slots.note("pay", 1), codec.LateBody)
    assert (note.attempt, note.claims, note.via, note.digest) == (1, "refused", by, codec.digest(digested))
    assert note.evidence == codec.EvidenceBody(kind="refused-proof", details={"type": type(value).__name__})


@pytest.mark.rule("E19")
def test_a_proof_that_verify_refuses_is_kept_by_the_digest_of_what_would_have_been_recorded() -> None:
    play = Play()
    made = call(run=lambda: {"id": 1}, encode=lambda value: b'"item-1"', verifier=verifier("item-1"))
    with pytest.raises(EffectUnresolved):
        play.run(effect(play.scope, made))
    assert play.body(slots.note("pay", 1), codec.LateBody).digest == codec.digest(b'"item-1"')


def test_a_digest_is_what_it_always_was() -> None:
    assert codec.digest(b"item-1") == "a509652c04ba757a4886df463d56f908"


# --- evidence by another way


@pytest.mark.rule("E18")
def test_evidence_for_no_attempt_is_refused_and_says_so() -> None:
    play = Play()
    released(play)
    with pytest.raises(UsageError) as raised:
        play.run(evidence.settle(play.scope, "pay", b"1", key="cf-another", source="webhook", verifier=None))
    assert raised.value.code == "no-such-attempt"
    assert play.appended() == []


@pytest.mark.rule("E18")
def test_evidence_by_another_way_says_where_it_came_from() -> None:
    play = Play()
    released(play)
    key = play.scope.key("pay", 1)
    assert play.run(evidence.settle(play.scope, "pay", b'"item-1"', key=key, source="webhook", verifier=None)) is True
    body = play.body(slots.outcome("pay", 1), codec.OutcomeBody)
    assert body == codec.OutcomeBody(via="evidence", proof=PROOF, source="webhook")


@pytest.mark.rule("E18", "E19", "E20")
def test_evidence_that_verify_refuses_is_kept_by_its_digest_and_settles_nothing() -> None:
    play = Play()
    released(play)
    key = play.scope.key("pay", 1)
    refused = b'{"id":"x"}'
    checks = Verifier(check=lambda proof: False, decode=codec.decode, timeout_s=5.0)
    with pytest.raises(EffectUnresolved) as raised:
        play.run(evidence.settle(play.scope, "pay", refused, key=key, source="webhook", verifier=checks))
    error = raised.value
    assert (error.reason, error.name, error.effect_ran) == ("proof-rejected", "pay", "unknown")
    note = play.body(slots.note("pay", 1), codec.LateBody)
    assert (note.attempt, note.claims, note.via, note.digest) == (1, "refused", "evidence", codec.digest(refused))
    assert note.evidence == codec.EvidenceBody(kind="refused-proof", details={"type": "dict"})
    assert bytes(note.proof) == b"null"
    assert look(play.scope.history, "pay").state == "released"


@pytest.mark.rule("E18", "E20")
def test_a_verify_that_raises_over_evidence_leaves_it_unknown() -> None:
    play = Play()
    released(play)
    checks = Verifier(check=never, decode=codec.decode, timeout_s=5.0)
    with pytest.raises(EffectUnresolved) as raised:
        play.run(
            evidence.settle(play.scope, "pay", b"1", key=play.scope.key("pay", 1), source="webhook", verifier=checks)
        )
    assert (raised.value.reason, raised.value.effect_ran) == ("reconcile-failed", "unknown")
    assert play.appended() == []


# --- the time that a recipient takes to show something


@pytest.mark.rule("E9")
def test_that_an_owner_was_found_gone_is_recorded_as_the_end_of_its_run() -> None:
    play = Play()
    play.known(slots.intent("pay", 1), "intent", codec.IntentBody(visibility_s=10.0))
    play.gone.add(OTHER)
    with pytest.raises(EffectUnresolved) as raised:
        play.run(effect(play.scope, call(reconcile=lambda: None)))
    assert (raised.value.reason, raised.value.retry_after_s) == ("too-early", 10.0)
    assert play.body(slots.released("pay", 1), codec.ReleasedBody).why == "owner-gone"


@pytest.mark.rule("E9")
@pytest.mark.parametrize("set_by", [100.0, -100.0])
def test_a_wall_clock_that_is_set_makes_no_look_up_early_or_late_in_the_life_that_saw_the_end(set_by: float) -> None:
    play = Play()
    play.known(slots.intent("pay", 1), "intent", codec.IntentBody(visibility_s=10.0))
    play.gone.add(OTHER)
    made = call(reconcile=lambda: None)
    with pytest.raises(EffectUnresolved):
        play.run(effect(play.scope, made))
    play.wall += set_by
    play.pass_time(4.0)
    with pytest.raises(EffectUnresolved) as raised:
        play.run(effect(play.scope, made))
    assert (raised.value.reason, raised.value.retry_after_s) == ("too-early", 6.0)
    play.pass_time(6.0)
    assert isinstance(play.run(effect(play.scope, made)), Uncertain)


# --- an end that a person makes


@pytest.mark.rule("E16", "L8")
def test_to_end_an_effect_as_uncertain_is_a_decision_and_not_a_fact() -> None:
    play = Play()
    released(play)
    made = play.run(decide.decide(play.scope, "pay", VERDICT))
    assert isinstance(made, Decision)
    assert [(draft.slot, draft.decision) for draft in play.appended()] == [
        (slots.outcome("pay", 1), True),
        (slots.note("pay", 1), True),
    ]
    body = play.body(slots.outcome("pay", 1), codec.OutcomeBody)
    assert (body.via, body.evidence) == ("decision", codec.EvidenceBody(kind="ended-by-person", phase="dispatched"))


@pytest.mark.rule("E16")
@pytest.mark.parametrize("busy", [True, False])
@pytest.mark.parametrize("over", ["by its release", "with its life"])
def test_an_attempt_that_is_over_may_be_ended_whoever_else_is_at_its_name(busy: bool, over: str) -> None:
    play = Play()
    if over == "by its release":
        released(play)
    else:
        play.known(slots.intent("pay", 1), "intent", codec.IntentBody())
        play.gone.add(OTHER)
    play.run(decide.decide(play.scope, "pay", VERDICT, busy=busy))
    assert look(play.scope.history, "pay").decision is not None


@pytest.mark.rule("E16")
def test_an_own_attempt_that_nobody_performs_any_more_may_be_ended() -> None:
    """Its release could not be recorded, and no flow of this life is at its name."""
    play = Play()
    play.known(slots.intent("pay", 1), "intent", codec.IntentBody(), epoch=ME)
    play.run(decide.decide(play.scope, "pay", VERDICT))
    assert look(play.scope.history, "pay").state == "uncertain"


@pytest.mark.rule("E16")
def test_an_outcome_that_came_meanwhile_ends_the_attempt_to_end_it() -> None:
    play = Play()
    released(play)

    def meddle(request: Request[Any]) -> None:
        if isinstance(request, Append) and request.draft.slot.endswith("outcome"):
            play.record(slots.outcome("pay", 1), "accepted", codec.OutcomeBody(proof=PROOF))

    play.before = meddle
    with pytest.raises(Conflict):
        play.run(decide.decide(play.scope, "pay", VERDICT))
    assert look(play.scope.history, "pay").decision is None


@pytest.mark.rule("E16", "N2")
def test_a_refused_decision_says_which_way_it_came_too_late() -> None:
    play = Play()
    released(play)
    with pytest.raises(Conflict) as raised:
        play.run(decide.decide(play.scope, "pay", msgspec.structs.replace(VERDICT, expect_version=7)))
    assert raised.value.code == "stale-version"
    play.run(decide.decide(play.scope, "pay", VERDICT))
    play.pass_time(5)
    with pytest.raises(Conflict) as raised:
        play.run(decide.decide(play.scope, "pay", VERDICT))
    assert (raised.value.code, raised.value.by, raised.value.at) == ("already-decided", "ada", 1000.0)


@pytest.mark.rule("E16", "N2")
def test_a_decision_that_lost_its_slot_to_late_evidence_was_made_without_having_seen_it() -> None:
    play = Play()
    released(play)

    def meddle(request: Request[Any]) -> None:
        if isinstance(request, Append) and request.draft.phase == "decision":
            play.record(slots.note("pay", 1), "late", codec.LateBody(attempt=1, claims="accepted", proof=PROOF))

    play.before = meddle
    with pytest.raises(Conflict) as raised:
        play.run(decide.decide(play.scope, "pay", VERDICT))
    assert raised.value.code == "stale-version"
