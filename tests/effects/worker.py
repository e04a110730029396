"""A process of its own for the tests of several processes: it asks for one effect and says what it got.

    python worker.py LEDGER-URL FOLDER RUN,RUN,… LASTS ENDING COLOUR WAIT

It prints `ready`, waits for a line, asks for the effect of each run at once, and prints the outcomes; `waiting` is
printed when it waits for somebody else's. The recipient's log is a file in FOLDER that every request appends one line
to; an item exists once its request has ended. That is when a file of the name LASTS is in FOLDER; `-`: at once.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from counterfoil import AsyncRuntime, EffectUnresolved, Runtime
from counterfoil.protocol.requests import Pause


def append(path: Path, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


class Recipient:
    """Requests are logged when they come; the item is there when they end."""

    def __init__(self, folder: Path, lasts: str, ending: str) -> None:
        self.requests, self.items = folder / "requests", folder / "items"
        self.end, self.ending = folder / lasts, ending
        self.ends = lasts == "-"

    def goes_on(self) -> bool:
        return not self.ends and not self.end.exists()

    def pay(self, ctx: Any) -> str:
        append(self.requests, f"{ctx.key} {os.getpid()}")
        print("sending", flush=True)
        while self.goes_on():
            time.sleep(0.005)
        append(self.items, ctx.key)
        if self.ending == "raise":
            raise ConnectionError
        return f"item of {ctx.key}"

    async def pay_later(self, ctx: Any) -> str:
        append(self.requests, f"{ctx.key} {os.getpid()}")
        print("sending", flush=True)
        while self.goes_on():  # noqa: ASYNC110 - a file says it
            await asyncio.sleep(0.005)
        append(self.items, ctx.key)
        if self.ending == "raise":
            raise ConnectionError
        return f"item of {ctx.key}"

    def find(self, ctx: Any) -> str | None:
        made = self.items.read_text().split() if self.items.exists() else []
        return f"item of {ctx.key}" if ctx.key in made else None


def told(outcome: Any) -> str:
    return f"{type(outcome).__name__} {getattr(outcome, 'via', '-')} {getattr(outcome, 'proof', '-')}"


def ask(url: str, run_ids: list[str], recipient: Recipient, *, wait: float) -> list[str]:
    def one(run_id: str) -> str:
        try:
            with runtime.run(run_id) as run:
                return told(run.effect("pay", run=recipient.pay, reconcile=recipient.find, wait=wait))
        except EffectUnresolved as error:
            return f"unresolved {error.reason}"

    with Runtime(url) as runtime, ThreadPoolExecutor(len(run_ids)) as threads:
        runtime._driver.watch = watch
        go()
        return list(threads.map(one, run_ids))


async def ask_later(url: str, run_ids: list[str], recipient: Recipient, *, wait: float) -> list[str]:
    async def one(run_id: str) -> str:
        try:
            async with runtime.run(run_id) as run:
                return told(await run.effect("pay", run=recipient.pay_later, reconcile=recipient.find, wait=wait))
        except EffectUnresolved as error:
            return f"unresolved {error.reason}"

    async with AsyncRuntime(url) as runtime:
        runtime._driver.watch = watch
        go()
        return await asyncio.gather(*map(one, run_ids))


def watch(moment: str, run_id: str, request: Any) -> None:
    if moment == "before" and isinstance(request, Pause):
        print("waiting", flush=True)


def go() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def main() -> None:
    url, folder, run_ids, lasts, ending, colour, wait = sys.argv[1:]
    recipient = Recipient(Path(folder), lasts, ending)
    if colour == "blocking":
        answers = ask(url, run_ids.split(","), recipient, wait=float(wait))
    else:
        answers = asyncio.run(ask_later(url, run_ids.split(","), recipient, wait=float(wait)))
    print("; ".join(answers), flush=True)


if __name__ == "__main__":
    main()
