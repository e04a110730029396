"""Lanes: intents with one ordering key are delivered in the order in which they were committed."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Final, Literal

from counterfoil.errors import UsageError
from counterfoil.protocol import keys

HALT: Final = "halt"
SKIP: Final = "skip"


@dataclass(frozen=True, slots=True)
class Lane:
    """An ordering key, and what becomes of the intents behind one that stands still.

    Args:
        name: intents with an equal name are delivered one after the other, in commit order.
        on_stuck: `halt`: the lane waits until a person has decided about an uncertain, quarantined or
            needs-operator head. `skip`: the next one is sent, and order is given up there; a record says so.
    """

    name: str
    _: KW_ONLY
    on_stuck: Literal["halt", "skip"] = "halt"

    def __post_init__(self) -> None:
        keys.name(self.name, "lane")
        if self.on_stuck not in (HALT, SKIP):
            raise UsageError(f"on_stuck={self.on_stuck!r} is not possible", hint="it is halt or skip")


def lane_of(given: Lane | str | None) -> Lane | None:
    """Check what a caller gave as `lane`."""
    if given is None or isinstance(given, Lane):
        return given
    return Lane(given)
