"""Ten thousand activations at once within their memory, and storms of calls that are cancelled, revoked and overdue.

The judge is the recipient's own log: what was rejected is not in it, what was accepted is in it once.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, Final

from counterfoil import (
    UNASKABLE,
    Accepted,
    AsyncBroker,
    Broker,
    Budget,
    Evidence,
    Failed,
    Grant,
    Recipient,
    Rejected,
    Uncertain,
)
from tests.torture.arena import Arena

ACTIVATIONS: Final = 10_000
MEGABYTES_MAX: Final = 200
CLOSE_S: Final = 120.0
GRANT: Final = Grant("desk", operations=("work", "work_async"))

# In a process of its own, whose memory is that of the activations and of the interpreter.
_PROGRAM: Final = """
    import asyncio, json, resource, sys
    from counterfoil import UNASKABLE, Accepted, AsyncBroker, Budget, Grant, Recipient

    desk = Recipient("desk")
    opened = asyncio.Event()

    @desk.operation(reconcile=UNASKABLE)
    async def work():
        await opened.wait()
        return "done"

    async def main(count):
        broker = AsyncBroker(concurrency=64)
        grants = [Grant("desk", operations=("work",))]

        async def one(number):
            budget = Budget(calls=1, in_flight=1)
            async with broker.activation(principal=f"p{number}", grants=grants, budget=budget, deadline_s=600) as act:
                return await act.perform(work())

        tasks = [asyncio.create_task(one(number)) for number in range(count)]
        while len(broker.report().calls) < count:
            await asyncio.sleep(0.05)
        report = broker.report()
        opened.set()
        outcomes = await asyncio.gather(*tasks)
        return {
            "at_once": report.activations,
            "permits": report.permits,
            "accepted": sum(isinstance(outcome, Accepted) for outcome in outcomes),
            "idle": broker.report().idle,
        }

    found = asyncio.run(main(int(sys.argv[1])))
    if sys.platform == "linux":  # not ru_maxrss, which begins with what the process that forked this one had
        with open("/proc/self/status") as status:
            peak = next(int(row.split()[1]) / 1024 for row in status if row.startswith("VmHWM:"))
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    print(json.dumps({**found, "megabytes": peak}))
"""


def campaign(arena: Arena, *, activations: int = ACTIVATIONS) -> None:
    """Measure once, then storm for the rest of the time, each colour in turn."""
    memory(arena, activations)
    for storm in itertools.cycle((_of_threads, _of_tasks)):
        seed = arena.random.randrange(10**9)
        desk = _Desk(random.Random(seed))
        storm(desk)
        for problem in desk.problems():
            arena.problem(f"{storm.__name__} {seed}: {problem}")
        arena.counts.sends += len(desk.log)
        arena.counts.acknowledged += sum(isinstance(outcome, Accepted) for _, outcome in desk.told)
        arena.progress(f"{arena.counts.sends} sends")
        if not arena.left_s and storm is _of_tasks:
            return


def memory(arena: Arena, activations: int) -> float:
    """Have many activations open at once, each with a call under way, and return the megabytes that it took."""
    command = [sys.executable, "-c", textwrap.dedent(_PROGRAM), str(activations)]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    megabytes = float(found.pop("megabytes"))
    arena.say(f"{activations} activations at once took {megabytes:.0f} MB")
    if found != {"at_once": activations, "permits": 64, "accepted": activations, "idle": True}:
        arena.problem(f"of {activations} activations at once: {found}")
    if megabytes > MEGABYTES_MAX:
        arena.problem(f"{activations} activations at once took {megabytes:.0f} MB, {MEGABYTES_MAX} at most")
    return megabytes


class _Desk:
    """A recipient that takes a random time and ends in a random way; it logs the key of each call that reaches it."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.log: list[tuple[str, int]] = []
        self.told: list[tuple[int, Any]] = []
        self.report: Any = None
        self.calls = 0
        self._lock = threading.Lock()
        recipient = Recipient("desk")

        @recipient.operation(reconcile=UNASKABLE)
        def work(ctx: Any, number: int, takes_s: float, how: str) -> str:
            with self._lock:
                self.log.append((ctx.key, number))
            time.sleep(takes_s)
            return _end(how)

        @recipient.operation(reconcile=UNASKABLE)
        async def work_async(ctx: Any, number: int, takes_s: float, how: str) -> str:
            self.log.append((ctx.key, number))
            await asyncio.sleep(takes_s)
            return _end(how)

        self.work, self.work_async = work, work_async

    def operation(self, number: int, *, asynchronous: bool) -> Any:
        """Make a call of a random kind."""
        make = self.work_async if asynchronous and self.chance.random() < 0.7 else self.work
        takes_s = self.chance.choice((0.0, 0.001, 0.02))
        return make(number=number, takes_s=takes_s, how=self.chance.choice(("ok", "ok", "fail", "reject", "raise")))

    def ends(self) -> list[str]:
        """Say how each of several activations ends; one of them waits for its calls."""
        return ["wait", *self.chance.choices(("wait", "leave", "revoke", "cancel"), k=5)]

    def timeout_s(self) -> float | None:
        """Draw a time for a call."""
        return self.chance.choice((None, None, 0.0, 0.001, 0.01))

    def note(self, number: int, outcome: Any) -> None:
        """Note what a caller was told."""
        with self._lock:
            self.told.append((number, outcome))

    def problems(self) -> list[str]:
        """Compare what callers were told with the log."""
        found = []
        if not self.report.idle:
            found.append(f"permits are lost: {self.report}")
        keys = Counter(key for key, _ in self.log)
        if keys and max(keys.values()) > 1:
            found.append("a key was sent twice")
        reached = Counter(number for _, number in self.log)
        for number, outcome in self.told:
            if isinstance(outcome, Accepted | Failed | Uncertain) and reached[number] != 1:
                found.append(f"call {number} is {outcome!r} and was sent {reached[number]} times")
            if isinstance(outcome, Rejected) and outcome.evidence.kind != "said-so" and reached[number]:
                found.append(f"call {number} is {outcome!r} and was sent")
        if len(self.told) != self.calls:
            found.append(f"{self.calls} calls and {len(self.told)} answers")
        return found


