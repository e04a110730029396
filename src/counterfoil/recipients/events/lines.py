"""One connection for each event loop that asks: made when it is needed, shared, made anew once it is gone."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from counterfoil.recipients.events.facts import Unsent


class Line(Protocol):
    """A connection to a broker, on one loop."""

    @property
    def alive(self) -> bool:
        """Whether it can be used."""
        ...

    def cut(self) -> None:
        """End it hard, on its loop; what is in flight on it ends as uncertain."""
        ...


L = TypeVar("L", bound=Line)


class _Place(Generic[L]):
    """What one loop has."""

    def __init__(self) -> None:
        self.line: L | None = None
        self.opening: asyncio.Task[L | Unsent] | None = None


class Lines(Generic[L]):
    """The connections of one recipient.

    Args:
        open_line: makes one, on the running loop, within so many seconds; raises `Unsent` where that does not work.
        timeout_s: seconds for making one.
    """

    def __init__(self, open_line: Callable[[float], Awaitable[L]], *, timeout_s: float) -> None:
        self._open_line = open_line
        self._timeout_s = timeout_s
        # Guards the places: loops of several threads ask.
        self._lock = threading.Lock()
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, _Place[L]] = WeakKeyDictionary()

    async def get(self, deadline: float) -> L:
        """Return a connection that is alive.

        Args:
            deadline: when the caller goes away, on `time.monotonic()`; the making goes on for others.

        Raises:
            Unsent: there is none.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            place = self._places.get(loop)
            if place is None:
                place = self._places[loop] = _Place()
        if place.line is not None and place.line.alive:
            return place.line
        if place.opening is None or place.opening.done():
            place.opening = loop.create_task(self._open(place))
        opening = place.opening
        await asyncio.wait({opening}, timeout=max(0.0, deadline - time.monotonic()))
        if not opening.done():
            raise Unsent("deadline-before-dispatch")
        if opening.cancelled():
            raise Unsent("connect-failed", error="cancelled")
        found = opening.result()
        if isinstance(found, Unsent):
            # An error of its own for each caller: one instance raised twice would mix their tracebacks.
            raise Unsent(found.kind, **found.details)
        return found

    async def _open(self, place: _Place[L]) -> L | Unsent:
        try:
            place.line = await self._open_line(self._timeout_s)
        except Unsent as unsent:
            return unsent
        return place.line

    def close(self) -> None:
        """Cut all connections, from any thread; another publish makes new ones."""
        with self._lock:
            places = list(self._places.items())
        for loop, place in places:
            if place.line is not None:
                # A loop that is closed has cut its own.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(place.line.cut)
