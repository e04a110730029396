"""Asking the recipient: what a look-up may settle, when it is too early, and when nobody could be asked."""

import asyncio
import threading
import time
from typing import Any

import pytest

from counterfoil import UNASKABLE, Accepted, EffectUnresolved, Evidence, Uncertain
from counterfoil.protocol.requests import Append, Call
from tests.support import BLOCKING, GROWING_S, IN_MEMORY, PATIENCE_S, Gate, die_at, eventually, tries

NOT_FOUND = Uncertain(Evidence("not-found", phase="dispatched"))


async def lose(run: Any, payee: Any, colour: Any, **more: Any) -> None:
    """Send, and lose the answer."""
    with pytest.raises(EffectUnresolved):
        await run.effect("pay", run=colour.handler(payee.pay_and_drop), reconcile=payee.never, **more)


@pytest.mark.rule("E4", "E20")
async def test_a_reconcile_that_raises_records_nothing_and_is_asked_again(make, payee, colour):
    def down() -> None:
        raise ConnectionError("the recipient is down")

    async with make() as life, life.run("r") as run:
        await lose(run, payee, colour)
        before = len(life.records())
        for _ in range(3):
            with pytest.raises(EffectUnresolved) as raised:
                await run.effect("pay", run=payee.never, reconcile=colour.handler(down))
            assert (raised.value.reason, raised.value.effect_ran) == ("reconcile-failed", "unknown")
            assert isinstance(raised.value.__cause__, ConnectionError)
        assert len(life.records()) == before
        outcome = await run.effect("pay", run=payee.never, reconcile=colour.handler(payee.find))
        assert outcome == Accepted("item-1", "reconcile")


@pytest.mark.rule("E4", "E20")
async def test_an_overdue_reconcile_is_told_to_stop_and_what_it_brings_later_changes_nothing(make, payee, colour):
    gate, contexts, ended = Gate(), [], threading.Event()

    def slow(ctx: Any) -> str:
        contexts.append(ctx)
        gate.stop()
        ended.set()
        return "late"

    async with make() as life, life.run("r") as run:
        await lose(run, payee, colour)
        before = len(life.records())
        with pytest.raises(EffectUnresolved) as raised:
            # A plain function in both colours: nobody can stop the thread that it runs in.
            await run.effect("pay", run=payee.never, reconcile=slow, reconcile_timeout=0.05)
        assert (raised.value.reason, raised.value.effect_ran) == ("reconcile-timeout", "unknown")
        await eventually(lambda: contexts)
        assert contexts[0].cancelled
        gate.open()
        assert ended.wait(PATIENCE_S)
        assert len(life.records()) == before
        assert await run.effect("pay", run=payee.never, reconcile=colour.handler(payee.find)) == Accepted(
            "item-1", "reconcile"
        )


@pytest.mark.rule("E4")
async def test_an_overdue_async_reconcile_is_cancelled(make, payee, colour):
    begun: list[Any] = []
    seen: list[str] = []

    async def slow(ctx: Any) -> None:
        begun.append(ctx)
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            seen.append(f"cancelled, told: {ctx.cancelled}")
            raise

    async with make() as life, life.run("r") as run:
        await lose(run, payee, colour)
        # Where it is overdue before its first step there is nothing in it to cancel.
        for time_s in tries(lambda: begun, GROWING_S):
            with pytest.raises(EffectUnresolved) as raised:
                await run.effect("pay", run=payee.never, reconcile=slow, reconcile_timeout=time_s)
            assert raised.value.reason == "reconcile-timeout"
        await eventually(lambda: len(seen) == len(begun))
        assert set(seen) == {"cancelled, told: True"}


@BLOCKING
@pytest.mark.rule("E4")
async def test_leaving_does_not_wait_for_an_abandoned_reconcile(make, payee, colour):
    gate, ended = Gate(), threading.Event()

    def slow() -> None:
        try:
            gate.stop()
        finally:
            ended.set()

    async with make(drain_timeout=3600.0) as life, life.run("r") as run:
        await lose(run, payee, colour)
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=payee.never, reconcile=slow, reconcile_timeout=0.05)
    assert not ended.is_set()
    gate.open()


@pytest.mark.rule("E4")
async def test_the_context_of_a_look_up_says_until_when_it_has_time(make, payee, colour):
    contexts: list[Any] = []
    async with make() as life, life.run("r") as run:
        await lose(run, payee, colour)
        start = time.monotonic()
        await run.effect("pay", run=payee.never, reconcile=colour.handler(contexts.append), reconcile_timeout=700)
        assert start + 700 <= contexts[0].deadline <= time.monotonic() + 700
    assert not contexts[0].cancelled
    assert contexts[0].attempt == 1


@pytest.mark.rule("E2", "E4")
async def test_one_call_asks_at_most_once(make, payee, colour):
    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(payee.refuse), reconcile=payee.never, visibility=60)
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=payee.never, reconcile=colour.handler(payee.find))
        assert len(payee.asked) == 1


