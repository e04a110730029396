"""Parks: sleeps with an absolute deadline, waits, and deliveries that are not lost."""

import asyncio
import time
from functools import partial
from typing import Any

import msgspec
import pytest

from counterfoil import DeliveryConflict, LedgerCorrupt, RunCancelled, UsageError
from counterfoil.protocol import codec, records, slots
from counterfoil.protocol.requests import Append
from tests.support import (
    ASYNCIO,
    BLOCKING,
    IN_MEMORY,
    PATIENCE_S,
    Fault,
    die_at,
    eventually,
    faulty,
    kill,
    quick,
    record_by,
    tries,
)

DAY_S = 86_400.0


# --- P1


@pytest.mark.rule("P1")
async def test_a_sleep_records_an_absolute_deadline_once_and_returns_when_it_has_passed(make, clock):
    async with make(clock=clock) as life, life.run("r") as run:
        waits = life.skip_pauses(clock)
        await run.sleep(90, name="rest")
        assert clock.time() == pytest.approx(1_000_090)
        await run.sleep(90, name="rest")
        assert clock.time() == pytest.approx(1_000_090)
        assert [r.phase for r in life.records()] == ["armed", "woken"]
        (armed, _) = await life.show("r")
        assert armed.body == {"deadline": 1_000_090.0}
        assert sum(waits) == pytest.approx(90)


@pytest.mark.rule("P1", "P3")
async def test_a_replay_waits_only_for_the_rest(make, clock):
    life = await make(clock=clock).__aenter__()
    await die_at(life, life.run("r").sleep(100, name="rest"), moment="after", request=Append, slot="rest")
    clock.advance(70)
    async with make(clock=clock) as life, life.run("r") as run:
        waits = life.skip_pauses(clock)
        # What a later call gives does not change the deadline.
        await run.sleep(5000, name="rest")
        assert sum(waits) == pytest.approx(30)
    async with make(clock=clock) as life, life.run("r") as run:
        waits = life.skip_pauses(clock)
        await run.sleep(100, name="rest")
        assert waits == []


@pytest.mark.rule("P1", "P4")
async def test_waking_a_day_later_is_exact_and_long_timers_are_armed_again(make, clock):
    async with make(clock=clock) as life, life.run("r") as run:
        waits = life.skip_pauses(clock)
        await run.sleep(DAY_S, name="rest")
        assert clock.time() == pytest.approx(1_000_000 + DAY_S, abs=1e-3)
        assert max(waits) <= 60


@pytest.mark.rule("P1")
async def test_a_machine_that_was_suspended_wakes_at_the_deadline(make, clock):
    """The monotonic clock stood still meanwhile, the wall clock did not."""
    async with make(clock=clock) as life, life.run("r") as run:

        def watch(moment: str, run_id: str, request: Any) -> None:
            if moment == "before" and type(request).__name__ == "Pause":
                clock.set_wall(DAY_S)
                clock.skip(request.seconds)

        life.watch(watch)
        await run.sleep(DAY_S / 2, name="rest")
        assert clock.monotonic() <= 60


@IN_MEMORY
@pytest.mark.rule("P1")
@pytest.mark.parametrize("seconds", [-1, -0.001, float("nan"), float("inf"), 1e12, "3", None, True])
async def test_a_duration_out_of_range_raises_and_records_nothing(make, seconds):
    async with make() as life, life.run("r") as run:
        with pytest.raises(UsageError):
            await run.sleep(seconds, name="rest")
        assert life.records() == []


@IN_MEMORY
@pytest.mark.rule("P1")
async def test_a_sleep_of_no_time_is_a_sleep(make):
    async with make() as life, life.run("r") as run:
        start = time.monotonic()
        await run.sleep(0, name="none")
        await run.sleep(0.05, name="short")
        # Clocks differ by a hair.
        assert time.monotonic() - start >= 0.045
        assert len(life.records()) == 4


# --- P4


