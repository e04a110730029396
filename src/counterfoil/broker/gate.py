"""The dispatch gate: one for each operation, won once, by the sender or by whoever forbids the sending.

Everything that may end an operation before it goes out (its deadline, its caller's cancellation, revocation,
shutdown) competes with the dispatch for it. Lost by the sender, nothing is ever sent; won, the operation can only
end as acknowledged, failed or uncertain.
"""

from __future__ import annotations


class Gate:
    """Undecided, dispatched, or closed for a reason. Not safe to share: whoever calls it holds the desk's lock."""

    __slots__ = ("closed_by", "dispatched")

    def __init__(self) -> None:
        self.dispatched = False
        self.closed_by: str | None = None

    @property
    def undecided(self) -> bool:
        """Whether nobody has won it yet."""
        return not self.dispatched and self.closed_by is None

    def dispatch(self) -> bool:
        """Win it for the sender; False if it was decided before."""
        if not self.undecided:
            return False
        self.dispatched = True
        return True

    def close(self, reason: str) -> bool:
        """Win it against the sender; False if it was decided before."""
        if not self.undecided:
            return False
        self.closed_by = reason
        return True
