"""Dispatching (X3 to X10, X12): how each end of a handler is recorded, and what follows from it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from counterfoil import (
    Accepted,
    AsyncDispatcher,
    Dispatcher,
    Evidence,
    Failed,
    Recipient,
    Rejected,
    Uncertain,
    UsageError,
)
from counterfoil.runtime import dispatching
from tests.ledgers.postgres_support import until
from tests.outbox.shop import Shop, quick
from tests.support import PATIENCE_S

RULE_PARTS = ("X",)


def raising(error: BaseException) -> Any:
    def does(ctx: Any) -> Any:
        raise error

    return does


def refused(kind: type[Rejected | Failed], times: int, **more: Any) -> Any:
    """Prove a non-effect so many times, then accept."""
    left = [times]

    def does(ctx: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise kind(Evidence("status", status=503, **more))
        return "late-but-there"

    return does


NOT_SENT = {"phase": "not-dispatched"}


@pytest.mark.rule("X3")
def test_what_is_committed_is_delivered_and_receipted(shop: Shop) -> None:
    keys = [f"o{number}" for number in range(150)]
    with shop.transaction() as connection:
        shop.outbox.stage_many(connection, [(shop.operation(key), key) for key in keys])
    assert shop.dispatch(concurrency=8, batch=20)
    assert sorted(to for _, to in shop.box.log) == sorted(keys)
    receipt = shop.receipt("o7")
    assert receipt.state == "accepted"
    assert receipt.outcome == Accepted("mail-o7", "run")
    assert (receipt.attempts, receipt.settled) == (1, True)
    assert shop.box.log[0][0] == shop.receipt(shop.box.log[0][1]).effect_id
    assert shop.outbox.depth() == []


@pytest.mark.rule("X3", "L16")
async def test_the_asyncio_colour_delivers_through_both_kinds_of_handlers(shop: Shop) -> None:
    both, log = Recipient("both"), []

    @both.operation
    async def gently(ctx: Any, to: str) -> str:
        log.append(threading.current_thread() is threading.main_thread())
        return to

    @both.operation
    def plainly(ctx: Any, to: str) -> str:
        log.append(threading.current_thread() is not threading.main_thread())
        return to

    @gently.reconcile
    async def find(ctx: Any, to: str) -> str | None:
        return None

    with shop.transaction() as connection:
        for number in range(20):
            shop.outbox.stage(connection, (gently if number % 2 else plainly)(to="bo"), key=f"o{number}")
    async with AsyncDispatcher(shop.url, [both]) as dispatcher:
        assert await dispatcher.run_until_idle(timeout_s=PATIENCE_S)
        assert dispatcher.counts == {"accepted": 20}
    assert log == [True] * 20
    with shop.transaction() as connection:
        shop.outbox.stage(connection, gently(to="al"), key="blocking")
    with Dispatcher(shop.url, [both]) as blocking:
        assert blocking.run_until_idle(timeout_s=PATIENCE_S)
    assert shop.receipt("blocking").outcome == Accepted("al", "run")


@pytest.mark.rule("X7", "O2")
def test_a_handler_that_raises_may_have_sent_so_the_recipient_is_asked(shop: Shop) -> None:
    def loses_the_reply(ctx: Any) -> None:
        shop.box.kept[ctx.key] = "mail-9"
        raise ConnectionResetError

    shop.box.does["bo"] = loses_the_reply
    shop.order("bo")
    shop.dispatch()
    assert shop.receipt("bo").outcome == Accepted("mail-9", "reconcile")
    assert (shop.box.sends("bo"), shop.box.asked) == (1, ["bo"])


@pytest.mark.rule("X7", "O4")
def test_what_is_not_found_waits_for_a_person_and_is_never_sent_again(shop: Shop) -> None:
    shop.box.does["bo"] = raising(ConnectionResetError())
    shop.order("bo")
    for _ in range(3):
        shop.dispatch()
    receipt = shop.receipt("bo")
    assert (receipt.state, receipt.reason) == ("needs-operator", "not-found")
    assert receipt.outcome == Uncertain(Evidence("not-found", phase="dispatched"))
    assert (shop.box.sends("bo"), shop.box.asked) == (1, ["bo"])
    story = shop.outbox.opened.view.story(receipt.effect_id)
    assert story is not None
    assert b'"details":{"error":"ConnectionResetError"}' in story.attempts[0].body


@pytest.mark.rule("X7")
def test_what_cannot_be_asked_ends_as_uncertain(shop: Shop) -> None:
    shop.box.does["bo"] = raising(TimeoutError())
    shop.order("bo", recipient="door")
    shop.dispatch()
    receipt = shop.receipt("bo")
    assert (receipt.state, receipt.outcome) == (
        "uncertain",
        Uncertain(Evidence("run-raised", phase="dispatched", details={"error": "TimeoutError"})),
    )
    assert shop.box.sends("bo") == 1


@pytest.mark.rule("X7")
@pytest.mark.parametrize(
    ("recipient", "policy", "state", "asked"),
    [
        ("person", None, "needs-operator", 0),
        ("mail", "operator-only", "needs-operator", 0),
        ("mail", "at-most-once", "uncertain", 0),
        ("mail", "reconcile-first", "needs-operator", 1),
        ("bank", "operator-only", "needs-operator", 0),
        ("bank", "at-most-once", "uncertain", 0),
        ("bank", "reconcile-first", "needs-operator", 1),
        ("door", "at-most-once", "uncertain", 0),
        ("post", "at-most-once", "uncertain", 0),
    ],
)
def test_a_policy_can_be_narrowed_and_is_kept(
    lone: Shop, recipient: str, policy: str | None, state: str, asked: int
) -> None:
    lone.box.does["bo"] = raising(TimeoutError())
    lone.order("bo", recipient=recipient, policy=policy)
    lone.dispatch()
    assert lone.receipt("bo").state == state
    assert (lone.box.sends("bo"), len(lone.box.asked)) == (1, asked)


@pytest.mark.rule("X9")
@pytest.mark.parametrize(("recipient", "asked"), [("bank", 1), ("post", 0)])
def test_a_keyed_recipient_gets_it_again_with_the_same_key(lone: Shop, recipient: str, asked: int) -> None:
    left = [1]

    def loses_once(ctx: Any) -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise ConnectionResetError
        return "paid"

    lone.box.does["bo"] = loses_once
    effect_id = lone.order("bo", recipient=recipient)
    lone.dispatch()
    assert lone.receipt("bo").outcome == Accepted("paid", "run")
    assert lone.box.log == [(effect_id, "bo")] * 2
    assert len(lone.box.asked) == asked


@pytest.mark.rule("X9")
def test_a_keyed_resend_is_bounded(lone: Shop) -> None:
    lone.box.does["bo"] = raising(ConnectionResetError())
    lone.order("bo", recipient="post")
    lone.dispatch()
    # The contract allows two resends.
    assert lone.box.sends("bo") == 3
    assert lone.receipt("bo").state == "needs-operator"


@pytest.mark.rule("X9", "O3")
def test_a_later_failure_says_nothing_about_a_send_of_unknown_end(lone: Shop) -> None:
    ends = iter([ConnectionResetError(), Failed(Evidence("status", status=409))])
    lone.box.does["bo"] = lambda ctx: raising(next(ends))(None)
    lone.order("bo", recipient="post")
    lone.dispatch()
    receipt = lone.receipt("bo")
    assert (receipt.state, receipt.reason) == ("needs-operator", "earlier-send-unsure")
    assert isinstance(receipt.outcome, Uncertain)


@pytest.mark.rule("X10", "E13")
def test_what_was_never_dispatched_is_tried_again_with_its_key(shop: Shop) -> None:
    shop.box.does["bo"] = refused(Rejected, 2, **NOT_SENT)
    effect_id = shop.order("bo")
    shop.dispatch()
    receipt = shop.receipt("bo")
    assert (receipt.state, receipt.attempts) == ("accepted", 3)
    assert {key for key, _ in shop.box.log} == {effect_id}
    assert shop.box.asked == []


@pytest.mark.rule("X10")
def test_tries_are_bounded_and_end_as_what_they_were(lone: Shop) -> None:
    lone.box.does["bo"] = refused(Rejected, 99, **NOT_SENT)
    lone.order("bo")
    lone.dispatch()
    receipt = lone.receipt("bo")
    assert (receipt.state, receipt.attempts) == ("rejected", 3)
    assert receipt.outcome == Rejected(Evidence("status", status=503, phase="not-dispatched"))


@pytest.mark.rule("E13", "E14")
def test_a_failure_is_final_unless_the_contract_says_that_another_attempt_is_safe(lone: Shop) -> None:
    lone.box.does["bo"] = raising(Failed(Evidence("status", status=422)))
    again = [2]

    def retryable(ctx: Any) -> str:
        again[0] -= 1
        if again[0] >= 0:
            raise Failed(Evidence("status", status=503), retryable=True)
        return "at last"

    lone.box.does["al"] = retryable
    lone.order("bo")
    first = lone.order("al")
    lone.dispatch()
    assert lone.receipt("bo").outcome == Failed(Evidence("status", status=422))
    assert lone.receipt("al").outcome == Accepted("at last", "run")
    used = [key for key, to in lone.box.log if to == "al"]
    # An attempt that failed has used its key up.
    assert used[0] == first
    assert len(set(used)) == 3


@pytest.mark.rule("X10")
def test_retry_after_is_honoured_bounded_and_visible(timed: Shop) -> None:
    shop, clock = timed, timed.clock
    for to, wished in (("bo", 30.0), ("al", 1e9), ("cy", float("nan")), ("di", "soon")):
        shop.box.does[to] = refused(Rejected, 1, details={"retry_after_s": wished}, **NOT_SENT)
        shop.order(to)
    shop.dispatch(terms=quick(retry_after_max_s=600.0))
    dues = {to: shop.receipt(to).due for to in ("bo", "al", "cy", "di")}
    assert dues["bo"] == pytest.approx(clock.time() + 30.0)
    assert dues["al"] == pytest.approx(clock.time() + 600.0)
    for to in ("cy", "di"):
        assert clock.time() <= (dues[to] or 0) <= clock.time() + 0.05
    receipt = shop.receipt("bo")
    assert (receipt.state, receipt.reason) == ("retry-scheduled", "status")
    clock.advance(29.0)
    shop.dispatch()
    assert shop.box.sends("bo") == 1
    clock.advance(1.1)
    shop.dispatch()
    assert shop.receipt("bo").state == "accepted"


@pytest.mark.rule("X6", "O2")
def test_a_handler_that_never_returns_is_of_unknown_end_and_blocks_nobody(lone: Shop) -> None:
    held = threading.Event()
    lone.box.does["stuck"] = lambda ctx: held.wait(PATIENCE_S)
    lone.order("stuck", recipient="door")
    lone.order("bo")
    with lone.dispatcher("mail", "door", drain_timeout_s=0.1) as dispatcher:
        runs = threading.Thread(target=dispatcher.run)
        runs.start()
        assert lone.outbox.wait("bo", timeout_s=PATIENCE_S).state == "accepted"
        assert lone.receipt("stuck").state == "dispatching"
        # Its time is over now.
        engine: Any = dispatcher._engine
        heap = engine._deadlines._heap
        heap[:] = [(0.0, *one[1:]) for one in heap]
        receipt = lone.outbox.wait("stuck", timeout_s=PATIENCE_S)
        assert (receipt.state, receipt.reason) == ("uncertain", "run-overran")
        dispatcher.stop()
        # It has nothing in hand, and does not wait for who never returns.
        runs.join(PATIENCE_S / 2)
        assert not runs.is_alive()
        held.set()


@pytest.mark.rule("X8")
def test_a_recipient_that_cannot_be_asked_now_is_asked_within_a_budget_of_its_own(lone: Shop) -> None:
    lone.box.does["bo"] = raising(ConnectionResetError())
    lone.box.says["bo"] = raising(ConnectionRefusedError())
    lone.order("bo")
    lone.dispatch()
    receipt = lone.receipt("bo")
    assert (receipt.state, receipt.reason) == ("needs-operator", "reconcile-exhausted")
    # Asking charges no attempt to send.
    assert (lone.box.sends("bo"), len(lone.box.asked), receipt.attempts) == (1, 3, 1)


@pytest.mark.rule("X8")
def test_looking_up_has_a_deadline(lone: Shop) -> None:
    held = threading.Event()
    lone.box.does["bo"] = raising(ConnectionResetError())
    lone.box.says["bo"] = lambda ctx: held.wait(PATIENCE_S)
    lone.order("bo")
    lone.dispatch(terms=quick(look_timeout_s=0.05, looks=2))
    assert lone.receipt("bo").reason == "reconcile-exhausted"
    held.set()


@pytest.mark.rule("E13", "O4")
def test_a_key_that_is_closed_at_the_recipient_has_failed(lone: Shop) -> None:
    lone.box.does["bo"] = raising(ConnectionResetError())
    lone.box.says["bo"] = raising(Failed(Evidence("key-closed", phase="acknowledged")))
    lone.order("bo")
    lone.dispatch()
    assert lone.receipt("bo").outcome == Failed(Evidence("key-closed", phase="acknowledged"))


@pytest.mark.rule("E9", "X8")
def test_a_recipient_gets_its_time_before_not_found_counts(timed: Shop) -> None:
    shop, clock = timed, timed.clock
    slow = Recipient("slow")

    @slow.operation(visibility=60.0)
    def send(ctx: Any, to: str) -> None:
        shop.box.kept["later"] = "mail-1"
        raise ConnectionResetError

    @send.reconcile
    def find(ctx: Any, to: str) -> str | None:
        shop.box.asked.append(to)
        return "mail-1" if clock.time() > began + 50 else None

    began = clock.time()
    with shop.transaction() as connection:
        shop.outbox.stage(connection, send(to="bo"), key="o1")
    for seconds in (0.0, 30.0, 31.0):
        clock.advance(seconds)
        with Dispatcher(shop.url, [slow], clock=clock, terms=quick()) as dispatcher:
            dispatcher.run_until_idle(timeout_s=PATIENCE_S)
        if seconds < 31.0:
            assert (shop.receipt("o1").state, shop.box.asked) == ("dispatching", [])
    assert shop.receipt("o1").outcome == Accepted("mail-1", "reconcile")


@pytest.mark.rule("E5", "E19")
def test_a_proof_that_cannot_be_kept_proves_nothing_and_is_kept_as_late_evidence(lone: Shop) -> None:
    picky = Recipient("picky")
    answers: list[Any] = [{1, 2}, "x" * 70_000, "not-ours"]

    @picky.operation
    def send(ctx: Any, number: int) -> Any:
        return answers[number]

    @send.reconcile
    def find(ctx: Any, number: int) -> Any:
        return None

    @send.verify
    def ours(proof: Any) -> bool:
        return str(proof).startswith("ours")

    with lone.transaction() as connection:
        for number in range(3):
            lone.outbox.stage(connection, send(number), key=f"o{number}")
    with Dispatcher(lone.url, [picky], terms=quick()) as dispatcher:
        dispatcher.run_until_idle(timeout_s=PATIENCE_S)
    for number in range(3):
        receipt = lone.receipt(f"o{number}")
        assert receipt.state == "needs-operator"
        assert [late.claims for late in receipt.late_evidence] == ["refused"]


@pytest.mark.rule("X12")
def test_an_intent_that_was_not_sent_in_time_ends_as_rejected(timed: Shop) -> None:
    shop, clock = timed, timed.clock
    shop.order("o1", expires_at=clock.time() + 10)
    shop.order("o2", expires_at=clock.time() + 10, not_before=clock.time() + 5)
    shop.order("in-time", expires_at=clock.time() + 10)
    shop.box.does["o2"] = refused(Rejected, 1, details={"retry_after_s": 300.0}, **NOT_SENT)
    clock.advance(5)
    with shop.dispatcher() as dispatcher:
        shop.box.does["o1"] = lambda ctx: "never"
        shop.outbox.pause("mail", reason="a test", by="me")
        dispatcher.run_until_idle(timeout_s=PATIENCE_S)
    assert shop.box.log == []
    shop.outbox.resume("mail", reason="a test", by="me")
    clock.advance(6)
    shop.dispatch()
    for key in ("o1", "o2", "in-time"):
        assert shop.receipt(key).outcome == Rejected(Evidence("expired", phase="not-dispatched", bytes_offered=0))
    assert shop.box.log == []


@pytest.mark.rule("X12")
def test_a_retry_does_not_outlive_the_expiry_and_what_may_have_been_sent_never_expires(timed: Shop) -> None:
    shop, clock = timed, timed.clock
    shop.box.does["o1"] = refused(Rejected, 99, details={"retry_after_s": 300.0}, **NOT_SENT)
    shop.box.does["o2"] = raising(ConnectionResetError())
    shop.box.says["o2"] = raising(ConnectionRefusedError())
    for key in ("o1", "o2"):
        shop.order(key, expires_at=clock.time() + 10)
    shop.dispatch(terms=quick(backoff_s=60.0, backoff_max_s=60.0, looks=99))
    assert shop.receipt("o1").due == pytest.approx(clock.time() + 10)
    clock.advance(100)
    shop.box.says["o2"] = lambda ctx: "mail-2"
    shop.dispatch()
    assert shop.receipt("o1").state == "rejected"
    assert shop.receipt("o2").outcome == Accepted("mail-2", "reconcile")


@pytest.mark.rule("X3")
def test_an_unknown_recipient_is_left_with_its_reason_for_whoever_knows_it(lone: Shop) -> None:
    lone.order("o1")
    lone.order("o2", recipient="door")
    lone.dispatch("door")
    assert lone.receipt("o2").state == "accepted"
    assert (lone.receipt("o1").state, lone.receipt("o1").reason) == ("blocked", "unknown-recipient")
    lone.dispatch("mail")
    assert lone.receipt("o1").state == "accepted"


@pytest.mark.rule("X3")
def test_an_unknown_operation_and_a_newer_format_are_left_and_block_nobody(lone: Shop) -> None:
    newer = Recipient("mail")

    @newer.operation
    def recall(ctx: Any, to: str) -> str:
        return to

    @recall.reconcile
    def find(ctx: Any, to: str) -> None: ...

    with lone.transaction() as connection:
        lone.outbox.stage(connection, recall(to="al"), key="o1", lane="L")
    lone.order("o2")
    lone.order("o3", lane="L")
    lone.sql("UPDATE counterfoil_ready SET format = 2 WHERE recipient = 'mail' AND lane IS NULL")
    lone.order("o4")
    lone.dispatch("mail")
    assert (lone.receipt("o1").state, lone.receipt("o1").reason) == ("blocked", "unknown-operation")
    assert (lone.receipt("o2").state, lone.receipt("o2").reason) == ("blocked", "newer-format")
    assert lone.receipt("o3").state == "pending"
    assert lone.receipt("o4").state == "accepted"
    with Dispatcher(lone.url, [newer], terms=quick()) as dispatcher:
        dispatcher.run_until_idle(timeout_s=PATIENCE_S)
    assert lone.receipt("o1").state == "accepted"
    lone.dispatch("mail")
    assert lone.receipt("o3").state == "accepted"


@pytest.mark.rule("X3")
def test_arguments_that_fit_no_longer_wait_for_a_person(lone: Shop) -> None:
    lone.order("o1")
    other = Recipient("mail")

    @other.operation(reconcile=None)
    def send(ctx: Any, address: str) -> str:
        return address

    with Dispatcher(lone.url, [other], terms=quick()) as dispatcher:
        dispatcher.run_until_idle(timeout_s=PATIENCE_S)
    receipt = lone.receipt("o1")
    assert (receipt.state, receipt.reason, receipt.outcome) == ("needs-operator", "arguments-do-not-fit", None)
    lone.outbox.redrive("o1", reason="mended", by="me", expect_version=receipt.version)
    lone.dispatch()
    assert lone.receipt("o1").state == "accepted"


@pytest.mark.rule("X3")
def test_a_dispatcher_stops_when_told_and_finishes_what_it_has_in_hand(lone: Shop) -> None:
    began, held = threading.Event(), threading.Event()

    def slow(ctx: Any) -> str:
        began.set()
        held.wait(PATIENCE_S)
        return "done"

    lone.box.does["o0"] = slow
    for number in range(5):
        lone.order(f"o{number}")
    dispatcher = lone.dispatcher(concurrency=1, batch=3)
    runs = threading.Thread(target=dispatcher.run)
    runs.start()
    assert began.wait(PATIENCE_S)
    dispatcher.stop()
    until(lambda: all(lone.receipt(f"o{n}").state == "pending" for n in range(1, 5)))
    held.set()
    runs.join(PATIENCE_S)
    assert lone.receipt("o0").state == "accepted"
    # Claims that were given back do not count (rule X6).
    assert [lone.receipt(f"o{n}").state for n in range(1, 5)] == ["pending"] * 4
    assert [lone.receipt(f"o{n}").attempts for n in range(1, 5)] == [0] * 4
    lone.dispatch()
    assert sorted(to for _, to in lone.box.log) == [f"o{n}" for n in range(5)]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"recipients": []}, "at least one"),
        ({"recipients": [7]}, "is no recipient"),
        ({"recipients": "mail"}, "a list of recipients"),
        ({"recipients": [Recipient("a"), Recipient("a")]}, "two recipients"),
        ({"batch": 0}, "batch"),
        ({"concurrency": 1.5}, "concurrency"),
        ({"poll_s": 0}, "poll_s"),
        ({"timeout_s": -1}, "timeout_s"),
    ],
)
def test_wrong_arguments_of_a_dispatcher_are_refused(given: dict[str, Any], says: str) -> None:
    what = {"recipients": [Recipient("mail")], **given}
    with pytest.raises(UsageError, match=says):
        Dispatcher("sqlite:///never.db", what.pop("recipients"), **what)


@pytest.mark.rule("X14")
def test_an_idle_dispatcher_notices_a_commit_of_another_process_between_two_sweeps(
    lone: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    # There is no second sweep.
    monkeypatch.setattr(dispatching, "SWEEP_S", 1e6)
    dispatcher = lone.dispatcher()
    runs = threading.Thread(target=dispatcher.run)
    runs.start()
    try:
        for number in range(5):
            lone.order(f"o{number}")
            assert lone.outbox.wait(f"o{number}", timeout_s=PATIENCE_S).state == "accepted"
    finally:
        dispatcher.stop()
        runs.join(PATIENCE_S)
