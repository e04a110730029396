"""What a caller gives for an effect."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from counterfoil.effects.scope import Verifier
from counterfoil.errors import EffectRan, EffectUnresolved, UnresolvedReason
from counterfoil.protocol import codec
from counterfoil.protocol.unaskable import UNASKABLE, Unaskable

# What holds where a caller leaves it out, in seconds.
WAIT_S: Final = 30.0
RECONCILE_TIMEOUT_S: Final = 30.0
VISIBILITY_S: Final = 0.0


class EffectCall(msgspec.Struct):
    """What a caller gave for an effect, checked.

    Args:
        name: the effect's name.
        run: performs the effect and returns the recipient's name for it.
        reconcile: asks the recipient, or `UNASKABLE`.
        told: `run` takes the context, so the attempt's key is needed.
        request: canonical JSON of the request, or None.
        wait_s: seconds to wait for another owner that lives.
        reconcile_timeout_s: seconds for a look-up.
        visibility_s: how long the recipient may take to show an effect.
        verifier: checks a proof, or None.
        retry: the policy, recorded with the first intent.
        retryable: the contract says that a failed attempt may be followed by another.
        keep_key: the contract says that all attempts share one key.
        encode: turns a proof into canonical JSON.
        recipient: what the recipient is called, or None.
    """

    name: str
    run: Callable[..., Any]
    reconcile: Callable[..., Any] | Unaskable
    told: bool = True
    request: bytes | None = None
    wait_s: float = WAIT_S
    reconcile_timeout_s: float = RECONCILE_TIMEOUT_S
    visibility_s: float = VISIBILITY_S
    verifier: Verifier | None = None
    retry: codec.RetryBody | None = None
    retryable: bool = False
    keep_key: bool = False
    encode: Callable[[Any], bytes] = partial(codec.encode, what="the proof")
    recipient: str | None = None


_HINTS: Final = {
    "run-failed": "it may have been sent: do not send it again; call again, and the recipient is asked",
    "proof-rejected": "it may have been sent: do not send it again; mend what the handler returns and call again",
    "reconcile-failed": "not being able to ask proves nothing; mend it and call again",
    "reconcile-timeout": "not being able to ask proves nothing; call again, or give reconcile_timeout= more time",
    "in-flight": "call again later, or wait longer with wait=",
    "too-early": "call again after retry_after_s seconds",
}


def unresolved(
    call: EffectCall,
    reason: UnresolvedReason,
    why: str,
    *,
    ran: EffectRan,
    retry_after_s: float | None = None,
) -> EffectUnresolved:
    """Make the error of a call that found no outcome."""
    return EffectUnresolved(
        f"effect {call.name!r} is unresolved: {why}",
        reason=reason,
        name=call.name,
        effect_ran=ran,
        hint=_HINTS[reason],
        retry_after_s=retry_after_s,
    )


__all__ = ["UNASKABLE", "EffectCall", "Unaskable", "unresolved"]
