"""What the records of one effect say together: its version, its state's record, its outcome, and what it links to."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from counterfoil import Accepted, Evidence, Failed, LedgerCorrupt, Rejected, Uncertain
from counterfoil.effects.effect import recorded
from counterfoil.outcomes import Decision
from counterfoil.protocol import codec, records, slots
from counterfoil.protocol.history import (
    decision_of,
    evidence_body,
    evidence_of,
    link_of,
    look,
    outcome_of,
    plainly_accepted,
)
from tests.protocol.play import Play

PROOF = msgspec.Raw(b'"item-1"')
BODY = codec.EvidenceBody(
    kind="status",
    phase="acknowledged",
    bytes_offered=3,
    status=202,
    contract="c",
    promises=("completion-not-established",),
    details={"a": 1},
)


def intent(play: Play, number: int = 1, **body: Any) -> None:
    play.known(slots.intent("pay", number), "intent", codec.IntentBody(**body))


def ended(play: Play, phase: str, number: int = 1, **body: Any) -> None:
    evidence = None if phase == "accepted" else codec.EvidenceBody(kind="status")
    play.known(slots.outcome("pay", number), phase, codec.OutcomeBody(**{"evidence": evidence, **body}))


def late(play: Play, number: int, **body: Any) -> None:
    play.known(slots.note("pay", number), "late", codec.LateBody(**{"attempt": 1, "claims": "accepted", **body}))


def decided(play: Play, number: int, *, new_name: str | None = None, by: str = "ada") -> None:
    body = codec.DecisionBody(happened=True, proof=PROOF, reason="seen", by=by, seen_version=2, new_name=new_name)
    play.known(slots.note("pay", number), "decision", body)


@pytest.mark.rule("O6")
def test_evidence_is_recorded_whole_and_comes_back_whole() -> None:
    evidence = evidence_of(BODY)
    assert evidence == Evidence(
        "status",
        phase="acknowledged",
        bytes_offered=3,
        status=202,
        contract="c",
        promises=("completion-not-established",),
        details={"a": 1},
    )
    assert evidence_body(evidence) == BODY


@pytest.mark.rule("O1")
def test_an_outcome_is_built_as_it_was_recorded() -> None:
    body = codec.OutcomeBody(via="reconcile", proof=PROOF, evidence=BODY, retryable=True)
    evidence = evidence_of(BODY)
    assert outcome_of("accepted", body) == Accepted(PROOF, "reconcile", evidence)
    assert outcome_of("accepted", codec.OutcomeBody(via="evidence", proof=PROOF)) == Accepted(PROOF, "evidence")
    assert outcome_of("rejected", body) == Rejected(evidence)
    failed = outcome_of("failed", body)
    assert failed == Failed(evidence, retryable=True)
    assert isinstance(failed, Failed)
    assert failed.retryable is True
    assert outcome_of("uncertain", body) == Uncertain(evidence)


@pytest.mark.rule("E16")
def test_the_first_decision_counts_and_is_shown_with_its_moment() -> None:
    play = Play()
    intent(play)
    ended(play, "uncertain")
    play.pass_time(5.0)
    decided(play, 1)
    decided(play, 2, by="bob")
    seen = look(play.scope.history, "pay")
    assert seen.decision is not None
    assert decision_of(*seen.decision) == Decision(
        happened=True, proof="item-1", reason="seen", by="ada", at=1005.0, seen_version=2, new_name=None
    )
    assert [record.slot for record in seen.notes] == [slots.note("pay", 1), slots.note("pay", 2)]
    assert (seen.late, seen.version) == ([], 4)


@pytest.mark.rule("E15", "N2")
def test_an_effects_version_grows_with_each_intent_outcome_and_note_and_not_with_a_release() -> None:
    play = Play()
    versions = [look(play.scope.history, "pay").version]
    for change in (
        lambda: intent(play),
        lambda: play.known(slots.released("pay", 1), "released", codec.ReleasedBody(why="run-raised")),
        lambda: ended(play, "failed", due=1.0),
        lambda: intent(play, 2),
        lambda: late(play, 1, claims="failed"),
        lambda: late(play, 2),
    ):
        change()
        versions.append(look(play.scope.history, "pay").version)
    assert versions == [0, 1, 1, 2, 3, 4, 5]


@pytest.mark.rule("E15")
def test_the_present_state_is_the_work_of_one_record() -> None:
    play = Play()

    def since() -> str:
        return look(play.scope.history, "pay").since.slot

    intent(play)
    assert since() == slots.intent("pay", 1)
    play.known(slots.released("pay", 1), "released", codec.ReleasedBody(why="run-raised"))
    assert since() == slots.released("pay", 1)
    ended(play, "failed", due=1.0)
    assert since() == slots.outcome("pay", 1)
    play.known(slots.intent("pay", 2), "closed", codec.OutcomeBody(via="evidence", proof=PROOF))
    assert since() == slots.intent("pay", 2)
    seen = look(play.scope.history, "pay")
    assert (seen.state, seen.outcome()) == ("accepted", Accepted(PROOF, "evidence"))
    assert seen.accepted_evidence is seen.closed is not None


@pytest.mark.rule("E14", "E15")
def test_evidence_of_acceptance_is_an_accepted_attempt_or_a_late_note_that_waits_for_nobody() -> None:
    play = Play()
    intent(play)
    ended(play, "failed", due=1.0)
    late(play, 1, claims="failed")
    late(play, 2, pending=True)
    assert look(play.scope.history, "pay").accepted_evidence is None
    late(play, 3)
    found = look(play.scope.history, "pay").accepted_evidence
    assert found is not None
    assert found.slot == slots.note("pay", 3)
    intent(play, 2)
    ended(play, "accepted", 2, proof=PROOF)
    found = look(play.scope.history, "pay").accepted_evidence
    assert found is not None
    assert found.slot == slots.outcome("pay", 2)


@pytest.mark.rule("E12")
def test_the_first_fingerprint_that_is_on_record_is_the_requests() -> None:
    play = Play()
    assert look(play.scope.history, "pay").first_fingerprint is None
    intent(play)
    assert look(play.scope.history, "pay").first_fingerprint is None
    ended(play, "failed", due=1.0)
    intent(play, 2, fingerprint="two")
    ended(play, "failed", 2, due=1.0)
    intent(play, 3, fingerprint="three")
    assert look(play.scope.history, "pay").first_fingerprint == "two"


@pytest.mark.rule("E1", "E6")
def test_one_accepted_attempt_and_nothing_else_is_plain() -> None:
    play = Play()
    history = play.scope.history
    assert (history.first_attempt("pay"), history.has_more("pay")) == ((None, None), False)
    intent(play, fingerprint="one")
    first, last = history.first_attempt("pay")
    assert (first, last) == (history.get(slots.intent("pay", 1)), None)
    ended(play, "accepted", proof=PROOF)
    first, last = history.first_attempt("pay")
    assert first is not None
    assert last is not None
    assert plainly_accepted(history, first, last) == ("one", Accepted(PROOF, "run"))
    assert look(history, "pay").outcome() == Accepted(PROOF, "run")
    assert not history.has_more("pay")
    late(play, 1)
    assert history.has_more("pay")


@pytest.mark.rule("E1", "E15")
def test_more_than_one_attempt_is_looked_at_in_full_before_it_is_answered() -> None:
    play = Play()
    intent(play, fingerprint="one")
    ended(play, "accepted", proof=PROOF)
    late(play, 1)
    # A plain effect is answered from two records; this one has a third, and that one is damaged.
    broken = play.scope.history.get(slots.note("pay", 1))
    assert broken is not None
    play.scope.history._records[broken.slot] = msgspec.structs.replace(broken, check=broken.check ^ 1)
    with pytest.raises(LedgerCorrupt):
        recorded(play.scope, "pay", None)


@pytest.mark.rule("L10")
def test_a_buried_attempt_says_what_it_said() -> None:
    play = Play()
    outcome = codec.OutcomeBody(via="run", proof=PROOF)
    buried = codec.BuriedBody(fingerprint="one", keep_key=True, phase="accepted", at=7.0, outcome=outcome)
    play.known(slots.buried("pay", 1), "buried", buried)
    seen = look(play.scope.history, "pay")
    assert (seen.state, seen.first_fingerprint, seen.outcome()) == ("accepted", "one", Accepted(PROOF, "run"))
    (attempt,) = seen.attempts
    assert (attempt.number, attempt.body.keep_key, attempt.ending) == (1, True, outcome)
    assert attempt.outcome is not None
    assert (attempt.outcome.phase, attempt.outcome.at, attempt.outcome.slot) == (
        "accepted",
        7.0,
        slots.buried("pay", 1),
    )


@pytest.mark.rule("L4")
def test_a_record_that_must_not_follow_fails_closed() -> None:
    play = Play()
    intent(play)
    ended(play, "accepted", proof=PROOF)
    intent(play, 2)
    with pytest.raises(LedgerCorrupt, match="intent"):
        look(play.scope.history, "pay")
    play = Play()
    play.known(slots.intent("pay", 1), "intent", codec.IntentBody(), kind=records.NOTE)
    with pytest.raises(LedgerCorrupt):
        look(play.scope.history, "pay")


@pytest.mark.rule("O3", "E16")
def test_a_name_is_linked_to_the_effect_whose_decision_names_it() -> None:
    play = Play()
    intent(play)
    ended(play, "uncertain")
    decided(play, 1, new_name="again")
    linked = link_of(play.scope.history, "again")
    assert linked is not None
    assert (linked.name, linked.state) == ("pay", "uncertain")
    assert link_of(play.scope.history, "pay") is None


def test_effects_are_named_in_the_order_of_their_first_records() -> None:
    play = Play()
    play.known(slots.step("sum"), "result", codec.StepBody(), kind=records.STEP)
    for name in ("b/%", "a", "c"):
        play.known(slots.intent(name, 1), "intent", codec.IntentBody())
    play.known(slots.outcome("a", 1), "accepted", codec.OutcomeBody(proof=PROOF))
    assert play.scope.history.effect_names() == ["b/%", "a", "c"]
    assert [play.scope.history.has_effect(name) for name in ("b/%", "a", "sum", "")] == [True, True, False, False]
