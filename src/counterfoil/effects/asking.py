"""Asking: settling an attempt that may have been sent, by the recipient's own record."""

from __future__ import annotations

from typing import Any

import msgspec

from counterfoil.effects.call import EffectCall, Unaskable, unresolved
from counterfoil.effects.conclude import conclude
from counterfoil.effects.evidence import accepted_before, acknowledged, proof_of, refuse, verified
from counterfoil.effects.record import record
from counterfoil.effects.scope import Scope
from counterfoil.errors import NotSerializable
from counterfoil.outcomes import Evidence, Failed
from counterfoil.protocol import codec, records, slots
from counterfoil.protocol.history import Attempt, evidence_body, link_of, look
from counterfoil.protocol.records import Draft
from counterfoil.protocol.requests import Call, Instant, Now, Overran, Raised
from counterfoil.protocol.retries import next_due


async def settle_by_asking(scope: Scope, call: EffectCall, attempt: Attempt) -> None:
    """Record what the recipient says of an attempt whose `run` is over.

    Raises:
        EffectUnresolved: it could not be asked, or found nothing too early; nothing was recorded.
    """
    if await _pending_evidence(scope, call, attempt):
        return
    if isinstance(call.reconcile, Unaskable):
        # Nothing is looked up, so there is nothing to be too early for.
        await _not_found(scope, call, attempt, kind="unaskable")
        return
    visibility_s = max(call.visibility_s, attempt.body.visibility_s or 0.0)
    ended = await _ended(scope, call, attempt) if visibility_s > 0 else None
    started = await Now()
    if await _asked(scope, call, attempt):
        return
    early = 0.0 if ended is None else visibility_s - _elapsed(scope, attempt, ended=ended, started=started)
    if early > 0:
        raise unresolved(
            call,
            "too-early",
            f"a look-up found nothing, and the recipient may take {visibility_s:g} s to show an effect",
            ran="unknown",
            retry_after_s=early,
        )
    await _not_found(scope, call, attempt, kind="not-found")


async def _asked(scope: Scope, call: EffectCall, attempt: Attempt) -> bool:
    """Ask the recipient; True if that gave an outcome, False if it found nothing."""
    assert not isinstance(call.reconcile, Unaskable)
    key = scope.key(call.name, attempt.number, keep=attempt.body.keep_key)
    reply = await Call(call.reconcile, key=key, attempt=attempt.number, timeout_s=call.reconcile_timeout_s)
    if isinstance(reply, Overran):
        raise unresolved(
            call,
            "reconcile-timeout",
            f"its reconcile took longer than {call.reconcile_timeout_s:g} s",
            ran="unknown",
        )
    if isinstance(reply, Raised):
        await _ask_raised(scope, call, attempt, reply=reply)
        return True
    return await _found(scope, call, attempt, value=reply.value)


async def _ended(scope: Scope, call: EffectCall, attempt: Attempt) -> records.Record:
    """Return the record of when `run` ended or its owner was found gone, making it if there is none."""
    if attempt.released is None:
        draft = Draft(
            slot=slots.released(call.name, attempt.number),
            kind=records.EFFECT,
            phase="released",
            body=codec.body_of(codec.ReleasedBody(why="owner-gone")),
        )
        filled = await record(draft)
        if filled.ours:
            scope.memory.over[attempt.intent.slot] = await Now()
        attempt.released = filled.record
    return attempt.released


def _elapsed(scope: Scope, attempt: Attempt, *, ended: records.Record, started: Instant) -> float:
    known = scope.memory.over.get(attempt.intent.slot)
    # Where this life saw the end itself, a wall clock that was set makes the wait neither shorter nor longer.
    return started.wall - ended.at if known is None else started.mono - known.mono


async def _found(scope: Scope, call: EffectCall, attempt: Attempt, *, value: Any) -> bool:
    if value is None or isinstance(value, Unaskable):
        return False
    value, evidence = acknowledged(value)
    try:
        proof = proof_of(call.encode, value)
    except NotSerializable as error:
        await refuse(scope, call.name, attempt.number, via="reconcile", value=value)
        raise unresolved(
            call, "proof-rejected", f"its reconcile returned what cannot be kept: {error}", ran="unknown"
        ) from error
    if not await verified(scope, call.name, attempt, verifier=call.verifier, proof=proof, ran="unknown"):
        await refuse(scope, call.name, attempt.number, via="reconcile", value=value, proof=proof)
        return False
    body = codec.OutcomeBody(via="reconcile", proof=msgspec.Raw(proof), evidence=evidence)
    await conclude(scope, call, attempt.number, phase="accepted", body=body, ran="yes", proof=value)
    return True


async def _not_found(scope: Scope, call: EffectCall, attempt: Attempt, *, kind: str) -> None:
    evidence = codec.EvidenceBody(kind=kind, phase="dispatched")
    known = None if attempt.released is None else scope.history.parse(attempt.released, codec.ReleasedBody).evidence
    if known is not None:
        # How far the attempt itself got is all that anybody knows, and what a person has to go by (rule O6).
        details = {**(known.details or {}), "run": known.kind}
        evidence = msgspec.structs.replace(known, kind=kind, phase=known.phase or "dispatched", details=details)
    body = codec.OutcomeBody(via="reconcile", evidence=evidence)
    await conclude(scope, call, attempt.number, phase="uncertain", body=body, ran="unknown", decision=True)


async def _ask_raised(scope: Scope, call: EffectCall, attempt: Attempt, *, reply: Raised) -> None:
    error = reply.error
    if isinstance(error, Failed):
        # The key is closed at the recipient: a late landing is impossible, so this attempt did not happen.
        await _closed_at_recipient(scope, call, attempt, error=error)
        return
    if reply.interrupts:
        raise error
    raise unresolved(call, "reconcile-failed", f"its reconcile raised {type(error).__name__}", ran="unknown") from error


async def _closed_at_recipient(scope: Scope, call: EffectCall, attempt: Attempt, *, error: Failed) -> None:
    retryable = error.retryable or call.retryable
    first = look(scope.history, call.name).attempts[0]
    # A closed key is never used again, so where attempts share one there is no other attempt.
    due = None
    if retryable and not attempt.body.keep_key:
        now = (await Now()).wall
        due = next_due(first.body.retry, attempt.number, now=now, began=first.intent.at, evidence=error.evidence)
    if due is None and attempt.number > 1 and await accepted_before(scope, call.name):
        due = (await Now()).wall
    phase = "failed"
    body = codec.OutcomeBody(via="reconcile", evidence=evidence_body(error.evidence), due=due, retryable=retryable)
    if due is None and link_of(scope.history, call.name) is not None:
        linked = Evidence("earlier-attempt-uncertain", details={"this_attempt": {"outcome": "failed"}})
        phase, body = "uncertain", codec.OutcomeBody(via="reconcile", evidence=evidence_body(linked))
    await conclude(scope, call, attempt.number, phase=phase, body=body, ran="unknown", decision=True)


async def _pending_evidence(scope: Scope, call: EffectCall, attempt: Attempt) -> bool:
    """Take up proofs that came by another way while nobody here could verify them."""
    for _, late in look(scope.history, call.name).late:
        if not late.pending or late.attempt != attempt.number:
            continue
        proof = bytes(late.proof)
        if await verified(scope, call.name, attempt, verifier=call.verifier, proof=proof, ran="unknown"):
            body = codec.OutcomeBody(via="evidence", proof=late.proof, source=late.source)
            await conclude(
                scope, call, attempt.number, phase="accepted", body=body, ran="yes", proof=codec.decode(proof)
            )
            return True
    return False
