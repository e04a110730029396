"""An effect: the intent before, the outcome after, and the recipient asked where nobody knows.

The flow looks at the records, does the one thing that they allow, and looks again until they hold a final
outcome. What each state allows:

    absent, retryable   take the send-right by filling the intent's slot; whoever fills it performs
    intended            the owner lives: wait for it. It is gone: ask the recipient
    released            ask the recipient
    final               return it; nothing is called
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from counterfoil.effects.evidence import close, keep_late, proof_of, refuse, verified
from counterfoil.effects.record import entry_of, record
from counterfoil.effects.scope import Held, Scope, Verifier
from counterfoil.effects.step import next_due, until
from counterfoil.errors import (
    CommitUnknown,
    Conflict,
    CounterfoilError,
    EffectRan,
    EffectUnresolved,
    LedgerReadOnly,
    LedgerUnavailable,
    NameConflict,
    NotSerializable,
    RunPruned,
    UnresolvedReason,
)
from counterfoil.outcomes import Evidence, Failed, Outcome, Rejected
from counterfoil.protocol import codec, records, slots, states
from counterfoil.protocol.history import Attempt, Effect, evidence_body, link_of, look, outcome_of
from counterfoil.protocol.records import Draft
from counterfoil.protocol.requests import (
    Call,
    Gone,
    Instant,
    Live,
    Now,
    Overran,
    Pause,
    Raised,
    Read,
    Returned,
)

POLL_S: Final = 1.0


class Unaskable:
    """The type of `UNASKABLE`."""

    def __repr__(self) -> str:
        return "UNASKABLE"

    def __reduce__(self) -> str:
        return "UNASKABLE"


UNASKABLE: Final = Unaskable()
"""Given as `reconcile`: this recipient cannot be asked, so an attempt that may have been sent is uncertain."""


@dataclass(slots=True)
class EffectCall:
    """What a caller gave for an effect, checked.

    Args:
        name: the effect's name.
        run: performs the effect and returns the recipient's name for it.
        reconcile: asks the recipient, or `UNASKABLE`.
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
    request: bytes | None = None
    wait_s: float = 30.0
    reconcile_timeout_s: float = 30.0
    visibility_s: float = 0.0
    verifier: Verifier | None = None
    retry: codec.RetryBody | None = None
    retryable: bool = False
    keep_key: bool = False
    encode: Callable[[Any], bytes] = field(default=lambda value: codec.encode(value, what="the proof"))
    recipient: str | None = None


def recorded(scope: Scope, name: str, request: bytes | None) -> Outcome[msgspec.Raw] | None:
    """Return the final outcome that is on record, or None.

    Raises:
        NameConflict: the name was recorded for another request.
        LedgerCorrupt: a record of this effect cannot be decoded.
    """
    known = scope.memory.known.get(name)
    if known is not None:
        _same_request(scope, name, known[0], request=request)
        return known[1]
    seen = look(scope.history, name)
    _same_request(scope, name, seen.first_fingerprint, request=request)
    outcome = seen.outcome()
    if outcome is not None and not scope.history.pruned:
        scope.memory.known[name] = seen.first_fingerprint, outcome
    return outcome


def _same_request(scope: Scope, name: str, recorded_for: str | None, *, request: bytes | None) -> None:
    if not scope.same_fingerprint(request, recorded_for):
        raise NameConflict(
            f"effect {name!r} of run {scope.run!r} is recorded for another request; this one was not sent",
            hint="give a different effect a different name",
        )


