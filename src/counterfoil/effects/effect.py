"""An effect: the intent before, the outcome after, and the recipient asked where nobody knows.

The flow looks at the records, does the one thing that they allow, and looks again until they hold a final
outcome. What each state allows:

    absent, retryable   take the send-right by filling the intent's slot; whoever fills it performs
    intended            the owner lives: wait for it. It is gone: ask the recipient
    released            ask the recipient
    final               return it; nothing is called
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from counterfoil.effects.asking import settle_by_asking
from counterfoil.effects.call import UNASKABLE, EffectCall, Unaskable, unresolved
from counterfoil.effects.conclude import append_held, conclude, release
from counterfoil.effects.evidence import accepted_before, acknowledged, close, proof_of, refuse, verified
from counterfoil.effects.record import entry_of, record
from counterfoil.effects.scope import Held, Scope
from counterfoil.effects.step import longest, until
from counterfoil.errors import (
    CommitUnknown,
    EffectUnresolved,
    LedgerReadOnly,
    LedgerUnavailable,
    NameConflict,
    NotSerializable,
    OwnerRetired,
    RunPruned,
)
from counterfoil.outcomes import Evidence, Failed, Outcome, Rejected
from counterfoil.protocol import codec, records, slots, states
from counterfoil.protocol.history import Attempt, evidence_body, link_of, look, outcome_of, plainly_accepted
from counterfoil.protocol.records import Draft
from counterfoil.protocol.requests import (
    Call,
    Gone,
    Live,
    Now,
    Pause,
    Raised,
    Read,
    Returned,
)
from counterfoil.protocol.retries import next_due

POLL_S: Final = 1.0


def recorded(scope: Scope, name: str, request: bytes | None) -> Outcome[msgspec.Raw] | None:
    """Return the final outcome that is on record, or None.

    Raises:
        NameConflict: the name was recorded for another request.
        LedgerCorrupt: a record of this effect cannot be decoded.
    """
    history = scope.history
    first, ended = history.first_attempt(name)
    if not history.has_more(name):
        if first is None:
            return None
        if ended is not None and not history.pruned:
            plain = plainly_accepted(history, first, ended)
            if plain is not None:
                if request is not None:
                    _same_request(scope, name, plain[0], request=request)
                return plain[1]
    seen = look(history, name)
    _same_request(scope, name, seen.first_fingerprint, request=request)
    return seen.outcome()


def _same_request(scope: Scope, name: str, recorded_for: str | None, *, request: bytes | None) -> None:
    if request is not None and not scope.same_fingerprint(request, recorded_for):
        raise NameConflict(
            f"effect {name!r} of run {scope.run!r} is recorded for another request; this one was not sent",
            hint="give a different effect a different name",
        )


async def effect(scope: Scope, call: EffectCall) -> Outcome[msgspec.Raw]:
    """Return the effect's final outcome; when it returns, the outcome is durable.

    Raises:
        EffectUnresolved: there is an intent and no outcome; calling again asks again.
        LedgerUnavailable: the ledger gave no durable answer; `effect_ran` says whether something was sent.
        NameConflict, UsageError, OwnerRetired, RunPruned: nothing was sent by this call.
    """
    try:
        if not scope.history.has_effect(call.name):
            # Nobody has begun it, as is usual, and then this is usually all.
            attempt = await _begin(scope, call, [])
            if attempt is not None and (outcome := await _perform(scope, call, attempt)) is not None:
                return outcome
        return await _settled(scope, call)
    except LedgerUnavailable as error:
        if error.effect_ran == "no" and _may_be_sent(scope, call.name):
            # This call sent nothing, but the ledger failed it where an intent stands that others act on (rule E20).
            error.effect_ran = "unknown"
        raise


def _may_be_sent(scope: Scope, name: str) -> bool:
    last = look(scope.history, name).last
    if last is None or last.outcome is not None or last.intent.slot in scope.memory.unsent:
        return False
    return _held(scope, last, name) is None


async def _settled(scope: Scope, call: EffectCall) -> Outcome[msgspec.Raw]:
    deadline: float | None = None
    fresh = False
    over_of = ""
    while True:
        seen = look(scope.history, call.name)
        _same_request(scope, call.name, seen.first_fingerprint, request=call.request)
        if (outcome := seen.outcome()) is not None:
            return outcome
        if scope.history.pruned:
            raise RunPruned(f"run {scope.run!r} was pruned; it has nothing under effect {call.name!r}")
        last, attempt = seen.last, None
        if last is None or seen.state == states.RETRYABLE:
            attempt = await _begin(scope, call, seen.attempts)
        elif _held(scope, last, call.name) is not None:
            await append_held(scope, call.name, last.number)
        elif (lost := scope.memory.unsent.get(last.intent.slot)) is not None:
            attempt = await _claim(scope, call, last.number, draft=_resent(lost), body=last.body)
        elif over_of == last.intent.slot:
            await settle_by_asking(scope, call, last)
        elif await over(scope, last):
            # Its owner may have recorded how it ended just before it was found gone: then nobody is asked.
            over_of = last.intent.slot
            await Read()
        elif not fresh:
            # Another life may have recorded more since this one has read: it is not waited for.
            fresh = True
            await Read()
        else:
            now = (await Now()).mono
            deadline = now + call.wait_s if deadline is None else deadline
            if now >= deadline:
                raise unresolved(call, "in-flight", "its owner is alive and still performing it", ran="unknown")
            await Pause(min(deadline - now, POLL_S))
            await Read()
        if attempt is not None and (outcome := await _perform(scope, call, attempt)) is not None:
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


async def _begin(scope: Scope, call: EffectCall, earlier: list[Attempt]) -> Attempt | None:
    """Take the send-right of the next attempt and return what is to be performed; None: the records tell more now."""
    number = len(earlier) + 1
    slot = slots.intent(call.name, number)
    first = earlier[0].body if earlier else None
    if first is not None and (ending := earlier[-1].ending) is not None:
        await until(ending.due, at_most_s=longest(first.retry))
        await Read()
        if scope.history.get(slot) is not None or await _evidence_first(scope, call, number):
            return None
    scope.open_for("effect", call.name)
    if first is None and scope.history.decisions and await _accepted_meanwhile(scope, call):
        return None
    restored = first is None and scope.older_than_restore()
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
    seen = look(scope.history, call.name)
    for _, late in seen.late:
        if late.claims != "accepted":
            continue
        told, verifier = seen.attempts[late.attempt - 1], call.verifier if late.pending else None
        if await verified(scope, call.name, told, verifier=verifier, proof=bytes(late.proof), ran="unknown"):
            await close(call.name, number, late)
            return True
    return False


async def _accepted_meanwhile(scope: Scope, call: EffectCall) -> bool:
    """Close the name of a repeat where evidence came that what it repeats was accepted after all.

    Attempts that a person's decision links count as one (rule O3), so that evidence is this name's outcome.
    """
    linked = link_of(scope.history, call.name)
    for _, late in linked.late if linked is not None else ():
        if late.claims == "accepted" and not late.pending:
            await close(call.name, 1, late)
            return True
    return False


async def _claim(
    scope: Scope, call: EffectCall, number: int, *, draft: Draft, body: codec.IntentBody
) -> Attempt | None:
    """Take the send-right by filling its slot; return what is to be performed, None when it is not."""
    lost = scope.memory.unsent.get(draft.slot)
    if lost is not None:
        # What is appended is the lost intent itself: another request is not sent under it (rule E12).
        body = msgspec.json.decode(lost.body, type=codec.IntentBody)
        _same_request(scope, call.name, body.fingerprint, request=call.request)
    try:
        filled = await record(draft, settle=lost)
    except CommitUnknown as unknown:
        scope.memory.unsent[draft.slot] = entry_of(unknown)
        raise LedgerUnavailable(
            f"the ledger gave no answer about the intent of effect {call.name!r}; it was not sent",
            effect_ran="no",
            hint="call again: this process goes on where it stopped",
        ) from unknown
    except OwnerRetired:
        # A retired epoch fills no intent any more: what was lost did not land and never will.
        scope.memory.unsent.pop(draft.slot, None)
        raise
    except LedgerReadOnly:
        raise
    except LedgerUnavailable as error:
        raise LedgerUnavailable(
            f"the intent of effect {call.name!r} could not be recorded; it was not sent: {error}",
            effect_ran="no",
            code=error.code,
        ) from error
    if lost is not None:
        scope.memory.unsent.pop(draft.slot, None)
    if not filled.ours:
        await Read()
        return None
    if body.restored:
        return None
    # After an append that was settled late the owner may have been retired, or a sync may have failed.
    if filled.settled and not await Live():
        evidence = Evidence("fenced", phase="not-dispatched", bytes_offered=0)
        await conclude(
            scope,
            call,
            number,
            phase="rejected",
            body=codec.OutcomeBody(evidence=evidence_body(evidence)),
            ran="no",
        )
        return None
    return Attempt(number, filled.record, body)


# --- performing ------------------------------------------------------------------------------------------


async def _perform(scope: Scope, call: EffectCall, attempt: Attempt) -> Outcome[msgspec.Raw] | None:
    """Call `run` and record what it returned; return the outcome, None when the records tell it."""
    key = scope.key(call.name, attempt.number, keep=attempt.body.keep_key) if call.told else ""
    reply = await Call(call.run, key=key, attempt=attempt.number, told=call.told)
    if not isinstance(reply, Returned):
        assert isinstance(reply, Raised)
        await _raised(scope, call, attempt, reply=reply)
        return None
    value, evidence = acknowledged(reply.value)
    try:
        proof = proof_of(call.encode, value)
    except NotSerializable as error:
        await refuse(scope, call.name, attempt.number, via="run", value=value)
        await release(scope, call, attempt, why="proof-rejected")
        raise unresolved(call, "proof-rejected", f"its run returned what cannot be kept: {error}", ran="yes") from error
    if call.verifier is not None:
        await _check(scope, call, attempt, proof=proof, value=value)
    body = codec.OutcomeBody(via="run", proof=msgspec.Raw(proof), evidence=evidence)
    if not await conclude(scope, call, attempt.number, phase="accepted", body=body, ran="yes", proof=value):
        return None
    # Accepted by this attempt: whatever became of earlier ones, this is how all of them ended (rule O3).
    return outcome_of(states.ACCEPTED, body)


async def _raised(scope: Scope, call: EffectCall, attempt: Attempt, *, reply: Raised) -> None:
    """Record what an error of `run` proves, or release the attempt and say that it is unresolved."""
    error = reply.error
    if isinstance(error, (Rejected, Failed)):
        await _proved(scope, call, attempt.number, error=error)
        return
    said = getattr(error, "evidence", None)
    known = evidence_body(said) if isinstance(said, Evidence) else None
    await release(scope, call, attempt, why="run-raised", evidence=known)
    if reply.interrupts:
        raise error
    if look(scope.history, call.name).outcome() is None:
        raise unresolved(call, "run-failed", f"its run raised {type(error).__name__}", ran="unknown") from error
    # Evidence came by another way while `run` was under way: the caller gets what is recorded (rule E18).


async def _check(scope: Scope, call: EffectCall, attempt: Attempt, *, proof: bytes, value: Any) -> None:
    """Let the caller's `verify` check what `run` returned; what it does not let pass is released."""
    try:
        holds = await verified(scope, call.name, attempt, verifier=call.verifier, proof=proof, ran="yes")
    except EffectUnresolved:
        await release(scope, call, attempt, why="verify-raised")
        raise
    if not holds:
        await refuse(scope, call.name, attempt.number, via="run", value=value, proof=proof)
        await release(scope, call, attempt, why="proof-rejected")
        raise unresolved(call, "proof-rejected", "verify refused what its run returned", ran="unknown")


