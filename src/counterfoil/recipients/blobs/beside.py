"""Two halves of work at once: digests of large pieces leave Python, so that two threads use two processors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from counterfoil import threads

T = TypeVar("T")
S = TypeVar("S")


def both(one: Callable[[], T], other: Callable[[], S]) -> tuple[T, S]:
    """Do one thing in this thread and the other in another; return when both are done, raise what either raised."""
    done = threading.Event()
    came: list[S] = []
    raised: list[BaseException] = []

    def work() -> None:
        try:
            came.append(other())
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            raised.append(error)
        finally:
            done.set()

    threads.submit(work)
    try:
        value = one()
    finally:
        done.wait()
    if raised:
        raise raised[0]
    return value, came[0]


def all_of(works: list[Callable[[], T]]) -> list[T]:
    """Do several things at once, each in a thread; return what they came to, in order, or raise what one raised."""
    left = threading.Semaphore(0)
    came: list[tuple[int, T]] = []
    raised: list[BaseException] = []

    def one(number: int, work: Callable[[], T]) -> None:
        try:
            came.append((number, work()))
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            raised.append(error)
        finally:
            left.release()

    for number, work in enumerate(works):
        threads.submit(partial(one, number, work))
    for _ in works:
        left.acquire()
    if raised:
        raise raised[0]
    return [value for _, value in sorted(came, key=lambda each: each[0])]