async def effect(scope: Scope, call: EffectCall) -> Outcome[msgspec.Raw]:
    """Return the effect's final outcome; when it returns, the outcome is durable.

    Raises:
        EffectUnresolved: there is an intent and no outcome; calling again asks again.
        LedgerUnavailable: the ledger gave no durable answer; `effect_ran` says whether something was sent.
        NameConflict, Conflict, UsageError, OwnerRetired, RunPruned: nothing was sent by this call.
    """
    deadline: float | None = None
    while True:
        seen = look(scope.history, call.name)
        _same_request(scope, call.name, seen.first_fingerprint, request=call.request)
        if (outcome := seen.outcome()) is not None:
            return outcome
        if scope.history.pruned:
            raise RunPruned(f"run {scope.run!r} was pruned; it has nothing under effect {call.name!r}")
        last = seen.last
        if last is None or seen.state == states.RETRYABLE:
            outcome = await _begin(scope, call, seen)
        elif _held(scope, last, call.name) is not None:
            await append_held(scope, call.name, last.number)
        elif (lost := scope.memory.unsent.get(last.intent.slot)) is not None:
            outcome = await _claim(scope, call, last.number, draft=_resent(lost))
        elif await over(scope, last):
            await _settle_by_asking(scope, call, last)
        else:
            now = (await Now()).mono
            if deadline is None:
                deadline = now + call.wait_s
            elif now >= deadline:
                raise _unresolved(call, "in-flight", "its owner is alive and still performing it", ran="unknown")
            else:
                await Pause(min(deadline - now, POLL_S))
            await Read()
        if outcome is not None:
            return outcome


def _held(scope: Scope, attempt: Attempt, name: str) -> Held | None:
    return scope.memory.held.get(slots.outcome(name, attempt.number))


def _resent(lost: records.Entry) -> Draft:
    return Draft(slot=lost.slot, kind=lost.kind, phase=lost.phase, body=lost.body, decision=lost.decision)


async def over(scope: Scope, attempt: Attempt) -> bool:
    """Say whether `run` of an attempt is over: released, or never to be called, or its owner is gone.

    A flow is the only one of its life at this name, so an intent of our own life that nobody performs is over.
    """
    if attempt.released is not None or attempt.body.restored or not scope.owned:
        return True
    if attempt.intent.epoch in scope.own_epochs:
        return True
    return await Gone(attempt.intent.epoch)


# --- taking the send-right -------------------------------------------------------------------------------


async def _begin(scope: Scope, call: EffectCall, seen: Effect) -> Outcome[msgspec.Raw] | None:
    number = len(seen.attempts) + 1
    slot = slots.intent(call.name, number)
    if seen.last is not None and seen.last.ending is not None:
        await until(seen.last.ending.due)
        await Read()
        if scope.history.get(slot) is not None or await _evidence_first(scope, call, number):
            return None
    scope.open_for(f"effect {call.name!r}")
    _not_after_acceptance(scope, call)
    first = seen.attempts[0].body if seen.attempts else None
    began = scope.history.began_in
    restored = first is None and began is not None and began < scope.accepted_generation
    body = codec.IntentBody(
        fingerprint=scope.fingerprint(call.request),
        visibility_s=call.visibility_s or None,
        retry=call.retry if first is None else None,
        keep_key=call.keep_key if first is None else first.keep_key,
        verified=call.verifier is not None,
        restored=restored,
        recipient=call.recipient,
    )
    draft = Draft(slot=slot, kind=records.EFFECT, phase="intent", body=codec.body_of(body), decision=True)
    return await _claim(scope, call, number, draft=draft, body=body)


async def _evidence_first(scope: Scope, call: EffectCall, number: int) -> bool:
    """Let evidence that an earlier attempt was accepted take the slot of the next intent."""
    for _, late in look(scope.history, call.name).late:
        if late.claims == "accepted" and (
            not late.pending or await verified(call.verifier, call.name, bytes(late.proof), ran="unknown")
        ):
            await close(call.name, number, late)
            return True
    return False


def _not_after_acceptance(scope: Scope, call: EffectCall) -> None:
    linked = link_of(scope.history, call.name)
    if linked is not None and linked.accepted_evidence is not None:
        raise Conflict(
            f"effect {call.name!r} was to be sent again for {linked.name!r}, but evidence came since that "
            f"{linked.name!r} was accepted; nothing was sent",
            code="accepted-meanwhile",
        )