async def _proved(scope: Scope, call: EffectCall, number: int, *, error: Rejected | Failed) -> None:
    phase = "rejected" if isinstance(error, Rejected) else "failed"
    retryable = isinstance(error, Failed) and (error.retryable or call.retryable)
    now = (await Now()).wall
    first = look(scope.history, call.name).attempts[0]
    allowed = retryable or phase == "rejected"
    due = None
    if allowed:
        due = next_due(first.body.retry, number, now=now, began=first.intent.at, evidence=error.evidence)
    if due is None and number > 1 and await accepted_before(scope, call.name):
        due = now
    body = codec.OutcomeBody(evidence=evidence_body(error.evidence), due=due, retryable=retryable)
    if due is None and link_of(scope.history, call.name) is not None:
        # Attempts linked by a person's decision count as one: the earlier one is still uncertain (rule O3).
        own = {"outcome": phase, "kind": error.evidence.kind, "status": error.evidence.status}
        linked = Evidence("earlier-attempt-uncertain", phase=error.evidence.phase, details={"this_attempt": own})
        phase, body = "uncertain", codec.OutcomeBody(evidence=evidence_body(linked))
    await conclude(scope, call, number, phase=phase, body=body, ran="no" if phase == "rejected" else "yes")


__all__ = ["UNASKABLE", "EffectCall", "Unaskable", "append_held", "effect", "over", "recorded"]
