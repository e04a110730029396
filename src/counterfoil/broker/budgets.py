"""Budgets: limits on use, reserved together or not at all. Nothing is given back for what was attempted."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields
from typing import Final, Literal

from counterfoil.errors import UsageError

Limit = Literal["calls", "bytes_out", "bytes_in", "in_flight"]
_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Budget:
    """How much one activation may use. None: not limited here; 0: none.

    Args:
        calls: operations that may be attempted; each hop of a redirect counts as one more.
        bytes_out: bytes of requests.
        bytes_in: bytes of responses.
        in_flight: operations at once, those included whose physical work goes on after their caller has left.

    Raises:
        UsageError: a limit is no int of 0 or more.
    """

    _: KW_ONLY
    calls: int | None = None
    bytes_out: int | None = None
    bytes_in: int | None = None
    in_flight: int | None = None

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if value is not None and (type(value) is not int or not 0 <= value <= _MAX):
                raise UsageError(f"{limit.name} of a budget is None or an int of 0 or more, not {value!r}")


class Spending:
    """What an activation has used of its budget. Not safe to share: whoever calls it holds the desk's lock."""

    __slots__ = ("budget", "bytes_in", "bytes_out", "calls", "in_flight")

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.calls = 0
        self.bytes_out = 0
        self.bytes_in = 0
        self.in_flight = 0

    def reserve(self, bytes_out: int | None) -> Limit | None:
        """Reserve one call and the bytes that it is known to send, or say which limit forbids it and take nothing.

        A limit on bytes that is used up forbids every call, also one that does not say how much it sends.
        """
        budget = self.budget
        if budget.calls is not None and self.calls >= budget.calls:
            return "calls"
        if budget.in_flight is not None and self.in_flight >= budget.in_flight:
            return "in_flight"
        if budget.bytes_in is not None and self.bytes_in >= budget.bytes_in:
            return "bytes_in"
        if budget.bytes_out is not None:
            left = budget.bytes_out - self.bytes_out
            if left <= 0 or (bytes_out or 0) > left:
                return "bytes_out"
        self.calls += 1
        self.in_flight += 1
        self.bytes_out += bytes_out or 0
        return None

    def retire(self) -> None:
        """Give back the place in flight: the physical work is gone."""
        self.in_flight -= 1

    def give_back(self, *, calls: int, bytes_out: int) -> None:
        """Give back what was reserved and never attempted."""
        self.calls -= calls
        self.bytes_out -= bytes_out

    def hop(self) -> bool:
        """Charge one more call; False, and nothing charged, if there is none left."""
        if self.budget.calls is not None and self.calls >= self.budget.calls:
            return False
        self.calls += 1
        return True

    def send(self, count: int) -> bool:
        """Charge bytes beyond what was reserved; False, and nothing charged, if they are more than is left."""
        if self.budget.bytes_out is not None and self.bytes_out + count > self.budget.bytes_out:
            return False
        self.bytes_out += count
        return True

    def receive(self, count: int) -> bool:
        """Charge bytes that came in, which cannot be undone; False if that is more than the budget has."""
        self.bytes_in += count
        return self.budget.bytes_in is None or self.bytes_in <= self.budget.bytes_in
