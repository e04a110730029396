"""What the flows of the outbox ask their driver for, beside the time and a look at chance."""

from __future__ import annotations

from typing import Any

import msgspec

from counterfoil.ports.outbox_store import Claim, Ending, LateFact
from counterfoil.protocol.requests import Reply, Request


class Clock(Request[float]):
    """Ask for the database's clock, in seconds since 1970."""


class Chance(Request[float]):
    """Ask for a number from 0 up to, but not including, 1."""


class Grant(Request["float | None"]):
    """Take the send-right of a claim, durably: when that was, or None if it cannot be had.

    Args:
        claim: the claim.
        within_s: how long after it sending may still begin.
    """

    claim: Claim
    within_s: float


class Expire(Request[bool]):
    """Fill the send-right so that nothing is ever sent; False if it was filled before."""

    claim: Claim


class Unsent(msgspec.Struct, frozen=True):
    """The last check before sending found it too late; nothing was sent."""


class Perform(Request["Reply | Unsent"]):
    """Perform the operation, if its `within_s` has not passed. Asked for under a granted send-right only."""

    claim: Claim
    key: str
    number: int
    timeout_s: float


class Ask(Request[Reply]):
    """Ask the recipient what became of it."""

    claim: Claim
    key: str
    number: int
    timeout_s: float


class Verify(Request[Reply]):
    """Check a proof with the operation's `verify`."""

    claim: Claim
    key: str
    number: int
    proof: bytes
    timeout_s: float


class Encode(Request["bytes | str"]):
    """Encode a proof as canonical JSON; a string says why it cannot be."""

    claim: Claim
    value: Any


class Note(Request[None]):
    """Keep a fact that is no end of the claim."""

    fact: LateFact


class Finish(Request[bool]):
    """Record how the claim ended, durably; False if it had ended otherwise before."""

    ending: Ending
