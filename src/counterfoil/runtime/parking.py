"""Where flows pause on a loop: until a time, or until the ledger has something new for their run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from counterfoil import threads
from counterfoil.protocol.requests import Pause
from counterfoil.runtime.blocking import POLL_FIRST_S, POLL_LAST_S, VIRTUAL_S

if TYPE_CHECKING:
    from counterfoil.runtime.looped import Flight, LoopDriver

Place = tuple[str, str]


class Parking:
    """The flows of one driver that pause."""

    def __init__(self, driver: LoopDriver) -> None:
        self._driver = driver
        self._session = driver.session
        self._loop = driver.loop
        self._parked: set[Flight] = set()
        # Those that no look has been for yet, and how much of their run each had seen when it parked.
        self._fresh: dict[Flight, int] = {}
        self._looking = False
        self._next: asyncio.TimerHandle | None = None
        self._next_s = POLL_FIRST_S
        self._seen = -1

    def park(self, flight: Flight, request: Pause) -> None:
        """Let a flow wait for its answer to a pause."""
        flight.idle = request.idle
        self._arm(flight, flight.serial, request, end=self._session.clock.monotonic() + request.seconds)
        if request.changes:
            self._parked.add(flight)
            self._fresh[flight] = flight.scope.history.position
            self._next_s = POLL_FIRST_S
            self._look()

    def leave(self, flight: Flight) -> None:
        """Take a flow out, without an answer."""
        if flight.pause is not None:
            flight.pause.cancel()
            flight.pause = None
        flight.idle = False
        flight.answering = None
        self._parked.discard(flight)
        self._fresh.pop(flight, None)

    def wake(self, run: str) -> None:
        """Answer the pauses of a run that may have new records."""
        if not self._parked:
            return
        for flight in [f for f in self._parked if f.scope.run == run]:
            if flight.answering is not None:
                self._parked.discard(flight)
                self._loop.call_soon(flight.answering)

    def _arm(self, flight: Flight, serial: int, request: Pause, *, end: float) -> None:
        rest = end - self._session.clock.monotonic()
        if rest <= 0:
            # Not here: the flow may be being stepped right now.
            flight.pause = self._loop.call_soon(self._resume, flight, serial, request)
            return
        wait_s = min(rest, VIRTUAL_S) if self._session.virtual else rest
        flight.pause = self._loop.call_later(wait_s, lambda: self._arm(flight, serial, request, end=end))
        flight.answering = lambda: self._resume(flight, serial, request)

    def _resume(self, flight: Flight, serial: int, request: Pause) -> None:
        if flight.flow is None or flight.serial != serial:
            return
        self.leave(flight)
        self._driver.answer(flight, serial, request, answer=None)

    def _look(self) -> None:
        """Ask the ledger which runs have changed, while somebody waits for that."""
        if self._looking or not self._parked or self._driver.closed:
            return
        self._looking = True
        if self._next is not None:
            self._next.cancel()
            self._next = None
        notifier = self._session.notifier
        if notifier is None:
            self._next = self._loop.call_later(POLL_LAST_S, self._looked, None, [])
            return
        since, fresh = self._seen, self._fresh
        self._fresh = {}

        def ask() -> None:
            moved: list[Flight] = []
            try:
                found = notifier.changes(since)
                for flight, position in fresh.items():
                    # What came between the flow's last read and this look at the ledger.
                    self._session.read(flight.scope)
                    if flight.scope.history.position != position:
                        moved.append(flight)
            except Exception:  # noqa: BLE001 - whoever waits reads his run now, and is told there
                found = None
            self._driver.to_loop(self._looked, found, moved)

        threads.submit(ask)

    def _looked(self, found: tuple[set[Place], int] | None, moved: list[Flight]) -> None:
        self._looking = False
        if found is None:
            # Nothing is known.
            changed = {flight.scope.run for flight in self._parked}
        else:
            changed = {run for namespace, run in found[0] if namespace == self._session.namespace}
            changed.update(flight.scope.run for flight in moved)
            self._seen = found[1]
        for run in changed:
            self.wake(run)
        if self._parked:
            self._next = self._loop.call_later(self._next_s, self._look)
            self._next_s = min(self._next_s * 1.5, POLL_LAST_S)
        else:
            self._seen = -1