async def _claim(
    scope: Scope, call: EffectCall, number: int, *, draft: Draft, body: codec.IntentBody | None = None
) -> Outcome[msgspec.Raw] | None:
    """Take the send-right and perform; return the outcome, or None when the records tell more than before."""
    lost = scope.memory.unsent.get(draft.slot)
    try:
        filled = await record(draft, settle=lost)
    except CommitUnknown as unknown:
        scope.memory.unsent[draft.slot] = entry_of(unknown)
        raise LedgerUnavailable(
            f"the ledger gave no answer about the intent of effect {call.name!r}; it was not sent",
            effect_ran="no",
            hint="call again: this process goes on where it stopped",
        ) from unknown
    except LedgerReadOnly:
        raise
    except LedgerUnavailable as error:
        raise LedgerUnavailable(
            f"the intent of effect {call.name!r} could not be recorded; it was not sent: {error}",
            effect_ran="no",
            code=error.code,
        ) from error
    scope.memory.unsent.pop(draft.slot, None)
    if not filled.ours:
        if filled.record.phase == "closed" and number == 1:
            raise Conflict(
                f"effect {call.name!r} is closed: evidence came that what it repeats was accepted; nothing was sent",
                code="accepted-meanwhile",
            )
        await Read()
        return None
    if body is None or lost is not None:
        body = scope.history.parse(filled.record, codec.IntentBody)
    if body.restored:
        return None
    # After an append that was settled late the owner may have been retired, or a sync may have failed.
    if (lost is not None or filled.settled) and not await Live():
        evidence = Evidence("fenced", phase="not-dispatched", bytes_offered=0)
        await _conclude(
            scope,
            call,
            number,
            phase="rejected",
            body=codec.OutcomeBody(evidence=evidence_body(evidence)),
            ran="no",
        )
        return None
    return await _perform(scope, call, Attempt(number, filled.record, body))


# --- performing ------------------------------------------------------------------------------------------


async def _perform(scope: Scope, call: EffectCall, attempt: Attempt) -> Outcome[msgspec.Raw] | None:
    key = scope.key(call.name, attempt.number, keep=attempt.body.keep_key)
    reply = await Call(call.run, key=key, attempt=attempt.number)
    if isinstance(reply, Returned):
        return await _returned(scope, call, attempt, value=reply.value)
    if isinstance(reply, Raised) and isinstance(reply.error, (Rejected, Failed)):
        await _proved(scope, call, attempt.number, error=reply.error)
        return None
    assert isinstance(reply, Raised)
    await _release(scope, call, attempt, why="run-raised")
    if reply.interrupts:
        raise reply.error
    raise _unresolved(
        call, "run-failed", f"its run raised {type(reply.error).__name__}", ran="unknown"
    ) from reply.error


async def _returned(scope: Scope, call: EffectCall, attempt: Attempt, *, value: Any) -> Outcome[msgspec.Raw] | None:
    try:
        proof = proof_of(call.encode, value)
    except NotSerializable as error:
        await refuse(scope, call.name, attempt.number, via="run", value=value)
        await _release(scope, call, attempt, why="proof-rejected")
        raise _unresolved(
            call, "proof-rejected", f"its run returned what cannot be kept: {error}", ran="yes"
        ) from error
    try:
        holds = await verified(call.verifier, call.name, proof, ran="yes")
    except EffectUnresolved:
        await _release(scope, call, attempt, why="verify-raised")
        raise
    if not holds:
        await refuse(scope, call.name, attempt.number, via="run", value=value, proof=proof)
        await _release(scope, call, attempt, why="proof-rejected")
        raise _unresolved(call, "proof-rejected", "verify refused what its run returned", ran="unknown")
    body = codec.OutcomeBody(via="run", proof=msgspec.Raw(proof))
    if not await _conclude(scope, call, attempt.number, phase="accepted", body=body, ran="yes", proof=value):
        return None
    # Accepted by this attempt: whatever became of earlier ones, this is how all of them ended (rule O3).
    outcome = outcome_of("accepted", body)
    if attempt.number == 1:
        scope.memory.known[call.name] = attempt.body.fingerprint, outcome
    return outcome


