"""Interleaved slices: every contender takes a short turn in every round, so that a slow minute hits all alike."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field

Slice = Callable[[int], None]
"""Performs that many effects, durably."""

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
    trouble: str | None = None

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

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
            result.rates.append(count / _timed(slice_, count))
    return list(results.values())


def _count(slice_: Slice, step: int, slice_s: float) -> int:
    """How many effects fill a slice, once everything is warm."""
    count, taken = step, 0.0
    began = time.perf_counter()
    while time.perf_counter() - began < PILOT_S:
        taken = _timed(slice_, count)
        if taken < slice_s / 2:
            count *= 2
    wanted = max(1, round(count * slice_s / taken / step))
    return wanted * step


def _timed(slice_: Slice, count: int) -> float:
    gc.collect()
    began = time.perf_counter()
    slice_(count)
    return time.perf_counter() - began


def _shuffled(turns: list[tuple[Result, Slice, int]], rounds: int) -> Iterator[tuple[Result, Slice, int]]:
    # Forwards and backwards in turn: whoever always comes after a heavy writer would pay for its write-back.
    for number in range(rounds):
        yield from turns if number % 2 == 0 else reversed(turns)
