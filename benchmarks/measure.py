"""Interleaved slices: every contender takes a short turn in every round, so that a slow minute hits all alike."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field


@dataclass
class Watch:
    """How long something took.

    Attributes:
        wall_s: seconds.
        cpu_s: processor time of this process, all threads, in seconds; None: somebody else did the work.
    """

    wall_s: float = 0.0
    cpu_s: float | None = None


Slice = Callable[[int], Watch | None]
"""Performs that many effects, durably. One that prepares something first returns what its effects alone took."""

Opened = Callable[[str], AbstractContextManager[Slice]]
"""Opens a contender in a folder of its own."""

SLICE_S = 0.05
PILOT_S = 0.3


@dataclass
class Contender:
    """Something that performs effects.

    Args:
        name: what the table calls it.
        opened: opens it.
        step: effects per slice are a multiple of this (the number of callers).
    """

    name: str
    opened: Opened
    step: int = 1


@dataclass
class Result:
    """What one contender did in each round, in effects per second."""

    name: str
    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    trouble: str | None = None

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def cost_us(self) -> float | None:
        """Processor time of this process for an effect, in microseconds; None where others did the work."""
        return statistics.median(self.cpu_us) if self.cpu_us else None

    def ratio(self, base: Result) -> float:
        """The median of the ratios within each round."""
        return statistics.median(own / other for own, other in zip(self.rates, base.rates, strict=True))


def race(contenders: list[Contender], folder: str, *, rounds: int, slice_s: float = SLICE_S) -> list[Result]:
    """Let every contender take a slice in each of `rounds` rounds; the first is what others are compared with."""
    results = {contender.name: Result(contender.name) for contender in contenders}
    with ExitStack() as stack:
        turns: list[tuple[Result, Slice, int]] = []
        for number, contender in enumerate(contenders):
            result = results[contender.name]
            try:
                slice_ = stack.enter_context(contender.opened(f"{folder}/{number}"))
                turns.append((result, slice_, _count(slice_, contender.step, slice_s)))
            except Exception as error:  # noqa: BLE001 - a peer that does not run is said so in the table
                result.trouble = f"did not run: {type(error).__name__}: {error}"[:150]
        for turn in _shuffled(turns, rounds):
            result, slice_, count = turn
            watch = _timed(slice_, count)
            result.rates.append(count / watch.wall_s)
            if watch.cpu_s is not None:
                result.cpu_us.append(watch.cpu_s / count * 1e6)
    return list(results.values())


@contextmanager
def watching() -> Iterator[Watch]:
    """Take the time of a block."""
    watch = Watch()
    wall, cpu = time.perf_counter(), time.process_time()
    yield watch
    watch.wall_s, watch.cpu_s = time.perf_counter() - wall, time.process_time() - cpu


def after(opened: Opened, count: int) -> Opened:
    """A contender that has performed so many effects before it is measured."""

    @contextmanager
    def again(folder: str) -> Iterator[Slice]:
        with opened(folder) as slice_:
            slice_(count)
            yield slice_

    return again


def _count(slice_: Slice, step: int, slice_s: float) -> int:
    """How many effects fill a slice, once everything is warm."""
    count, taken = step, 0.0
    began = time.perf_counter()
    while time.perf_counter() - began < PILOT_S:
        taken = _timed(slice_, count).wall_s
        if taken < slice_s / 2:
            count *= 2
    wanted = max(1, round(count * slice_s / taken / step))
    return wanted * step


def _timed(slice_: Slice, count: int) -> Watch:
    gc.collect()
    with watching() as watch:
        own = slice_(count)
    return own if isinstance(own, Watch) else watch


def _shuffled(turns: list[tuple[Result, Slice, int]], rounds: int) -> Iterator[tuple[Result, Slice, int]]:
    # Forwards and backwards in turn: whoever always comes after a heavy writer would pay for its write-back.
    for number in range(rounds):
        yield from turns if number % 2 == 0 else reversed(turns)