@pytest.mark.rule("P4")
async def test_a_clock_that_goes_back_neither_shortens_nor_lengthens_a_sleep(make, clock):
    async with make(clock=clock) as life, life.run("r") as run:

        def watch(moment: str, run_id: str, request: Any) -> None:
            if moment == "before" and type(request).__name__ == "Pause":
                clock.set_wall(-DAY_S)
                clock.skip(request.seconds)

        life.watch(watch)
        await run.sleep(90, name="rest")
        assert clock.monotonic() == pytest.approx(90)


@pytest.mark.rule("P4")
async def test_a_clock_that_goes_back_does_not_repeat_a_sleep_that_has_passed(make, clock):
    async with make(clock=clock) as life, life.run("r") as run:
        life.skip_pauses(clock)
        await run.sleep(90, name="rest")
    clock.set_wall(-DAY_S)
    async with make(clock=clock) as life, life.run("r") as run:
        waits = life.skip_pauses(clock)
        await run.sleep(90, name="rest")
        assert waits == []


@IN_MEMORY
@pytest.mark.rule("P4")
@pytest.mark.parametrize("kind", ["object", "function"])
async def test_the_clock_is_injectable(make, clock, kind):
    async with make(clock=clock if kind == "object" else clock.time) as life, life.run("r") as run:
        sleeper = asyncio.ensure_future(run.beside.sleep(3600, name="rest"))
        await eventually(life.records)
        assert not sleeper.done()
        clock.advance(3600)
        await sleeper
        assert life.records()[0].at == 1_000_000.0


@pytest.mark.rule("P4")
def test_what_is_no_clock_is_refused(colour):
    with pytest.raises(UsageError):
        colour.life("memory:", clock=3)


def damage(record: Any, how: str) -> Any:
    """Break a record: flip its body, put a wrong body under a right checksum, or make it one of a later version."""
    if how == "newer":
        return msgspec.structs.replace(record, format=2)
    broken = msgspec.structs.replace(record, body=record.body[:-1] + b"?")
    if how == "flipped":
        return broken
    return msgspec.structs.replace(broken, check=codec.checksum_of(broken, namespace="damage", run="r"))


HOWS = pytest.mark.parametrize("how", ["flipped", "no JSON", "newer"])


def damaging(ledger: Any, slot: str, how: str = "flipped") -> Any:
    """A ledger whose record in one slot is damaged."""
    made = faulty(ledger, Fault())
    kind = type(made)
    read = ledger.read

    def damaged(namespace: str, run: str, after: int = 0) -> list[Any]:
        return [damage(r, how) if r.slot == slot else r for r in read(namespace, run, after)]

    kind.read = staticmethod(damaged)
    return made


@pytest.mark.rule("P4", "L4")
@pytest.mark.parametrize("slot", ["park/sleep/rest", "park/sleep/rest/woken", "event/paid/1"])
async def test_an_undecodable_park_or_delivery_fails_closed(make, store, slot):
    async with make() as life, life.run("r") as run:
        await run.sleep(0, name="rest")
        await run.sleep(0, name="other")
        await run.deliver("paid", "1", {"x": 1})
        await run.deliver("paid", "2", {"x": 2})
    async with make(target=damaging(store.open(), slot)) as life, life.run("r") as run:
        if slot.startswith("event"):
            with pytest.raises(LedgerCorrupt):
                await run.wait_for("paid", "1")
            with pytest.raises(LedgerCorrupt):
                await run.deliver("paid", "1", {"x": 1})
        elif slot.endswith("woken"):
            with pytest.raises(LedgerCorrupt):
                await run.sleep(0, name="rest")
        # One bad record does not block other names of the run.
        await run.sleep(0, name="other")
        assert await run.wait_for("paid", "2") == {"x": 2}


@IN_MEMORY
@pytest.mark.rule("P1")
async def test_a_sleep_that_has_passed_needs_no_deadline_any_more(make, clock):
    async with make(clock=clock) as life, life.run("r") as run:
        record_by(life, slots.woken("rest"), kind=records.PARK, phase="woken", body=codec.EmptyBody())
        await run.sleep(3600, name="rest")


