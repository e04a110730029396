"""Sending one claimed intent: the send-right first, then the handler, then how it ended.

What the flow does depends on what is known of earlier attempts:

    killed its process too often        quarantined: a person looks at it
    restored from a backup              it may have been sent in the lost part: the recipient is asked first
    unsure, inside the horizon          sent again with the key of the first send
    unsure otherwise                    a person looks at it
    expired                             the send-right is filled, so that nobody ever sends it
    anything else                       sent
"""

from __future__ import annotations

from msgspec.structs import replace

from counterfoil.errors import EffectRan
from counterfoil.outbox.endings import (
    NEEDS_OPERATOR,
    QUARANTINED,
    accepted,
    expired,
    given_back,
    parked,
    policy_of,
    proved,
    unknown,
)
from counterfoil.outbox.requests import (
    Clock,
    Encode,
    Expire,
    Finish,
    Grant,
    Note,
    Perform,
    Unsent,
    Verify,
)
from counterfoil.outbox.terms import Terms, may_resend, send_within_s
from counterfoil.outcomes import Accepted, Evidence, Failed, Rejected, Uncertain
from counterfoil.ports.outbox_store import Claim, Ending, LateFact
from counterfoil.protocol import codec
from counterfoil.protocol.keys import outbox_key
from counterfoil.protocol.requests import Overran, Raised, Reply, Returned
from counterfoil.protocol.standings import Standing, granted


def key_of(claim: Claim, terms: Terms) -> str:
    """Return the key that an attempt gives to the recipient: a new one after an attempt that provably failed."""
    standing = claim.standing
    if standing.round == 1 or terms.keep_key:
        return claim.effect_id
    return outbox_key(claim.namespace, claim.key, attempt=standing.round, place=claim.effect_id)


def number_of(standing: Standing) -> int:
    """Return the number of an attempt, for its context."""
    return max(1, standing.claims)


def exhausted(claim: Claim, terms: Terms) -> str | None:
    """Say why an intent is not tried again: it took its process with it too often."""
    standing = claim.standing
    if standing.kills >= terms.kills:
        return "its-process-ended"
    if standing.revoked >= terms.revoked:
        return "claimed-and-never-sent"
    return None


async def send(claim: Claim, terms: Terms) -> None:
    """Carry one claim to its end; what that was is durable when it returns."""
    standing = claim.standing
    if why := exhausted(claim, terms):
        await Finish(parked(claim, QUARANTINED, standing, reason=why))
        return
    now = await Clock()
    if claim.restored and not standing.unsure and standing.sends == 0:
        await Finish(unknown(claim, terms, standing, reason="restored", now=now))
        return
    if standing.unsure and not may_resend(terms, policy_of(claim, terms), standing, now=now):
        await Finish(parked(claim, NEEDS_OPERATOR, standing, reason="horizon-passed"))
        return
    within_s = send_within_s(terms, standing, now=now, expires_at=claim.expires_at)
    if within_s <= 0:
        await Finish(expired(claim) if await Expire(claim) else given_back(claim))
        return
    at = await Grant(claim, within_s)
    if at is None:
        # Revoked by somebody who took us for gone, or paused: what we think of it counts no more, or not yet.
        await Finish(given_back(claim))
        return
    reply = await Perform(claim, key_of(claim, terms), number_of(standing), terms.timeout_s)
    if isinstance(reply, Unsent):
        evidence = Evidence("too-late-to-send", phase="not-dispatched", bytes_offered=0)
        await Finish(await proved(claim, terms, standing, error=Rejected(evidence), now=await Clock()))
        return
    await Finish(await ended(claim, terms, granted(standing, now=at), reply=reply))


async def overdue(claim: Claim, terms: Terms, *, reply: Reply) -> None:
    """Record what a send brought after it was given up: a fact counts whenever it comes (rule L8), and nothing else."""
    ending = await ended(claim, terms, granted(claim.standing, now=await Clock()), reply=reply)
    if ending.fact:
        await Finish(ending)


async def ended(claim: Claim, terms: Terms, standing: Standing, *, reply: Reply) -> Ending:
    """Say what a handler's reply came to.

    Args:
        claim: the claim.
        terms: what holds for its operation.
        standing: with this send counted.
        reply: what the handler did.
    """
    given = reply.value if isinstance(reply, Returned) else reply.error if isinstance(reply, Raised) else None
    if isinstance(given, (Rejected, Failed)):
        if isinstance(given, Rejected):
            # Nothing was dispatched, so it is not a send.
            standing = replace(claim.standing)
        return await proved(claim, terms, standing, error=given, now=await Clock())
    if isinstance(reply, Returned) and not isinstance(given, Uncertain):
        value, evidence = (given.proof, given.evidence) if isinstance(given, Accepted) else (given, None)
        proof = await proof_of(claim, terms, value, ran="yes")
        if isinstance(proof, bytes):
            return accepted(claim, proof, via="run", evidence=evidence)
        return unknown(claim, terms, standing, reason=proof, now=await Clock())
    error = reply.error if isinstance(reply, Raised) else None
    if isinstance(given, Uncertain):
        reason = given.evidence.kind
    else:
        # An error may carry structured evidence of how far it got; its text is never read.
        found = getattr(given, "evidence", None)
        told = found.kind if isinstance(found, Evidence) else "run-raised"
        reason = "run-overran" if isinstance(reply, Overran) else told
    return unknown(claim, terms, standing, reason=reason, now=await Clock(), error=error)


async def proof_of(claim: Claim, terms: Terms, value: object, *, ran: EffectRan) -> bytes | str:
    """Encode and verify a proof; a string says why it proves nothing, and it is kept as late evidence."""
    made = await Encode(claim, value)
    if isinstance(made, str):
        await Note(_refused(claim, made, ran=ran))
        return "proof-rejected"
    if not terms.verified:
        return made
    reply = await Verify(claim, key_of(claim, terms), number_of(claim.standing), made, terms.look_timeout_s)
    if not isinstance(reply, Returned):
        return "verify-raised"
    if not reply.value:
        await Note(_refused(claim, codec.digest(made), ran=ran))
        return "proof-rejected"
    return made


def _refused(claim: Claim, digest: str, *, ran: EffectRan) -> LateFact:
    via = "run" if ran == "yes" else "reconcile"
    body = codec.LateBody(attempt=claim.standing.round, claims="refused", via=via, digest=digest)
    return LateFact(claim=claim, claims="refused", body=codec.body_of(body))
