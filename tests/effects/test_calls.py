"""Calls at once: one shares, two lives race, a caller is cancelled, a call is made from inside itself."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from counterfoil import UNASKABLE, Accepted, EffectUnresolved, NameConflict, RunCancelled, Uncertain, UsageError
from counterfoil.protocol.requests import Append, Call
from tests.support import (
    ASYNCIO,
    BLOCKING,
    IN_MEMORY,
    PATIENCE_S,
    Clock,
    Gate,
    die_at,
    eventually,
    in_thread,
    quick,
    tries,
)


async def at_the_gate(call: Any, gate: Gate) -> Any:
    """Start a call and wait until its handler is at the gate."""
    task = asyncio.ensure_future(call)
    await gate.arrival()
    return task


# --- E7, S2: calls of one process


@pytest.mark.rule("E7")
async def test_concurrent_calls_for_one_name_share_one_run(make, payee):
    gate = Gate()

    async def pay(ctx: Any) -> dict[str, Any]:
        await gate.hold()
        return {"item": payee.pay(ctx), "list": []}

    async with make() as life:
        # Several handles are one run.
        handles = [life.run("r").beside for _ in range(8)]
        calls = [handle.effect("pay", run=pay, reconcile=payee.never) for handle in handles]
        first = await at_the_gate(calls[0], gate)
        others = [asyncio.ensure_future(call) for call in calls[1:]]
        await life.shared(by=8)
        gate.open()
        outcomes = [await task for task in (first, *others)]
        assert all(outcome == Accepted({"item": "item-1", "list": []}, "run") for outcome in outcomes)
        outcomes[0].proof["list"].append("mine")
        assert all(outcome.proof["list"] == [] for outcome in outcomes[1:])
    assert payee.sends == 1


@pytest.mark.rule("E7")
async def test_concurrent_calls_get_the_same_error_as_instances_of_their_own(make, payee):
    gate = Gate()

    async def lose(ctx: Any) -> None:
        await gate.hold()
        payee.pay_and_drop(ctx)

    async with make() as life:
        run = life.run("r").beside
        first = await at_the_gate(run.effect("pay", run=lose, reconcile=payee.never), gate)
        second = asyncio.ensure_future(run.effect("pay", run=lose, reconcile=payee.never))
        await life.shared(by=2)
        gate.open()
        errors = await asyncio.gather(first, second, return_exceptions=True)
        assert [getattr(error, "reason", error) for error in errors] == ["run-failed", "run-failed"]
        assert errors[0] is not errors[1]
        assert str(errors[0]) == str(errors[1])
        assert isinstance(errors[1].__cause__, ConnectionError)
    assert payee.sends == 1


@pytest.mark.rule("E7", "E12")
async def test_a_concurrent_call_with_another_request_is_refused_at_once(make, payee):
    gate = Gate()

    async def pay(ctx: Any) -> Any:
        await gate.hold()
        return payee.pay(ctx)

    async with make() as life:
        run = life.run("r").beside
        first = await at_the_gate(run.effect("pay", run=pay, reconcile=payee.never, request=1), gate)
        with pytest.raises(NameConflict):
            await run.effect("pay", run=pay, reconcile=payee.never, request=2)
        gate.open()
        assert await first == Accepted("item-1", "run")


@pytest.mark.rule("E7", "E8")
async def test_a_call_that_shares_waits_no_longer_than_it_says(make, payee):
    gate = Gate()

    async def pay(ctx: Any) -> Any:
        await gate.hold()
        return payee.pay(ctx)

    async with make() as life:
        run = life.run("r").beside
        first = await at_the_gate(run.effect("pay", run=pay, reconcile=payee.never), gate)
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("pay", run=pay, reconcile=payee.never, wait=0.02)
        assert (raised.value.reason, raised.value.effect_ran) == ("in-flight", "unknown")
        gate.open()
        assert await first == Accepted("item-1", "run")


@pytest.mark.rule("S2")
async def test_concurrent_calls_for_one_step_share_one_body(make):
    gate, calls = Gate(), []

    async def body() -> list[int]:
        calls.append(1)
        await gate.hold()
        return [1]

    async with make() as life:
        run = life.run("r").beside
        first = await at_the_gate(run.step("sum", body), gate)
        second = asyncio.ensure_future(run.step("sum", body))
        await life.shared(by=2)
        gate.open()
        one, two = await first, await second
        one.append("mine")
        assert two == [1]
    assert calls == [1]


@pytest.mark.rule("S2", "E7")
async def test_two_ledgers_never_share_work(colour, payee):
    gate = Gate()

    async def pay(ctx: Any) -> Any:
        await gate.hold()
        return payee.pay(ctx)

    async def body() -> Any:
        await gate.hold()
        return payee.sends

    async with colour.life("memory:", namespace="n") as one, colour.life("memory:", namespace="n") as two:
        tasks = [
            asyncio.ensure_future(call)
            for life in (one, two)
            for call in (
                life.run("r").beside.effect("pay", run=pay, reconcile=UNASKABLE),
                life.run("r").beside.step("sum", body),
            )
        ]
        await gate.arrival()
        gate.open()
        await asyncio.gather(*tasks)
    assert payee.sends == 2
    # Two ledgers with one explicit namespace give the recipient the same key.
    assert payee.requests[0] == payee.requests[1]


# --- E8: two lives on one ledger


@pytest.mark.rule("E8")
async def test_of_two_lives_one_sends_and_the_other_waits_for_its_outcome(make, payee, colour):
    gate = Gate()

    async def pay(ctx: Any) -> Any:
        await gate.hold()
        return payee.pay(ctx)

    async with make() as one, make() as two:
        first = await at_the_gate(one.run("r").beside.effect("pay", run=pay, reconcile=payee.never), gate)
        pauses = two.note_pauses()
        second = asyncio.ensure_future(two.run("r").beside.effect("pay", run=payee.never, reconcile=payee.never))
        await eventually(lambda: pauses)
        assert not second.done()
        gate.open()
        assert await first == await second == Accepted("item-1", "run")
    assert payee.sends == 1


@pytest.mark.rule("E8", "E20")
async def test_a_loser_waits_as_long_as_it_says_and_then_says_in_flight(make, payee):
    gate = Gate()

    async def pay(ctx: Any) -> Any:
        await gate.hold()
        return payee.pay(ctx)

    async with make() as one, make() as two:
        first = await at_the_gate(one.run("r").beside.effect("pay", run=pay, reconcile=payee.never), gate)
        loser = two.run("r")
        for wait in (0.0, 0.05):
            took: list[float] = []
            for _ in tries(partial(quick, took, wait + 1), range(20)):
                start = time.monotonic()
                with pytest.raises(EffectUnresolved) as raised:
                    await loser.effect("pay", run=payee.never, reconcile=payee.never, wait=wait)
                assert (raised.value.reason, raised.value.effect_ran) == ("in-flight", "unknown")
                took.append(time.monotonic() - start)
                assert took[-1] >= wait
        gate.open()
        assert await first == Accepted("item-1", "run")
        # What is on record by now is returned, however little there is to wait.
        outcome = await loser.effect("pay", run=payee.never, reconcile=payee.never, wait=0)
        assert outcome == Accepted("item-1", "run")


@pytest.mark.rule("E8")
async def test_the_default_wait_is_30_seconds(make, payee):
    gate = Gate()

    async def pay(ctx: Any) -> Any:
        await gate.hold()
        return payee.pay(ctx)

    clock = Clock()
    async with make() as one, make(clock=clock) as two:
        first = await at_the_gate(one.run("r").beside.effect("pay", run=pay, reconcile=payee.never), gate)
        waits = two.skip_pauses(clock)
        with pytest.raises(EffectUnresolved) as raised:
            await two.run("r").effect("pay", run=payee.never, reconcile=payee.never)
        assert raised.value.reason == "in-flight"
        assert sum(waits) == pytest.approx(30)
        gate.open()
        await first


@pytest.mark.rule("E8", "E2")
async def test_a_loser_asks_as_soon_as_the_winner_is_gone(make, payee, colour):
    life = await make().__aenter__()
    call = life.run("r").effect("pay", run=colour.handler(payee.pay), reconcile=payee.never)
    async with make() as two:
        await die_at(life, call, moment="after", request=Call)
        outcome = await two.run("r").effect("pay", run=payee.never, reconcile=colour.handler(payee.find), wait=0)
        assert outcome == Accepted("item-1", "reconcile")
    assert payee.sends == 1


@pytest.mark.rule("E8", "E3")
async def test_a_waiting_loser_asks_as_soon_as_the_winner_has_released(make, payee, colour):
    gate = Gate()

    async def lose(ctx: Any) -> None:
        await gate.hold()
        payee.pay_and_drop(ctx)

    async with make() as one, make() as two:
        first = await at_the_gate(one.run("r").beside.effect("pay", run=lose, reconcile=payee.never), gate)
        pauses = two.note_pauses()
        second = asyncio.ensure_future(
            two.run("r").beside.effect("pay", run=payee.never, reconcile=colour.handler(payee.find))
        )
        await eventually(lambda: pauses)
        gate.open()
        with pytest.raises(EffectUnresolved):
            await first
        assert await second == Accepted("item-1", "reconcile")
    assert payee.sends == 1


@pytest.mark.rule("E8")
async def test_a_life_does_not_wait_for_itself(make, payee, colour):
    """The flow of this life ended without outcome or release: no other flow of it can be performing."""
    async with make() as life:
        run = life.run("r")

        def watch(moment: str, run: str, request: Any) -> None:
            if moment == "after" and isinstance(request, Append):
                raise RuntimeError("the flow ends here, the life does not")

        life.watch(watch)
        with pytest.raises(RuntimeError):
            await run.effect("pay", run=colour.handler(payee.pay), reconcile=payee.never)
        life.watch(None)
        outcome = await run.effect("pay", run=payee.never, reconcile=colour.handler(payee.find), wait=0)
        assert isinstance(outcome, Uncertain)


@pytest.mark.rule("E8")
async def test_after_leaving_a_runtime_its_intents_count_as_gone_in_the_same_process_too(make, payee, colour):
    gate = Gate()
    one = make(drain_timeout=0.0)
    await one.__aenter__()
    task = await at_the_gate(one.run("r").beside.effect("pay", run=gate.stop, reconcile=payee.never), gate)
    async with make() as two:
        with pytest.raises(EffectUnresolved) as raised:
            await two.run("r").effect("pay", run=payee.never, reconcile=payee.never, wait=0)
        assert raised.value.reason == "in-flight"
        await one.__aexit__(None, None, None)
        # Its handler has not really ended, so it may still be sending.
        with pytest.raises(EffectUnresolved) as raised:
            await two.run("r").effect("pay", run=payee.never, reconcile=payee.never, wait=0)
        assert raised.value.reason == "in-flight"
        gate.open()
        await asyncio.wait([task])
        outcome = await two.run("r").effect("pay", run=payee.never, reconcile=lambda: "found", wait=PATIENCE_S)
        assert isinstance(outcome, Accepted)
        task.exception()


# --- E10: cancelled callers


@ASYNCIO
@pytest.mark.rule("E10")
async def test_a_cancelled_caller_is_detached_and_the_proof_is_recorded(make, payee):
    gate = Gate()

    async def pay(ctx: Any) -> Any:
        await gate.hold()
        return payee.pay(ctx)

    async with make() as life, life.run("r") as run:
        task = await at_the_gate(run.effect("pay", run=pay, reconcile=payee.never), gate)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [r.phase for r in life.records()] == ["intent"]
        # Another caller joins what goes on.
        other = asyncio.ensure_future(run.effect("pay", run=pay, reconcile=payee.never))
        await life.shared(by=1)
        gate.open()
        assert await other == Accepted("item-1", "run")
    assert payee.sends == 1


@ASYNCIO
@pytest.mark.rule("E10")
async def test_leaving_the_run_waits_for_what_goes_on(make, payee):
    gate = Gate()

    async def pay(ctx: Any) -> Any:
        await gate.hold()
        return payee.pay(ctx)

    async with make() as life:
        async with life.run("r") as run:
            task = await at_the_gate(run.effect("pay", run=pay, reconcile=payee.never), gate)
            task.cancel()
            asyncio.get_running_loop().call_later(0.05, gate.open)
        assert [r.phase for r in life.records()] == ["intent", "accepted"]
        assert await life.run("r").effect("pay", run=payee.never, reconcile=payee.never) == Accepted("item-1", "run")


@ASYNCIO
@pytest.mark.rule("E10")
async def test_leaving_waits_no_longer_than_drain_timeout(make, payee):
    gate = Gate()
    life = make(drain_timeout=0.05)
    await life.__aenter__()
    start = time.monotonic()
    async with life.run("r") as run:
        task = await at_the_gate(run.effect("pay", run=gate.hold, reconcile=payee.never), gate)
        task.cancel()
    assert time.monotonic() - start >= 0.05
    await life.__aexit__(None, None, None)
    async with make() as life:
        # Nobody has opened the gate: what stands there was left behind.
        assert [r.phase for r in life.records()] == ["intent"]
        gate.open()
        # The torn-down runtime is like a crash: there is an intent, and the recipient is asked.
        outcome = await life.run("r").effect("pay", run=payee.never, reconcile=lambda: None)
        assert isinstance(outcome, Uncertain)


@BLOCKING
@pytest.mark.rule("E10")
async def test_leaving_a_blocking_run_waits_for_the_calls_of_other_threads(make, payee):
    gate = Gate()
    async with make() as life:
        async with life.run("r") as run:
            task = await at_the_gate(run.beside.effect("pay", run=gate.stop, reconcile=payee.never), gate)
            asyncio.get_running_loop().call_later(0.05, gate.open)
        assert [r.phase for r in life.records()] == ["intent", "accepted"]
        assert await task == Accepted(None, "run")


@BLOCKING
@pytest.mark.rule("E10", "E6")
async def test_cancelling_a_blocking_run_lets_a_started_effect_go_on(make, payee):
    gate = Gate()
    async with make() as life, life.run("r") as run:
        task = await at_the_gate(run.beside.effect("pay", run=gate.stop, reconcile=payee.never), gate)
        run.cancel()
        with pytest.raises(RunCancelled) as raised:
            await run.effect("other", run=payee.never, reconcile=payee.never)
        assert raised.value.effect_ran == "no"
        gate.open()
        assert await task == Accepted(None, "run")
        assert [r.phase for r in life.records()] == ["intent", "accepted"]


@ASYNCIO
@pytest.mark.rule("E10", "E21", "S3")
@pytest.mark.parametrize("ending", ["accepted", "lost", "rejected"])
async def test_a_caller_cancelled_at_any_of_its_awaits_changes_nothing(make, payee, ending):
    """Cancel after 0, 1, 2 … turns of the loop, until the call ends by itself."""
    runs = {"accepted": payee.pay, "lost": payee.pay_and_drop, "rejected": payee.pay_and_drop}

    async def run_it(ctx: Any) -> Any:
        await asyncio.sleep(0)
        return runs[ending](ctx)

    turns, cancelled = 0, True
    async with make() as life:
        while cancelled:
            # Where a commit takes long the loop turns freely meanwhile, and one turn more tells nothing new.
            turns += 1 if turns < 40 else turns // 3
            run_id = f"r{turns}"
            async with life.run(run_id) as run:
                task = asyncio.ensure_future(run.effect("pay", run=run_it, reconcile=payee.never))
                for _ in range(turns):
                    await asyncio.sleep(0)
                cancelled = not task.done()
                task.cancel()
                await asyncio.wait([task])
                if not cancelled:
                    task.exception()
            phases = [r.phase for r in life.records(run_id)]
            assert phases in ([], ["intent", "accepted" if ending == "accepted" else "released"])
            sent = payee.sends
            if phases:
                outcome = await life.run(run_id).effect("pay", run=payee.never, reconcile=payee.find)
                assert isinstance(outcome, Accepted)
                assert payee.sends == sent
    assert len(set(payee.requests)) == payee.sends


@ASYNCIO
@pytest.mark.rule("E10")
async def test_a_cancelled_waiter_leaves_no_trace_when_it_owes_nothing(make, payee):
    gate = Gate()
    async with make() as one, make(drain_timeout=3600.0) as two:
        first = await at_the_gate(one.run("r").beside.effect("pay", run=gate.hold, reconcile=payee.never), gate)
        async with two.run("r") as run:
            pauses = two.note_pauses()
            waiter = asyncio.ensure_future(run.effect("pay", run=payee.never, reconcile=payee.never, wait=3600.0))
            await eventually(lambda: pauses)
            waiter.cancel()
        # Waiting for somebody else is no work: leaving did not wait for it, or it would still.
        with pytest.raises(asyncio.CancelledError):
            await waiter
        gate.open()
        await first


@ASYNCIO
@pytest.mark.rule("E6", "S3")
async def test_a_task_whose_cancellation_is_over_makes_calls_again(make, payee):
    """A count of cancellations that somebody took is none that is pending."""

    async def fails() -> None:
        raise ConnectionError

    async def together() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(60))
            group.create_task(fails())

    async with make() as life, life.run("r") as run:
        # On Python 3.11 and 3.12 the group leaves its task with a cancellation counted.
        with pytest.raises(ExceptionGroup):
            await together()
        assert await run.effect("pay", run=payee.pay, reconcile=payee.never) == Accepted("item-1", "run")
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        assert await run.step("after", lambda: 1) == 1
        while task.cancelling():
            task.uncancel()


@ASYNCIO
@pytest.mark.rule("E6", "S3")
@pytest.mark.parametrize("kind", ["step", "effect", "sleep", "wait"])
async def test_nothing_is_started_while_a_task_is_being_cancelled(make, payee, kind):
    calls: dict[str, Callable[[Any], Any]] = {
        "step": lambda run: run.step("s", payee.never),
        "effect": lambda run: run.effect("pay", run=payee.never, reconcile=payee.never),
        "sleep": lambda run: run.sleep(0.01, name="nap"),
        "wait": lambda run: run.wait_for("word", "1", timeout=0.01),
    }

    async def cleans_up(run: Any, *, breaks: bool) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            try:
                if breaks:
                    raise ConnectionError
            finally:
                await calls[kind](run)

    async def comes_later(run: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await calls[kind](run)

    async with make() as life, life.run("r") as run:
        for late in (cleans_up(run, breaks=False), cleans_up(run, breaks=True), comes_later(run)):
            task = asyncio.ensure_future(late)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert life.records() == []


# --- E22


@IN_MEMORY
@pytest.mark.rule("E22")
async def test_a_call_from_inside_itself_raises_instead_of_waiting(make, payee, colour):
    async with make() as life, life.run("r") as run:

        async def pay(ctx: Any) -> str:
            await run.effect("pay", run=payee.never, reconcile=payee.never)
            return "never"

        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("pay", run=pay, reconcile=UNASKABLE)
        assert isinstance(raised.value.__cause__, UsageError)
        assert "inside itself" in str(raised.value.__cause__)

        async def body() -> Any:
            return await run.step("sum", lambda: 1)

        with pytest.raises(UsageError):
            await run.step("sum", body)


@IN_MEMORY
@pytest.mark.rule("E22")
async def test_a_call_from_inside_itself_is_seen_through_handles_threads_and_other_calls(make, payee):
    async with make() as life, life.run("r") as run:

        async def inner() -> Any:
            async with life.run("r") as again:
                return await again.step("sum", lambda: 1)

        def through_a_thread() -> Any:
            return asyncio.run(inner())

        async def through_another() -> Any:
            return await run.effect("pay", run=inner, reconcile=UNASKABLE)

        with pytest.raises(UsageError):
            await run.step("sum", inner)
        with pytest.raises(EffectUnresolved) as raised:
            await run.step("sum", through_another)
        assert isinstance(raised.value.__cause__, UsageError)
        if life.inner.__class__.__name__ == "Runtime":
            with pytest.raises(UsageError):
                await run.beside.step("sum", through_a_thread)


@IN_MEMORY
@pytest.mark.rule("E22")
async def test_calls_inside_a_call_under_other_names_or_kinds_are_fine(make, payee, colour):
    async with make() as life, life.run("r") as run:

        async def outer(ctx: Any) -> Any:
            total = await run.step("pay", lambda: 3)
            inner = await run.effect("inner", run=colour.handler(payee.pay), reconcile=UNASKABLE)
            async with life.run("s") as other:
                again = await other.effect("pay", run=colour.handler(payee.pay), reconcile=UNASKABLE)
            return [total, inner.proof, again.proof]

        outcome = await run.effect("pay", run=outer, reconcile=UNASKABLE)
        assert outcome.proof == [3, "item-1", "item-2"]


@IN_MEMORY
@pytest.mark.rule("E22")
async def test_a_circle_over_two_names_ends_at_wait(make, payee):
    arrived = [Gate(), Gate()]

    async with make() as life:
        run = life.run("r").beside

        def circle(mine: int, other: str) -> Any:
            async def handler(ctx: Any) -> str:
                arrived[mine].open()
                assert await in_thread(lambda: arrived[1 - mine].opened.wait(PATIENCE_S))
                await run.effect(other, run=payee.never, reconcile=payee.never, wait=0.1)
                return "never"

            return handler

        errors = await asyncio.gather(
            run.effect("a", run=circle(0, "b"), reconcile=payee.never),
            run.effect("b", run=circle(1, "a"), reconcile=payee.never),
            return_exceptions=True,
        )
        assert [getattr(error, "reason", error) for error in errors] == ["run-failed", "run-failed"]
        assert {getattr(error.__cause__, "reason", None) for error in errors} >= {"in-flight"}


# --- handles


@pytest.mark.rule("E7")
async def test_two_handles_of_one_run_see_each_others_records(make, payee, colour):
    async with make() as life:
        one, two = life.run("r"), life.run("r")
        outcome = await one.effect("pay", run=colour.handler(payee.pay), reconcile=payee.never)
        assert await two.effect("pay", run=payee.never, reconcile=payee.never) == outcome
        async with life.run("r") as three:
            assert await three.effect("pay", run=payee.never, reconcile=payee.never) == outcome
        with pytest.raises(UsageError):
            await three.effect("pay", run=payee.never, reconcile=payee.never)
        assert await one.step("sum", lambda: 1) == 1


@IN_MEMORY
async def test_a_runtime_works_only_while_it_is_entered(make, colour):
    life = make()
    with pytest.raises(UsageError):
        life.run("r")
    async with life:
        run = life.run("r")
        await run.step("sum", lambda: 1)
    with pytest.raises(UsageError):
        await run.step("sum", lambda: 1)
    with pytest.raises(UsageError):
        life.run("r")


@IN_MEMORY
@ASYNCIO
async def test_an_async_runtime_belongs_to_its_loop(make):
    async with make() as life:

        async def elsewhere() -> None:
            await life.inner.run("r").step("sum", lambda: 1)

        with pytest.raises(UsageError):
            await in_thread(lambda: asyncio.run(elsewhere()))


@BLOCKING
@pytest.mark.rule("E7")
async def test_many_threads_share_one_blocking_runtime(make, payee):
    async with make() as life:
        run = life.run("r").beside
        calls = [run.effect(f"pay-{number % 5}", run=payee.pay, reconcile=payee.never) for number in range(40)]
        outcomes = await asyncio.gather(*calls)
        assert all(isinstance(outcome, Accepted) for outcome in outcomes)
    assert payee.sends == 5


@IN_MEMORY
@BLOCKING
async def test_async_handlers_of_a_blocking_runtime_may_nest(make):
    """A coroutine on the private loop blocks in a call whose handler is a coroutine again."""
    async with make() as life, life.run("r") as run:

        async def inner() -> str:
            await asyncio.sleep(0)
            return threading.current_thread().name

        async def outer() -> Any:
            return await run.step("inner", inner)

        assert await run.step("outer", outer) == "counterfoil-nested-loop"
