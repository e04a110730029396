"""Crashes and fences (X4, X5, X6): what an owner leaves behind, and what it may still say."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from counterfoil import Accepted, Evidence, Rejected, Runtime, Uncertain
from counterfoil.outbox.requests import Unsent
from tests.outbox.lives import Life
from tests.outbox.shop import SEND_S, SHORT_BEAT_S, PostgresShop, Shop, quick


@pytest.mark.rule("X4")
def test_what_was_claimed_and_not_sent_is_sent_by_another(shop: Shop) -> None:
    for number in range(4):
        shop.order(f"o{number}", recipient="door")
    gone = Life(shop, concurrency=1, batch=4)
    assert len(gone.turn()) == 1
    assert [shop.receipt(f"o{number}").state for number in range(4)] == ["dispatching"] * 4
    gone.crash()
    shop.dispatch()
    # One had the send-right, so it may have been sent; of the others nothing ever was.
    assert [shop.receipt(f"o{number}").state for number in range(4)] == ["uncertain", *["accepted"] * 3]
    assert [to for _, to in shop.box.log] == ["o1", "o2", "o3"]
    assert shop.receipt("o1").attempts == 2


@pytest.mark.rule("X4", "X7")
def test_what_may_have_been_sent_is_asked_about_and_never_sent_again(shop: Shop) -> None:
    for key in ("sent", "unsent"):
        shop.order(key)
    life = Life(shop)
    life.turn()
    shop.box.kept[shop.receipt("sent").effect_id] = "mail-7"
    life.crash()
    shop.dispatch()
    assert shop.receipt("sent").outcome == Accepted("mail-7", "reconcile")
    assert (shop.receipt("unsent").state, shop.receipt("unsent").reason) == ("needs-operator", "not-found")
    assert shop.box.log == []


@pytest.mark.rule("X9")
def test_a_keyed_intent_of_a_crashed_owner_is_sent_again_with_its_key(lone: Shop) -> None:
    effect_id = lone.order("o1", recipient="post")
    life = Life(lone)
    life.turn()
    life.call()
    life.crash()
    lone.dispatch()
    assert lone.box.log == [(effect_id, "o1")] * 2
    assert lone.receipt("o1").outcome == Accepted("mail-o1", "run")


@pytest.mark.rule("X6")
def test_an_intent_that_takes_its_process_along_is_quarantined_and_its_neighbours_are_delivered(lone: Shop) -> None:
    killer = lone.order("killer", recipient="post")
    lone.order("neighbour", recipient="post")
    bounds = quick(kills=2, resends=9)
    for _ in range(2):
        life = Life(lone, concurrency=1, batch=2, terms=bounds)
        life.until(killer)
        life.crash()
    lone.dispatch(terms=bounds)
    receipt = lone.receipt("killer")
    assert (receipt.state, receipt.reason) == ("quarantined", "its-process-ended")
    assert isinstance(receipt.outcome, Uncertain)
    assert lone.receipt("neighbour").state == "accepted"
    assert lone.box.sends("neighbour") == 1


@pytest.mark.rule("X6")
def test_claims_that_never_come_to_a_send_are_bounded_too(lone: Shop) -> None:
    lone.order("unlucky", recipient="post")
    bounds = quick(revoked=2, kills=99)
    for number in range(2):
        lone.order(f"first{number}", recipient="post")
        lone.sql("UPDATE counterfoil_ready SET due = 0 WHERE intent = (SELECT max(seq) FROM counterfoil_intent)")
        life = Life(lone, concurrency=1, batch=2, terms=bounds)
        assert len(life.turn()) == 1
        life.crash()
    lone.dispatch(terms=bounds)
    receipt = lone.receipt("unlucky")
    assert (receipt.state, receipt.reason, receipt.outcome) == ("quarantined", "claimed-and-never-sent", None)
    lone.outbox.redrive("unlucky", reason="mended", by="me", expect_version=receipt.version)
    lone.dispatch(terms=bounds)
    assert lone.receipt("unlucky").state == "accepted"


@pytest.mark.rule("X5", "L8")
def test_a_fenced_owner_decides_nothing_but_its_acceptance_counts(lone: Shop) -> None:
    lone.order("o1")
    fenced = Life(lone)
    fenced.turn()
    fenced.fenced()
    other = Life(lone)
    assert other.engine._opened.store.recover(fenced.epoch, by=other.epoch) == 1
    other.settle()
    # Nothing was found, since the first is still about to send.
    assert lone.receipt("o1").reason == "not-found"
    fenced.settle()
    assert lone.receipt("o1").outcome == Accepted("mail-o1", "run")
    assert lone.box.sends("o1") == 1
    # It goes on as a fresh life.
    assert fenced.epoch != other.epoch
    lone.order("o2")
    fenced.settle()
    assert lone.receipt("o2").state == "accepted"


@pytest.mark.rule("X5", "E15")
def test_a_receipt_that_comes_after_the_outcome_is_late_evidence(lone: Shop) -> None:
    lone.order("o1", policy="at-most-once")
    fenced = Life(lone)
    fenced.turn()
    fenced.fenced()
    other = Life(lone)
    other.engine._opened.store.recover(fenced.epoch, by=other.epoch)
    other.settle()
    before = lone.receipt("o1")
    assert before.state == "uncertain"
    fenced.settle()
    receipt = lone.receipt("o1")
    assert (receipt.state, receipt.outcome) == (before.state, before.outcome)
    assert [late.claims for late in receipt.late_evidence] == ["accepted"]
    assert receipt.late_evidence[0].details["proof"] == "mail-o1"
    assert receipt.version > before.version


@pytest.mark.rule("X5", "L8", "O3")
def test_a_late_acceptance_wins_over_a_look_up_that_is_under_way(lone: Shop) -> None:
    lone.order("o1")
    fenced = Life(lone)
    fenced.turn()
    fenced.fenced()
    other = Life(lone)
    other.engine._opened.store.recover(fenced.epoch, by=other.epoch)
    other.engine.nudged()
    other.turn()
    assert lone.receipt("o1").reason == "asking"
    fenced.settle()
    assert lone.receipt("o1").outcome == Accepted("mail-o1", "run")
    lone.box.says["o1"] = lambda ctx: None
    other.settle()
    assert lone.receipt("o1").outcome == Accepted("mail-o1", "run")


@pytest.mark.rule("X9", "X5")
def test_a_resend_that_has_not_begun_when_the_acceptance_is_recorded_never_begins(lone: Shop) -> None:
    # Its recipient forgets no key for 600 s, and cannot be asked.
    lone.order("o1", recipient="post")
    fenced = Life(lone)
    fenced.turn()
    fenced.fenced()
    other = Life(lone)
    other.engine._opened.store.recover(fenced.epoch, by=other.epoch)
    while lone.receipt("o1").attempts < 2:
        other.engine.nudged()
        other.jobs += other.engine.turn()[0]
    # Claimed for another send, whose right nobody has taken yet.
    assert (other.engine.in_hand, other.jobs) == (1, [])
    fenced.settle()
    assert lone.receipt("o1").outcome == Accepted("mail-o1", "run")
    other.settle()
    assert lone.box.sends("o1") == 1
    assert lone.receipt("o1").outcome == Accepted("mail-o1", "run")


@pytest.mark.rule("X5", "L8")
@pytest.mark.parametrize("moment", ["waiting", "asking", "for-a-person"])
def test_a_late_proof_that_it_failed_ends_what_nobody_knew(lone: Shop, moment: str) -> None:
    def refuses(ctx: object) -> None:
        raise Rejected(Evidence("connect-failed", phase="not-dispatched"))

    lone.box.does["o1"] = refuses
    lone.order("o1")
    fenced = Life(lone, terms=quick(attempts=1))
    fenced.turn()
    fenced.fenced()
    other = Life(lone)
    other.engine._opened.store.recover(fenced.epoch, by=other.epoch)
    if moment != "waiting":
        other.engine.nudged()
        other.turn()
    if moment == "for-a-person":
        other.settle()
    fenced.settle()
    assert lone.receipt("o1").outcome == Rejected(Evidence("connect-failed", phase="not-dispatched"))
    other.settle()
    assert lone.receipt("o1").state == "rejected"


@pytest.mark.rule("X5", "O3")
def test_a_late_failure_says_nothing_about_a_later_send(lone: Shop) -> None:
    def refuses(ctx: object) -> None:
        raise Rejected(Evidence("connect-failed", phase="not-dispatched"))

    lone.order("o1", recipient="post")
    fenced = Life(lone, terms=quick(attempts=1))
    fenced.turn()
    fenced.fenced()
    other = Life(lone)
    other.engine._opened.store.recover(fenced.epoch, by=other.epoch)
    for _ in range(3):
        other.engine.nudged()
        other.turn()
    lone.box.does["o1"] = refuses
    fenced.settle()
    assert lone.receipt("o1").state == "dispatching"
    assert [late.claims for late in lone.receipt("o1").late_evidence] == ["rejected"]
    del lone.box.does["o1"]
    other.settle()
    assert lone.receipt("o1").state == "accepted"


@pytest.mark.rule("X9")
def test_a_holder_that_was_suspended_does_not_send_late(timed: Shop) -> None:
    shop, clock = timed, timed.clock
    shop.order("o1")
    life = Life(shop, terms=quick(send_by_s=10.0))
    life.turn()
    clock.advance(10.0)
    assert isinstance(life.jobs[0].begin(), Unsent)
    life.call()
    life.turn()
    assert shop.box.log == []
    receipt = shop.receipt("o1")
    assert (receipt.state, receipt.reason) == ("retry-scheduled", "too-late-to-send")
    clock.advance(1.0)
    life.settle()
    assert (shop.receipt("o1").state, shop.box.sends("o1")) == ("accepted", 1)


@pytest.mark.rule("X9")
@pytest.mark.parametrize("clocks", ["wall", "boot"])
def test_either_clock_stops_a_late_sender(timed: Shop, clocks: str) -> None:
    shop, clock = timed, timed.clock
    shop.order("o1")
    life = Life(shop, terms=quick(send_by_s=10.0))
    life.turn()
    if clocks == "wall":
        clock.wall += 10.0
    else:
        clock.mono += 10.0
    assert isinstance(life.jobs[0].begin(), Unsent)


@pytest.mark.rule("X9")
@pytest.mark.parametrize(("later_s", "sends"), [(600.0 - SEND_S - 1.0, 2), (600.0 - SEND_S + 1.0, 1)])
def test_a_resend_happens_only_while_it_ends_inside_the_horizon_of_the_first_send(
    timed: Shop, later_s: float, sends: int
) -> None:
    shop, clock = timed, timed.clock
    # The contract's horizon is 600 s.
    shop.order("o1", recipient="post")
    life = Life(shop)
    life.turn()
    life.call()
    life.crash()
    clock.advance(later_s)
    shop.dispatch()
    assert shop.box.sends("o1") == sends
    if sends == 1:
        receipt = shop.receipt("o1")
        assert (receipt.state, isinstance(receipt.outcome, Uncertain)) == ("needs-operator", True)


@pytest.mark.rule("X9")
def test_the_horizon_counts_from_the_first_send_and_ends_also_between_claim_and_send(timed: Shop) -> None:
    shop, clock = timed, timed.clock
    shop.order("o1", recipient="post")
    last_s = 600.0 - SEND_S
    for later_s in (0.0, last_s - 195.0):
        clock.advance(later_s)
        life = Life(shop)
        while shop.receipt("o1").state != "dispatching" or not life.jobs:
            life.engine.nudged()
            life.turn()
        life.call()
        life.crash()
    clock.advance(193.0)
    life = Life(shop)
    for _ in range(3):
        life.engine.nudged()
        life.turn()
    # The right was taken 2 s before it must not be sent any more, to be over inside the horizon.
    clock.advance(2.5)
    assert isinstance(life.jobs[0].begin(), Unsent)
    life.settle()
    clock.advance(1.0)
    life.settle()
    assert shop.box.sends("o1") == 2
    assert shop.receipt("o1").state == "needs-operator"


@pytest.mark.rule("X3", "X5")
def test_claims_and_rights_are_refused_to_a_retired_life(lone: Shop) -> None:
    lone.order("o1")
    life = Life(lone)
    epoch = life.epoch
    life.fenced()
    assert life.engine.turn()[0] == []
    assert lone.receipt("o1").state == "pending"
    life.settle()
    assert life.epoch != epoch
    assert lone.receipt("o1").state == "accepted"


@pytest.mark.rule("X15", "L14")
def test_a_restored_outbox_starts_paused_and_asks_before_it_sends(lone: Shop) -> None:
    shop = lone
    shop.order("delivered-in-the-lost-part")
    shop.order("never-delivered")
    shop.order("door", recipient="door")
    effect_id = shop.receipt("delivered-in-the-lost-part").effect_id
    shop.box.kept[effect_id] = "mail-3"
    ledger = shop.outbox.opened.session.ledger
    ledger.accept_restore(by="me", reason="restored from a backup")  # type: ignore[attr-defined]
    shop.dispatch()
    assert (shop.box.log, shop.box.asked) == ([], [])
    shop.outbox.resume(reason="looked at it", by="me")
    shop.dispatch()
    assert shop.box.log == []
    assert shop.receipt("delivered-in-the-lost-part").outcome == Accepted("mail-3", "reconcile")
    assert shop.receipt("never-delivered").reason == "not-found"
    assert shop.receipt("door").state == "uncertain"
    shop.order("new")
    shop.dispatch()
    assert shop.receipt("new").state == "accepted"


KILLED_WHILE_SENDING = """
import os, signal, sys
from counterfoil import Dispatcher, Recipient

mail = Recipient("mail")


@mail.operation
def send(ctx, to):
    os.kill(os.getpid(), signal.SIGKILL)


@send.reconcile
def find(ctx, to):
    return None


with Dispatcher(sys.argv[1], [mail]) as dispatcher:
    dispatcher.run_until_idle()
"""


@pytest.mark.rule("X3", "X4")
def test_a_dispatcher_that_ends_when_idle_waits_for_the_end_of_the_silent(lone: Shop) -> None:
    """One that is begun anew each time, by cron, finds what others left: they are found gone only while it looks."""
    effect_id = lone.order("o1")
    if isinstance(lone, PostgresShop):
        lone.url = lone.beating(SHORT_BEAT_S)
    killed = subprocess.run([sys.executable, "-c", KILLED_WHILE_SENDING, lone.url], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert lone.receipt("o1").state == "dispatching"
    lone.box.kept[effect_id] = "mail-7"
    with Runtime(lone.url) as runtime:
        while any(owner.alive for owner in runtime.ledger.owners()):  # type: ignore[attr-defined]
            time.sleep(0.01)
    assert lone.dispatch()
    assert lone.receipt("o1").outcome == Accepted("mail-7", "reconcile")
    assert lone.box.log == []
