"""What an operation's own settings and its recipient's contract say, as the terms of sending it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from counterfoil.outbox.terms import AT_MOST_ONCE, KEYED, RECONCILE_FIRST, Terms


def policy_of_operation(operation: Any) -> str:
    """Return the strongest policy that an operation's contract allows; a key alone allows nothing."""
    return agreed(operation, Terms()).policy


def agreed(operation: Any, defaults: Terms) -> Terms:
    """Make the terms of an operation.

    Args:
        operation: bound to its arguments.
        defaults: the dispatcher's own bounds.
    """
    settings, contract = operation.settings, getattr(operation, "contract", None)
    askable = callable(operation.reconcile)
    said = None if contract is None else contract.policy
    keyed = None if contract is None else contract.idempotency
    policy = said or (RECONCILE_FIRST if askable else AT_MOST_ONCE)
    if policy == RECONCILE_FIRST and not askable:
        policy = AT_MOST_ONCE
    again = policy == KEYED and keyed is not None
    return replace(
        defaults,
        policy=policy,
        askable=askable,
        verified=operation.verify is not None,
        visibility_s=settings.visibility_s,
        retryable=settings.retryable,
        keep_key=settings.keep_key,
        horizon_s=keyed.horizon_s if again and keyed is not None else None,
        concurrent=again and keyed is not None and keyed.concurrent,
        resends=contract.resends if again and contract is not None else 0,
    )