@pytest.mark.rule("P4", "L4")
async def test_an_undecodable_deadline_fails_closed(make, store, clock):
    life = await make(clock=clock).__aenter__()
    await die_at(life, life.run("r").sleep(100, name="rest"), moment="after", request=Append, slot="rest")
    async with make(target=damaging(store.open(), "park/sleep/rest")) as life, life.run("r") as run:
        with pytest.raises(LedgerCorrupt):
            await run.sleep(0, name="rest")


@HOWS
@pytest.mark.rule("L4", "E1", "S1")
@pytest.mark.parametrize("slot", ["effect/pay/1/intent", "effect/pay/1/outcome", "step/sum"])
async def test_an_undecodable_record_calls_nothing_for_its_name(make, store, payee, colour, slot, how):
    async with make(namespace="damage") as life, life.run("r") as run:
        await run.effect("pay", run=colour.handler(payee.pay), reconcile=payee.never)
        await run.effect("other", run=colour.handler(payee.pay), reconcile=payee.never)
        await run.step("sum", lambda: 1)
    target = damaging(store.open(), slot, how)
    async with make(target=target, namespace="damage") as life, life.run("r") as run:
        step = run.step("sum", payee.never)
        effect = run.effect("pay", run=payee.never, reconcile=payee.never)
        refused, other = (step, effect) if slot == "step/sum" else (effect, step)
        with pytest.raises(LedgerCorrupt) as raised:
            await refused
        await other
        assert raised.value.code == ("record-too-new" if how == "newer" else "ledger-corrupt")
        assert (await run.effect("other", run=payee.never, reconcile=payee.never)).proof == "item-2"


# --- P2


@pytest.mark.rule("P2")
async def test_the_first_delivery_wins_and_each_later_one_is_told(make):
    async with make(owner="first") as one, make(owner="second") as two:
        assert await one.deliver("r", "paid", "1", {"a": 1, "b": 2}) is True
        assert await two.deliver("r", "paid", "1", {"b": 2, "a": 1}) is False
        assert await two.run("r").deliver("paid", "1", {"a": 1, "b": 2}) is False
        for payload in ({"a": 1}, None):
            with pytest.raises(DeliveryConflict) as raised:
                await two.deliver("r", "paid", "1", payload)
            assert raised.value.by == "first"
            assert raised.value.at is not None
        assert await two.run("r").wait_for("paid", "1") == {"a": 1, "b": 2}
        # The id is single-use, but other ids and events are other slots.
        assert await two.deliver("r", "paid", "2", None) is True
        assert await two.deliver("r", "sent", "1", None) is True
        assert await two.run("r").wait_for("paid", "2") is None


@pytest.mark.rule("P2")
async def test_a_delivery_before_the_wait_is_not_lost(make):
    async with make() as life:
        await life.deliver("r", "paid", "1", "early")
    async with make() as life, life.run("r") as run:
        assert await run.wait_for("paid", "1") == "early"
        assert [r.phase for r in life.records()] == ["delivered"]


@pytest.mark.rule("P2")
@pytest.mark.parametrize("other", [True, False])
async def test_a_delivery_during_the_wait_is_noticed_within_a_second(make, other):
    async with make() as one, make() as two:
        took: list[float] = []
        for number in tries(lambda: quick(took, 1), range(20)):
            run_id = f"r{number}"
            pauses = one.note_pauses()
            waiter = asyncio.ensure_future(one.run(run_id).beside.wait_for("paid", "1"))
            await eventually(partial(len, pauses))
            start = time.monotonic()
            await (two if other else one).deliver(run_id, "paid", "1", "now")
            assert await waiter == "now"
            took.append(time.monotonic() - start)
            assert [r.phase for r in one.records(run_id)] == ["armed", "delivered"]


