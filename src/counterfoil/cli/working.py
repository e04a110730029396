"""`counterfoil work`: recovery of durable bodies as a process of its own; `counterfoil lift` ends a quarantine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import click

from counterfoil import threads
from counterfoil.cli.named import named
from counterfoil.cli.output import line, say
from counterfoil.cli.places import Place, placed
from counterfoil.cli.text import escaped
from counterfoil.errors import LedgerUnavailable, UsageError
from counterfoil.runtime.raised import raised_at

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How to work: bodies at once, seconds between two looks, seconds to drain, deaths until quarantine."""

    at_once: int
    poll_s: float
    drain_s: float
    deaths_max: int
    until_idle: bool

    def recovery(self) -> dict[str, int]:
        """Return the arguments of a recovery."""
        return {"at_once": self.at_once, "deaths_max": self.deaths_max}


@dataclass(slots=True, kw_only=True)
class Progress:
    """Tells what happens, a line for each event; counts what a person should look at."""

    as_json: bool
    problems: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, event: str, run_id: str, what: Any) -> None:
        """Tell of one event."""
        with self._lock:
            if event in ("raised", "quarantined"):
                self.problems.add(run_id)
            elif event == "finished":
                self.problems.discard(run_id)
            error = type(what).__name__ if isinstance(what, BaseException) else None
            where = (raised_at(what) or None) if isinstance(what, BaseException) else None
            deaths = what if event == "quarantined" else None
            if self.as_json:
                said = {
                    "event": event,
                    "run": run_id,
                    "at": time.time(),
                    "error": error,
                    "where": where,
                    "deaths": deaths,
                }
                line(json.dumps(said, ensure_ascii=True))
            else:
                more = (
                    f": {error}{f' at {where}' if where else ''}"
                    if error
                    else f" after {deaths} deaths in a row"
                    if deaths
                    else ""
                )
                say(f"{event} {escaped(run_id)}{more}")


@click.command()
@click.argument("bodies", metavar="MODULE:BODIES")
@click.option("--at-once", type=click.IntRange(1, 1000), default=16, show_default=True, help="Bodies at the same time.")
@click.option("--poll", "poll_s", type=click.FloatRange(0.01), default=1.0, show_default=True, metavar="SECONDS")
@click.option("--drain", "drain_s", type=click.FloatRange(0), default=30.0, show_default=True, metavar="SECONDS")
@click.option("--deaths", "deaths_max", type=click.IntRange(1), default=5, show_default=True, metavar="N")
@click.option("--until-idle", is_flag=True, help="End when nothing is left to resume.")
@placed
def work(place: Place, *, bodies: str, **given: Any) -> None:
    """Resume runs that dead processes left behind, until told to end.

    BODIES is a function, a list of functions, or a mapping from recorded names to functions; MODULE may be a file. Any
    number of these processes share the work, on any number of machines that share the ledger. Parked bodies count
    among those that run at the same time. A run whose body took N processes in a row with it is quarantined.

    SIGTERM and SIGINT drain: bodies end at their next call, and what they had begun is recorded. The exit code is 1 if
    a body had not ended by then or, with --until-idle, if a body raised or a run was quarantined.
    """
    wanted = Wanted(**given)
    table, asynchronous = _bodies(bodies)
    progress = Progress(as_json=place.as_json)
    if asynchronous:
        left = threads.run_here(_work_async(place, table, wanted, progress=progress))
    else:
        left = _work(place, table, wanted, progress=progress)
    for run_id in left:
        say(f"still running: {escaped(run_id)}")
    found = bool(left) or (wanted.until_idle and bool(progress.problems))
    click.get_current_context().exit(1 if found else 0)


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--reason", required=True, help="What was wrong, and why it is not any more.")
@click.option("--by", required=True, help="Who you are.")
@placed
def lift(place: Place, *, run_id: str, reason: str, by: str) -> None:
    """Lift the quarantine of a run, so that it is resumed again."""
    with place.open() as runtime:
        runtime.lift(run_id, reason=reason, by=by)
    if place.as_json:
        line(json.dumps({"lifted": run_id}, ensure_ascii=True))
    else:
        line(f"recorded: run {escaped(run_id)} may be resumed")


def _bodies(target: str) -> tuple[dict[str, Callable[..., Any]], bool]:
    """Find what is to be resumed: bodies by their recorded names, and whether they are async functions."""
    from counterfoil.runtime import arguments
    from counterfoil.runtime.handlers import is_async

    found = named(target, what="bodies", example="shop.orders:BODIES")
    if found is None:
        raise UsageError(f"there are no bodies at {target!r}", hint="for example shop.orders:BODIES")
    if callable(found):
        found = [found]
    if not isinstance(found, (Mapping, list, tuple, set, frozenset)) or not found:
        raise UsageError(f"{target!r} is no function, no list of functions and no mapping to functions")
    for each in found.values() if isinstance(found, Mapping) else found:
        if not callable(each):
            raise UsageError(f"{target!r} has {type(each).__name__} in it, which is no function")
    table = arguments.body_table(found)
    colours = {is_async(body) for body in table.values()}
    if len(colours) > 1:
        raise UsageError("blocking and async bodies are mixed", hint="give each kind a process of its own")
    return table, colours.pop()


def _work(place: Place, table: Mapping[str, Any], wanted: Wanted, *, progress: Progress) -> list[str]:
    from counterfoil.runtime.recovery import Recovery

    with place.open() as runtime:
        recovery = Recovery(runtime, table, told=progress, **wanted.recovery())
        recovery.search.again = not wanted.until_idle
        with _told_to_end(recovery.stop):
            while not recovery.stopping:
                with _patient(wanted):
                    recovery.begin()
                if wanted.until_idle and recovery.idle:
                    break
                recovery.wait(wanted.poll_s)
            return recovery.drain(wanted.drain_s)


async def _work_async(place: Place, table: Mapping[str, Any], wanted: Wanted, *, progress: Progress) -> list[str]:
    from counterfoil.runtime.aio import AsyncRuntime
    from counterfoil.runtime.recovery import AsyncRecovery

    loop = asyncio.get_running_loop()
    async with AsyncRuntime(place.checked(), namespace=place.namespace, owner=place.label()) as runtime:
        recovery = AsyncRecovery(runtime, table, told=progress, **wanted.recovery())
        recovery.search.again = not wanted.until_idle
        for number in _SIGNALS:
            loop.add_signal_handler(number, recovery.stop)
        while not recovery.stopping:
            with _patient(wanted):
                await recovery.begin()
            if wanted.until_idle and recovery.idle:
                break
            await recovery.wait(wanted.poll_s)
        return await recovery.drain(wanted.drain_s)


@contextlib.contextmanager
def _patient(wanted: Wanted) -> Generator[None, None, None]:
    """Let a ledger that is away come back."""
    try:
        yield
    except LedgerUnavailable as error:
        if wanted.until_idle:
            raise
        say(f"counterfoil: {error}")


@contextlib.contextmanager
def _told_to_end(stop: Callable[[], None]) -> Generator[None, None, None]:
    before = {number: signal.signal(number, lambda *_: stop()) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
