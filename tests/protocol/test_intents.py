"""The right to send: what an intent holds, and what becomes of one whose append had no answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from counterfoil import Evidence, NameConflict, Rejected, RunPruned, Uncertain, UsageError
from counterfoil.effects.effect import effect
from counterfoil.effects.park import sleep
from counterfoil.effects.scope import Verifier
from counterfoil.errors import CommitUnknown, LedgerUnavailable, OwnerRetired
from counterfoil.protocol import codec, records, slots
from counterfoil.protocol.history import look
from counterfoil.protocol.requests import Append, Call, Live
from tests.protocol.play import ME, Play, call

SLOT = slots.intent("pay", 1)
RETRY = codec.RetryBody(attempts=9)


def lost() -> CommitUnknown:
    error = CommitUnknown("no answer")
    error.entry = None  # type: ignore[attr-defined]
    return error


def one() -> str:
    return "item-1"


def lose(play: Play, **more: Any) -> None:
    """Lose the answer about the intent, for as long as this call goes on asking."""
    play.refusing = lambda draft: lost()
    with pytest.raises(LedgerUnavailable) as raised:
        play.run(effect(play.scope, call(run=one, **more)))
    assert raised.value.effect_ran == "no"
    play.refusing = lambda draft: None
    play.requests.clear()


@pytest.mark.rule("E1", "E12", "E14")
def test_an_intent_holds_what_later_lives_go_by_and_is_a_decision() -> None:
    play = Play()
    checks = Verifier(check=lambda proof: True, decode=codec.decode, timeout_s=5.0)
    more: dict[str, Any] = {
        "request": b"[1]",
        "visibility_s": 5.0,
        "retry": RETRY,
        "keep_key": True,
        "recipient": "mail",
    }
    play.run(effect(play.scope, call(run=one, verifier=checks, **more)))
    (draft,) = play.appended("intent")
    assert (draft.slot, draft.kind, draft.phase, draft.decision) == (SLOT, records.EFFECT, "intent", True)
    assert play.body(SLOT, codec.IntentBody) == codec.IntentBody(
        fingerprint=play.scope.fingerprint(b"[1]"),
        visibility_s=5.0,
        retry=RETRY,
        keep_key=True,
        verified=True,
        recipient="mail",
    )


@pytest.mark.rule("E14")
def test_a_later_intent_goes_by_the_policy_and_the_key_of_the_first() -> None:
    play = Play()
    play.known(SLOT, "intent", codec.IntentBody(retry=RETRY, keep_key=True))
    failed = codec.OutcomeBody(evidence=codec.EvidenceBody(kind="status"), due=play.wall, retryable=True)
    play.known(slots.outcome("pay", 1), "failed", failed)
    play.run(effect(play.scope, call(run=one, retry=codec.RetryBody(attempts=2), keep_key=False)))
    assert play.body(slots.intent("pay", 2), codec.IntentBody) == codec.IntentBody(keep_key=True)


@pytest.mark.rule("E1", "L3")
@pytest.mark.parametrize("read", [False, True])
def test_a_lost_intent_is_settled_by_its_own_append_and_sent_as_it_was_recorded(read: bool) -> None:
    play = Play()
    lose(play, keep_key=True, visibility_s=5.0)
    entry = play.scope.memory.unsent[SLOT]
    if read:
        # It had landed, and this life reads it before it knows that it was its own append.
        play._fill(entry)
        play.scope.history.add(play.records)
    outcome: Any = play.run(effect(play.scope, call(run=one)))
    assert bytes(outcome.proof) == b'"item-1"'
    intents = [each for each in play.requests if isinstance(each, Append) and each.draft.slot == SLOT]
    assert [(each.settle, each.draft.slot) for each in intents] == [(entry, SLOT)]
    # What the earlier call asked for is what is on record, and what others go by.
    assert play.body(SLOT, codec.IntentBody) == codec.IntentBody(keep_key=True, visibility_s=5.0)
    # It took time to know: whether this life may still send is asked before it does.
    order = [type(each) for each in play.requests if isinstance(each, (Append, Live, Call))]
    assert order == [Append, Live, Call, Append]
    assert play.scope.memory.unsent == {}


@pytest.mark.rule("E12", "L3")
@pytest.mark.parametrize("read", [False, True])
def test_another_request_is_not_sent_under_a_lost_intent(read: bool) -> None:
    play = Play()
    lose(play, request=b"[1]")
    if read:
        play._fill(play.scope.memory.unsent[SLOT])
        play.scope.history.add(play.records)
    with pytest.raises(NameConflict, match="effect 'pay'"):
        play.run(effect(play.scope, call(request=b"[2]")))
    assert not any(isinstance(request, Call) for request in play.requests)
    # The first request is as it was: it goes on, and is sent once.
    assert bytes(play.run(effect(play.scope, call(run=one, request=b"[1]"))).proof) == b'"item-1"'
    assert look(play.scope.history, "pay").first_fingerprint == play.scope.fingerprint(b"[1]")


@pytest.mark.rule("L14")
def test_after_an_accepted_restore_a_new_name_of_an_older_run_is_looked_up_first() -> None:
    play = Play(accepted_generation=3)
    play.known(slots.step("sum"), "result", codec.StepBody(), kind=records.STEP)
    outcome = play.run(effect(play.scope, call(reconcile=lambda: None)))
    assert isinstance(outcome, Uncertain)
    assert play.body(SLOT, codec.IntentBody).restored


@pytest.mark.rule("L14")
@pytest.mark.parametrize(
    ("epoch", "accepted", "older"),
    [("0.a", 0, False), ("0.a", 1, True), ("1.a", 1, False), ("1.a", 2, True), ("3.a", 2, False), (None, 2, False)],
)
def test_a_run_is_older_than_a_restore_that_was_accepted_after_it_had_begun(
    epoch: str | None, accepted: int, older: bool
) -> None:
    play = Play(accepted_generation=accepted)
    if epoch is not None:
        play.known(slots.step("sum"), "result", codec.StepBody(), kind=records.STEP, epoch=epoch)
    assert play.scope.older_than_restore() is older


@pytest.mark.rule("E6")
@pytest.mark.parametrize("pruned", [False, True])
def test_a_finished_or_pruned_run_says_what_it_does_not_take(pruned: bool) -> None:
    play = Play()
    play.known(slots.FINISHED, "finished", codec.FinishedBody(), kind=records.RUN)
    if pruned:
        play.known(slots.TOMBSTONE, "tombstone", codec.TombstoneBody(), kind=records.RUN)
    with pytest.raises(RunPruned if pruned else UsageError, match="it has nothing under effect 'pay'"):
        play.run(effect(play.scope, call()))
    with pytest.raises(RunPruned if pruned else UsageError, match="run 'r' was pruned" if pruned else "sleep 'nap'"):
        play.run(sleep(play.scope, "nap", 1.0))
    assert play.appended() == []


@pytest.mark.rule("E20", "L8")
@pytest.mark.parametrize("when", ["in a later call", "within one call"])
def test_a_life_that_was_retired_while_its_intent_was_settled_does_not_send(when: str) -> None:
    play = Play()
    play.live = False
    if when == "in a later call":
        lose(play)
    else:
        errors = iter([lost()])
        play.refusing = lambda draft: next(errors, None)
    fenced = Evidence("fenced", phase="not-dispatched", bytes_offered=0)
    assert play.run(effect(play.scope, call())) == Rejected(fenced)
    body = play.body(slots.outcome("pay", 1), codec.OutcomeBody)
    assert (body.via, body.due) == ("run", None)
    assert play.scope.memory.unsent == {}


@pytest.mark.rule("E20", "L8")
def test_that_a_fenced_intent_was_not_sent_is_known_though_it_cannot_be_recorded() -> None:
    play = Play()
    lose(play)
    play.live = False
    play.refusing = lambda draft: LedgerUnavailable("no") if draft.slot.endswith("outcome") else None
    with pytest.raises(LedgerUnavailable) as raised:
        play.run(effect(play.scope, call()))
    assert raised.value.effect_ran == "no"


@pytest.mark.rule("L8")
def test_what_a_retired_epoch_lost_is_forgotten_as_it_never_landed() -> None:
    play = Play()
    lose(play)
    play.refusing = lambda draft: OwnerRetired("gone")
    for _ in range(2):
        with pytest.raises(OwnerRetired):
            play.run(effect(play.scope, call()))
    assert play.scope.memory.unsent == {}


@pytest.mark.rule("E20")
def test_an_intent_that_is_refused_says_why_and_that_nothing_was_sent() -> None:
    play = Play()
    refusal = LedgerUnavailable("disk full", code="ledger-full")
    play.refusing = lambda draft: refusal
    with pytest.raises(LedgerUnavailable) as raised:
        play.run(effect(play.scope, call()))
    assert (raised.value.effect_ran, raised.value.code) == ("no", "ledger-full")
    assert raised.value.__cause__ is refusal


@pytest.mark.rule("E1")
def test_who_loses_the_race_for_an_intent_sends_nothing_and_takes_what_the_other_recorded() -> None:
    play = Play()

    def meddle(request: Any) -> None:
        if isinstance(request, Append) and request.draft.slot == SLOT:
            play.record(SLOT, "intent", codec.IntentBody())
            proof = msgspec.Raw(b'"item-9"')
            play.record(slots.outcome("pay", 1), "accepted", codec.OutcomeBody(via="run", proof=proof))

    play.before = meddle
    outcome: Any = play.run(effect(play.scope, call()))
    assert bytes(outcome.proof) == b'"item-9"'
    assert [draft.slot for draft in play.appended()] == [SLOT]


@pytest.mark.rule("E7", "E8")
def test_an_own_intent_that_nobody_performs_is_looked_up_and_never_sent_again() -> None:
    play = Play()
    play.known(SLOT, "intent", codec.IntentBody(), epoch=ME)
    outcome: Any = play.run(effect(play.scope, call(reconcile=one)))
    assert (bytes(outcome.proof), outcome.via) == (b'"item-1"', "reconcile")
