"""What callers of a broker give, checked before anything is reserved, recorded or sent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from counterfoil.broker.budgets import Budget
from counterfoil.broker.calls import Proposal
from counterfoil.broker.grants import Grant
from counterfoil.errors import UsageError
from counterfoil.protocol import codec, keys
from counterfoil.runtime.arguments import recorded_retry
from counterfoil.runtime.coding import PROOF, Coder, coder


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """An operation that a broker can perform.

    Args:
        operation: the operation itself.
        proposal: what the policy is asked about.
        coder: encodes and decodes proofs, for operations that return one.
        retry: the policy for further attempts.
        retryable: the contract says that a failed attempt may be followed by another.
        keep_key: all attempts share one key.
    """

    operation: Any
    proposal: Proposal
    coder: Coder
    retry: codec.RetryBody | None
    retryable: bool
    keep_key: bool


def proposed(operation: Any, *, principal: str, retry: Any, whole: bool) -> Proposed:
    """Check an operation; `whole`: with its request, which takes time to make and which only some ask for.

    Raises:
        UsageError: it is none, or says of itself what cannot be.
    """
    settings = getattr(operation, "settings", None)
    verb = getattr(settings, "operation", None)
    if settings is None or verb is None or not any(hasattr(operation, name) for name in ("run", "perform")):
        raise UsageError(
            f"perform takes an operation of a recipient, not {type(operation).__name__}",
            hint="for example send(to=…) of a Recipient, or http.post(…)",
        )
    target, bytes_out = getattr(operation, "target", None), getattr(operation, "bytes_out", None)
    if target is not None and not isinstance(target, str):
        raise UsageError(f"the target of an operation is an absolute URL or None, not {type(target).__name__}")
    if bytes_out is not None and (type(bytes_out) is not int or bytes_out < 0):
        raise UsageError(f"bytes_out of an operation is an int of 0 or more, or None, not {bytes_out!r}")
    return Proposed(
        operation=operation,
        proposal=Proposal(
            principal,
            keys.name(settings.recipient, "the recipient's name"),
            operation=keys.name(verb, "the operation's verb"),
            target=target,
            bytes_out=bytes_out,
            request=operation.request if whole else None,
        ),
        coder=coder(settings.proof_type, PROOF),
        retry=recorded_retry(retry),
        retryable=bool(settings.retryable),
        keep_key=bool(settings.keep_key),
    )


def grants(given: Any) -> tuple[Grant, ...]:
    """Check an activation's grants."""
    if isinstance(given, Grant) or not isinstance(given, Iterable):
        raise UsageError(f"grants is a tuple of Grant, not {type(given).__name__}", hint="write grants=(Grant(…),)")
    found = tuple(given)
    for grant in found:
        if not isinstance(grant, Grant):
            raise UsageError(f"grants is a tuple of Grant; one of them is a {type(grant).__name__}")
    return found


def budget(given: Any) -> Budget:
    """Check an activation's budget; None limits nothing."""
    if given is None:
        return Budget()
    if not isinstance(given, Budget):
        raise UsageError(f"budget is a Budget or None, not {type(given).__name__}")
    return given
