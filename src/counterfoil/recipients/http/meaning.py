"""What an answer proves: the default meaning of each status, and what a contract says instead (rule H2).

For a request that may change something and has no contract:

    accepted    200 201 204, and 202, which leaves open whether it was completed
    failed      400 to 407 410 411 413 to 418 421 422 425 426 428 431 451 501 505: refused before anything was done
                301 307 308: moved, and not followed
                408 while the request was still being sent
                409 412 in a first attempt: later ones may have met what the first one did
    uncertain   everything else, 5xx above all: the recipient may have acted before it said so

A read is accepted by every 2xx, and a redirect of a read that was not followed any further has failed.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from counterfoil.errors import NotSerializable
from counterfoil.outcomes import Accepted, Failed, Outcome, Rejected, Uncertain
from counterfoil.protocol import codec
from counterfoil.protocol.pointers import MISSING, find
from counterfoil.recipients.http.facts import ACKNOWLEDGED, DISPATCHED, NOT_DISPATCHED, Facts

if TYPE_CHECKING:
    from counterfoil.broker.contracts import Terms

Meaning = Literal["accepted", "failed", "uncertain"]

ACCEPTED: Final = frozenset({200, 201, 202, 204})
FAILED: Final = frozenset(
    {301, 307, 308, *range(400, 408), 410, 411, *range(413, 419), 421, 422, 425, 426, 428, 431, 451, 501, 505}
)
FAILED_UNSENT: Final = frozenset({408})
FAILED_FIRST: Final = frozenset({409, 412})
READS: Final = frozenset({"GET", "HEAD"})
OPEN: Final = "completion-not-established"
_SECONDS: Final = re.compile(r"[0-9]{1,9}")


def default(status: int, *, method: str, attempt: int, sent_all: bool) -> Meaning:
    """Say what a final status means where no contract says otherwise."""
    if method in READS and 200 <= status < 400:
        return "accepted" if status < 300 else "failed"
    if status in ACCEPTED:
        return "accepted"
    failed = status in FAILED or (status in FAILED_UNSENT and not sent_all) or (status in FAILED_FIRST and attempt <= 1)
    return "failed" if failed else "uncertain"


def judge(facts: Facts, contract: Terms | None, *, method: str, attempt: int) -> Outcome[Any]:
    """Say what became of an exchange that ended with an answer's head, or without one after dispatch."""
    named = None if contract is None else contract.name
    if facts.status is None:
        assert facts.cut is not None
        return uncertain(facts, facts.cut, contract)
    meaning = _meaning(facts, contract, method=method, attempt=attempt)
    proof: Any = {"status": facts.status}
    kind = "status"
    if meaning == "accepted" and contract is not None and contract.proof is not None:
        proof = _proof(facts, contract)
        if proof is MISSING:
            meaning, kind = "uncertain", "no-proof" if facts.cut is None else "cut-response"
    if meaning is None:
        meaning, kind = "uncertain", "cut-response" if facts.cut is not None else "unreadable-answer"
    if (after_s := retry_after(facts.header("retry-after"))) is not None:
        facts.more["retry_after_s"] = after_s
    if meaning == "accepted":
        promises: tuple[str, ...] = (OPEN,) if facts.status == 202 else ()
        if contract is not None:
            promises += contract.promises
        evidence = facts.evidence(kind, ACKNOWLEDGED, contract=named, promises=promises)
        return Accepted(proof, "run", evidence, response=facts.response)
    if meaning == "uncertain":
        return uncertain(facts, kind, contract)
    return failed(facts, kind, contract, retryable=contract is not None and contract.retries(facts.status))


def _meaning(facts: Facts, contract: Terms | None, *, method: str, attempt: int) -> Meaning | None:
    """Say what the status means; None where a contract wants to see a body that cannot be read."""
    assert facts.status is not None
    if contract is not None:
        asked = [row for row in contract.when if row.status == facts.status]
        document = body(facts) if asked else None
        if asked and document is MISSING:
            return None
        for row in asked:
            if same(find(document, row.pointer), row.equals):
                return row.means
        if facts.status in contract.statuses:
            return contract.statuses[facts.status]
    return default(facts.status, method=method, attempt=attempt, sent_all=facts.sent_all)


def body(facts: Facts) -> Any:
    """Decode the body as JSON; `MISSING` where it is cut or none."""
    if facts.cut is not None:
        return MISSING
    try:
        return json.loads(facts.content)
    except (ValueError, RecursionError):
        return MISSING


def same(found: Any, wanted: Any) -> bool:
    """Compare two JSON values; true is not one."""
    return isinstance(found, bool) == isinstance(wanted, bool) and bool(found == wanted)


def _proof(facts: Facts, contract: Terms) -> Any:
    where = contract.proof
    assert where is not None
    if where.header is not None:
        found: Any = facts.header(where.header)
        return MISSING if found is None else found
    assert where.pointer is not None
    found = find(body(facts), where.pointer)
    if found is MISSING or found is None:
        return MISSING
    try:
        return found if len(codec.encode(found, what="the proof")) <= codec.PROOF_BYTES_MAX else MISSING
    except NotSerializable:
        return MISSING


def retry_after(value: str | None) -> float | None:
    """Read a Retry-After header: seconds, or a date; None where there is none that can be read."""
    if value is None:
        return None
    if _SECONDS.fullmatch(value):
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return None


def rejected(facts: Facts, kind: str, contract: Terms | None, **details: Any) -> Rejected:
    """Say that nothing was dispatched, and why."""
    facts.more |= details
    return Rejected(facts.evidence(kind, NOT_DISPATCHED, contract=None if contract is None else contract.name))


def failed(facts: Facts, kind: str, contract: Terms | None, *, retryable: bool = False, **details: Any) -> Failed:
    """Say that the recipient's protocol proves that nothing was done, and by what."""
    facts.more |= details
    named = None if contract is None else contract.name
    outcome = Failed(facts.evidence(kind, DISPATCHED, contract=named), retryable=retryable)
    outcome.response = facts.response
    return outcome


def uncertain(facts: Facts, kind: str, contract: Terms | None) -> Uncertain:
    """Say that nothing proves how it ended, and by which key to ask."""
    if facts.key:
        facts.more["key"] = facts.key
    named = None if contract is None else contract.name
    return Uncertain(facts.evidence(kind, DISPATCHED, contract=named), response=facts.response)
