"""What becomes of an event when something happens to it in each phase: the adversarial matrix, as far as it is events.

`PHASES` hold an event where it is, by a proxy in front of the server; `CAUSES` happen to it there. `expected` says what
follows, and `play` makes it happen and returns what did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from counterfoil import Accepted, Events
from tests.events.support import Brokered, Stream, until
from tests.servers.proxy import Act, On, Proxy
from tests.support import Colour, eventually, in_thread

# Phase: the bytes that mark it, and what becomes of them there.
PHASES: Final[dict[str, tuple[bytes, Act]]] = {
    "connecting": (rb"CONNECT \{", Act.STALL),
    "checking": (rb"STREAM\.INFO", Act.STALL),
    "offered": (rb"HPUB", Act.STALL),
    "stored": (rb"HPUB", Act.SWALLOW_REPLY),
}
BEFORE: Final = frozenset({"connecting", "checking"})
CAUSES: Final = ("cancel", "deadline", "reset", "revocation", "shutdown")
# What the evidence is called, before dispatch and after it.
KINDS: Final[dict[str, tuple[frozenset[str], frozenset[str]]]] = {
    "cancel": (frozenset({"cancelled"}), frozenset({"cancelled"})),
    "deadline": (frozenset({"deadline-before-dispatch"}), frozenset({"deadline"})),
    "reset": (frozenset({"connect-failed", "stream-unchecked"}), frozenset({"connection-lost"})),
    "revocation": (frozenset({"revoked"}), frozenset({"revoked"})),
    "shutdown": (frozenset({"shutdown"}), frozenset({"shutdown"})),
}


@dataclass(frozen=True)
class Expected:
    """What must follow.

    Attributes:
        outcome: the class that the caller is told.
        kinds: what its evidence may be called.
        stored: how many messages the stream may have: bytes that were on their way may still arrive.
        restart: what another life makes of it, by the classes of its outcome.
    """

    outcome: str
    kinds: frozenset[str]
    stored: frozenset[int]
    restart: frozenset[str]


def expected(phase: str, cause: str) -> Expected:
    """Say what must follow where a cause meets a phase."""
    before = phase in BEFORE
    stored = {"offered": frozenset({0, 1}), "stored": frozenset({1})}.get(phase, frozenset({0}))
    restart = {"offered": frozenset({"Accepted", "Uncertain"}), "stored": frozenset({"Accepted"})}
    return Expected(
        outcome="Rejected" if before else "Uncertain",
        kinds=KINDS[cause][0 if before else 1] if cause in KINDS else frozenset(),
        stored=stored,
        restart=restart.get(phase, frozenset({"Uncertain"})),
    )


@dataclass(frozen=True)
class Seen:
    """What did follow.

    Attributes:
        outcome: what the caller was told.
        owned_after: permits that were not given back.
        next_accepted: whether the next event of the same recipient was accepted.
        stored: what the stream has of it.
    """

    outcome: Any
    owned_after: int
    next_accepted: bool
    stored: int


def hold(proxy: Proxy, phase: str) -> On:
    """Have the next event held in a phase."""
    pattern, act = PHASES[phase]
    proxy.rule = rule = On(pattern, act, times=1)
    return rule


def let_go(proxy: Proxy) -> None:
    """Let everything pass again."""
    proxy.rule = None
    proxy.resume()


async def reached(rule: On, phase: str, stream: Stream) -> None:
    """Wait until an event is in its phase."""
    await eventually(lambda: rule.links)
    if phase == "stored":

        async def stored() -> bool:
            return bool(await stream.messages())

        await until(stored)


async def play(phase: str, cause: str, *, colour: Colour, stream: Stream, events: Events, proxy: Proxy) -> Seen:
    """Make a cause meet a phase; the recipient is on the other side of the proxy."""
    rule = hold(proxy, phase)
    event = events.publish(stream.subject(), b"ours")
    brokered = Brokered(colour)
    async with brokered:
        call = brokered.begin(event, timeout_s=0.4 if cause == "deadline" else 20)
        await reached(rule, phase, stream)
        await _happen(cause, brokered, rule)
        outcome = await asyncio.wait_for(call, 10)
        await brokered.idle()
        owned = brokered.broker.report().permits
    let_go(proxy)
    async with Brokered(colour) as again:
        following = await again.perform(events.publish(stream.subject("next"), b"next"), timeout_s=10)
    ours = [message for message in await stream.messages() if message.data == b"ours"]
    return Seen(outcome, owned, isinstance(following, Accepted), len(ours))


async def _happen(cause: str, brokered: Brokered, rule: On) -> None:
    if cause == "reset":
        for link in rule.links:
            link.reset()
    elif cause in ("cancel", "revocation"):
        act: Callable[[], Any] = brokered.activation.cancel if cause == "cancel" else brokered.activation.revoke
        act()
    elif cause == "shutdown":
        if brokered.colour.blocking:
            await in_thread(lambda: brokered.broker.close(timeout_s=0.05))
        else:
            await brokered.broker.close(timeout_s=0.05)


__all__ = ["BEFORE", "CAUSES", "PHASES", "Expected", "Seen", "expected", "hold", "let_go", "play", "reached"]