# --- visibility


@pytest.mark.rule("E9", "E20")
async def test_a_look_up_that_finds_nothing_too_early_records_nothing(make, payee, colour, clock):
    async with make(clock=clock) as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(payee.refuse), reconcile=payee.never, visibility=10)
        before = len(life.records())
        for passed, left in ((0, 10), (4, 6), (5.5, 0.5)):
            clock.advance(passed)
            with pytest.raises(EffectUnresolved) as raised:
                await run.effect("pay", run=payee.never, reconcile=colour.handler(payee.find))
            assert (raised.value.reason, raised.value.effect_ran) == ("too-early", "unknown")
            assert raised.value.retry_after_s == pytest.approx(left)
        assert len(life.records()) == before
        clock.advance(0.5)
        assert await run.effect("pay", run=payee.never, reconcile=colour.handler(payee.find)) == NOT_FOUND


@pytest.mark.rule("E9")
async def test_what_is_found_early_counts_at_once(make, payee, colour, clock):
    async with make(clock=clock) as life, life.run("r") as run:
        await lose(run, payee, colour, visibility=1000)
        outcome = await run.effect("pay", run=payee.never, reconcile=colour.handler(payee.find))
        assert outcome == Accepted("item-1", "reconcile")


@pytest.mark.rule("E9")
@pytest.mark.parametrize(("recorded", "given"), [(10, 0), (0, 10), (10, 3), (3, 10)])
async def test_the_larger_of_recorded_and_given_visibility_counts(make, payee, colour, clock, recorded, given):
    async with make(clock=clock) as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(payee.refuse), reconcile=payee.never, visibility=recorded)
        clock.advance(9)
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("pay", run=payee.never, reconcile=colour.handler(payee.find), visibility=given)
        assert raised.value.retry_after_s == pytest.approx(1)


@pytest.mark.rule("E9")
async def test_without_visibility_one_look_up_that_finds_nothing_is_enough(make, payee, colour, clock):
    async with make(clock=clock) as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(payee.refuse), reconcile=payee.never)
        assert await run.effect("pay", run=payee.never, reconcile=colour.handler(payee.find)) == NOT_FOUND


@pytest.mark.rule("E9")
async def test_a_look_up_counts_from_its_start(make, payee, colour, clock):
    def slow(ctx: Any) -> None:
        clock.advance(20)

    async with make(clock=clock) as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(payee.refuse), reconcile=payee.never, visibility=10)
        clock.advance(5)
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("pay", run=payee.never, reconcile=colour.handler(slow))
        assert raised.value.retry_after_s == pytest.approx(5)


@pytest.mark.rule("E9")
async def test_visibility_counts_from_when_the_owner_was_found_gone(make, payee, colour, clock):
    handlers = {"reconcile": colour.handler(payee.find), "visibility": 10}
    life = await make(clock=clock).__aenter__()
    call = life.run("r").effect("pay", run=colour.handler(payee.pay), **handlers)
    await die_at(life, call, moment="after", request=Append, slot="intent")
    clock.advance(1000)
    async with make(clock=clock) as life, life.run("r") as run:
        # The sender may have been sending until a moment ago, so the time since its intent says nothing.
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("pay", **handlers, run=payee.never)
        assert raised.value.retry_after_s == pytest.approx(10)
    clock.advance(4)
    async with make(clock=clock) as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("pay", **handlers, run=payee.never)
        assert raised.value.retry_after_s == pytest.approx(6)
        clock.advance(6)
        assert await run.effect("pay", **handlers, run=payee.never) == NOT_FOUND


@pytest.mark.rule("E9")
async def test_a_wall_clock_that_is_set_forward_does_not_shorten_visibility(make, payee, colour, clock):
    async with make(clock=clock) as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(payee.refuse), reconcile=payee.never, visibility=10)
        clock.set_wall(3600)
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("pay", run=payee.never, reconcile=colour.handler(payee.find))
        assert raised.value.retry_after_s == pytest.approx(10)


@pytest.mark.rule("E9")
async def test_a_wall_clock_that_is_set_back_does_not_lengthen_visibility(make, payee, colour, clock):
    async with make(clock=clock) as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(payee.refuse), reconcile=payee.never, visibility=10)
        clock.set_wall(-60)
        clock.advance(4)
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("pay", run=payee.never, reconcile=colour.handler(payee.find))
        assert raised.value.retry_after_s == pytest.approx(6)
        clock.advance(6)
        assert await run.effect("pay", run=payee.never, reconcile=colour.handler(payee.find)) == NOT_FOUND


# --- verify