@pytest.mark.rule("P2")
async def test_a_delivery_that_races_the_wait_is_not_lost(make):
    async with make() as one, make() as two:
        for number in range(10):
            waiter = asyncio.ensure_future(one.run("r").beside.wait_for("paid", str(number)))
            for _ in range(number):
                await asyncio.sleep(0)
            await two.beside.deliver("r", "paid", str(number), number)
            assert await asyncio.wait_for(waiter, PATIENCE_S) == number


@pytest.mark.rule("P2")
async def test_a_delivery_between_the_last_read_and_the_wait_is_noticed_within_a_second(make):
    """The one moment at which neither the read nor a later change would show it."""
    async with make() as one, make() as two:
        done: dict[str, float] = {}
        took: list[float] = []

        def watch(moment: str, run_id: str, request: Any) -> None:
            if moment == "before" and type(request).__name__ == "Pause" and run_id not in done:
                deliver_by(two, b'"between"', run_id)
                done[run_id] = time.monotonic()

        one.watch(watch)
        for number in tries(lambda: quick(took, 1), range(20)):
            waiter = one.run(f"r{number}").beside.wait_for("paid", "1")
            assert await asyncio.wait_for(waiter, PATIENCE_S) == "between"
            took.append(time.monotonic() - done[f"r{number}"])


def deliver_by(life: Any, payload: bytes, run_id: str = "r") -> None:
    """Deliver from another life at once, whatever its colour."""
    body = codec.DeliveredBody(payload=msgspec.Raw(payload))
    record_by(life, slots.event("paid", "1"), kind=records.EVENT, phase="delivered", body=body, run_id=run_id)


@pytest.mark.rule("P2")
@pytest.mark.parametrize("payload", [b'"ours"', b'"theirs"'])
async def test_of_two_deliveries_at_once_the_slot_takes_one(make, store, payload):
    fault = Fault()
    async with make(target=faulty(store.open(), fault)) as one, make() as two:
        fault.before("event/paid/1", lambda: deliver_by(two, payload))
        if payload == b'"ours"':
            assert await one.deliver("r", "paid", "1", "ours") is False
        else:
            with pytest.raises(DeliveryConflict):
                await one.deliver("r", "paid", "1", "ours")


@pytest.mark.rule("P2")
async def test_a_delivery_after_a_restart_is_not_lost(make):
    life = await make().__aenter__()
    await die_at(life, life.run("r").wait_for("paid", "1"), moment="after", request=Append)
    async with make() as life:
        await life.deliver("r", "paid", "1", "after")
    async with make() as life, life.run("r") as run:
        assert await run.wait_for("paid", "1") == "after"


@pytest.mark.rule("P2")
async def test_a_wait_with_a_timeout_ends_and_records_nothing(make, clock):
    async with make(clock=clock) as life, life.run("r") as run:
        life.skip_pauses(clock)
        for timeout in (0, 10, 500):
            start = clock.monotonic()
            with pytest.raises(TimeoutError):
                await run.wait_for("paid", "1", timeout=timeout)
            assert clock.monotonic() - start == pytest.approx(timeout)
        assert life.records() == []
        await life.deliver("r", "paid", "1", "x")
        assert await run.wait_for("paid", "1", timeout=0) == "x"
        with pytest.raises(UsageError):
            await run.wait_for("paid", "1", timeout=-1)


@pytest.mark.rule("P2")
async def test_a_finished_run_takes_no_new_deliveries(make):
    async with make() as life, life.run("r") as run:
        await run.deliver("paid", "1", "x")
        await run.finish()
        assert await run.deliver("paid", "1", "x") is False
        with pytest.raises(UsageError):
            await run.deliver("paid", "2", "x")
        with pytest.raises(UsageError):
            await run.wait_for("paid", "2")
        with pytest.raises(UsageError):
            await run.sleep(1, name="rest")


# --- P3


