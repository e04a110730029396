"""One claim in a dispatcher's hands: its flow, and what that waits for."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from counterfoil.outbox.dispatch import send
from counterfoil.outbox.endings import NEEDS_OPERATOR, parked
from counterfoil.outbox.reconcile import look
from counterfoil.outbox.requests import Finish
from counterfoil.outbox.terms import Terms
from counterfoil.ports.outbox_store import Claim, Wanted
from counterfoil.protocol.requests import Request
from counterfoil.protocol.standings import SEND
from counterfoil.runtime.jobs import Job


class Work:
    """One claim in hand.

    Args:
        claim: the claim.
        operation: bound to its arguments; None where these fit no longer.
        terms: what holds for it.
        flow: what is to be done instead of sending, or of asking.
    """

    __slots__ = ("claim", "flow", "job", "operation", "request", "span", "terms")

    def __init__(
        self, claim: Claim, operation: Any, terms: Terms, *, flow: Coroutine[Request[Any], Any, None] | None = None
    ) -> None:
        self.claim = claim
        self.operation = operation
        self.terms = terms
        self.flow = flow or (send if claim.kind == SEND else look)(claim, terms)
        self.request: Any = None
        self.job: Job | None = None
        # What is traced of it, where anything is.
        self.span: Any = None


class Asked:
    """What one round asks of the store, and who waits for the answers.

    Args:
        wanted: what is asked.
        finishing: who waits for its end to be recorded.
        expiring: who waits for its send-right to be filled, so that nothing is sent.
        rights: who waits for its send-right.
        refused: who is told, when that is answered, that it has none.
    """

    __slots__ = ("expiring", "finishing", "refused", "rights", "wanted")

    def __init__(
        self,
        wanted: Wanted,
        *,
        finishing: Sequence[Work],
        expiring: Sequence[Work],
        rights: Sequence[Work],
        refused: Sequence[Work],
    ) -> None:
        self.wanted = wanted
        self.finishing = finishing
        self.expiring = expiring
        self.rights = rights
        self.refused = refused


async def unfit(claim: Claim) -> None:
    """End a claim whose arguments fit no longer: the code has changed since it was staged."""
    await Finish(parked(claim, NEEDS_OPERATOR, claim.standing, reason="arguments-do-not-fit"))
