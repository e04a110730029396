"""What is still owned: permits that are held, callers that wait, and work that goes on without a caller."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """One call that is not over.

    Args:
        principal, recipient, operation: who asked whom for what.
        state: `waiting` for a permit, `running`, or `cleaning`: its caller has left, its work has not retired.
        key: its identity, as the recipient gets it.
        age_s: seconds since it was asked.
    """

    principal: str
    recipient: str
    operation: str
    state: str
    key: str
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a broker still owns.

    Args:
        activations: activations that are open.
        permits: permits that are held, those of `cleaning` included.
        waiting: calls that wait for a permit.
        cleaning: calls whose caller has left and whose work has not retired.
        calls: all of them, oldest first.
        records_pending: audit records that are being written.
        records_lost: audit records that could not be written.
    """

    activations: int
    permits: int
    waiting: int
    cleaning: int
    calls: tuple[Owned, ...]
    records_pending: int = 0
    records_lost: int = 0

    @property
    def idle(self) -> bool:
        """Whether nothing is owned."""
        return not self.calls and not self.records_pending
