"""Acts of operators (X15): with a reason, an expected version and a record; only what is safe is done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from counterfoil import Accepted, Conflict, Evidence, Failed, Outbox, Rejected, UsageError
from tests.outbox.lives import Life
from tests.outbox.shop import ACT, Shop
from tests.support import PATIENCE_S


def lost(ctx: Any) -> Any:
    raise ConnectionResetError


def refused(ctx: Any) -> Any:
    raise Failed(Evidence("status", status=422))


@pytest.mark.rule("X15")
def test_a_paused_outbox_sends_nothing_until_it_is_resumed(shop: Shop) -> None:
    shop.outbox.pause(reason="maintenance", by="me")
    shop.order("o1")
    shop.dispatch()
    assert shop.receipt("o1").state == "pending"
    shop.outbox.resume(reason="done", by="me")
    shop.dispatch()
    assert shop.receipt("o1").state == "accepted"


@pytest.mark.rule("X15")
def test_one_recipient_can_be_paused(lone: Shop) -> None:
    lone.outbox.pause("mail", **ACT)
    lone.order("o1")
    lone.order("o2", recipient="door")
    lone.dispatch()
    assert (lone.receipt("o1").state, lone.receipt("o2").state) == ("pending", "accepted")
    lone.outbox.resume("mail", **ACT)
    lone.dispatch()
    assert lone.receipt("o1").state == "accepted"


@pytest.mark.rule("X15", "X4")
def test_a_claim_that_meets_a_pause_is_given_back_and_does_not_count(lone: Shop) -> None:
    lone.order("o1")
    life = Life(lone)
    life.engine.turn()
    lone.outbox.pause(**ACT)
    assert life.engine.turn()[0] == []
    life.turn()
    assert (lone.receipt("o1").state, lone.receipt("o1").attempts) == ("pending", 0)
    lone.outbox.resume(**ACT)
    lone.dispatch()
    assert lone.receipt("o1").state == "accepted"


@pytest.mark.rule("X15")
def test_draining_waits_for_what_is_in_hand(lone: Shop) -> None:
    began, held = threading.Event(), threading.Event()

    def slow(ctx: Any) -> str:
        began.set()
        held.wait(PATIENCE_S)
        return "there"

    lone.box.does["o1"] = slow
    lone.order("o1")
    dispatcher = lone.dispatcher()
    runs = threading.Thread(target=dispatcher.run)
    runs.start()
    assert began.wait(PATIENCE_S)
    assert lone.outbox.drain(timeout_s=0.2, **ACT) is False
    held.set()
    assert lone.outbox.drain(timeout_s=PATIENCE_S, **ACT) is True
    lone.order("o2")
    dispatcher.stop()
    runs.join()
    assert (lone.receipt("o1").state, lone.receipt("o2").state) == ("accepted", "pending")


@pytest.mark.rule("X15", "N2")
def test_what_failed_is_sent_again_with_a_fresh_key_and_its_record(shop: Shop) -> None:
    shop.box.does["o1"] = refused
    first = shop.order("o1")
    shop.dispatch()
    before = shop.receipt("o1")
    del shop.box.does["o1"]
    shop.outbox.redrive("o1", reason="the address was mended", by="ann", expect_version=before.version)
    shop.dispatch()
    receipt = shop.receipt("o1")
    assert receipt.outcome == Accepted("mail-o1", "run")
    assert [key == first for key, _ in shop.box.log] == [True, False]
    story = shop.outbox.opened.view.story(first)
    assert story is not None
    assert [act[:3] for act in story.acts] == [("redrive", "ann", "the address was mended")]


@pytest.mark.rule("X15", "X7")
@pytest.mark.parametrize(
    ("recipient", "does", "says"),
    [
        ("mail", None, "it was accepted"),
        ("mail", lost, "it may have been sent"),
        ("door", lost, "it may have been sent"),
    ],
)
def test_nothing_is_redriven_that_may_have_been_sent(lone: Shop, recipient: str, does: Any, says: str) -> None:
    if does:
        lone.box.does["o1"] = does
    lone.order("o1", recipient=recipient)
    lone.dispatch()
    with pytest.raises(UsageError, match=says):
        lone.outbox.redrive("o1", expect_version=lone.receipt("o1").version, **ACT)
    lone.dispatch()
    assert lone.box.sends("o1") == 1


@pytest.mark.rule("X15")
def test_what_somebody_has_in_hand_what_has_expired_and_what_has_acceptance_evidence_is_not_redriven(
    lone: Shop,
) -> None:
    lone.order("in-hand")
    lone.order("expired", expires_at=1.0)
    life = Life(lone)
    life.turn()
    with pytest.raises(UsageError, match="has it in hand"):
        lone.outbox.redrive("in-hand", expect_version=lone.receipt("in-hand").version, **ACT)
    life.settle()
    with pytest.raises(UsageError, match="has expired"):
        lone.outbox.redrive("expired", expect_version=lone.receipt("expired").version, **ACT)
    lone.box.does["o1"] = refused
    lone.order("o1")
    lone.dispatch()
    lone.sql(
        "INSERT INTO counterfoil_late_evidence (intent, attempt, claims, body, owner, at)"
        " SELECT intent, attempt, 'accepted', '{}', '', 0 FROM counterfoil_receipt WHERE phase = 'failed'"
    )
    with pytest.raises(UsageError, match="evidence that it was accepted"):
        lone.outbox.redrive("o1", expect_version=lone.receipt("o1").version, **ACT)


@pytest.mark.rule("X15", "X8")
def test_a_person_may_have_the_recipient_asked_again(lone: Shop) -> None:
    lone.box.does["o1"] = lost
    effect_id = lone.order("o1")
    lone.dispatch()
    before = lone.receipt("o1")
    assert before.state == "needs-operator"
    lone.box.kept[effect_id] = "mail-9"
    lone.outbox.reconcile("o1", expect_version=before.version, **ACT)
    lone.dispatch()
    assert lone.receipt("o1").outcome == Accepted("mail-9", "reconcile")
    with pytest.raises(UsageError, match="ended as accepted"):
        lone.outbox.reconcile("o1", expect_version=lone.receipt("o1").version, **ACT)


@pytest.mark.rule("X15", "E16")
def test_a_decision_is_recorded_once_and_changes_no_outcome(shop: Shop) -> None:
    shop.box.does["o1"] = lost
    shop.order("o1", recipient="door")
    shop.dispatch()
    before = shop.receipt("o1")
    shop.outbox.decide(
        "o1",
        did_not_happen=True,
        reason="the door is shut",
        by="ann",
        expect_version=before.version,
        new_key="o1-again",
    )
    receipt = shop.receipt("o1")
    assert (receipt.state, receipt.outcome) == ("uncertain", before.outcome)
    assert receipt.decision is not None
    assert (receipt.decision.by, receipt.decision.happened, receipt.decision.new_name) == ("ann", False, "o1-again")
    with pytest.raises(Conflict, match="ann has decided") as caught:
        shop.outbox.decide("o1", happened="x", reason="r", by="bob", expect_version=receipt.version)
    assert caught.value.by == "ann"


@pytest.mark.rule("X15", "E16")
def test_deciding_ends_what_nobody_could_settle(lone: Shop) -> None:
    lone.box.does["o1"] = lost
    lone.order("o1")
    lone.dispatch()
    assert lone.receipt("o1").state == "needs-operator"
    lone.outbox.decide("o1", happened="mail-3", expect_version=lone.receipt("o1").version, **ACT)
    receipt = lone.receipt("o1")
    assert (receipt.state, receipt.decision and receipt.decision.proof) == ("uncertain", "mail-3")
    assert lone.outbox.list() == []
    assert [one.key for one in lone.outbox.list(state="uncertain")] == ["o1"]


@pytest.mark.rule("X15")
def test_what_never_was_sent_can_be_given_up(lone: Shop) -> None:
    lone.order("o1", recipient="door")
    lone.dispatch("mail")
    assert lone.receipt("o1").state == "blocked"
    with pytest.raises(UsageError, match="nothing of it was ever sent"):
        lone.outbox.decide("o1", happened="x", expect_version=lone.receipt("o1").version, **ACT)
    lone.outbox.decide("o1", did_not_happen=True, expect_version=lone.receipt("o1").version, **ACT)
    assert lone.receipt("o1").outcome == Rejected(Evidence("given-up", phase="not-dispatched", bytes_offered=0))
    lone.dispatch()
    assert lone.box.log == []


ACTS: dict[str, Callable[[Outbox, dict[str, Any]], Any]] = {
    "redrive": lambda outbox, given: outbox.redrive("o1", **given),
    "reconcile": lambda outbox, given: outbox.reconcile("o1", **given),
    "decide": lambda outbox, given: outbox.decide("o1", happened="x", **given),
}


@pytest.mark.rule("X15", "N2")
@pytest.mark.parametrize("name", ACTS)
def test_a_stale_version_is_refused_and_nothing_is_recorded(lone: Shop, name: str) -> None:
    lone.box.does["o1"] = lost
    effect_id = lone.order("o1")
    lone.dispatch()
    version = lone.receipt("o1").version
    for wrong in (version - 1, version + 1):
        with pytest.raises(Conflict, match="has changed since"):
            ACTS[name](lone.outbox, {**ACT, "expect_version": wrong})
    for said in ({"reason": " ", "by": "me"}, {"reason": "r", "by": ""}, {"reason": None, "by": "me"}):
        with pytest.raises(UsageError, match="needs"):
            ACTS[name](lone.outbox, {**said, "expect_version": version})
    with pytest.raises(UsageError, match="expect_version"):
        ACTS[name](lone.outbox, {**ACT, "expect_version": "1"})
    story = lone.outbox.opened.view.story(effect_id)
    assert story is not None
    assert story.acts == ()
    assert lone.receipt("o1").version == version


@pytest.mark.rule("X15")
def test_acts_on_nothing_are_refused(lone: Shop) -> None:
    with pytest.raises(UsageError, match="nothing is staged"):
        lone.outbox.redrive("o7", expect_version=1, **ACT)
    with pytest.raises(UsageError, match="is no state"):
        lone.outbox.list(state="lost")
    with pytest.raises(UsageError, match="needs"):
        lone.outbox.pause(reason="", by="me")


@pytest.mark.rule("N1", "X11")
def test_what_waits_is_listed_and_counted(lone: Shop) -> None:
    lone.box.does["lost"] = lost
    for key in ("lost", "tomorrow", "behind"):
        lone.order(key, not_before=4e9 if key == "tomorrow" else None)
    lone.order("strange", recipient="door")
    lone.dispatch("mail")
    assert {(r.key, r.state) for r in lone.outbox.list()} == {
        ("lost", "needs-operator"),
        ("tomorrow", "pending"),
        ("strange", "blocked"),
    }
    assert [r.key for r in lone.outbox.list(state="needs-operator")] == ["lost"]
    assert {(name, state, count) for name, state, count, _ in lone.outbox.depth()} == {
        ("mail", "needs-operator", 1),
        ("mail", "pending", 1),
        ("door", "blocked", 1),
    }
    assert [r.key for r in lone.outbox.list(state="accepted")] == ["behind"]


@pytest.mark.rule("L10", "X15")
def test_pruning_keeps_what_may_still_matter(lone: Shop) -> None:
    for key in ("sent", "lost", "failed"):
        lone.order(key, recipient="door" if key == "lost" else "mail")
    lone.box.does["lost"] = lost
    lone.box.does["failed"] = refused
    lone.order("waits", not_before=4e9)
    lone.dispatch()
    before = {key: lone.receipt(key) for key in ("sent", "lost", "failed", "waits")}
    wrong: list[Any] = [0, -1, "1", 1.5, None]
    for limit in wrong:
        with pytest.raises(UsageError, match="limit"):
            lone.outbox.prune(older_than_s=0, limit=limit, **ACT)
    assert lone.outbox.prune(older_than_s=3600, **ACT) == 0
    assert lone.outbox.prune(older_than_s=0, **ACT) == 2
    for key, receipt in before.items():
        now = lone.receipt(key)
        assert (now.state, now.outcome, now.effect_id) == (receipt.state, receipt.outcome, receipt.effect_id)
    with pytest.raises(UsageError, match="was pruned"):
        lone.outbox.redrive("failed", expect_version=lone.receipt("failed").version, **ACT)
    story = lone.outbox.opened.view.story(before["lost"].effect_id)
    assert story is not None
    assert story.body is not None


@pytest.mark.rule("N1")
def test_a_state_is_listed_whatever_waits_before_it(lone: Shop) -> None:
    """The limit counts what is asked for, not what had to be passed by."""

    def kept(ctx: Any) -> None:
        raise ConnectionResetError

    lone.box.does["unsure"] = kept
    for number in range(4):
        lone.order(f"tomorrow-{number}", not_before=4e9)
    lone.order("unsure", to="unsure", lane="L")
    lone.order("behind", lane="L", not_before=4e9)
    lone.dispatch()
    for number in range(4, 6):
        lone.order(f"tomorrow-{number}", not_before=4e9)

    def listed(state: str | None, limit: int = 2) -> list[str]:
        found = lone.outbox.list(state=state, limit=limit)
        assert state is None or {receipt.state for receipt in found} <= {state}
        return [receipt.key for receipt in found]

    assert listed("needs-operator") == ["unsure"]
    assert listed("blocked") == ["behind"]
    assert listed("pending") == ["tomorrow-0", "tomorrow-1"]
    assert listed("pending", limit=100) == [f"tomorrow-{number}" for number in range(6)]
    assert listed("quarantined") == []
    assert listed(None) == ["tomorrow-0", "tomorrow-1"]
    assert len(listed(None, limit=100)) == 8


@pytest.mark.rule("N1")
def test_what_a_dispatcher_has_in_hand_is_listed(lone: Shop) -> None:
    lone.order("o1")
    lone.order("o2", not_before=4e9)
    life = Life(lone)
    life.turn()
    assert [(one.key, one.state) for one in lone.outbox.list(state="dispatching")] == [("o1", "dispatching")]
    assert [one.key for one in lone.outbox.list()] == ["o1", "o2"]
    assert [one.key for one in lone.outbox.list(limit=1)] == ["o1"]
    life.settle()
    assert lone.outbox.list(state="dispatching") == []
    assert [one.key for one in lone.outbox.list()] == ["o2"]


@pytest.mark.rule("N1", "X15")
def test_a_snapshot_says_what_is_paused(lone: Shop) -> None:
    assert lone.outbox.snapshot().paused == ()
    lone.outbox.pause("mail", **ACT)
    lone.outbox.pause("door", **ACT)
    assert lone.outbox.snapshot().paused == ("recipient:door", "recipient:mail")
    lone.outbox.pause(**ACT)
    lone.outbox.resume("mail", **ACT)
    assert lone.outbox.snapshot().paused == ("*", "recipient:door")
