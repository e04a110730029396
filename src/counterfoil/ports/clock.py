"""The clock port. The module `time` of the standard library fits it."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Where a runtime takes the time from."""

    def time(self) -> float:
        """Return seconds since 1970; it may be set forward and back."""
        ...

    def monotonic(self) -> float:
        """Return seconds that only grow; their origin means nothing."""
        ...