async def _proved(scope: Scope, call: EffectCall, number: int, *, error: Rejected | Failed) -> None:
    phase = "rejected" if isinstance(error, Rejected) else "failed"
    retryable = isinstance(error, Failed) and (error.retryable or call.retryable)
    now = (await Now()).wall
    first = look(scope.history, call.name).attempts[0]
    allowed = retryable or phase == "rejected"
    due = next_due(first.body.retry, number, now=now, began=first.intent.at) if allowed else None
    body = codec.OutcomeBody(evidence=evidence_body(error.evidence), due=due, retryable=retryable)
    if due is None and link_of(scope.history, call.name) is not None:
        # Attempts linked by a person's decision count as one: the earlier one is still uncertain (rule O3).
        own = {"outcome": phase, "kind": error.evidence.kind, "status": error.evidence.status}
        linked = Evidence("earlier-attempt-uncertain", phase=error.evidence.phase, details={"this_attempt": own})
        phase, body = "uncertain", codec.OutcomeBody(evidence=evidence_body(linked))
    await _conclude(scope, call, number, phase=phase, body=body, ran="no" if phase == "rejected" else "yes")


async def _release(scope: Scope, call: EffectCall, attempt: Attempt, *, why: str) -> None:
    draft = Draft(
        slot=slots.released(call.name, attempt.number),
        kind=records.EFFECT,
        phase="released",
        body=codec.body_of(codec.ReleasedBody(why=why)),
    )
    # The cause of the release matters more to the caller, and this life knows anyway that run is over.
    with suppress(CounterfoilError):
        await record(draft)
    scope.memory.over[attempt.intent.slot] = await Now()


