"""How a dispatcher on a loop ends (X3, X4, X5): told to stop, cancelled, and with handlers that do not end."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest

from counterfoil import Accepted, AsyncDispatcher, Recipient
from tests.outbox.shop import Shop, quick
from tests.support import PATIENCE_S, eventually


class Slow:
    """A recipient that keeps what it gets at once, and answers when a test lets it."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ended: list[str] = []
        self.told: list[str] = []
        self.asked_early: list[str] = []
        self.kept: dict[str, str] = {}
        self.leave = asyncio.Event()
        self.stubborn = False
        self.recipient = Recipient("slow")

        @self.recipient.operation
        async def send(ctx: Any, to: str) -> str:
            self.began.append(to)
            self.kept[ctx.key] = f"mail-{to}"
            try:
                await self._left(to)
            finally:
                self.told += [to] * bool(ctx.cancelled)
                self.ended.append(to)
            return self.kept[ctx.key]

        @send.reconcile
        async def find(ctx: Any, to: str) -> str | None:
            if to not in self.ended:
                # It cannot be seen while it is still being sent.
                self.asked_early.append(to)
                return None
            return self.kept.get(ctx.key)

        self.send = send

    async def _left(self, to: str) -> None:
        while not self.leave.is_set():
            try:
                await self.leave.wait()
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise

    def dispatcher(self, shop: Shop, **more: Any) -> AsyncDispatcher:
        more = {"concurrency": 1, "batch": 3, "terms": quick(), **more}
        return AsyncDispatcher(shop.url, [self.recipient], **more)


@pytest.fixture
async def slow(lone: Shop) -> Slow:
    made = Slow()
    with lone.transaction() as connection:
        lone.outbox.stage_many(connection, [(made.send(to=f"o{n}"), f"o{n}") for n in range(3)])
    return made


def states(shop: Shop) -> list[tuple[str, int]]:
    return [(shop.receipt(f"o{n}").state, shop.receipt(f"o{n}").attempts) for n in range(3)]


async def finish(slow: Slow, shop: Shop, *, early: tuple[str, ...] = ()) -> None:
    """Let another dispatcher deliver the rest; each was sent once."""
    slow.leave.set()
    assert await slow.dispatcher(shop).run_until_idle(timeout_s=PATIENCE_S)
    assert [state for state, _ in states(shop)] == ["accepted"] * 3
    assert sorted(slow.began) == ["o0", "o1", "o2"]
    assert tuple(slow.asked_early) == early


@pytest.mark.rule("X3", "X6")
async def test_told_to_stop_it_finishes_what_is_in_hand_and_takes_nothing_more(lone: Shop, slow: Slow) -> None:
    dispatcher = slow.dispatcher(lone)
    runs = asyncio.create_task(dispatcher.run())
    await eventually(lambda: slow.began)
    dispatcher.stop()
    await asyncio.sleep(0.05)
    assert not runs.done()
    slow.leave.set()
    await runs
    assert states(lone) == [("accepted", 1), ("pending", 0), ("pending", 0)]
    await finish(slow, lone)


@pytest.mark.rule("X3", "X6")
async def test_a_dispatcher_that_was_told_before_it_ran_takes_nothing(lone: Shop, slow: Slow) -> None:
    dispatcher = slow.dispatcher(lone)
    dispatcher.stop()
    await dispatcher.run()
    assert slow.began == []
    await finish(slow, lone)


@pytest.mark.rule("X4", "X5")
async def test_cancelled_it_leaves_what_is_in_hand_to_others_who_do_not_ask_too_early(lone: Shop, slow: Slow) -> None:
    runs = asyncio.create_task(slow.dispatcher(lone).run())
    await eventually(lambda: slow.began)
    runs.cancel()
    with pytest.raises(asyncio.CancelledError):
        await runs
    # Its handler goes on. What it may be sending is neither asked about nor sent, and the rest is delivered.
    assert slow.ended == []
    another = slow.dispatcher(lone, concurrency=2)
    other = asyncio.create_task(another.run_until_idle(timeout_s=PATIENCE_S))
    await eventually(lambda: another._engine is not None and another._engine._swept.lives)
    assert slow.began == ["o0"]
    slow.leave.set()
    assert await other
    await finish(slow, lone)


@pytest.mark.rule("X4", "X5")
@pytest.mark.parametrize("stubborn", [False, True])
async def test_what_does_not_end_in_time_is_told_to_stop_and_settled_by_the_next(
    lone: Shop, slow: Slow, stubborn: bool
) -> None:
    slow.stubborn = stubborn
    dispatcher = slow.dispatcher(lone, drain_timeout_s=0.1)
    runs = asyncio.create_task(dispatcher.run())
    await eventually(lambda: slow.began)
    dispatcher.stop()
    await runs
    await eventually(lambda: slow.ended or stubborn)
    assert slow.ended == ([] if stubborn else ["o0"])
    slow.leave.set()
    await eventually(lambda: slow.ended)
    assert slow.told == ["o0"]
    await finish(slow, lone)


@pytest.mark.rule("X4", "L8", "O2", "B5")
async def test_an_overdue_handler_keeps_its_place_until_it_has_ended_and_its_proof_counts(
    lone: Shop, slow: Slow
) -> None:
    slow.stubborn = True
    dispatcher = slow.dispatcher(lone, terms=quick(timeout_s=0.2))
    runs = asyncio.create_task(dispatcher.run())
    await eventually(lambda: lone.receipt("o0").state == "needs-operator")
    # There is one place, and it is still taken.
    assert (slow.began, slow.ended) == (["o0"], [])
    slow.leave.set()
    await eventually(lambda: lone.receipt("o0").state == "accepted")
    dispatcher.stop()
    await runs
    outcome = lone.receipt("o0").outcome
    assert isinstance(outcome, Accepted)
    assert (outcome.proof, outcome.via) == ("mail-o0", "run")
    assert slow.told == ["o0"]
    await finish(slow, lone, early=("o0",))


@pytest.mark.rule("L3")
async def test_a_commit_is_not_cut_by_a_cancellation(lone: Shop, slow: Slow) -> None:
    dispatcher = slow.dispatcher(lone)
    async with dispatcher:
        engine: Any = dispatcher._engine
        real, inside = engine._opened.store.exchange, asyncio.Event()
        loop, left, cut = asyncio.get_running_loop(), [1], threading.Event()

        def slowly(epoch: str, work: Any, **more: Any) -> Any:
            if left:
                left.clear()
                loop.call_soon_threadsafe(inside.set)
                assert cut.wait(PATIENCE_S)
            return real(epoch, work, **more)

        engine._opened.store.exchange = slowly
        task = asyncio.create_task(dispatcher.run_until_idle(timeout_s=PATIENCE_S))
        await inside.wait()
        task.cancel()
        for _ in range(3):
            # It is told now.
            await asyncio.sleep(0)
        assert not task.done()
        cut.set()
        with suppress(asyncio.CancelledError):
            await task
        # Its transaction has ended before it has.
        assert engine.in_hand == 3
        del engine._opened.store.exchange
    await finish(slow, lone)
