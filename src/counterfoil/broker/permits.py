"""The permit that a recipient is given: the port `ports.recipient.Permit`, in front of the desk."""

from __future__ import annotations

from collections.abc import Callable

from counterfoil.broker.calls import Call
from counterfoil.broker.desk import Desk


class Permit:
    """The right to perform one operation once; see `counterfoil.ports.recipient.Permit`."""

    __slots__ = ("_call", "_desk")

    def __init__(self, desk: Desk, call: Call) -> None:
        self._desk = desk
        self._call = call

    @property
    def deadline(self) -> float:
        """When the caller goes away, on the broker's monotonic clock."""
        return self._call.deadline

    def authorise(self, target: str) -> bool:
        """Check that grants and policy still allow the verb at a URL."""
        return self._desk.move(self._call, target)

    def allows_address(self, address: str) -> bool:
        """Say whether the grants for this operation open a special address."""
        call = self._call
        where = call.proposal.recipient, call.proposal.operation, call.proposal.target
        return any(grant.allows(*where) and grant.opens(address) for grant in call.authority.grants)

    def dispatch(self, *, peer: str | None = None, contract: str | None = None) -> None:
        """Win the one-shot gate, or raise `Rejected`."""
        facts = {"peer": peer, "contract": contract}
        self._desk.dispatch(self._call, {name: fact for name, fact in facts.items() if fact is not None})

    def offered(self, count: int) -> bool:
        """Charge bytes that are about to be offered to the socket."""
        return self._desk.offer(self._call, count)

    def received(self, count: int) -> bool:
        """Charge bytes that arrived."""
        return self._desk.receive(self._call, count)

    def on_cancel(self, stop: Callable[[], None]) -> None:
        """Have `stop` called once when nobody waits any more."""
        self._desk.on_cancel(self._call, stop)

    def hold(self) -> Callable[[], None]:
        """Keep the permit when `perform` has returned."""
        return self._desk.hold(self._call)

    def __repr__(self) -> str:
        return f"Permit(key={self._call.key!r})"
