"""Recipients that cannot be asked."""

from __future__ import annotations

from typing import Final


class Unaskable:
    """The type of `UNASKABLE`."""

    def __repr__(self) -> str:
        return "UNASKABLE"

    def __reduce__(self) -> str:
        return "UNASKABLE"


UNASKABLE: Final = Unaskable()
"""Given as `reconcile`: this recipient cannot be asked, so an attempt that may have been sent is uncertain."""
