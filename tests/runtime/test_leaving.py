"""Leaving a runtime while something is under way: nothing that a recipient did is forgotten."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from counterfoil import Accepted, AsyncRuntime, LedgerUnavailable, RunCancelled, Runtime, UsageError


@pytest.fixture(params=["apsw", "sqlite3"])
def url(request: Any, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/l.db?engine={request.param}"


class Slow:
    """A `run` that says when it is under way and ends when it is told to."""

    def __init__(self) -> None:
        self.under_way, self.go_on = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.under_way.set()
        assert self.go_on.wait(30)
        return "p"


@pytest.mark.rule("E17", "E20", "E21", "L7")
def test_what_another_thread_is_sending_is_recorded_after_the_runtime_was_left(url: str) -> None:
    runs = [Slow(), Slow()]
    outcomes: dict[int, Any] = {}
    runtime = Runtime(url, drain_timeout=0.0)

    def call(number: int) -> None:
        outcomes[number] = runtime.run("r").effect(f"e{number}", run=runs[number], reconcile=lambda: None)

    with runtime:
        threads = [threading.Thread(target=call, args=(number,)) for number in range(2)]
        for thread, run in zip(threads, runs, strict=True):
            thread.start()
            assert run.under_way.wait(30)
    with pytest.raises(UsageError):
        runtime.run("another")
    with Runtime(url) as other:
        # The life is not over while it sends: nobody asks the recipient.
        assert {view.state for view in other.effects()} == {"unresolved"}
        with other.run("r") as run_, pytest.raises(Exception, match="alive") as raised:
            run_.effect("e0", run=lambda: 1, reconcile=lambda: pytest.fail("asked"), wait=0.0)
        assert getattr(raised.value, "reason", None) == "in-flight"
    for thread, run in zip(threads, runs, strict=True):
        run.go_on.set()
        thread.join(30)
    assert outcomes == {0: Accepted("p"), 1: Accepted("p")}
    with Runtime(url) as other:
        assert {view.state for view in other.effects()} == {"accepted"}


@pytest.mark.rule("P3")
def test_what_only_waits_ends_when_the_runtime_is_left_and_nobody_waits_for_it(url: str) -> None:
    runtime = Runtime(url, drain_timeout=30.0)
    ended: list[BaseException] = []
    waiting = threading.Event()

    def wait() -> None:
        try:
            waiting.set()
            runtime.run("r").sleep(3600.0, name="nap")
        except LedgerUnavailable as error:
            ended.append(error)

    with runtime:
        thread = threading.Thread(target=wait)
        thread.start()
        assert waiting.wait(30)
        while not runtime.show("r"):
            pass
    thread.join(30)
    assert [getattr(error, "code", None) for error in ended] == ["runtime-closed"]


@pytest.mark.rule("P3", "S3")
async def test_a_cancelled_handle_ends_what_waits_and_answers_what_is_recorded(url: str) -> None:
    async with AsyncRuntime(url) as runtime:
        run = runtime.run("r")
        await run.sleep(0.0, name="short")
        await run.deliver("e", "0", 7)
        waits = [
            asyncio.create_task(run.wait_for("e", "1")),
            asyncio.create_task(run.sleep(3600.0, name="long")),
        ]
        other = asyncio.create_task(runtime.run("r").sleep(3600.0, name="long"))
        await asyncio.sleep(0.05)
        run.cancel()
        for ended in await asyncio.gather(*waits, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError)
        await run.sleep(0.0, name="short")
        assert await run.wait_for("e", "0") == 7
        with pytest.raises(asyncio.CancelledError):
            await run.wait_for("e", "1")
        # Another handle of the run goes on where it stopped.
        await asyncio.sleep(0.05)
        assert not other.done()
        other.cancel()


@pytest.mark.rule("P3", "S3")
def test_a_cancelled_blocking_handle_answers_what_is_recorded(url: str) -> None:
    with Runtime(url) as runtime:
        run = runtime.run("r")
        run.sleep(0.0, name="short")
        run.deliver("e", "0", 7)
        run.cancel()
        run.sleep(0.0, name="short")
        assert run.wait_for("e", "0") == 7
        for call in (lambda: run.wait_for("e", "1"), lambda: run.sleep(1.0, name="other")):
            with pytest.raises(RunCancelled):
                call()
