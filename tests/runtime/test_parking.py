"""What waits on a loop is woken by news of its run, by all of them and by nothing else."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from counterfoil import AsyncRuntime, Runtime
from counterfoil.protocol.requests import Pause
from tests.support import PATIENCE_S, eventually, tries


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/l.db"


def paused(moment: str, request: Any) -> bool:
    return moment == "before" and isinstance(request, Pause)


def _grown(items: list[Any], count: int) -> bool:
    return len(items) >= count


@pytest.mark.rule("P2")
@pytest.mark.parametrize("waiters", [1, 3])
async def test_a_look_that_found_nothing_wakes_nobody(url: str, waiters: int) -> None:
    pauses: list[str] = []
    looks: list[int] = []

    def watch(moment: str, run_id: str, request: Any) -> None:
        if paused(moment, request):
            pauses.append(run_id)

    async with AsyncRuntime(url) as runtime:
        ledger: Any = runtime.ledger
        changes = ledger.changes

        def looking(after: int) -> Any:
            looks.append(after)
            return changes(after)

        ledger.changes = looking
        runtime._driver.watch = watch
        names = [f"r{number}" for number in range(waiters)]
        waits = [asyncio.ensure_future(runtime.run(name).wait_for("paid", "1")) for name in names]
        await eventually(lambda: len(set(pauses)) == waiters)
        # A wait that has no end reads again once a minute, and else when there is something to read: at first what it
        # has recorded itself, however late that is.
        woken: list[int] = []
        for _ in tries(lambda: woken[-1] == 0, range(20)):
            before, seen = len(pauses), len(looks)
            await eventually(partial(_grown, looks, seen + 8))
            woken.append(len(pauses) - before)
        for name in names:
            await runtime.deliver(name, "paid", "1", name)
        assert await asyncio.gather(*waits) == names


@pytest.mark.rule("P2")
async def test_what_a_look_for_somebody_else_saw_before_a_flow_was_parked_wakes_it_too(url: str) -> None:
    """Between its last read and its wait: the look that told of it was over by then."""
    told: list[str] = []
    with Runtime(url) as other:
        async with AsyncRuntime(url) as runtime:
            driver = runtime._driver

            def watch(moment: str, run_id: str, request: Any) -> None:
                if paused(moment, request) and run_id == "late" and not told:
                    told.append(run_id)
                    other.deliver("late", "paid", "1", "between")
                    ledger: Any = runtime.ledger
                    driver.parking._looked(ledger.changes(driver.parking._seen), [])

            driver.watch = watch
            first = asyncio.ensure_future(runtime.run("first").wait_for("paid", "1"))
            await eventually(lambda: driver.parking._seen >= 0)
            late = asyncio.ensure_future(runtime.run("late").wait_for("paid", "1"))
            assert await asyncio.wait_for(late, PATIENCE_S / 2) == "between"
            await runtime.deliver("first", "paid", "1", "x")
            assert await first == "x"
