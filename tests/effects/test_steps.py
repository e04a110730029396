"""Steps: recorded after they ran, replayed without running, never mistaken for effects."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from counterfoil import UNASKABLE, LedgerUnavailable, NameConflict, NotSerializable, Retry, RunCancelled, UsageError
from counterfoil.protocol.requests import Append, Call
from tests.support import ASYNCIO, IN_MEMORY, die_at


@pytest.mark.rule("S1", "S5")
@pytest.mark.parametrize("result", [3, {"a": [1, None]}, "x", None, False, [], 0])
async def test_a_result_is_recorded_after_the_body_and_replayed_without_it(make, colour, payee, result):
    during: list[int] = []
    async with make() as life, life.run("r") as run:

        def body() -> Any:
            during.append(len(life.records()))
            return result

        assert await run.step("sum", colour.handler(body)) == result
        assert during == [0]
        assert await run.step("sum", payee.never) == result
    async with make() as life, life.run("r") as run:
        assert await run.step("sum", payee.never) == result
        assert [record.phase for record in life.records()] == ["result"]


@pytest.mark.rule("S1")
@pytest.mark.parametrize(
    ("moment", "request_", "calls"), [("after", Call, 2), ("before", Append, 2), ("after", Append, 1)]
)
async def test_a_step_may_run_again_after_a_crash_but_not_once_it_is_recorded(make, colour, moment, request_, calls):
    seen: list[int] = []

    def body() -> int:
        seen.append(1)
        return len(seen)

    life = await make().__aenter__()
    await die_at(life, life.run("r").step("sum", colour.handler(body)), moment=moment, request=request_)
    async with make() as life, life.run("r") as run:
        assert await run.step("sum", colour.handler(body)) == calls
    assert len(seen) == calls


@pytest.mark.rule("S3")
async def test_a_cancelled_call_returns_what_is_recorded_and_starts_nothing(make, colour, payee):
    async with make() as life:
        run = life.run("r")
        await run.step("sum", lambda: 3)
        run.cancel()
        assert await run.step("sum", payee.never) == 3
        with pytest.raises(RunCancelled if colour.blocking else asyncio.CancelledError):
            await run.step("other", payee.never)
        assert len(life.records()) == 1


@ASYNCIO
@pytest.mark.rule("S3", "E6")
async def test_a_task_with_a_pending_cancellation_returns_what_is_recorded(make, payee):
    async with make() as life, life.run("r") as run:
        await run.step("sum", lambda: 3)
        await run.effect("pay", run=payee.pay, reconcile=UNASKABLE)

    found: list[Any] = []

    async def cancelled_body(life: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        async with life.run("r") as run:
            # Nothing of the run has been read in this life yet.
            found.append(await run.step("sum", payee.never))
            found.append((await run.effect("pay", run=payee.never, reconcile=payee.never)).proof)
            for call in (
                run.step("other", payee.never),
                run.effect("other", run=payee.never, reconcile=payee.never),
                run.sleep(1, name="rest"),
            ):
                with pytest.raises(asyncio.CancelledError, match="nothing was started"):
                    await call
                found.append("cancelled")

    async with make() as life:
        task = asyncio.ensure_future(cancelled_body(life))
        await asyncio.wait([task])
        assert task.cancelled()
        assert found == [3, "item-1", "cancelled", "cancelled", "cancelled"]
        assert len(life.records()) == 3


@pytest.mark.rule("S4")
@pytest.mark.parametrize("error", [ValueError("x"), TimeoutError(), asyncio.CancelledError(), KeyboardInterrupt()])
async def test_the_bodys_exception_passes_and_records_nothing(make, error):
    calls: list[int] = []

    def body() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise error
        return 3

    async with make() as life, life.run("r") as run:
        with pytest.raises(type(error)) as raised:
            # A plain function in both colours: on a loop it runs in a worker thread.
            await run.step("sum", body)
        if not isinstance(error, asyncio.CancelledError):
            assert raised.value is error
        assert life.records() == []
        assert await run.step("sum", body) == 3


@pytest.mark.rule("S4")
async def test_a_result_that_is_not_json_raises_before_recording(make, colour):
    async with make() as life, life.run("r") as run:
        with pytest.raises(NotSerializable):
            await run.step("sum", colour.handler(lambda: {1, 2}))
        assert life.records() == []
        assert await run.step("sum", lambda: [1, 2]) == [1, 2]


@pytest.mark.rule("S4")
async def test_a_retry_policy_repeats_a_body_that_raises_and_each_attempt_is_visible(make, colour, clock):
    times: list[float] = []

    def body() -> int:
        times.append(clock.time())
        if len(times) < 4:
            raise ValueError("secret text")
        return 7

    async with make(clock=clock) as life, life.run("r") as run:
        life.skip_pauses(clock)
        retry = Retry(9, backoff_s=1, backoff_max_s=3)
        assert await run.step("sum", colour.handler(body), retry=retry) == 7
        assert [after - before for before, after in pairwise(times)] == pytest.approx([1, 2, 3])
        assert [r.phase for r in life.records()] == ["failed", "failed", "failed", "result"]
        shown = await life.show("r")
        assert [view.body.get("error") for view in shown] == ["ValueError"] * 3 + [None]
        assert "secret" not in str(shown)


@pytest.mark.rule("S4")
async def test_a_retry_policy_is_bounded_and_then_the_exception_passes(make, colour, clock):
    calls: list[int] = []

    def body() -> int:
        calls.append(1)
        raise ValueError("x")

    async with make(clock=clock) as life, life.run("r") as run:
        life.skip_pauses(clock)
        with pytest.raises(ValueError, match="x"):
            await run.step("sum", colour.handler(body), retry=Retry(3))
        assert len(calls) == 3
        # A later call runs the body again; the policy is used up, so once.
        with pytest.raises(ValueError, match="x"):
            await run.step("sum", colour.handler(body), retry=Retry(3))
        assert len(calls) == 4
        with pytest.raises(ValueError, match="x"):
            await run.step("late", colour.handler(body), retry=Retry(9, backoff_s=10, within_s=15))
        assert len(calls) == 6


@pytest.mark.rule("S4")
async def test_the_attempts_of_a_step_are_counted_across_lives(make, colour, clock):
    calls: list[int] = []

    def body() -> int:
        calls.append(1)
        raise ValueError("x")

    life = await make(clock=clock).__aenter__()
    call = life.run("r").step("sum", colour.handler(body), retry=Retry(3, backoff_s=60))
    await die_at(life, call, moment="after", request=Append, slot="1/failed")
    async with make(clock=clock) as life, life.run("r") as run:
        life.skip_pauses(clock)
        with pytest.raises(ValueError, match="x"):
            await run.step("sum", colour.handler(body), retry=Retry(3, backoff_s=60))
        assert clock.time() >= 1_000_060
    assert len(calls) == 3


@pytest.mark.rule("S4")
async def test_an_interrupt_is_not_retried(make, clock):
    calls: list[int] = []

    def body() -> int:
        calls.append(1)
        raise SystemExit

    async with make(clock=clock) as life, life.run("r") as run:
        with pytest.raises(SystemExit):
            await run.step("sum", body, retry=Retry(3))
        assert life.records() == []
    assert calls == [1]


@pytest.mark.rule("S5")
async def test_steps_and_effects_and_parks_of_one_name_do_not_meet(make, colour, payee):
    async with make() as life, life.run("r") as run:
        assert await run.step("pay", lambda: 1) == 1
        assert (await run.effect("pay", run=colour.handler(lambda: 2), reconcile=UNASKABLE)).proof == 2
        await run.sleep(0, name="pay")
        await run.deliver("pay", "pay", 3)
        assert await run.wait_for("pay", "pay") == 3
        assert await run.step("pay", payee.never) == 1


@pytest.mark.rule("S6")
async def test_other_inputs_under_a_recorded_name_are_refused_before_anything_runs(make, payee):
    async with make() as life, life.run("r") as run:
        assert await run.step("sum", lambda: 3, inputs={"b": 1, "a": 2}) == 3
        assert await run.step("sum", payee.never, inputs={"a": 2, "b": 1}) == 3
        assert await run.step("sum", payee.never) == 3
        with pytest.raises(NameConflict):
            await run.step("sum", payee.never, inputs={"a": 2})
        await run.step("free", lambda: 1)
        assert await run.step("free", payee.never, inputs={"any": 1}) == 1
    async with make() as life, life.run("r") as run:
        with pytest.raises(NameConflict):
            await run.step("sum", payee.never, inputs={"a": 3})


@IN_MEMORY
@pytest.mark.rule("S1", "S4")
async def test_arguments_are_checked_before_the_body_runs(make, payee):
    async with make() as life, life.run("r") as run:
        for bad in ({"body": 3}, {"retry": 3}, {"retry": {"attempts": 2}}):
            with pytest.raises(UsageError):
                await run.step("sum", **{"body": payee.never, **bad})


@pytest.mark.rule("S1")
async def test_the_first_of_two_results_wins(make, colour):
    """Two lives run the body at once; both get what was recorded first."""
    async with make() as one, make() as two:
        run = one.run("r")
        await run.step("load", lambda: 1)

        async def slow() -> int:
            async with two.run("r") as other:
                assert await other.step("sum", lambda: 1) == 1
            return 2

        assert await run.step("sum", slow) == 1


@pytest.mark.rule("S1", "E1")
async def test_a_runtime_that_was_closed_says_so(make):
    async with make() as life:
        run = life.run("r")
        await run.step("sum", lambda: 1)
    with pytest.raises((UsageError, LedgerUnavailable)):
        await run.step("sum", lambda: 1)
