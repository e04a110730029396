"""When a retry policy allows the next attempt."""

from __future__ import annotations

from counterfoil.protocol.codec import RetryBody


def next_due(retry: RetryBody | None, number: int, *, now: float, began: float) -> float | None:
    """Say when the attempt after attempt `number` is due, or None if the policy allows no other."""
    if retry is None or number >= retry.attempts:
        return None
    # 2**number overflows a float near 1024; the cap has been reached long before.
    due = now + min(retry.backoff_s * 2.0 ** min(number - 1, 60), retry.backoff_max_s)
    if retry.within_s is not None and due > began + retry.within_s:
        return None
    return due
