"""Asking the recipient about an intent that may have been sent, with a budget of its own (rule X8).

found                           accepted, via reconcile
closed at the recipient         failed: a late landing is impossible
not found                       sent again with its key where it is keyed and inside the horizon; else a person
could not ask                   asked again later, up to the bounds; then as if not found
cannot be asked                 as the policy says: uncertain, a person, or sent again with its key
"""

from __future__ import annotations

from msgspec.structs import replace

from counterfoil.outbox.dispatch import exhausted, key_of, number_of, proof_of
from counterfoil.outbox.endings import (
    NEEDS_OPERATOR,
    QUARANTINED,
    RECONCILING,
    RETRY,
    accepted,
    body_of,
    given_back,
    parked,
    policy_of,
    unknown,
)
from counterfoil.outbox.requests import Ask, Clock, Finish
from counterfoil.outbox.retry import delay_s
from counterfoil.outbox.terms import AT_MOST_ONCE, OPERATOR_ONLY, Terms, may_resend, resend_wait_s
from counterfoil.outcomes import Accepted, Failed, Uncertain
from counterfoil.ports.outbox_store import Claim, Ending, Requeue
from counterfoil.protocol.requests import Overran, Raised, Reply
from counterfoil.protocol.standings import LOOK, SEND


async def look(claim: Claim, terms: Terms) -> None:
    """Carry one claim to ask to its end; what that was is durable when it returns."""
    standing = claim.standing
    now = await Clock()
    if policy_of(claim, terms) in (AT_MOST_ONCE, OPERATOR_ONLY):
        await Finish(unknown(claim, terms, standing, reason="owner-gone", now=now))
    elif why := exhausted(claim, terms):
        await Finish(parked(claim, QUARANTINED, standing, reason=why))
    elif not terms.askable:
        await Finish(_once_more(claim, terms, now=now, reason="cannot-be-asked"))
    elif (early_s := (standing.ended or 0.0) + terms.visibility_s - now) > 0:
        await Finish(given_back(claim, delay_s=early_s, reason="too-early"))
    elif standing.looks > terms.looks or now - (standing.asked or now) > terms.look_within_s:
        await Finish(_once_more(claim, terms, now=now, reason="reconcile-exhausted"))
    else:
        reply = await Ask(claim, key_of(claim, terms), number_of(standing), terms.look_timeout_s)
        await Finish(await _answered(claim, terms, reply=reply, now=now))


async def _answered(claim: Claim, terms: Terms, *, reply: Reply, now: float) -> Ending:
    if isinstance(reply, Overran):
        return await _later(claim, terms, reason="reconcile-timeout")
    if isinstance(reply, Raised):
        if isinstance(reply.error, Failed):
            body = body_of(reply.error.evidence, via="reconcile")
            return Ending(claim=claim, phase="failed", body=body)
        return await _later(claim, terms, reason="reconcile-failed")
    value = reply.value
    if isinstance(value, Accepted):
        value = value.proof
    if isinstance(value, Uncertain):
        return await _later(claim, terms, reason=value.evidence.kind)
    if value is None:
        return _once_more(claim, terms, now=now, reason="not-found")
    proof = await proof_of(claim, terms, value, ran="unknown")
    if isinstance(proof, bytes):
        return accepted(claim, proof, via="reconcile")
    if proof == "verify-raised":
        return await _later(claim, terms, reason=proof)
    return _once_more(claim, terms, now=now, reason=proof)


async def _later(claim: Claim, terms: Terms, *, reason: str) -> Ending:
    wait_s = await delay_s(terms, claim.standing.looks)
    requeue = Requeue(kind=LOOK, state=RECONCILING, standing=claim.standing, delay_s=wait_s, reason=reason)
    return Ending(claim=claim, phase="looked", requeue=requeue)


def _once_more(claim: Claim, terms: Terms, *, now: float, reason: str) -> Ending:
    """Nothing proves how it ended: send it again where the recipient knows its key, else leave it to a person."""
    standing = claim.standing
    wait_s = resend_wait_s(terms, standing, now=now)
    if not may_resend(terms, policy_of(claim, terms), standing, now=now + wait_s):
        return parked(claim, NEEDS_OPERATOR, standing, reason=reason)
    again = replace(standing, looks=0, asked=None)
    requeue = Requeue(kind=SEND, state=RETRY, standing=again, delay_s=wait_s, reason=reason)
    return Ending(claim=claim, phase="looked", requeue=requeue)
