"""What becomes of a POST when something happens to it in each phase."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final

from counterfoil import HTTP, Accepted, Grant
from counterfoil.testing.peers import Answer, FaultPeer, Hang
from tests.adversarial.cells import Cell, cell
from tests.adversarial.played import Brokered, Seen, connections_to, happens
from tests.servers.proxy import Act, On, Proxy
from tests.support import PATIENCE_S, Colour, eventually

# Phase: the bytes that mark it, and what becomes of them. Of the first there are none yet; the last is the peer's.
PHASES: Final[dict[str, tuple[bytes, Act] | None]] = {
    "resolving": None,
    "TLS": (rb"\A\x16\x03", Act.STALL),
    "offered": (rb"\APOST ", Act.STALL),
    "done": None,
}
BEFORE: Final = frozenset({"resolving", "TLS"})
PAID: Final = Answer(201, json={"id": "ch_1"})


def expected(phase: str, cause: str) -> Cell | None:
    """Say what must follow where a cause meets a phase; None: it cannot."""
    if phase == "resolving" and cause == "reset":
        return None
    return cell(
        cause,
        before=phase in BEFORE,
        peer={"offered": frozenset({0, 1}), "done": frozenset({1})}.get(phase, frozenset({0})),
        # The proxy's end of the connection is shut before it is reset: either may be noticed.
        on_reset=frozenset({"tls-failed", "connect-failed"} if phase in BEFORE else {"reset", "no-response"}),
        restart=frozenset({"Uncertain"}),
    )


class Held:
    """A peer behind a proxy, and the next request held in a phase."""

    def __init__(self, phase: str, peer: FaultPeer, proxy: Proxy) -> None:
        self.phase, self.peer, self.proxy = phase, peer, proxy
        self.asked, self.go_on = threading.Event(), threading.Event()
        self.rule: On | None = None
        if (what := PHASES[phase]) is not None:
            self.proxy.rule = self.rule = On(*what, times=1)

    def resolve(self, _host: str, _port: int) -> list[str]:
        self.asked.set()
        self.go_on.wait(PATIENCE_S)
        return ["127.0.0.1"]

    @property
    def url(self) -> str:
        """The address to post to."""
        scheme = "https" if self.phase == "TLS" else "http"
        return f"{scheme}://{'payments.test' if self.phase == 'resolving' else '127.0.0.1'}:{self.proxy.port}"

    def operation(self) -> Any:
        """Make the request."""
        resolve: dict[str, Any] = {"resolve": self.resolve} if self.phase == "resolving" else {}
        return HTTP("payments", base_url=self.url, **resolve).post("/charges", json={"cents": 700})

    async def reached(self) -> None:
        """Wait until the request is in its phase."""
        rule = self.rule
        if rule is not None:
            await eventually(lambda: rule.links)
        else:
            await eventually(self.asked.is_set if self.phase == "resolving" else lambda: self.peer.requests)

    def let_go(self) -> None:
        """Let everything pass again."""
        self.go_on.set()
        self.proxy.rule = None
        self.proxy.resume()


@contextlib.contextmanager
def held(phase: str) -> Iterator[Held]:
    """Have the next request held in a phase."""
    with FaultPeer([Hang(), PAID] if phase == "done" else PAID) as peer, Proxy(peer.port) as proxy:
        made = Held(phase, peer, proxy)
        yield made
        made.let_go()


def grant(*urls: str) -> Grant:
    """Allow posts to these origins."""
    targets = tuple(f"{url}/" for url in urls)
    return Grant("payments", operations=("POST",), targets=targets, allow_addresses=("127.0.0.1/32",))


async def play(phase: str, cause: str, *, colour: Colour) -> Seen:
    """Make a cause meet a phase."""
    with held(phase) as at:
        plain = f"http://127.0.0.1:{at.proxy.port}"
        async with Brokered(colour, grant(at.url), grant(plain)) as brokered:
            call = brokered.begin(at.operation(), timeout_s=0.4 if cause == "deadline" else 20)
            await at.reached()
            await happens(cause, brokered, links=at.proxy.links)
            outcome = await asyncio.wait_for(call, 10)
            # A name is resolved to its end: nothing stops the system's resolver.
            at.go_on.set()
            await brokered.idle()
            owned = brokered.broker.report().permits
            journal = await brokered.journal()
        await eventually(lambda: connections_to(at.proxy.port) == 0)
        at.let_go()
        async with Brokered(colour, grant(plain)) as again:
            following = await again.perform(HTTP("payments", base_url=plain).post("/next", json={}), timeout_s=10)
        return Seen(outcome, owned, isinstance(following, Accepted), charges(at.peer), journal)


def charges(peer: FaultPeer) -> int:
    """Count the charges that a peer has seen, whatever else came."""
    return sum(request.target == "/charges" for request in peer.requests)


__all__ = ["BEFORE", "PHASES", "Held", "charges", "expected", "held", "play"]
