"""What becomes of an event when something happens to it in each phase."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from counterfoil import Accepted, Events
from tests.adversarial.cells import Cell, cell
from tests.adversarial.played import Brokered, Seen, connections_to, happens
from tests.events.support import GRANT, Stream, until
from tests.servers.proxy import Act, On, Proxy
from tests.support import Colour, eventually

# Phase: the bytes that mark it, and what becomes of them there.
PHASES: Final[dict[str, tuple[bytes, Act]]] = {
    "connecting": (rb"CONNECT \{", Act.STALL),
    "checking the stream": (rb"STREAM\.INFO", Act.STALL),
    "offered": (rb"HPUB", Act.STALL),
    "stored": (rb"HPUB", Act.SWALLOW_REPLY),
}
BEFORE: Final = frozenset({"connecting", "checking the stream"})


def expected(phase: str, cause: str) -> Cell:
    """Say what must follow where a cause meets a phase."""
    restart = {"offered": frozenset({"Accepted", "Uncertain"}), "stored": frozenset({"Accepted"})}
    return cell(
        cause,
        before=phase in BEFORE,
        peer={"offered": frozenset({0, 1}), "stored": frozenset({1})}.get(phase, frozenset({0})),
        on_reset=frozenset({"connect-failed", "stream-unchecked"} if phase in BEFORE else {"connection-lost"}),
        restart=restart.get(phase, frozenset({"Uncertain"})),
    )


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
    event: Any = events.publish(stream.subject(), b"ours")
    async with Brokered(colour, GRANT) as brokered:
        call = brokered.begin(event, timeout_s=0.4 if cause == "deadline" else 20)
        await reached(rule, phase, stream)
        await happens(cause, brokered, links=rule.links)
        outcome = await asyncio.wait_for(call, 10)
        await brokered.idle()
        owned = brokered.broker.report().permits
        journal = await brokered.journal()
    let_go(proxy)
    async with Brokered(colour, GRANT) as again:
        following = await again.perform(events.publish(stream.subject("next"), b"next"), timeout_s=10)
    # A recipient keeps one connection; whatever became of the first, it is that one or gone.
    await eventually(lambda: connections_to(proxy.port) <= 1)
    ours = [message for message in await stream.messages() if message.data == b"ours"]
    return Seen(outcome, owned, isinstance(following, Accepted), len(ours), journal)


__all__ = ["BEFORE", "PHASES", "expected", "hold", "let_go", "play", "reached"]
