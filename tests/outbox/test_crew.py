"""How a dispatcher calls blocking handlers: quick ones share a thread, and none waits for another."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from counterfoil import UNASKABLE, AsyncDispatcher, Dispatcher, Recipient
from counterfoil.runtime import crew
from counterfoil.runtime.crew import Crew
from counterfoil.runtime.dispatcher import _call
from counterfoil.runtime.handlers import required
from tests.outbox.lives import Life
from tests.outbox.shop import Shop
from tests.support import PATIENCE_S


class Calls:
    """A crew whose calls are written down, each with its thread."""

    def __init__(self) -> None:
        self.threads: list[int] = []
        self.woken = threading.Event()
        self.wakes = 0
        self.crew: Crew = Crew(self.call, wake=self.wake)

    def call(self, job: Any) -> None:
        self.threads.append(threading.get_ident())
        job()

    def wake(self) -> None:
        self.wakes += 1
        if not self.crew.behind:
            self.woken.set()


def test_quick_handlers_share_a_thread_and_say_once_that_they_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    # None of them is slow, however long the machine takes.
    monkeypatch.setattr(crew, "PATIENCE_S", 60.0)
    calls = Calls()
    calls.crew.start([lambda: None] * 50)  # type: ignore[list-item]
    assert calls.woken.wait(PATIENCE_S)
    assert len(calls.threads) == 50
    assert len(set(calls.threads)) == 1
    assert calls.wakes == 1


def test_what_has_not_begun_within_a_moment_gets_a_thread_of_its_own() -> None:
    calls, meeting = Calls(), threading.Barrier(8)
    calls.crew.start([lambda: meeting.wait(PATIENCE_S)] * 8)  # type: ignore[list-item]
    end = time.monotonic() + PATIENCE_S
    while calls.crew.behind and time.monotonic() < end:
        calls.crew.spread()
    assert calls.woken.wait(PATIENCE_S)
    assert len(set(calls.threads)) == 8


def staged(shop: Shop, recipient: Recipient) -> None:
    operation = recipient.operations["meet"]
    with shop.transaction() as connection:
        shop.outbox.stage_many(connection, [(operation(n=n), f"k{n}") for n in range(6)])


def meeting_of_six() -> tuple[Recipient, threading.Barrier]:
    recipient, barrier = Recipient("meeting"), threading.Barrier(6)

    @recipient.operation(reconcile=UNASKABLE)
    def meet(n: int) -> int:
        barrier.wait(PATIENCE_S)
        return n

    return recipient, barrier


@pytest.mark.rule("X3")
def test_handlers_that_wait_for_each_other_all_come_to_their_end(file: Shop) -> None:
    recipient, barrier = meeting_of_six()
    staged(file, recipient)
    with Dispatcher(file.url, [recipient]) as dispatcher:
        assert dispatcher.run_until_idle(timeout_s=PATIENCE_S)
        assert dispatcher.counts == {"accepted": 6}
    assert not barrier.broken


@pytest.mark.rule("X3")
async def test_on_a_loop_too(file: Shop) -> None:
    recipient, _ = meeting_of_six()
    staged(file, recipient)
    async with AsyncDispatcher(file.url, [recipient]) as dispatcher:
        assert await dispatcher.run_until_idle(timeout_s=PATIENCE_S)
        assert dispatcher.counts == {"accepted": 6}


def test_a_method_requires_what_its_function_requires_but_for_itself() -> None:
    class Handlers:
        def none(self) -> None: ...
        def one(self, ctx: Any) -> None: ...
        def perhaps(self, ctx: Any = None) -> None: ...
        def many(*args: Any) -> None: ...
        @classmethod
        def of_class(cls, ctx: Any) -> None: ...

    handlers = Handlers()
    assert [
        required(h)[0] for h in (handlers.none, handlers.one, handlers.perhaps, handlers.many, handlers.of_class)
    ] == [
        0,
        1,
        0,
        0,
        1,
    ]


@pytest.mark.rule("X3")
def test_a_handler_may_end_while_a_round_looks_at_those_that_run(lone: Shop) -> None:
    keys = [f"o{number}" for number in range(5)]
    with lone.transaction() as connection:
        lone.outbox.stage_many(connection, [(lone.operation(key), key) for key in keys])
    life = Life(lone, "mail")
    life.turn()
    ending = list(life.jobs)

    class Kind(str):
        """Whoever compares it finds that another handler has just ended, in a thread of its own."""

        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            if ending:
                _call(ending.pop())
            return str(self) == str(other)

    assert len(ending) == 5
    for job, kind in life.engine._running.items():
        life.engine._running[job] = Kind(kind)
    life.jobs = []
    life.engine.nudged()
    life.engine.turn()
    life.settle()
    assert ending == []
    assert lone.box.twice() == []
    assert {lone.receipt(key).state for key in keys} == {"accepted"}
