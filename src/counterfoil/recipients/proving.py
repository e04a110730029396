"""What an operation as an effect gives for an outcome: the accepted one is returned, the others are raised."""

from __future__ import annotations

from typing import Any

from counterfoil.errors import RecipientError
from counterfoil.outcomes import Accepted, Evidence, Failed, Outcome, Rejected


class Unproved(RecipientError):
    """Something may have been sent, and nothing proves how it ended; `evidence` says what is known."""

    code = "unproved"

    def __init__(self, message: str = "", *, evidence: Evidence, **more: Any) -> None:
        super().__init__(message, **more)
        self.evidence = evidence


def proved(outcome: Outcome[Any]) -> Accepted[Any]:
    """Return an accepted outcome.

    Raises:
        Rejected, Failed: that is what it is.
        Unproved: it is uncertain.
    """
    if isinstance(outcome, Accepted):
        return outcome
    if isinstance(outcome, (Rejected, Failed)):
        raise outcome
    raise Unproved(
        f"nothing proves how it ended: {outcome.evidence.kind}",
        evidence=outcome.evidence,
        hint="it may have been done: do not send it again",
    )
