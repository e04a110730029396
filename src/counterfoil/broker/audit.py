"""What the audit keeps of an immediate operation: an effect of a run that stands for the activation.

The words are those of an effect, so `show`, `effects`, `export`, `verify` and `decide` know them: an intent
before the dispatch, the outcome that the caller was told, and what came later as late evidence. No request, answer
or proof is in it: only a digest of the request, under the ledger's own key, and facts from a closed list.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from counterfoil.broker.calls import Proposal
from counterfoil.broker.targets import parse
from counterfoil.outcomes import Accepted, Evidence, Failed, Outcome, Rejected
from counterfoil.protocol import codec, keys, records, slots, states
from counterfoil.protocol.records import Draft

RUN_PREFIX: Final = "activation/"
BODY: Final = "counterfoil:activation"
_SLUG: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_SLUG_MAX: Final = 64
# The details that are kept, and what they may look like: the broker's own words and plain facts, never sentences.
_KEPT: Final = {
    "attempts": re.compile("[0-9]{1,3}"),
    "peer": re.compile(r"[0-9a-fA-F.:\[\]]{2,60}"),
    "by": re.compile("grants|policy"),
    "budget": re.compile("calls|bytes_out|bytes_in|in_flight"),
    "error": re.compile("[A-Z][A-Za-z]{2,60}"),
}


def name_of(proposal: Proposal, number: int) -> str:
    """Name an operation in the audit: its place in the activation, the verb, and where it goes, without a path."""
    place = None if proposal.target is None else parse(proposal.target)
    words = [str(number), proposal.operation, "" if place is None else place.origin]
    whole = " ".join(word for word in words if word)
    return whole.encode()[: keys.NAME_BYTES_MAX].decode(errors="ignore")


def started(principal: str) -> Draft:
    """Record that an activation began, and on whose behalf."""
    args = msgspec.Raw(codec.encode([principal], what="the principal"))
    body = codec.body_of(codec.StartedBody(body=BODY, args=args))
    return Draft(slot=slots.STARTED, kind=records.RUN, phase="started", body=body, decision=True)


def finished() -> Draft:
    """Record that an activation is over, so that it may be pruned."""
    body = codec.body_of(codec.FinishedBody())
    return Draft(slot=slots.FINISHED, kind=records.RUN, phase="finished", body=body, decision=True)


def intent(
    name: str,
    number: int,
    *,
    recipient: str,
    fingerprint: str | None,
    retry: codec.RetryBody | None = None,
    keep_key: bool = False,
) -> Draft:
    """Record that an operation may go out now."""
    body = codec.IntentBody(
        fingerprint=fingerprint, retry=retry if number == 1 else None, keep_key=keep_key, recipient=recipient
    )
    slot = slots.intent(name, number)
    return Draft(slot=slot, kind=records.EFFECT, phase="intent", body=codec.body_of(body), decision=True)


def ended(name: str, number: int, outcome: Outcome[Any], *, due: float | None = None) -> Draft:
    """Record what the caller was told."""
    body = codec.OutcomeBody(
        evidence=_recordable(outcome.evidence),
        due=due,
        retryable=isinstance(outcome, Failed) and outcome.retryable,
    )
    return Draft(slot=slots.outcome(name, number), kind=records.EFFECT, phase=_phase(outcome), body=codec.body_of(body))


def late(number: int, outcome: Outcome[Any]) -> codec.LateBody:
    """Keep what came after the caller had been told."""
    return codec.LateBody(attempt=number, claims=_phase(outcome), via="run", evidence=_recordable(outcome.evidence))


def worth_keeping(told: Outcome[Any], outcome: Outcome[Any]) -> bool:
    """Whether what came later says more than what the caller was told."""
    return isinstance(outcome, (Accepted, Failed)) or (isinstance(outcome, Rejected) and _phase(told) != "rejected")


def _phase(outcome: Outcome[Any]) -> str:
    if isinstance(outcome, Accepted):
        return states.ACCEPTED
    if isinstance(outcome, Rejected):
        return states.REJECTED
    return states.FAILED if isinstance(outcome, Failed) else states.UNCERTAIN


def _recordable(evidence: Evidence) -> codec.EvidenceBody:
    details = {
        name: value
        for name, value in (evidence.details or {}).items()
        if name in _KEPT and type(value) in (int, str) and _KEPT[name].fullmatch(str(value))
    }
    return codec.EvidenceBody(
        kind=evidence.kind if _is_slug(evidence.kind) else "unnamed",
        phase=evidence.phase if evidence.phase is None or _is_slug(evidence.phase) else "unnamed",
        bytes_offered=evidence.bytes_offered,
        status=evidence.status,
        contract=evidence.contract,
        promises=tuple(promise for promise in evidence.promises if _is_slug(promise)),
        details=details or None,
    )


def _is_slug(text: Any) -> bool:
    return isinstance(text, str) and len(text) <= _SLUG_MAX and _SLUG.fullmatch(text) is not None
