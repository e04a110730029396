"""What holds for sending one operation: its contract's policy, narrowed by whoever staged the intent."""

from __future__ import annotations

from typing import Final

import msgspec

from counterfoil.errors import UsageError
from counterfoil.protocol.standings import Standing

OPERATOR_ONLY: Final = "operator-only"
AT_MOST_ONCE: Final = "at-most-once"
RECONCILE_FIRST: Final = "reconcile-first"
KEYED: Final = "at-least-once-keyed"
POLICIES: Final = (OPERATOR_ONLY, AT_MOST_ONCE, RECONCILE_FIRST, KEYED)


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation's contract, and the dispatcher, say about sending it.

    Args:
        policy: what may be done about a send of which nobody knows how it ended; see `POLICIES`, weakest first.
        askable: whether the recipient can be asked.
        verified: whether a proof has to be checked before it counts.
        visibility_s: seconds that the recipient may take to show an effect.
        retryable: a failed attempt may be followed by another one.
        keep_key: all attempts share one key.
        timeout_s: seconds that one send may take before it counts as of unknown end.
        look_timeout_s: seconds that one look-up may take.
        horizon_s: how long the recipient remembers a key, measured from the first send; None: it does not.
        concurrent: it deduplicates also while the first request is still under way.
        resends: times that an intent of unknown end is sent again, at most.
        attempts: sends that provably did not happen, at most.
        backoff_s: the first longest wait before another attempt; doubled before each further one.
        backoff_max_s: the longest wait of all.
        retry_after_max_s: how long a recipient's own `Retry-After` is honoured at most.
        looks: look-ups that could not be made, at most.
        look_within_s: seconds in which look-ups are tried.
        kills: sends that end with their process, at most.
        revoked: claims that end with their process before anything is sent, at most.
        send_by_s: seconds between taking the send-right and the first byte, at most.
    """

    policy: str = RECONCILE_FIRST
    askable: bool = True
    verified: bool = False
    visibility_s: float = 0.0
    retryable: bool = False
    keep_key: bool = False
    timeout_s: float = 60.0
    look_timeout_s: float = 30.0
    horizon_s: float | None = None
    concurrent: bool = False
    resends: int = 3
    attempts: int = 20
    backoff_s: float = 1.0
    backoff_max_s: float = 300.0
    retry_after_max_s: float = 3600.0
    looks: int = 10
    look_within_s: float = 86_400.0
    kills: int = 3
    revoked: int = 20
    send_by_s: float = 10.0


def narrowed(policy: str, given: str | None) -> str:
    """Return the weaker of two policies: what a contract says, and what an intent asks for."""
    return policy if given is None else min(policy, given, key=POLICIES.index)


def check_narrower(policy: str, given: str) -> None:
    """Check the policy that a caller gives for one intent.

    Raises:
        UsageError: it is none, or stronger than what the operation's contract allows.
    """
    if given not in POLICIES:
        raise UsageError(f"{given!r} is no policy", hint=f"it is one of {', '.join(POLICIES)}")
    if POLICIES.index(given) > POLICIES.index(policy):
        raise UsageError(
            f"the operation's contract allows {policy}; an intent cannot ask for {given}",
            hint="a policy can only be narrowed; change the contract",
        )


def may_resend(terms: Terms, policy: str, standing: Standing, *, now: float) -> bool:
    """Say whether an intent of unknown end may be sent again with its key (rule X9)."""
    if policy != KEYED or terms.horizon_s is None or standing.first_sent is None:
        return False
    return standing.sends <= terms.resends and now + terms.timeout_s < standing.first_sent + terms.horizon_s


def resend_wait_s(terms: Terms, standing: Standing, *, now: float) -> float:
    """Return how long to wait before it is sent again: until the first request is surely over, where that matters."""
    if terms.concurrent or standing.ended is None:
        return 0.0
    return max(0.0, standing.ended + max(terms.visibility_s, terms.timeout_s) - now)


def send_within_s(terms: Terms, standing: Standing, *, now: float, expires_at: float | None) -> float:
    """Return how long after taking the send-right the first byte may still be offered."""
    bounds = [terms.send_by_s]
    if expires_at is not None and not standing.unsure:
        bounds.append(expires_at - now)
    if standing.unsure and terms.horizon_s is not None and standing.first_sent is not None:
        bounds.append(standing.first_sent + terms.horizon_s - terms.timeout_s - now)
    return min(bounds)
