"""When the next attempt is due: full jitter, the recipient's own wish, and bounds for both (rule X10)."""

from __future__ import annotations

from typing import Final

from counterfoil.outbox.requests import Chance
from counterfoil.outbox.terms import Terms
from counterfoil.outcomes import Evidence
from counterfoil.protocol.retries import wished_s

_DOUBLINGS_MAX: Final = 60


def longest_s(terms: Terms, tries: int) -> float:
    """Return the longest wait after so many tries."""
    return float(min(terms.backoff_max_s, terms.backoff_s * 2.0 ** min(max(tries - 1, 0), _DOUBLINGS_MAX)))


async def delay_s(terms: Terms, tries: int, *, evidence: Evidence | None = None) -> float:
    """Draw the wait before the next attempt."""
    drawn = await Chance() * longest_s(terms, tries)
    return max(drawn, min(wished_s(evidence), terms.retry_after_max_s))
