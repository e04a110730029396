"""How an attempt ends: its outcome recorded, its fact held while the ledger is away, or its release."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from counterfoil.effects.call import EffectCall
from counterfoil.effects.evidence import keep_late
from counterfoil.effects.record import entry_of, record
from counterfoil.effects.scope import Held, Scope
from counterfoil.errors import CommitUnknown, CounterfoilError, EffectRan, LedgerUnavailable
from counterfoil.protocol import codec, records, slots
from counterfoil.protocol.history import Attempt
from counterfoil.protocol.records import Draft
from counterfoil.protocol.requests import Now, Read


async def release(
    scope: Scope, call: EffectCall, attempt: Attempt, *, why: str, evidence: codec.EvidenceBody | None = None
) -> None:
    """Say that `run` of an attempt is over without an outcome; from here on anybody may ask."""
    draft = Draft(
        slot=slots.released(call.name, attempt.number),
        kind=records.EFFECT,
        phase="released",
        body=codec.body_of(codec.ReleasedBody(why=why, evidence=evidence)),
    )
    # The cause of the release matters more to the caller, and this life knows anyway that run is over.
    with suppress(CounterfoilError):
        await record(draft)
    scope.memory.over[attempt.intent.slot] = await Now()


async def conclude(
    scope: Scope,
    call: EffectCall,
    number: int,
    *,
    phase: str,
    body: codec.OutcomeBody,
    ran: EffectRan,
    proof: Any = None,
    decision: bool = False,
) -> bool:
    """Record an outcome and say whether it stands.

    A fact that comes second is late evidence; one that cannot be recorded is held.
    """
    draft = Draft(
        slot=slots.outcome(call.name, number),
        kind=records.EFFECT,
        phase=phase,
        body=codec.body_of(body),
        decision=decision,
    )
    try:
        filled = await record(draft)
    except LedgerUnavailable as error:
        if decision:
            raise LedgerUnavailable(
                f"the outcome of effect {call.name!r} could not be recorded", effect_ran=ran, proof=proof
            ) from error
        entry = entry_of(error) if isinstance(error, CommitUnknown) else None
        scope.memory.held[draft.slot] = Held(call.name, number, draft, entry, proof)
        raise LedgerUnavailable(
            f"effect {call.name!r} ended, and the ledger could not record how",
            effect_ran=ran,
            proof=proof,
            hint="this process keeps trying to record it; do not send it again",
        ) from error
    if not filled.ours:
        await _second(scope, call.name, number, draft=draft, standing=filled.record)
    return filled.ours


async def _second(scope: Scope, name: str, number: int, *, draft: Draft, standing: records.Record) -> None:
    await Read()
    body = msgspec.json.decode(draft.body, type=codec.OutcomeBody)
    theirs = scope.history.parse(standing, codec.OutcomeBody)
    same = standing.phase == draft.phase and bytes(theirs.proof) == bytes(body.proof)
    if draft.decision or (same and body.via == "reconcile"):
        return
    late = codec.LateBody(attempt=number, claims=draft.phase, via=body.via, proof=body.proof, evidence=body.evidence)
    await keep_late(scope, name, late)


async def append_held(scope: Scope, name: str, number: int) -> None:
    """Record a fact that this life holds since the ledger refused it.

    Raises:
        LedgerUnavailable: still not; `proof` is what the recipient returned.
    """
    slot = slots.outcome(name, number)
    held = scope.memory.held[slot]
    try:
        filled = await record(held.draft, settle=held.entry)
    except LedgerUnavailable as error:
        raise LedgerUnavailable(
            f"effect {name!r} ended, and the ledger still cannot record how",
            effect_ran="no" if held.draft.phase == "rejected" else "yes",
            proof=held.proof,
            hint="this process keeps trying to record it; do not send it again",
        ) from error
    scope.memory.held.pop(slot, None)
    if not filled.ours:
        await _second(scope, name, number, draft=held.draft, standing=filled.record)