@ASYNCIO
@pytest.mark.rule("P3")
@pytest.mark.parametrize("kind", ["sleep", "wait"])
async def test_cancelling_a_park_leaves_its_record_and_a_later_call_resumes_it(make, clock, kind):
    async with make(clock=clock, drain_timeout=3600.0) as life:
        async with life.run("r") as run:
            call = run.sleep(3600, name="rest") if kind == "sleep" else run.wait_for("paid", "1")
            task = asyncio.ensure_future(call)
            await eventually(life.records)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        # Leaving did not wait for a park that nobody waits for, or it would still.
        assert [r.phase for r in life.records()] == ["armed"]
        async with life.run("r") as run:
            if kind == "sleep":
                clock.advance(3600)
                await run.sleep(9999, name="rest")
            else:
                await life.deliver("r", "paid", "1", "x")
                assert await run.wait_for("paid", "1") == "x"
        assert len([r for r in life.records() if r.phase == "armed"]) == 1


@BLOCKING
@pytest.mark.rule("P3")
@pytest.mark.parametrize("kind", ["sleep", "wait"])
async def test_cancelling_a_blocking_run_ends_its_parks_and_a_later_call_resumes_them(make, kind):
    async with make() as life:
        async with life.run("r") as run:
            beside = run.beside
            call = beside.sleep(3600, name="rest") if kind == "sleep" else beside.wait_for("paid", "1")
            pauses = life.note_pauses()
            task = asyncio.ensure_future(call)
            await eventually(lambda: pauses)
            run.cancel()
            with pytest.raises(RunCancelled):
                await asyncio.wait_for(task, PATIENCE_S)
        assert [r.phase for r in life.records()] == ["armed"]
        if kind == "wait":
            await life.deliver("r", "paid", "1", "x")
            assert await life.run("r").wait_for("paid", "1") == "x"


@BLOCKING
@pytest.mark.rule("P3", "E7")
async def test_cancelling_one_handle_does_not_end_the_park_of_another(make, clock):
    async with make(clock=clock) as life:
        first, second, third = (life.run("r") for _ in range(3))
        sleepers = [asyncio.ensure_future(run.beside.sleep(60, name="rest")) for run in (first, second, third)]
        await life.shared(by=3)
        await eventually(life.records)
        for run, sleeper in ((second, sleepers[1]), (first, sleepers[0])):
            run.cancel()
            with pytest.raises(RunCancelled):
                await sleeper
        assert not sleepers[2].done()
        clock.advance(60)
        await sleepers[2]
        assert [r.phase for r in life.records()] == ["armed", "woken"]


@pytest.mark.rule("P3")
async def test_two_equal_parks_share_one_record(make, clock):
    async with make(clock=clock) as one, make(clock=clock) as two:
        lives = (one, one, two, two)
        pauses = [one.note_pauses(), two.note_pauses()]
        sleepers = [asyncio.ensure_future(life.run("r").beside.sleep(60, name="rest")) for life in lives]
        for life in (one, two):
            await life.shared(by=2)
        await eventually(lambda: all(pauses))
        clock.advance(60)
        await asyncio.gather(*sleepers)
        waiters = [asyncio.ensure_future(life.run("r").beside.wait_for("paid", "1")) for life in lives]
        await eventually(lambda: slots.wait("paid", "1") in [r.slot for r in one.records()])
        await one.deliver("r", "paid", "1", [1])
        payloads = await asyncio.gather(*waiters)
        assert payloads == [[1]] * 4
        payloads[0].append("mine")
        assert payloads[1] == [1]
        assert sorted(r.phase for r in one.records()) == ["armed", "armed", "delivered", "woken"]


@pytest.mark.rule("P3", "P1")
async def test_a_life_that_dies_in_a_sleep_leaves_its_record(make, clock):
    life = await make(clock=clock).__aenter__()
    sleeper = asyncio.ensure_future(life.run("r").beside.sleep(60, name="rest"))
    await eventually(life.records)
    kill(life)
    clock.advance(60)
    await asyncio.wait([sleeper])
    assert sleeper.exception() is not None
    async with make(clock=clock) as life, life.run("r") as run:
        await run.sleep(60, name="rest")
        assert [r.phase for r in life.records()] == ["armed", "woken"]
