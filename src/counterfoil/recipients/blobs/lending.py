"""One permit for several requests, one after the other or at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

from counterfoil.ports.recipient import Permit


class Line:
    """A broker's permit that is lent to several requests: the first takes the gate, each further one is one more call.

    Attributes:
        dispatched: whether a request has taken the gate.
    """

    def __init__(self, permit: Permit) -> None:
        self.permit = permit
        self.dispatched = False
        self._shown: dict[str, str] = {}
        self._lock = threading.Lock()
        self._ended = False
        self._stops: dict[Lent, Callable[[], None]] = {}
        # Once for all of them: what is told to the broker stays there until the permit is given back.
        permit.on_cancel(self._end)

    def show(self, url: str, shown: str) -> None:
        """Have grants compared with another URL: what is asked there is confined by more than its path."""
        self._shown[url] = shown

    def shown(self, url: str) -> str:
        """Return what grants are compared with."""
        return self._shown.get(url, url)

    def lend(self) -> Lent:
        """Return a permit for one request; it must be given back."""
        return Lent(self)

    def take_the_gate(self, *, peer: str | None, contract: str | None) -> None:
        """Win the gate, once, whoever asks first."""
        with self._lock:
            if not self.dispatched:
                self.permit.dispatch(peer=peer, contract=contract)
                self.dispatched = True

    def stop_by(self, lent: Lent, stop: Callable[[], None] | None) -> None:
        """Have a request stopped when nobody waits any more; None: it is over."""
        with self._lock:
            if stop is None:
                self._stops.pop(lent, None)
                return
            self._stops[lent] = stop
            late = self._ended
        if late:
            stop()

    def _end(self) -> None:
        with self._lock:
            self._ended = True
            stops = list(self._stops.values())
        for stop in stops:
            stop()


class Lent(Permit):
    """The permit of one request of a line."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._permit = line.permit

    @property
    def deadline(self) -> float:
        """When the caller goes away."""
        return self._permit.deadline

    def authorise(self, target: str) -> bool:
        """Check that the grants allow a URL."""
        return self._permit.authorise(self._line.shown(target))

    def allows_address(self, address: str) -> bool:
        """Say whether the grants open a special address."""
        return self._permit.allows_address(address)

    def dispatch(self, *, peer: str | None = None, contract: str | None = None) -> None:
        """Win the gate, if no other request has."""
        self._line.take_the_gate(peer=peer, contract=contract)

    def offered(self, count: int) -> bool:
        """Charge bytes that are about to be offered."""
        return self._permit.offered(count)

    def received(self, count: int) -> bool:
        """Charge bytes that arrived."""
        return self._permit.received(count)

    def on_cancel(self, stop: Callable[[], None]) -> None:
        """Have `stop` called when nobody waits any more."""
        self._line.stop_by(self, stop)

    def hold(self) -> Callable[[], None]:
        """Keep the permit."""
        return self._permit.hold()

    def give_back(self) -> None:
        """Note that the request is over."""
        self._line.stop_by(self, None)
