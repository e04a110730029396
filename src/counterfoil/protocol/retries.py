"""When a retry policy allows the next attempt, and what the recipient asked for."""

from __future__ import annotations

from typing import Any, Final

from counterfoil.outcomes import Evidence
from counterfoil.protocol.codec import RetryBody

RETRY_AFTER: Final = "retry_after_s"


def wished_s(evidence: Evidence | None) -> float:
    """Return how long the recipient asked to be left alone: `retry_after_s` in the evidence's details."""
    found: Any = None if evidence is None or evidence.details is None else evidence.details.get(RETRY_AFTER)
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 <= found < float("inf"):
        return 0.0
    return float(found)


def next_due(
    retry: RetryBody | None, number: int, *, now: float, began: float, evidence: Evidence | None = None
) -> float | None:
    """Say when the attempt after attempt `number` is due, or None if the policy allows no other.

    What the recipient asked for counts too, up to the longest wait of the policy.
    """
    if retry is None or number >= retry.attempts:
        return None
    # 2**number overflows a float near 1024; the cap has been reached long before.
    drawn = retry.backoff_s * 2.0 ** min(number - 1, 60)
    due = now + min(max(drawn, wished_s(evidence)), retry.backoff_max_s)
    if retry.within_s is not None and due > began + retry.within_s:
        return None
    return due
