"""Lanes (X11): order within a key, in commit order and without gaps; who stands still holds nobody else."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from counterfoil import Evidence, Failed, Lane, Rejected, UsageError
from tests.outbox.lives import Life
from tests.outbox.shop import ACT, Shop, quick


def fails(ctx: Any) -> Any:
    raise ConnectionResetError


def delivered(shop: Shop, lane: str) -> list[str]:
    return [to for _, to in shop.box.log if to.startswith(lane)]


@pytest.mark.rule("X11")
def test_a_lane_is_delivered_one_after_the_other(shop: Shop) -> None:
    at_once, most = [0], [0]
    lock = threading.Lock()

    def counted(ctx: Any) -> str:
        with lock:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
        with lock:
            at_once[0] -= 1
        return "there"

    for number in range(12):
        shop.box.does[f"a{number}"] = counted
        shop.order(f"a{number}", lane="a")
        shop.order(f"b{number}", lane="b")
    shop.dispatch(concurrency=8)
    assert delivered(shop, "a") == [f"a{number}" for number in range(12)]
    assert delivered(shop, "b") == [f"b{number}" for number in range(12)]
    assert most == [1]
    assert shop.outbox.lanes() == []


@pytest.mark.rule("X11")
@pytest.mark.parametrize(
    ("end", "state"),
    [
        (ConnectionResetError(), "needs-operator"),
        (Failed(Evidence("status", status=422)), "failed"),
        (Rejected(Evidence("no-address", phase="not-dispatched")), "rejected"),
    ],
)
def test_a_head_that_nobody_knows_about_holds_its_lane_alone(lone: Shop, end: Exception, state: str) -> None:
    def ends(ctx: Any) -> None:
        raise end

    lone.box.does["a0"] = ends
    for number in range(3):
        lone.order(f"a{number}", lane="a")
        lone.order(f"b{number}", lane="b")
    lone.dispatch()
    assert delivered(lone, "b") == ["b0", "b1", "b2"]
    assert lone.receipt("a0").state == state
    if state != "needs-operator":
        assert lone.receipt("a2").state == "accepted"
        return
    assert (lone.receipt("a1").state, lone.receipt("a1").reason) == ("blocked", "lane: not-found")
    head = lone.receipt("a0")
    [(lane, waiting, why, since, blocks)] = lone.outbox.lanes()
    assert (lane, waiting, why, blocks) == ("a", 3, "not-found", head.effect_id)
    assert since == pytest.approx(head.since)
    lone.outbox.decide("a0", did_not_happen=True, expect_version=head.version, **ACT)
    lone.dispatch()
    assert delivered(lone, "a") == ["a0", "a1", "a2"]
    assert lone.receipt("a0").state == "uncertain"


@pytest.mark.rule("X11")
@pytest.mark.parametrize("recipient", ["mail", "door"])
def test_a_lane_may_go_on_without_a_head_that_nobody_knows_about(lone: Shop, recipient: str) -> None:
    lone.box.does["a0"] = fails
    for number in range(3):
        lone.order(f"a{number}", lane=Lane("a", on_stuck="skip"), recipient=recipient)
    lone.dispatch()
    assert delivered(lone, "a") == ["a0", "a1", "a2"]
    head = lone.outbox.opened.view.story(lone.receipt("a0").effect_id)
    assert head is not None
    assert [(name, why) for name, _, why, _, _ in head.acts] == [("skip", "lane 'a' went on without it")]


@pytest.mark.rule("X11", "X7")
def test_an_uncertain_head_holds_its_lane_until_somebody_decides(lone: Shop) -> None:
    lone.box.does["a0"] = fails
    for number in range(2):
        lone.order(f"a{number}", lane="a", recipient="door")
    lone.dispatch()
    head = lone.receipt("a0")
    assert (head.state, lone.receipt("a1").state, lone.receipt("a1").reason) == (
        "uncertain",
        "blocked",
        "lane: uncertain",
    )
    lone.outbox.decide("a0", happened="mail-9", expect_version=head.version, **ACT)
    lone.dispatch()
    assert lone.receipt("a1").state == "accepted"
    assert lone.receipt("a0").outcome == head.outcome


@pytest.mark.rule("X11")
def test_a_head_that_is_due_tomorrow_holds_its_lane_and_no_other(timed: Shop) -> None:
    shop, clock = timed, timed.clock
    shop.order("a0", lane="a", not_before=clock.time() + 86_400)
    shop.order("a1", lane="a")
    shop.order("b0", lane="b")
    shop.dispatch()
    assert [to for _, to in shop.box.log] == ["b0"]
    clock.advance(86_401)
    shop.dispatch()
    assert [to for _, to in shop.box.log] == ["b0", "a0", "a1"]


@pytest.mark.rule("X11")
def test_a_crashed_owner_of_a_head_does_not_let_the_next_pass(lone: Shop) -> None:
    for number in range(3):
        lone.order(f"a{number}", lane="a")
    life = Life(lone)
    assert len(life.turn()) == 1
    lone.box.kept[lone.receipt("a0").effect_id] = "mail-0"
    life.crash()
    lone.dispatch()
    assert delivered(lone, "a") == ["a1", "a2"]
    assert lone.receipt("a0").state == "accepted"


@pytest.mark.rule("X11", "X12")
def test_an_expired_head_lets_the_next_pass(timed: Shop) -> None:
    shop, clock = timed, timed.clock
    shop.order("a0", lane="a", expires_at=clock.time() + 1)
    shop.order("a1", lane="a", expires_at=clock.time() + 1)
    shop.order("a2", lane="a")
    clock.advance(2)
    shop.dispatch()
    assert [to for _, to in shop.box.log] == ["a2"]
    assert [shop.receipt(f"a{number}").state for number in range(3)] == ["rejected", "rejected", "accepted"]


@pytest.mark.rule("X11")
def test_a_redriven_member_does_not_stop_its_lane(lone: Shop) -> None:
    def refuses(ctx: Any) -> None:
        raise Failed(Evidence("status", status=422))

    lone.box.does["a0"] = refuses
    for number in range(2):
        lone.order(f"a{number}", lane="a")
    lone.dispatch()
    del lone.box.does["a0"]
    lone.outbox.redrive("a0", expect_version=lone.receipt("a0").version, **ACT)
    lone.order("a2", lane="a")
    lone.dispatch()
    assert delivered(lone, "a")[:2] == ["a0", "a1"]
    assert [lone.receipt(f"a{number}").state for number in range(3)] == ["accepted"] * 3


@pytest.mark.rule("X11")
def test_wrong_lanes_are_refused() -> None:
    with pytest.raises(UsageError, match="on_stuck"):
        Lane("a", on_stuck="wait")  # type: ignore[arg-type]


@pytest.mark.rule("X11", "X5")
def test_lanes_keep_their_order_under_rollbacks_crashes_and_several_dispatchers(lone: Shop) -> None:
    rolls = random.Random(7)
    staged: dict[str, list[str]] = {f"lane{n}": [] for n in range(5)}
    for number in range(60):
        lane = rolls.choice(list(staged))
        try:
            with lone.transaction() as connection:
                lone.outbox.stage(connection, lone.operation(f"{lane}-{number}"), key=f"o{number}", lane=lane)
                if rolls.random() < 0.1:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            continue
        staged[lane].append(f"{lane}-{number}")
    for _ in range(4):
        life = Life(lone, concurrency=3, batch=5)
        life.turn()
        life.call()
        life.turn()
        # What had the right and was not called is found: somebody else delivered it, as it were.
        for job in life.jobs:
            lone.box.kept[job.context.key] = "there"
        life.crash()
    threads = [threading.Thread(target=lambda: lone.dispatch(terms=quick())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for lane, wanted in staged.items():
        got = delivered(lone, lane)
        assert got == [to for to in wanted if to in set(got)]
        states = {lone.receipt(f"o{to.partition('-')[2]}").state for to in wanted}
        assert states == {"accepted"}
    assert lone.box.twice() == []
