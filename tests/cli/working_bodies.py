"""Bodies for the tests of `counterfoil work`; what they do is logged in the folder that the environment names."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("WORKING_FOLDER", "."))


def log(line: str) -> None:
    descriptor = os.open(FOLDER / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{line} {os.getpid()}\n".encode())
    finally:
        os.close(descriptor)


def lines() -> list[list[str]]:
    path = FOLDER / "log"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def pay(name: str) -> Any:
    def run(ctx: Any) -> str:
        log(f"paid {name}")
        return name

    return run


def find(name: str) -> Any:
    return lambda ctx: name if any(line[:2] == ["paid", name] for line in lines()) else None


def order(run: Any, name: str) -> str:
    """An effect, with some time around it in which a process may be killed."""
    log(f"begin {name}")
    run.step("look", lambda: time.sleep(0.02))
    run.effect("pay", run=pay(name), reconcile=find(name))
    time.sleep(0.02)
    log(f"end {name}")
    return name


async def order_async(run: Any, name: str) -> str:
    log(f"begin {name}")
    await run.effect("pay", run=pay(name), reconcile=find(name))
    await asyncio.sleep(0.02)
    log(f"end {name}")
    return name


def killer(run: Any, name: str) -> str:
    log(f"begin {name}")
    os.kill(os.getpid(), signal.SIGKILL)
    return name


def waits(run: Any, name: str) -> Any:
    log(f"begin {name}")
    return run.wait_for("go", name)


async def waits_async(run: Any, name: str) -> Any:
    log(f"begin {name}")
    return await run.wait_for("go", name)


def stuck(run: Any, name: str) -> str:
    log(f"begin {name}")
    time.sleep(60)
    return name


def raises(run: Any, name: str) -> str:
    log(f"begin {name}")
    raise ValueError("secret")


ALL = [order, killer, waits, stuck, raises]
MAPPING = {f"{each.__module__}:{each.__name__}": each for each in ALL}
ASYNC = (order_async, waits_async)
MIXED = [order, order_async]
WRONG = [order, 3]
NOTHING: list[Any] = []
