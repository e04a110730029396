"""Where flows pause on a loop: until a time, or until the ledger has something new for their run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from counterfoil import threads
from counterfoil.errors import CounterfoilError
from counterfoil.protocol.requests import Pause
from counterfoil.runtime.blocking import POLL_FIRST_S, POLL_LAST_S, VIRTUAL_S

if TYPE_CHECKING:
    from counterfoil.runtime.looped import Flight, LoopDriver


class Parking:
    """The flows of one driver that pause."""

    def __init__(self, driver: LoopDriver) -> None:
        self._driver = driver
        self._session = driver.session
        self._loop = driver.loop
        self._parked: set[Flight] = set()
        self._ticking = False
        self._tick_s = POLL_FIRST_S
        self._seen = -1

    def park(self, flight: Flight, request: Pause) -> None:
        """Let a flow wait for its answer to a pause."""
        flight.idle = request.idle
        self._arm(flight, flight.serial, request, end=self._session.clock.monotonic() + request.seconds)
        if request.changes:
            self._parked.add(flight)
            self._tick_s = POLL_FIRST_S
            self._tick()

    def leave(self, flight: Flight) -> None:
        """Take a flow out, without an answer."""
        if flight.pause is not None:
            flight.pause.cancel()
            flight.pause = None
        flight.idle = False
        flight.answering = None
        self._parked.discard(flight)

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

    def _tick(self) -> None:
        """Ask the ledger which runs have changed, while somebody waits for that."""
        if self._ticking or not self._parked or self._driver.closed:
            return
        self._ticking = True
        notifier = self._session.notifier
        if notifier is None:
            self._loop.call_later(POLL_LAST_S, self._ticked, None)
            return
        since = self._seen

        def ask() -> None:
            try:
                found = notifier.changes(since)
            except CounterfoilError:
                found = None
            self._driver.to_loop(self._ticked, found)

        threads.submit(ask)

    def _ticked(self, found: tuple[set[tuple[str, str]], int] | None) -> None:
        self._ticking = False
        if found is None or self._seen < 0:
            # Nothing is known, or something may have come between a flow's last read and this first look.
            changed = {flight.scope.run for flight in self._parked}
        else:
            changed = {run for namespace, run in found[0] if namespace == self._session.namespace}
        if found is not None:
            self._seen = found[1]
        for run in changed:
            self.wake(run)
        if self._parked:
            self._loop.call_later(self._tick_s, self._tick)
            self._tick_s = min(self._tick_s * 1.5, POLL_LAST_S)
        else:
            self._seen = -1
