"""Bodies told once for both colours, the two ways of running them, and the journal of what their callers were told.

A body is a generator: it yields what it asks of its run and gets the answer back. What an answer promised is
written into the journal before the body goes on, so that the judge knows what must not be missing.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from counterfoil import Accepted, AsyncRuntime, EffectUnresolved, LedgerUnavailable, OwnerRetired, Runtime
from counterfoil.protocol import slots

PAUSE_S: Final = 0.05
GIVE_UP_S: Final = 120.0


@dataclass(frozen=True)
class Ask:
    """One thing that a body asks for.

    Args:
        method: of the run.
        args, more: its arguments.
        at_once: what it raises goes to the body; otherwise what is unresolved is asked again until it is resolved.
        of_runtime: the method is the runtime's.
    """

    method: str
    args: tuple[Any, ...] = ()
    more: dict[str, Any] = field(default_factory=dict)
    at_once: bool = False
    of_runtime: bool = False


Body = Generator[Ask, Any, Any]
Patience = Callable[[BaseException, Ask, float], float | None]


class Journal:
    """An append-only file of what callers were told is on record."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def close(self) -> None:
        """Close it."""
        os.close(self._file)

    def tell(self, run: str, ask: Ask, answer: Any) -> None:
        """Write down what an answer promised."""
        args = ask.args
        if ask.method == "effect":
            proof = answer.proof if isinstance(answer, Accepted) else None
            self._write(run, name=args[0], phase=type(answer).__name__.lower(), proof=proof)
        elif ask.method == "step":
            self._write(run, slot=slots.step(args[0]), value=answer)
        elif ask.method == "sleep":
            self._write(run, slot=slots.woken(ask.more["name"]))
        elif ask.method in ("deliver", "wait_for"):
            value = args[2] if ask.method == "deliver" else answer
            self._write(run, slot=slots.event(args[0], args[1]), value=value)
        elif ask.method == "finish":
            self._write(run, slot=slots.FINISHED, value=args[0])

    def _write(self, run: str, **what: Any) -> None:
        os.write(self._file, json.dumps({"run": run, **what}).encode() + b"\n")


class Silent(Journal):
    """Writes nothing."""

    def __init__(self) -> None:
        pass

    def _write(self, run: str, **what: Any) -> None:
        pass


def patient(error: BaseException, ask: Ask, began: float) -> float | None:
    """Return how long to wait before asking again, or None if there is no sense in it."""
    if ask.at_once or time.monotonic() - began > GIVE_UP_S:
        return None
    if isinstance(error, EffectUnresolved):
        return PAUSE_S if error.retry_after_s is None else max(0.001, error.retry_after_s)
    if isinstance(error, LedgerUnavailable) and error.code == "ledger-busy":
        return PAUSE_S
    return None


def _next(body: Body, answer: Any, error: BaseException | None) -> Ask:
    return body.send(answer) if error is None else body.throw(error)


def carry(
    runtime: Runtime,
    run_id: str,
    body: Callable[[], Body],
    *,
    journal: Journal,
    patience: Patience = patient,
) -> Any:
    """Run a body to its end, blocking; a life that was taken for gone opens the run again."""
    while True:
        try:
            return _carry(runtime, run_id, body(), journal=journal, patience=patience)
        except OwnerRetired:
            continue


def _carry(runtime: Runtime, run_id: str, body: Body, *, journal: Journal, patience: Patience) -> Any:
    answer: Any = None
    error: BaseException | None = None
    with runtime.run(run_id) as run:
        while True:
            try:
                ask = _next(body, answer, error)
            except StopIteration as done:
                return done.value
            began, answer, error = time.monotonic(), None, None
            while True:
                try:
                    target = runtime if ask.of_runtime else run
                    answer = getattr(target, ask.method)(*ask.args, **ask.more)
                    journal.tell(run_id, ask, answer)
                    break
                except Exception as raised:
                    if (pause_s := patience(raised, ask, began)) is None:
                        error = raised
                        break
                    time.sleep(pause_s)


async def carry_async(
    runtime: AsyncRuntime,
    run_id: str,
    body: Callable[[], Body],
    *,
    journal: Journal,
    patience: Patience = patient,
) -> Any:
    """Do the same on a loop."""
    while True:
        try:
            return await _carry_async(runtime, run_id, body(), journal=journal, patience=patience)
        except OwnerRetired:
            continue


async def _carry_async(runtime: AsyncRuntime, run_id: str, body: Body, *, journal: Journal, patience: Patience) -> Any:
    answer: Any = None
    error: BaseException | None = None
    async with runtime.run(run_id) as run:
        while True:
            try:
                ask = _next(body, answer, error)
            except StopIteration as done:
                return done.value
            began, answer, error = time.monotonic(), None, None
            while True:
                try:
                    target = runtime if ask.of_runtime else run
                    answer = await getattr(target, ask.method)(*ask.args, **ask.more)
                    journal.tell(run_id, ask, answer)
                    break
                except Exception as raised:
                    if (pause_s := patience(raised, ask, began)) is None:
                        error = raised
                        break
                    await asyncio.sleep(pause_s)


# --- asks


def step(name: str, body: Callable[[], Any], **more: Any) -> Ask:
    """Ask for a step."""
    return Ask("step", (name, body), more)


def effect(name: str, *, at_once: bool = False, **more: Any) -> Ask:
    """Ask for an effect."""
    return Ask("effect", (name,), more, at_once=at_once)


def sleep(seconds: float, name: str) -> Ask:
    """Ask for a sleep."""
    return Ask("sleep", (seconds,), {"name": name})


def wait_for(event: str, event_id: str, **more: Any) -> Ask:
    """Ask for a delivery."""
    return Ask("wait_for", (event, event_id), more)


def deliver(event: str, event_id: str, payload: Any) -> Ask:
    """Ask for a delivery to be recorded."""
    return Ask("deliver", (event, event_id, payload))


def finish(result: Any) -> Ask:
    """Ask for the end of the run to be recorded."""
    return Ask("finish", (result,))
