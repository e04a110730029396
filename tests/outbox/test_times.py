"""When things happen: how long is waited before another attempt, what expires, and how many are asked about at once."""

from __future__ import annotations

import time
from typing import Any

import pytest

from counterfoil import Evidence, Rejected
from counterfoil.outbox.requests import Chance
from counterfoil.outbox.retry import delay_s
from counterfoil.outbox.terms import Terms
from counterfoil.runtime import deadlines
from counterfoil.runtime.dispatching import LOOKS_MAX
from tests.outbox.lives import Life
from tests.outbox.shop import PostgresShop, Shop, quick
from tests.support import PATIENCE_S

TERMS = Terms(backoff_s=1.0, backoff_max_s=30.0, retry_after_max_s=100.0)


def drawn(chance: float, *, tries: int, wish_s: float | None = None) -> float:
    """How long is waited after so many tries, if chance says so."""
    details = None if wish_s is None else {"retry_after_s": wish_s}
    flow = delay_s(TERMS, tries, evidence=Evidence("status", status=503, details=details))
    assert isinstance(flow.send(None), Chance)
    with pytest.raises(StopIteration) as ended:
        flow.send(chance)
    return float(ended.value.value)


@pytest.mark.rule("X10")
def test_the_wait_is_anything_from_nothing_to_a_bound_that_doubles_up_to_its_own() -> None:
    longest = [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    for tries, bound_s in enumerate(longest, start=1):
        assert [drawn(chance, tries=tries) for chance in (0.0, 0.25, 0.5, 1.0)] == [
            0.0,
            bound_s / 4,
            bound_s / 2,
            bound_s,
        ]
    assert drawn(1.0, tries=10**6) == 30.0


@pytest.mark.rule("X10")
def test_the_recipients_wish_counts_where_it_is_longer_and_within_its_bound() -> None:
    assert drawn(0.5, tries=1, wish_s=7.0) == 7.0
    assert drawn(1.0, tries=5, wish_s=7.0) == 16.0
    assert drawn(0.5, tries=1, wish_s=86_400.0) == 100.0
    assert drawn(0.5, tries=1, wish_s=-5.0) == 0.5


@pytest.mark.rule("X10", "L7")
def test_a_retry_is_due_by_the_databases_clock_whatever_the_machine_believes(
    server: PostgresShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(ctx: Any) -> None:
        details = {"retry_after_s": 50.0}
        raise Rejected(Evidence("status", status=503, phase="not-dispatched", details=details))

    server.box.does["o1"] = refuses
    server.order("o1")
    real = time.time
    before = real()
    monkeypatch.setattr(time, "time", lambda: real() + 10_000.0)
    server.dispatch(terms=quick(retry_after_max_s=60.0))
    monkeypatch.undo()
    due = server.receipt("o1").due
    assert due is not None
    assert before + 49.0 <= due <= real() + 51.0


@pytest.mark.rule("X12")
def test_what_expires_between_claim_and_send_right_is_not_sent(timed: Shop) -> None:
    shop, clock = timed, timed.clock
    shop.order("o1", expires_at=clock.time() + 10)
    life = Life(shop)
    life.engine.nudged()
    assert life.engine.turn()[0] == []
    assert shop.receipt("o1").state == "dispatching"
    clock.advance(10.0)
    life.settle()
    assert shop.receipt("o1").outcome == Rejected(Evidence("expired", phase="not-dispatched", bytes_offered=0))
    assert shop.box.log == []


@pytest.mark.rule("X12", "X4")
def test_whoever_fills_the_send_right_first_decides_whether_it_expires(timed: Shop) -> None:
    shop, clock = timed, timed.clock
    shop.order("o1", expires_at=clock.time() + 10)
    life = Life(shop)
    life.turn()
    # The right is taken; the handler has not begun, and now it is too late.
    clock.advance(10.0)
    life.settle()
    clock.advance(1.0)
    life.settle()
    assert shop.receipt("o1").outcome == Rejected(Evidence("expired", phase="not-dispatched", bytes_offered=0))
    assert shop.box.log == []


@pytest.mark.rule("X8")
def test_few_are_asked_about_at_once_and_sending_goes_on_meanwhile(lone: Shop) -> None:
    def lost(ctx: Any) -> None:
        raise ConnectionResetError

    for number in range(3 * LOOKS_MAX):
        lone.box.does[f"o{number}"] = lost
        lone.order(f"o{number}")
    life = Life(lone, "mail")
    life.turn()
    life.call()
    give_up = time.monotonic() + PATIENCE_S
    while len(life.jobs) < LOOKS_MAX and time.monotonic() < give_up:
        life.turn()
    for number in range(5):
        lone.order(f"new{number}")
        life.turn()
    asking = [job for job in life.jobs if job.handler.__name__ != "run"]
    assert (len(asking), len(life.jobs)) == (LOOKS_MAX, LOOKS_MAX + 5)
    life.call()
    while life.engine.in_hand and time.monotonic() < give_up:
        life.settle(pause_s=0.01)
    assert len(lone.box.asked) >= LOOKS_MAX


@pytest.mark.rule("X13", "X6")
def test_the_deadlines_of_those_behind_a_slow_one_are_not_kept(lone: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "SPARE", 10)
    with lone.transaction() as connection:
        keys = ["slow", *(f"o{number}" for number in range(200))]
        lone.outbox.stage_many(connection, [(lone.operation(key), key) for key in keys])
    life = Life(lone, "mail", concurrency=10, batch=10)
    slow = None
    while len(lone.box.log) < 200:
        life.turn()
        if slow is None:
            slow = life.jobs.pop(0)
        life.call()
        life.turn()
        assert len(life.engine._deadlines._heap) <= 2 * 10 + 10 + 2 * 10
    assert life.engine.running == 1 + len(life.jobs)
