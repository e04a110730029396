"""Several things at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from counterfoil import threads

T = TypeVar("T")


def all_of(works: list[Callable[[], T]]) -> list[T]:
    """Do several things at once, the first one here; return what they came to, in order, or raise what one raised."""
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

    for number, work in enumerate(works[1:], 1):
        threads.submit(partial(one, number, work))
    if works:
        one(0, works[0])
    for _ in works:
        left.acquire()
    if raised:
        raise raised[0]
    return [value for _, value in sorted(came, key=lambda each: each[0])]
