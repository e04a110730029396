"""Activations and the calls inside them, as the desk keeps them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Literal

from counterfoil.broker.budgets import Budget, Spending
from counterfoil.broker.gate import Gate
from counterfoil.broker.grants import Grant
from counterfoil.outcomes import Evidence, Outcome, Rejected, Uncertain

Reason = Literal["deadline", "cancelled", "revoked", "shutdown", "activation-over"]

# What a reason is called in the evidence of an operation that was never dispatched.
_BEFORE: Final[dict[str, str]] = {"deadline": "deadline-before-dispatch"}


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a policy is asked about.

    Args:
        principal: on whose behalf the activation asks.
        recipient: the recipient's name.
        operation: the verb.
        target: the absolute URL, None for recipients without addresses; in a redirect, that of the hop.
        bytes_out: bytes of the request, None where that is not known before.
        request: the request as a JSON value.
    """

    principal: str
    recipient: str
    _: KW_ONLY
    operation: str
    target: str | None = None
    bytes_out: int | None = None
    request: Any = field(default=None, repr=False)


class Authority:
    """One activation: what it may do, until when, and what it has used.

    Attributes:
        ended: why it allows nothing any more; None while it does.
        calls: the calls whose permits are not given back yet.
        bells: wake those that wait for the time of their next attempt.
    """

    __slots__ = ("bells", "calls", "deadline", "ended", "grants", "principal", "spending")

    def __init__(self, principal: str, grants: tuple[Grant, ...], budget: Budget, *, deadline: float) -> None:
        self.principal = principal
        self.grants = grants
        self.spending = Spending(budget)
        self.deadline = deadline
        self.ended: Reason | None = None
        self.calls: set[Call] = set()
        self.bells: set[Callable[[], None]] = set()


class Call:
    """One attempt of one operation.

    Attributes:
        authority: the activation.
        proposal: what is asked for, at the present target.
        key: its identity, as the recipient gets it.
        number: which attempt of its operation it is, from 1.
        deadline: when its caller leaves.
        began: when it was asked.
        wake: tells the caller to look again; must not block.
        gate: decides whether it goes out.
        outcome: what the caller is told, once that is known.
        told: the caller knows, or has left.
        reserved: its part of the budget is reserved.
        permitted: it has a place among those that work.
        started: the recipient's code was called.
        working: the recipient's code has not returned.
        holds: physical work that outlives the recipient's code.
        retired: its permit was given back.
        offered: bytes of the request offered so far; None: nobody counts them.
        received: bytes of the response.
        facts: what the evidence says when the broker ends the call: peer and contract.
        stops: called once when nobody waits any more.
        audited: the attempt is, or is to be, on record.
        gate_here: the broker takes the gate itself, just before it calls the recipient's code.
        pause_s: seconds until the next attempt, where the retry policy allows one.
    """

    __slots__ = (
        "audited",
        "authority",
        "began",
        "deadline",
        "facts",
        "gate",
        "gate_here",
        "holds",
        "key",
        "number",
        "offered",
        "outcome",
        "pause_s",
        "permitted",
        "proposal",
        "received",
        "reserved",
        "retired",
        "started",
        "stops",
        "told",
        "wake",
        "working",
    )

    def __init__(
        self,
        authority: Authority,
        proposal: Proposal,
        *,
        key: str,
        deadline: float,
        began: float,
        wake: Callable[[], None],
        number: int = 1,
    ) -> None:
        self.authority = authority
        self.proposal = proposal
        self.key = key
        self.number = number
        self.deadline = deadline
        self.began = began
        self.wake = wake
        self.gate = Gate()
        self.outcome: Outcome[Any] | None = None
        self.told = False
        self.reserved = False
        self.permitted = False
        self.started = False
        self.working = False
        self.holds = 0
        self.retired = False
        self.offered: int | None = None
        self.received = 0
        self.facts: dict[str, str] = {}
        self.stops: list[Callable[[], None]] | None = []
        self.audited = False
        self.gate_here = False
        self.pause_s: float | None = None

    @property
    def state(self) -> str:
        """How far it is: `waiting`, `running` or `cleaning` (its caller has left, its work has not retired)."""
        if not self.permitted:
            return "waiting"
        return "cleaning" if self.told else "running"

    def ended_by(self, reason: str) -> Outcome[Any]:
        """Say how it ends when somebody other than its recipient ends it: the gate knows (rule B2)."""
        if self.gate.dispatched:
            return Uncertain(self.evidence(reason))
        return self.never_sent(reason)

    @staticmethod
    def never_sent(reason: str) -> Rejected:
        """Make the outcome of a call whose gate was closed for a reason."""
        return rejected(_BEFORE.get(reason, reason))

    def evidence(self, kind: str, **details: Any) -> Evidence:
        """Make evidence of a call that may have been dispatched."""
        peer = {"peer": self.facts["peer"]} if "peer" in self.facts else {}
        return Evidence(
            kind,
            phase="dispatched",
            bytes_offered=self.offered,
            contract=self.facts.get("contract"),
            details={"attempts": 1, "key": self.key, **peer, **details},
        )


def rejected(kind: str, **details: Any) -> Rejected:
    """Make the outcome of a call that never went out."""
    return Rejected(Evidence(kind, phase="not-dispatched", bytes_offered=0, details={"attempts": 0, **details}))
