"""Counterfoil in both colours: on SQLite, or where a URL says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.measure import Opened, Slice
from counterfoil import UNASKABLE, AsyncRuntime, Runtime

REQUEST = {"to": "somebody@example.org", "amount": 1250}


async def _async_handler() -> int:
    return 1


def _sync_handler() -> int:
    return 1


def _url(folder: str, url: str | None) -> str:
    if url is not None:
        return url
    Path(folder).mkdir(parents=True)
    return f"sqlite:///{folder}/ours.db"


def blocking(*, url: str | None = None, request: Any = None, run_size: int | None = None) -> Opened:
    """One caller; with `run_size` a new run after that many effects."""

    @contextmanager
    def opened(folder: str) -> Iterator[Slice]:
        numbers = count()
        with Runtime(_url(folder, url)) as runtime:
            runs = {"run": runtime.run("r0")}

            def slice_(effects: int) -> None:
                for number in (next(numbers) for _ in range(effects)):
                    if run_size is not None and number % run_size == 0:
                        runs["run"] = runtime.run(f"r{number}")
                    runs["run"].effect(f"e{number}", run=_sync_handler, reconcile=UNASKABLE, request=request)

            yield slice_

    return opened


def threads(callers: int, *, url: str | None = None) -> Opened:
    """That many threads, one run."""

    @contextmanager
    def opened(folder: str) -> Iterator[Slice]:
        following = count()
        with Runtime(_url(folder, url)) as runtime, runtime.run("r") as run:

            def caller(effects: int) -> None:
                for _ in range(effects):
                    run.effect(f"e{next(following)}", run=_sync_handler, reconcile=UNASKABLE)

            def slice_(effects: int) -> None:
                working = [threading.Thread(target=caller, args=(effects // callers,)) for _ in range(callers)]
                for thread in working:
                    thread.start()
                for thread in working:
                    thread.join()

            yield slice_

    return opened


def looped(
    callers: int,
    *,
    url: str | None = None,
    sync_handler: bool = False,
    request: Any = None,
    run_size: int | None = None,
    apart: bool = False,
) -> Opened:
    """That many asyncio callers, each of which performs the next effect of one run.

    With `run_size` each has a run of its own for that many effects; with `apart` the names of each caller stand
    together, so that each effect of a commit changes another page of the index.
    """
    handler: Any = _sync_handler if sync_handler else _async_handler

    @contextmanager
    def opened(folder: str) -> Iterator[Slice]:
        with asyncio.Runner() as runner:
            runtime = AsyncRuntime(_url(folder, url))
            runner.run(runtime.__aenter__())
            following, own = count(), [count() for _ in range(callers)]
            runs = [runtime_run(runner, runtime, "r") for _ in range(callers)]

            async def caller(place: int, effects: int) -> None:
                for number in (next(own[place]) for _ in range(effects)):
                    if run_size is not None and number % run_size == 0:
                        runs[place] = runtime.run(f"r{place}.{number}")
                    name = f"e{place}.{number}" if apart else f"e{next(following)}"
                    await runs[place].effect(name, run=handler, reconcile=UNASKABLE, request=request)

            async def together(effects: int) -> None:
                await asyncio.gather(*(caller(place, effects // callers) for place in range(callers)))

            yield lambda effects: runner.run(together(effects))
            runner.run(runtime.__aexit__(None, None, None))

    return opened


def runtime_run(runner: asyncio.Runner, runtime: AsyncRuntime, name: str) -> Any:
    async def opened() -> Any:
        return runtime.run(name)

    return runner.run(opened())