def _end(how: str) -> str:
    if how == "fail":
        raise Failed(Evidence("said-so"))
    if how == "reject":
        raise Rejected(Evidence("said-so"))
    if how == "raise":
        raise ConnectionError
    return "done"


def _of_threads(desk: _Desk) -> None:
    broker = Broker(concurrency=desk.chance.choice((1, 3, 16)))
    with ThreadPoolExecutor(16) as threads:
        for end in desk.ends():
            with broker.activation(grants=[GRANT], budget=Budget(in_flight=desk.chance.choice((2, 99)))) as act:

                def call(number: int, operation: Any, timeout_s: float | None, act: Any = act) -> None:
                    desk.note(number, act.perform(operation, timeout_s=timeout_s))

                calls = []
                for _ in range(40):
                    desk.calls += 1
                    operation = desk.operation(desk.calls, asynchronous=False)
                    calls.append(threads.submit(call, desk.calls, operation, desk.timeout_s()))
                time.sleep(desk.chance.choice((0.0, 0.002, 0.02)))
                if end == "wait":
                    wait(calls)
                elif end != "leave":
                    getattr(act, end)()
    desk.report = broker.close(timeout_s=CLOSE_S)


def _of_tasks(desk: _Desk) -> None:
    asyncio.run(_on_a_loop(desk))


async def _on_a_loop(desk: _Desk) -> None:
    broker = AsyncBroker(concurrency=desk.chance.choice((1, 3, 16)))
    tasks = []
    for end in desk.ends():
        async with broker.activation(grants=[GRANT], budget=Budget(in_flight=desk.chance.choice((2, 99)))) as act:

            async def call(number: int, operation: Any, timeout_s: float | None, act: Any = act) -> None:
                try:
                    desk.note(number, await act.perform(operation, timeout_s=timeout_s))
                except asyncio.CancelledError as cancelled:
                    desk.note(number, cancelled.outcome)  # type: ignore[attr-defined]

            for _ in range(60):
                desk.calls += 1
                operation = desk.operation(desk.calls, asynchronous=True)
                tasks.append(asyncio.create_task(call(desk.calls, operation, desk.timeout_s())))
            await asyncio.sleep(desk.chance.choice((0.0, 0.002, 0.02)))
            for task in desk.chance.sample(tasks, 20):
                task.cancel()
            if end == "wait":
                await asyncio.gather(*tasks, return_exceptions=True)
            elif end != "leave":
                getattr(act, end)()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)
    desk.report = await broker.close(timeout_s=CLOSE_S)
