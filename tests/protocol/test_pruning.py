"""What pruning keeps of a run, and what it drops."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from counterfoil import UsageError
from counterfoil.effects.lifetime import keepers
from counterfoil.protocol import codec, records, slots
from tests.protocol.play import Play

PROOF = msgspec.Raw(b'"item-1"')
STATUS = codec.EvidenceBody(kind="status")


def attempt(play: Play, number: int, phase: str, *, name: str = "pay", due: float | None = None, **intent: Any) -> None:
    play.known(slots.intent(name, number), "intent", codec.IntentBody(**intent))
    play.pass_time(1.0)
    body = codec.OutcomeBody(proof=PROOF if phase == "accepted" else msgspec.Raw(b"null"), evidence=STATUS, due=due)
    play.known(slots.outcome(name, number), phase, body)


def finished(play: Play) -> None:
    play.known(slots.FINISHED, "finished", codec.FinishedBody(result=msgspec.Raw(b"1")), kind=records.RUN)


@pytest.mark.rule("L10")
def test_of_each_attempt_its_identity_its_fingerprint_and_its_outcome_stay() -> None:
    play = Play()
    attempt(play, 1, "failed", due=1.0, fingerprint="v1.k.f", keep_key=True, retry=codec.RetryBody(attempts=2))
    attempt(play, 2, "accepted", fingerprint="v1.k.f", keep_key=True)
    finished(play)
    kept, dropped = keepers(play.scope.history)
    assert [(draft.slot, draft.phase, draft.decision) for draft in kept] == [
        (slots.buried("pay", 1), "buried", False),
        (slots.buried("pay", 2), "buried", False),
    ]
    bodies = [msgspec.json.decode(draft.body, type=codec.BuriedBody) for draft in kept]
    assert [(body.fingerprint, body.keep_key, body.phase, body.at) for body in bodies] == [
        ("v1.k.f", True, "failed", 1001.0),
        ("v1.k.f", True, "accepted", 1002.0),
    ]
    assert [(body.outcome.due, bytes(body.outcome.proof)) for body in bodies] == [(1.0, b"null"), (None, b'"item-1"')]
    assert dropped == [slots.intent("pay", 1), slots.outcome("pay", 1), slots.intent("pay", 2), slots.outcome("pay", 2)]


@pytest.mark.rule("L10")
def test_what_tells_of_the_run_and_of_late_facts_is_not_dropped() -> None:
    play = Play()
    play.known("step/sum", "result", codec.StepBody(), kind=records.STEP)
    attempt(play, 1, "failed", due=1.0, retry=codec.RetryBody(attempts=2))
    play.known(slots.note("pay", 1), "late", codec.LateBody(attempt=1, claims="accepted", proof=PROOF))
    play.known(slots.intent("pay", 2), "closed", codec.OutcomeBody(via="evidence", proof=PROOF))
    finished(play)
    play.known(slots.TOMBSTONE, "tombstone", codec.TombstoneBody(), kind=records.RUN)
    _, dropped = keepers(play.scope.history)
    assert dropped == ["step/sum", slots.intent("pay", 1), slots.outcome("pay", 1)]


@pytest.mark.rule("L10")
def test_what_was_buried_by_a_page_before_is_not_buried_again_and_what_is_left_is() -> None:
    play = Play()
    ending = codec.OutcomeBody(evidence=STATUS, due=1.0)
    play.known(slots.buried("pay", 1), "buried", codec.BuriedBody(phase="failed", at=1.0, outcome=ending))
    attempt(play, 2, "accepted")
    finished(play)
    kept, dropped = keepers(play.scope.history)
    assert [draft.slot for draft in kept] == [slots.buried("pay", 2)]
    assert dropped == [slots.intent("pay", 2), slots.outcome("pay", 2)]


@pytest.mark.rule("L10")
@pytest.mark.parametrize("state", ["unresolved", "uncertain", "unfinished"])
def test_what_is_not_over_keeps_a_run_from_being_pruned(state: str) -> None:
    play = Play()
    attempt(play, 1, "accepted", name="first")
    if state == "unresolved":
        play.known(slots.intent("pay", 1), "intent", codec.IntentBody())
    else:
        attempt(play, 1, "uncertain" if state == "uncertain" else "accepted")
    if state != "unfinished":
        finished(play)
    with pytest.raises(UsageError):
        keepers(play.scope.history)