async def _conclude(
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


# --- asking ----------------------------------------------------------------------------------------------


async def _settle_by_asking(scope: Scope, call: EffectCall, attempt: Attempt) -> None:
    if await _pending_evidence(scope, call, attempt):
        return
    if isinstance(call.reconcile, Unaskable):
        await _not_found(scope, call, attempt, evidence=Evidence("unaskable", phase="dispatched"))
        return
    visibility_s = max(call.visibility_s, attempt.body.visibility_s or 0.0)
    ended = await _ended(scope, call, attempt) if visibility_s > 0 else None
    started = await Now()
    key = scope.key(call.name, attempt.number, keep=attempt.body.keep_key)
    reply = await Call(call.reconcile, key=key, attempt=attempt.number, timeout_s=call.reconcile_timeout_s)
    if isinstance(reply, Overran):
        raise _unresolved(
            call,
            "reconcile-timeout",
            f"its reconcile took longer than {call.reconcile_timeout_s:g} s",
            ran="unknown",
        )
    if isinstance(reply, Raised):
        await _ask_raised(scope, call, attempt, reply=reply)
        return
    if await _found(scope, call, attempt, value=reply.value):
        return
    early = 0.0 if ended is None else visibility_s - _elapsed(scope, attempt, ended=ended, started=started)
    if early > 0:
        raise _unresolved(
            call,
            "too-early",
            f"a look-up found nothing, and the recipient may take {visibility_s:g} s to show an effect",
            ran="unknown",
            retry_after_s=early,
        )
    await _not_found(scope, call, attempt, evidence=Evidence("not-found", phase="dispatched"))


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
    elapsed = started.wall - ended.at
    known = scope.memory.over.get(attempt.intent.slot)
    # Where this life saw the end itself, a wall clock that was set forward cannot shorten the wait.
    return elapsed if known is None else min(elapsed, started.mono - known.mono)


async def _found(scope: Scope, call: EffectCall, attempt: Attempt, *, value: Any) -> bool:
    if value is None or isinstance(value, Unaskable):
        return False
    try:
        proof = proof_of(call.encode, value)
    except NotSerializable as error:
        await refuse(scope, call.name, attempt.number, via="reconcile", value=value)
        raise _unresolved(
            call, "proof-rejected", f"its reconcile returned what cannot be kept: {error}", ran="unknown"
        ) from error
    if not await verified(call.verifier, call.name, proof, ran="unknown"):
        await refuse(scope, call.name, attempt.number, via="reconcile", value=value, proof=proof)
        return False
    body = codec.OutcomeBody(via="reconcile", proof=msgspec.Raw(proof))
    await _conclude(scope, call, attempt.number, phase="accepted", body=body, ran="yes", proof=value)
    return True


async def _not_found(scope: Scope, call: EffectCall, attempt: Attempt, *, evidence: Evidence) -> None:
    body = codec.OutcomeBody(via="reconcile", evidence=evidence_body(evidence))
    await _conclude(scope, call, attempt.number, phase="uncertain", body=body, ran="unknown", decision=True)


async def _ask_raised(scope: Scope, call: EffectCall, attempt: Attempt, *, reply: Raised) -> None:
    error = reply.error
    if isinstance(error, Failed):
        # The key is closed at the recipient: a late landing is impossible, so this attempt did not happen.
        await _closed_at_recipient(scope, call, attempt, error=error)
        return
    if reply.interrupts:
        raise error
    raise _unresolved(
        call, "reconcile-failed", f"its reconcile raised {type(error).__name__}", ran="unknown"
    ) from error


async def _closed_at_recipient(scope: Scope, call: EffectCall, attempt: Attempt, *, error: Failed) -> None:
    retryable = error.retryable or call.retryable
    first = look(scope.history, call.name).attempts[0]
    # A closed key is never used again, so where attempts share one there is no other attempt.
    due = None
    if retryable and not attempt.body.keep_key:
        due = next_due(first.body.retry, attempt.number, now=(await Now()).wall, began=first.intent.at)
    phase = "failed"
    body = codec.OutcomeBody(via="reconcile", evidence=evidence_body(error.evidence), due=due, retryable=retryable)
    if due is None and link_of(scope.history, call.name) is not None:
        linked = Evidence("earlier-attempt-uncertain", details={"this_attempt": {"outcome": "failed"}})
        phase, body = "uncertain", codec.OutcomeBody(via="reconcile", evidence=evidence_body(linked))
    await _conclude(scope, call, attempt.number, phase=phase, body=body, ran="unknown", decision=True)


async def _pending_evidence(scope: Scope, call: EffectCall, attempt: Attempt) -> bool:
    """Take up proofs that came by another way while nobody here could verify them."""
    for _, late in look(scope.history, call.name).late:
        if not late.pending or late.attempt != attempt.number:
            continue
        proof = bytes(late.proof)
        if await verified(call.verifier, call.name, proof, ran="unknown"):
            body = codec.OutcomeBody(via="evidence", proof=late.proof, source=late.source)
            await _conclude(
                scope, call, attempt.number, phase="accepted", body=body, ran="yes", proof=codec.decode(proof)
            )
            return True
    return False


def _unresolved(
    call: EffectCall,
    reason: UnresolvedReason,
    why: str,
    *,
    ran: EffectRan,
    retry_after_s: float | None = None,
) -> EffectUnresolved:
    return EffectUnresolved(
        f"effect {call.name!r} is unresolved: {why}",
        reason=reason,
        name=call.name,
        effect_ran=ran,
        retry_after_s=retry_after_s,
    )


__all__ = [
    "UNASKABLE",
    "EffectCall",
    "Unaskable",
    "append_held",
    "effect",
    "over",
    "recorded",
]
