"""A slow disk: the event loop goes on while the ledger waits for it (a sync takes 50 ms here)."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from counterfoil import Accepted, AsyncRuntime, Runtime
from counterfoil.ledgers.sqlite import SqliteLedger
from tests.ledgers.faulty_vfs import FaultyDisk
from tests.support import eventually

SYNC_S = 0.05
# `submit` queues, `path` and `engine` are read; everything else of a ledger may wait for the disk or for a lock.
NEVER_WAITS = {"submit", "path", "engine"}


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    with FaultyDisk() as slow:
        slow.sync_s = SYNC_S
        yield slow


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/l.db"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What is called on ledgers from here on, and by which thread."""
    seen: list[tuple[str, int]] = []

    def watched(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            seen.append((name, threading.get_ident()))
            return method(*args, **kwargs)

        return call

    for name, found in list(vars(SqliteLedger).items()):
        if callable(found) and (name == "__init__" or not name.startswith("_")) and name not in NEVER_WAITS:
            monkeypatch.setattr(SqliteLedger, name, watched(name, found))
    return seen


class Ticker:
    """Ticks on the loop every millisecond, and knows how long the loop was away at most."""

    def __init__(self) -> None:
        self.ticks = [time.monotonic()]
        self._task = asyncio.ensure_future(self._tick())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            self.ticks.append(time.monotonic())

    def stop(self) -> None:
        self._task.cancel()

    def longest(self, began: float, ended: float) -> float:
        """The longest time without a tick between two moments, in seconds."""
        inside = [began, *(tick for tick in self.ticks if began < tick < ended), ended]
        return max(later - earlier for earlier, later in pairwise(inside))


async def everything(url: str, *, rounds: int = 6) -> None:
    """What a life does: it opens, registers with its first record, appends, reads, looks, prunes and closes."""
    async with AsyncRuntime(url) as runtime:
        for number in range(rounds):
            async with runtime.run(f"r{number}") as run:
                assert await run.step("s", lambda: 1) == 1
                outcomes = await asyncio.gather(
                    *(run.effect(f"e{n}", run=lambda: "p", reconcile=lambda: None) for n in range(3))
                )
                assert outcomes == [Accepted("p")] * 3
                await run.deliver("news", "1", "x")
                assert await run.wait_for("news", "1") == "x"
                await run.finish()
        await runtime.effects()
        await runtime.runs()
        await runtime.show("r0")
        await runtime.prune(older_than_s=0.0, by="me", reason="old")


@pytest.mark.parametrize("engine", ["apsw", "sqlite3"])
async def test_no_call_of_a_ledger_that_could_wait_is_made_on_the_loop(
    url: str, disk: FaultyDisk, calls: list[tuple[str, int]], engine: str
) -> None:
    disk.sync_s = 0.0
    await everything(f"{url}?engine={engine}")
    here = threading.get_ident()
    assert [name for name, thread in calls if thread == here] == []
    assert {"__init__", "append", "read", "register", "retire", "close", "runs", "bury"} <= {name for name, _ in calls}
    # Nor is the disk reached from there by any other way; only apsw lets a disk be written in Python.
    assert (disk.syncs > 20) is (engine == "apsw")
    assert here not in disk.threads


async def test_while_syncs_take_50_ms_the_loop_ticks_on(url: str, disk: FaultyDisk) -> None:
    ticker = Ticker()
    await asyncio.sleep(0.01)
    await everything(url, rounds=2)
    ticker.stop()
    assert len(disk.waits) > 15
    away = sorted(ticker.longest(began, ended) for began, ended in disk.waits)
    # A loop that the ledger blocked would be away for the whole of every sync. Other processes of this machine may
    # keep it away too, but not at most of the syncs.
    print(f"{len(away)} syncs; the loop was away for {statistics.median(away) * 1e3:.1f} ms in the middle one")
    assert statistics.quantiles(away, n=4)[0] < 0.005
    assert statistics.median(away) < SYNC_S / 2


async def test_a_handler_that_outlives_its_runtime_ends_the_life_off_the_loop(
    url: str, disk: FaultyDisk, calls: list[tuple[str, int]]
) -> None:
    disk.sync_s = 0.0
    under_way, go_on = asyncio.Event(), asyncio.Event()

    async def stubborn() -> str:
        under_way.set()
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue
        return "p"

    async with AsyncRuntime(url, drain_timeout=0.0) as runtime:
        call = asyncio.ensure_future(runtime.run("r").effect("e", run=stubborn, reconcile=lambda: None))
        await under_way.wait()
    assert "close" not in [name for name, _ in calls]
    go_on.set()
    await eventually(lambda: "close" in [name for name, _ in calls])
    await asyncio.gather(call, return_exceptions=True)
    here = threading.get_ident()
    assert [name for name, thread in calls if thread == here] == []
    assert here not in disk.threads


async def test_a_call_with_a_pending_cancellation_reads_off_the_loop_and_stays_cancelled(
    url: str, disk: FaultyDisk, calls: list[tuple[str, int]]
) -> None:
    disk.sync_s = 0.0
    with Runtime(url) as runtime, runtime.run("r") as run:
        run.step("s", lambda: 3)
    calls.clear()
    disk.threads.clear()
    found: list[Any] = []

    async def body(life: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel("told to end")
        async with life.run("r") as run:
            found.append(await run.step("s", lambda: 4))
            try:
                await run.step("another", lambda: 5)
            except asyncio.CancelledError:
                found.append("not started")
            found.append(task.cancelling())
        await asyncio.sleep(0)
        found.append("went on")

    async with AsyncRuntime(url) as life:
        task = asyncio.ensure_future(body(life))
        with pytest.raises(asyncio.CancelledError):
            await task
    assert found == [3, "not started", 1]
    here = threading.get_ident()
    assert [name for name, thread in calls if thread == here] == []
    assert here not in disk.threads


@pytest.mark.rule("L7")
async def test_a_refusal_that_comes_while_the_next_life_registers_waits_for_nothing(url: str) -> None:
    async with AsyncRuntime(url) as runtime, runtime.run("r") as run:
        await run.step("s", lambda: 1)
        session = runtime._session
        (epoch,) = session.own_epochs
        session.retired(epoch)
        with session._registering:  # as a worker thread has it, for as long as the disk takes
            session.retired(epoch)
        assert session.epoch() != epoch
