"""How a claim can end, and where that leaves its intent: decided here, recorded by the flows."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from counterfoil.outbox.retry import delay_s
from counterfoil.outbox.terms import AT_MOST_ONCE, OPERATOR_ONLY, Terms, narrowed
from counterfoil.outcomes import Evidence, Failed, Rejected
from counterfoil.ports.outbox_store import Claim, Ending, Requeue
from counterfoil.protocol import codec
from counterfoil.protocol.history import evidence_body
from counterfoil.protocol.standings import LOOK, SEND, Standing, drained

RETRY: str = "retry-scheduled"
RECONCILING: str = "reconciling"
NEEDS_OPERATOR: str = "needs-operator"
QUARANTINED: str = "quarantined"
BLOCKED: str = "blocked"
PENDING: str = "pending"


def body_of(evidence: Evidence, *, via: str = "run", retryable: bool = False) -> bytes:
    """Encode an outcome that has no proof."""
    return codec.body_of(codec.OutcomeBody(via=via, evidence=evidence_body(evidence), retryable=retryable))


def policy_of(claim: Claim, terms: Terms) -> str:
    """Return the policy that holds for an intent."""
    return narrowed(terms.policy, claim.policy)


def parked(claim: Claim, state: str, standing: Standing, *, reason: str) -> Ending:
    """Leave it to a person, with the reason."""
    kind = LOOK if standing.unsure else SEND
    requeue = Requeue(kind=kind, state=state, standing=standing, delay_s=None, reason=reason)
    return Ending(claim=claim, phase="parked", requeue=requeue)


def given_back(claim: Claim, *, delay_s: float = 0.0, reason: str | None = None) -> Ending:
    """Put it back as it was: the claim does not count."""
    standing = drained(claim.standing, claim.kind)
    tried = RETRY if standing.claims > standing.revoked else PENDING
    state = RECONCILING if claim.kind == LOOK else tried
    requeue = Requeue(kind=claim.kind, state=state, standing=standing, delay_s=delay_s, reason=reason)
    return Ending(claim=claim, phase="drained", requeue=requeue)


def expired(claim: Claim) -> Ending:
    """End an intent that was not sent in time."""
    evidence = Evidence("expired", phase="not-dispatched", bytes_offered=0)
    return Ending(claim=claim, phase="rejected", body=body_of(evidence))


def accepted(claim: Claim, proof: bytes, *, via: str, evidence: Evidence | None = None) -> Ending:
    """End an intent that the recipient acknowledged: a fact."""
    made = None if evidence is None else evidence_body(evidence)
    body = codec.OutcomeBody(via=via, proof=msgspec.Raw(proof), evidence=made)
    return Ending(claim=claim, phase="accepted", body=codec.body_of(body), fact=True)


def unknown(
    claim: Claim, terms: Terms, standing: Standing, *, reason: str, now: float, error: BaseException | None = None
) -> Ending:
    """Say what follows when it may have been sent and its end is not known.

    Args:
        claim: the claim.
        terms: what holds for its operation.
        standing: with this send counted.
        reason: why the end is not known.
        now: the database's clock.
        error: what the handler raised; its type is kept, its text is not.
    """
    details = None if error is None else {"error": type(error).__name__}
    body = body_of(Evidence(reason, phase="dispatched", details=details))
    unsure = replace(standing, unsure=True, ended=now, asked=None, looks=0)
    policy = policy_of(claim, terms)
    if policy == AT_MOST_ONCE:
        # Nobody can know more.
        return Ending(claim=claim, phase="uncertain", body=body)
    if policy == OPERATOR_ONLY:
        return msgspec.structs.replace(parked(claim, NEEDS_OPERATOR, unsure, reason=reason), body=body)
    wait_s = terms.visibility_s if terms.askable else 0.0
    requeue = Requeue(kind=LOOK, state=RECONCILING, standing=unsure, delay_s=wait_s, reason=reason)
    return Ending(claim=claim, phase="released", body=body, requeue=requeue)


async def proved(claim: Claim, terms: Terms, standing: Standing, *, error: Rejected | Failed, now: float) -> Ending:
    """Say what follows when this attempt provably was not sent, or failed.

    Args:
        claim: the claim.
        terms: what holds for its operation.
        standing: what is known; with this send counted where it was sent.
        error: the proof.
        now: the database's clock.
    """
    failed = isinstance(error, Failed)
    retryable = isinstance(error, Rejected) or terms.retryable or error.retryable
    phase = "failed" if failed else "rejected"
    body = body_of(error.evidence, retryable=failed and retryable)
    if standing.unsure:
        # Uncertainty is sticky (rule O3): this attempt says nothing about the earlier one.
        return await _beside_an_unsure_one(claim, terms, standing, evidence=error.evidence, retryable=retryable)
    tries = standing.claims - standing.revoked
    if not retryable or tries >= terms.attempts or policy_of(claim, terms) == OPERATOR_ONLY:
        return Ending(claim=claim, phase=phase, body=body, fact=True)
    wait_s = await delay_s(terms, tries, evidence=error.evidence)
    if claim.expires_at is not None:
        wait_s = max(0.0, min(wait_s, claim.expires_at - now))
    again = standing
    if failed and not terms.keep_key:
        again = replace(again, round=again.round + 1, first_sent=None, sends=0)
    requeue = Requeue(kind=SEND, state=RETRY, standing=again, delay_s=wait_s, reason=error.evidence.kind)
    return Ending(claim=claim, phase=phase, body=body, fact=True, requeue=requeue)


async def _beside_an_unsure_one(
    claim: Claim, terms: Terms, standing: Standing, *, evidence: Evidence, retryable: bool
) -> Ending:
    if not retryable:
        return parked(claim, NEEDS_OPERATOR, standing, reason="earlier-send-unsure")
    wait_s = await delay_s(terms, standing.claims - standing.revoked, evidence=evidence)
    requeue = Requeue(kind=LOOK, state=RECONCILING, standing=standing, delay_s=wait_s, reason=evidence.kind)
    return Ending(claim=claim, phase="released", requeue=requeue)
