"""A slow disk: the event loop goes on while the ledger waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from counterfoil import Accepted, AsyncRuntime, Runtime
from counterfoil.ledgers.sqlite import SqliteLedger
from tests.ledgers.faulty_vfs import FaultyDisk
from tests.support import PATIENCE_S, eventually

# `submit` queues, `path` and `engine` are read; everything else of a ledger may wait for the disk or for a lock.
NEVER_WAITS = {"submit", "path", "engine"}


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    with FaultyDisk() as slow:
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
    await everything(f"{url}?engine={engine}")
    here = threading.get_ident()
    assert [name for name, thread in calls if thread == here] == []
    assert {"__init__", "append", "read", "register", "retire", "close", "runs", "bury"} <= {name for name, _ in calls}
    # Nor is the disk reached from there by any other way; only apsw lets a disk be written in Python.
    assert (disk.syncs > 20) is (engine == "apsw")
    assert here not in disk.threads


async def test_the_loop_turns_during_each_sync(url: str, disk: FaultyDisk) -> None:
    loop, turned = asyncio.get_running_loop(), []

    def during() -> None:
        # A loop that waits for the ledger waits for this sync, which waits for the loop.
        turn = threading.Event()
        loop.call_soon_threadsafe(loop.call_soon, turn.set)
        turned.append(turn.wait(PATIENCE_S / 2))

    disk.during = during
    await everything(url, rounds=2)
    disk.during = lambda: None
    assert len(turned) > 15
    assert all(turned)


async def test_a_handler_that_outlives_its_runtime_ends_the_life_off_the_loop(
    url: str, disk: FaultyDisk, calls: list[tuple[str, int]]
) -> None:
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
