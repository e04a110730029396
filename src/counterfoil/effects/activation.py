"""The audit of an activation: its calls recorded as effects of a run, and what a crash left of it."""

from __future__ import annotations

from typing import Any

import msgspec

from counterfoil.broker import audit
from counterfoil.broker.calls import rejected
from counterfoil.effects.call import UNASKABLE, EffectCall
from counterfoil.effects.effect import effect
from counterfoil.effects.evidence import keep_late
from counterfoil.effects.record import record
from counterfoil.effects.scope import Scope
from counterfoil.errors import EffectUnresolved, OwnerRetired
from counterfoil.outcomes import Outcome
from counterfoil.protocol import codec, slots, states
from counterfoil.protocol.history import look
from counterfoil.protocol.records import Draft
from counterfoil.protocol.requests import Gone, Live, Now, Read


class Attempt(msgspec.Struct, kw_only=True):
    """One attempt of an immediate operation, as it is recorded.

    Args:
        principal: on whose behalf the activation asks.
        name: the operation's name in the activation's run.
        number: which attempt of it.
        recipient: whom it asks.
        fingerprint: keyed digest of the request.
        retry: the policy, recorded with the first attempt.
        keep_key: all attempts share one key.
        intended: its intent is on record.
    """

    principal: str
    name: str
    number: int
    recipient: str
    fingerprint: str | None
    retry: codec.RetryBody | None = None
    keep_key: bool = False
    intended: bool = False

    def intent(self) -> Draft:
        """Make the record of its intent."""
        return audit.intent(
            self.name,
            self.number,
            recipient=self.recipient,
            fingerprint=self.fingerprint,
            retry=self.retry,
            keep_key=self.keep_key,
        )


async def intend(attempt: Attempt) -> None:
    """Record that an attempt may go out now; durable on return.

    Raises:
        LedgerError: it is not, or it is not known whether it is; nothing may be sent.
    """
    if attempt.number == 1:
        await record(audit.started(attempt.principal))
    filled = await record(attempt.intent())
    attempt.intended = True
    # After an append that was settled late this life may have been taken for gone.
    if filled.settled and not await Live():
        raise OwnerRetired("this owner was retired while the attempt was being recorded", effect_ran="no")


async def conclude(
    scope: Scope, attempt: Attempt, told: Outcome[Any], *, pause_s: float | None, late: Outcome[Any] | None
) -> None:
    """Record what the caller was told, and what came after it; whatever of it is on record stays."""
    if not attempt.intended:
        await intend(attempt)
    due = None if pause_s is None else (await Now()).wall + pause_s
    await record(audit.ended(attempt.name, attempt.number, told, due=due))
    if late is not None and audit.worth_keeping(told, late):
        await keep_late(scope, attempt.name, audit.late(attempt.number, late))


async def finish() -> None:
    """Record that the activation is over."""
    await record(audit.finished())


async def abandon(attempt: Attempt, reason: str) -> None:
    """End an operation whose next attempt was due and is not going to be made."""
    await record(attempt.intent())
    await record(audit.ended(attempt.name, attempt.number, rejected(reason)))


async def clear_up(scope: Scope) -> bool:
    """Record as uncertain what a life that is gone left without an outcome, and end its activation.

    Returns:
        False if its life is not known to be gone; then nothing is recorded.
    """
    await Read()
    history = scope.history
    began = history.get(slots.STARTED)
    if began is None or history.finished is not None or history.pruned:
        return False
    if began.epoch in scope.own_epochs or not await Gone(began.epoch):
        return False
    for name in history.effect_names():
        seen = look(history, name)
        last = seen.last
        if last is None or seen.state in states.FINAL:
            continue
        if seen.state == states.RETRYABLE:
            left = Attempt(
                principal="", name=name, number=last.number + 1, recipient=last.body.recipient or "", fingerprint=None
            )
            await abandon(left, "owner-gone")
            continue
        call = EffectCall(name=name, run=_never, reconcile=UNASKABLE, wait_s=0.0)
        try:
            await effect(scope, call)
        except EffectUnresolved:
            return False
    await finish()
    return True


def _never() -> None:
    raise AssertionError("what an activation left is never sent again")