@pytest.mark.rule("E19")
async def test_a_proof_that_verify_holds_for_is_accepted_from_run_and_from_reconcile(make, payee, colour):
    seen: list[Any] = []

    def carries_our_key(proof: Any, ctx: Any) -> bool:
        seen.append(proof)
        return ctx.key is not None

    async with make() as life, life.run("r") as run:
        assert await run.effect(
            "one", run=colour.handler(payee.pay), reconcile=UNASKABLE, verify=carries_our_key
        ) == Accepted("item-1", "run")
        with pytest.raises(EffectUnresolved):
            await run.effect("two", run=colour.handler(payee.pay_and_drop), reconcile=payee.never)
        assert await run.effect(
            "two", run=payee.never, reconcile=colour.handler(payee.find), verify=carries_our_key
        ) == Accepted("item-2", "reconcile")
    assert seen == ["item-1", "item-2"]


@pytest.mark.rule("E19", "O4")
async def test_a_find_that_verify_refuses_proves_nothing(make, payee, colour, clock):
    handlers = {"reconcile": colour.handler(lambda: "somebody else's"), "verify": lambda proof: False}
    async with make(clock=clock) as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(payee.refuse), reconcile=payee.never, visibility=10)
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("pay", run=payee.never, **handlers)
        assert raised.value.reason == "too-early"
        (view,) = await life.effects()
        assert [(late.claims, late.via, late.proof) for late in view.late_evidence] == [("refused", "reconcile", None)]
        assert view.late_evidence[0].digest is not None
        clock.advance(10)
        assert await run.effect("pay", run=payee.never, **handlers) == NOT_FOUND
        assert len((await life.effects())[0].late_evidence) == 1
    assert payee.sends == 1


@pytest.mark.rule("E19", "E20")
async def test_a_result_of_run_that_verify_refuses_is_kept_and_settled_by_asking(make, payee, colour):
    verify = colour.handler(lambda proof: proof.startswith("item"))
    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("pay", run=colour.handler(lambda: "other"), reconcile=payee.never, verify=verify)
        assert (raised.value.reason, raised.value.effect_ran) == ("proof-rejected", "unknown")
        assert [r.phase for r in life.records()] == ["intent", "late", "released"]
        outcome = await run.effect("pay", run=payee.never, reconcile=colour.handler(lambda: "item-7"), verify=verify)
        assert outcome == Accepted("item-7", "reconcile")


@pytest.mark.rule("E19", "E4", "E20")
@pytest.mark.parametrize("where", ["run", "reconcile"])
async def test_a_verify_that_raises_is_like_a_reconcile_that_raises(make, payee, colour, where):
    def broken(proof: Any) -> bool:
        raise ConnectionError("cannot say")

    async with make() as life, life.run("r") as run:
        if where == "reconcile":
            await lose(run, payee, colour)
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("pay", run=colour.handler(payee.pay), reconcile=colour.handler(payee.find), verify=broken)
        assert raised.value.reason == "reconcile-failed"
        assert raised.value.effect_ran == ("yes" if where == "run" else "unknown")
        assert isinstance(raised.value.__cause__, ConnectionError)
        assert [r.phase for r in life.records()] == ["intent", "released"]
        outcome = await run.effect(
            "pay", run=payee.never, reconcile=colour.handler(payee.find), verify=lambda proof: True
        )
        assert outcome == Accepted("item-1", "reconcile")
    assert payee.sends == 1


@pytest.mark.rule("E19", "E4", "E20")
async def test_a_verify_that_overruns_is_like_a_reconcile_that_overruns(make, payee, colour):
    gate = Gate()
    async with make() as life, life.run("r") as run:
        await lose(run, payee, colour)
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect(
                "pay",
                run=payee.never,
                reconcile=colour.handler(payee.find),
                verify=lambda proof: gate.stop(),
                reconcile_timeout=0.05,
            )
        assert (raised.value.reason, raised.value.effect_ran) == ("reconcile-timeout", "unknown")
        assert [r.phase for r in life.records()] == ["intent", "released"]
        gate.open()


@IN_MEMORY
@pytest.mark.rule("E4")
async def test_an_interrupt_inside_reconcile_passes_unchanged(make, payee, colour):
    def interrupted() -> None:
        raise KeyboardInterrupt

    async with make() as life, life.run("r") as run:
        await lose(run, payee, colour)
        with pytest.raises(KeyboardInterrupt):
            await run.effect("pay", run=payee.never, reconcile=interrupted)
        with pytest.raises(KeyboardInterrupt):
            await run.effect(
                "pay", run=payee.never, reconcile=colour.handler(payee.find), verify=lambda proof: interrupted()
            )
        assert [r.phase for r in life.records()] == ["intent", "released"]


@pytest.mark.rule("E4")
async def test_a_life_that_dies_while_asking_leaves_nothing_behind(make, payee, colour):
    life = await make().__aenter__()
    async with life.run("r") as run:
        await lose(run, payee, colour)
    call = life.run("r").effect("pay", run=payee.never, reconcile=colour.handler(payee.find))
    await die_at(life, call, moment="after", request=Call)
    async with make() as life, life.run("r") as run:
        outcome = await run.effect("pay", run=payee.never, reconcile=colour.handler(payee.find))
        assert outcome == Accepted("item-1", "reconcile")
