"""One permit for several requests in a row."""

from __future__ import annotations

from collections.abc import Callable

from counterfoil.ports.recipient import Permit


class Lent(Permit):
    """A broker's permit for several requests in a row: the first takes the gate, each further one is one more call."""

    def __init__(self, permit: Permit) -> None:
        self._permit = permit
        self.dispatched = False

    @property
    def deadline(self) -> float:
        """When the caller goes away."""
        return self._permit.deadline

    def authorise(self, target: str) -> bool:
        """Check that the grants allow a URL."""
        return self._permit.authorise(target)

    def allows_address(self, address: str) -> bool:
        """Say whether the grants open a special address."""
        return self._permit.allows_address(address)

    def dispatch(self, *, peer: str | None = None, contract: str | None = None) -> None:
        """Win the gate, once."""
        if not self.dispatched:
            self._permit.dispatch(peer=peer, contract=contract)
            self.dispatched = True

    def offered(self, count: int) -> bool:
        """Charge bytes that are about to be offered."""
        return self._permit.offered(count)

    def received(self, count: int) -> bool:
        """Charge bytes that arrived."""
        return self._permit.received(count)

    def on_cancel(self, stop: Callable[[], None]) -> None:
        """Have `stop` called when nobody waits any more."""
        self._permit.on_cancel(stop)

    def hold(self) -> Callable[[], None]:
        """Keep the permit."""
        return self._permit.hold()
