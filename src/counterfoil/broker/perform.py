"""The order of one call, told once for both colours, and what its recipient's answer comes to.

The caller drives `admit`; with a permit in hand, whoever does the work drives `work` to its end, whether the
caller is still there or not. Between the two nothing is owed to anybody but what `Desk` knows.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from counterfoil.broker.calls import Call, rejected
from counterfoil.broker.desk import Desk
from counterfoil.outcomes import Accepted, Failed, Outcome, Rejected, Uncertain, combine
from counterfoil.protocol import codec
from counterfoil.protocol.requests import Request
from counterfoil.protocol.retries import next_due

# Rejections that somebody decided: asking again would ask for the same decision.
DECIDED: Final = frozenset(
    {
        "refused-by-policy",
        "budget-exhausted",
        "deadline-before-dispatch",
        "cancelled",
        "revoked",
        "shutdown",
        "activation-over",
        "audit-unavailable",
        "run-raised",
        "withdrawn",
    }
)


class Admission(Request[None]):
    """Wait until the call has a permit or has ended."""

    call: Call


class Intended(Request["Rejected | None"]):
    """Record the attempt, durably where the audit is required; the answer says why it must not go on, or None."""

    call: Call


class Performed(Request["Outcome[Any] | BaseException"]):
    """Have the recipient's code do the work; the answer is its outcome, or what it raised."""

    call: Call


class Ended(Request[None]):
    """Record the outcome that the caller was told; `late` is another one that came after it."""

    call: Call
    late: Outcome[Any] | None


async def admit(desk: Desk, call: Call) -> Rejected | None:
    """Bring a call from its asking to its permit; the refusal, if it does not get one."""
    refused = desk.ask(call) or desk.reserve(call)
    if refused is None:
        if not desk.enqueue(call):
            await Admission(call)
        # What was allowed when it was asked may have been forbidden while it waited.
        refused = desk.check(call)
    if refused is not None:
        desk.withdraw(call)
    return refused


async def work(desk: Desk, call: Call, *, terms: Terms) -> None:
    """Bring a call from its permit to its outcome, and its permit back; the caller may leave at any time."""
    refused = await Intended(call) if terms.audited else None
    stopped = refused or desk.start(call)
    if stopped is not None:
        desk.withdraw(call)
        answer: Outcome[Any] | BaseException = stopped
    else:
        answer = await Performed(call)
        desk.returned(call)
    outcome = conclusion(call, answer)
    if stopped is None:
        call.pause_s = terms.pause_s(call, outcome, now=desk.now())
    standing = desk.settle(call, outcome)
    if call.audited:
        # What kept the call from coming to work is no evidence of the recipient's.
        await Ended(call, None if standing or stopped is not None else outcome)
    desk.tell(call)


def conclusion(call: Call, answer: Any) -> Outcome[Any]:
    """Say what an answer of the recipient's code comes to; an exception is no evidence (rule O2)."""
    if isinstance(answer, Rejected) and call.gate.dispatched and not call.gate_here:
        # Beyond the dispatch line nothing proves that nothing was sent (rule H1).
        return Uncertain(answer.evidence)
    if isinstance(answer, (Accepted, Rejected, Failed, Uncertain)):
        return answer
    if call.gate.dispatched:
        return Uncertain(call.evidence("run-raised", error=type(answer).__name__))
    return rejected("run-raised", error=type(answer).__name__)


class Attempted(Request["tuple[Outcome[Any], float | None]"]):
    """Make an attempt; the answer is how it ended, and the seconds until the next one, if there is to be one."""

    number: int


class Backoff(Request[None]):
    """Wait before the next attempt; where the activation ends meanwhile, that attempt is refused at once."""

    seconds: float


async def attempts() -> Outcome[Any]:
    """Make one attempt, and further ones as far as the retry policy allows; say how all of them ended together."""
    outcomes: list[Outcome[Any]] = []
    while True:
        number = len(outcomes) + 1
        outcome, pause_s = await Attempted(number)
        outcomes.append(outcome)
        if pause_s is None:
            return outcome if number == 1 else combine(outcomes)
        await Backoff(pause_s)


class Terms(msgspec.Struct, frozen=True):
    """What holds for every attempt of one operation.

    Args:
        audited: attempts are recorded.
        retry: the policy, or None: one attempt.
        retryable: the contract says that an attempt that failed may be followed by another.
        began: when the first attempt was asked, on the desk's clock.
        deadline: when the caller leaves.
    """

    audited: bool
    retry: codec.RetryBody | None
    retryable: bool
    began: float
    deadline: float

    def pause_s(self, call: Call, outcome: Outcome[Any], *, now: float) -> float | None:
        """Say how long to wait for the next attempt; None: there is none (rule B7).

        Only what is proved not to have happened is tried again: rejected by the recipient's own code, not by
        somebody's decision, or failed where the contract calls that retryable. An idempotency key says nothing.
        """
        if self.retry is None or call.outcome is not None:
            return None
        if not isinstance(outcome, Rejected):
            if not isinstance(outcome, Failed) or not (outcome.retryable or self.retryable):
                return None
        elif outcome.evidence.kind in DECIDED:
            return None
        due = next_due(self.retry, call.number, now=now, began=self.began, evidence=outcome.evidence)
        return None if due is None or due >= self.deadline else due - now
