"""What is known of one publish so far, and the outcome that it comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from counterfoil.outcomes import Accepted, Evidence, Failed, Rejected, Uncertain

NOT_DISPATCHED: Final = "not-dispatched"
DISPATCHED: Final = "dispatched"
ACKNOWLEDGED: Final = "acknowledged"


class Unsent(Exception):
    """A publish ended before anything of it was offered; `kind` is a slug, `details` further facts."""

    def __init__(self, kind: str, **details: Any) -> None:
        super().__init__(kind)
        self.kind = kind
        self.details = details


@dataclass(slots=True)
class Facts:
    """What is known of a publish so far.

    Attributes:
        dispatched: the gate was won: something may have reached the broker.
        reached: how far it got.
        bytes_offered: bytes of the message, its framing included, that were handed to the socket.
        peer: the address that it went to.
        more: further facts for the evidence.
    """

    dispatched: bool = False
    reached: str = "nothing"
    bytes_offered: int = 0
    peer: str | None = None
    more: dict[str, Any] = field(default_factory=dict[str, Any])

    def evidence(
        self, kind: str, phase: str, *, status: int | None = None, promises: tuple[str, ...] = (), **details: Any
    ) -> Evidence:
        """Tell the facts as evidence of some kind."""
        known = {"attempts": int(self.dispatched), "peer": self.peer, "reached": self.reached}
        return Evidence(
            kind,
            phase=phase,
            bytes_offered=self.bytes_offered,
            status=status,
            promises=promises,
            details=known | self.more | details,
        )

    def accepted(self, proof: Any, *, promises: tuple[str, ...], **details: Any) -> Accepted[Any]:
        """Say that the broker acknowledged it."""
        return Accepted(proof, "run", self.evidence("acknowledged", ACKNOWLEDGED, promises=promises, **details))

    def rejected(self, kind: str, **details: Any) -> Rejected:
        """Say that nothing was offered, and why."""
        return Rejected(self.evidence(kind, NOT_DISPATCHED, **details))

    def failed(self, kind: str, *, status: int | None = None, **details: Any) -> Failed:
        """Say that the broker's protocol proves that it was not taken, and by what."""
        return Failed(self.evidence(kind, DISPATCHED, status=status, **details))

    def uncertain(self, kind: str, *, status: int | None = None, **details: Any) -> Uncertain:
        """Say that nothing proves how it ended."""
        return Uncertain(self.evidence(kind, DISPATCHED, status=status, **details))
