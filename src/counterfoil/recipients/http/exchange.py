"""One exchange, told once for both colours: authority, address, connection, TLS, the gate, the request, the answer.

Up to the gate everything that goes wrong is `Rejected`. After it the peer may have read something, and only its own
answer, or its protocol's own statement that it processed nothing, says more than `Uncertain`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin

from counterfoil.outcomes import Outcome
from counterfoil.ports.recipient import Permit
from counterfoil.recipients.http import meaning, urls
from counterfoil.recipients.http.addresses import literal, special, unmapped
from counterfoil.recipients.http.facts import Facts
from counterfoil.recipients.http.refusal import Refused
from counterfoil.recipients.http.request import Request
from counterfoil.recipients.http.talk import Cut, Limits, Talk, Unprocessed
from counterfoil.recipients.http.tls import Sessions
from counterfoil.recipients.http.urls import Url
from counterfoil.recipients.http.wire import Lost, Stopped, TLSFailed, Waiting, Wire, name_of

if TYPE_CHECKING:
    from counterfoil.broker.contracts import Terms

OFFER_BYTES: Final = 65_536
HOPS_MAX: Final = 3
_REFUSALS: Final = frozenset({"refused-by-policy", "too-many-redirects"})
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class Settled:
    """What holds for all exchanges with one recipient."""

    contract: Terms | None
    sessions: Sessions
    limits: Limits
    http2: bool
    resolve: Callable[[str, int], Iterable[str]]


class _NotSent(Exception):
    """A hop ended before anything of it was offered."""

    def __init__(self, kind: str, **details: Any) -> None:
        super().__init__(kind)
        self.kind = kind
        self.details = details


class Exchange:
    """One request and what became of it.

    Args:
        settled: what holds for the recipient.
        request: the request.
        permit: the right to perform it.
        waiting: how to wait.
        key: the effect key.
        attempt: which attempt of its effect it is.
    """

    def __init__(
        self, settled: Settled, request: Request, permit: Permit, *, waiting: Waiting, key: str, attempt: int
    ) -> None:
        self._settled = settled
        self._request = request
        self._permit = permit
        self._waiting = waiting
        self._wire = Wire(waiting)
        self._attempt = attempt
        keyed = None if settled.contract is None else settled.contract.idempotency
        self._key = None if keyed is None or not key else (keyed.header, key)
        self._facts = Facts(key=key)

    def abort(self) -> None:
        """Cut it: nobody waits any more. From any thread."""
        self._wire.abort()

    async def run(self) -> Outcome[Any]:
        """Carry it out.

        Returns:
            What became of it.

        Raises:
            Rejected: the permit refused it.
        """
        facts, contract = self._facts, self._settled.contract
        try:
            await self._hops()
        except _NotSent as not_sent:
            return self._not_sent(not_sent)
        except Unprocessed as unprocessed:
            return meaning.failed(facts, unprocessed.kind, contract, retryable=True, **unprocessed.details)
        return meaning.judge(facts, contract, method=self._request.method, attempt=self._attempt)

    def _not_sent(self, not_sent: _NotSent) -> Outcome[Any]:
        facts, contract = self._facts, self._settled.contract
        if not facts.dispatched:
            return meaning.rejected(facts, not_sent.kind, contract, **not_sent.details)
        # A read that was sent on. What we refuse is not done, and all that is known of the rest is where it ended.
        if not_sent.kind in _REFUSALS:
            return meaning.failed(facts, not_sent.kind, contract, **not_sent.details)
        facts.more |= not_sent.details
        return meaning.uncertain(facts, not_sent.kind, contract)

    async def _hops(self) -> None:
        if self._request.fault is not None:
            raise _refusal(self._request.fault)
        first = url = self._request.url
        while url is not None:
            await self._hop(url, credentials=first is not None and url.origin == first.origin)
            url = self._next(url)

    def _next(self, url: Url) -> Url | None:
        """Return where a read is sent on to, None if the answer is the last one."""
        facts = self._facts
        place = facts.header("location")
        if self._request.method not in meaning.READS or facts.status not in _REDIRECTS or not place:
            return None
        if facts.hops >= HOPS_MAX:
            raise _NotSent("too-many-redirects")
        facts.hops += 1
        try:
            return urls.parse(urljoin(str(url), place))
        except Refused as refused:
            raise _refusal(refused) from None
        except ValueError:
            raise _NotSent("refused-by-policy", reason="bad-url") from None

    async def _hop(self, url: Url, *, credentials: bool) -> None:
        clean = False
        try:
            parts, talk = await self._ready(url, credentials=credentials)
            await self._talk(parts, talk)
            clean = self._facts.cut is None
        finally:
            self._wire.close(hard=not clean)

    # --- before the gate

    async def _ready(self, url: Url, *, credentials: bool) -> tuple[list[bytes], Talk]:
        """Do all that comes before the first byte: when it returns, the gate is won."""
        facts, permit, first = self._facts, self._permit, not self._facts.dispatched
        try:
            if not permit.authorise(f"{url.origin}{url.path}"):
                raise _NotSent("refused-by-policy", reason="redirect-not-granted")
            await self._connect(url)
            agreed = await self._secure(url) if url.scheme == "https" else None
            parts, talk = self._opening(url, agreed, credentials=credentials)
            self._waiting.check()
        except Stopped as stopped:
            raise _NotSent("deadline-before-dispatch" if first and stopped.why == "deadline" else stopped.why) from None
        except Refused as refused:
            raise _refusal(refused) from None
        # The head is charged before the gate: a budget that has no room for it has sent nothing.
        if not permit.offered(min(OFFER_BYTES, len(parts[0]))):
            raise _NotSent("refused-by-policy", reason="budget-bytes-out")
        if first:
            contract = self._settled.contract
            permit.dispatch(peer=facts.peer, contract=None if contract is None else contract.name)
        facts.dispatched = True
        return parts, talk

    async def _connect(self, url: Url) -> None:
        facts = self._facts
        facts.reached = "resolving"
        addresses = await self._addresses(url)
        facts.reached = "connecting"
        error = ""
        for left in range(len(addresses), 0, -1):
            address = addresses[-left]
            now = time.monotonic()
            # One that does not answer leaves time for the others.
            share = None if left == 1 else now + (self._waiting.deadline - now) / left
            facts.peer = f"[{address}]:{url.port}" if ":" in address else f"{address}:{url.port}"
            try:
                await self._wire.connect(address, url.port, at_most_until=share)
            except Lost as lost:
                self._wire.close(hard=True)
                self._waiting.check()
                error = lost.error
            else:
                return
        raise _NotSent("connect-failed", error=error)

    async def _addresses(self, url: Url) -> list[str]:
        """Resolve a host once, and check every answer: one that must not be connected to refuses them all."""
        if literal(url.host) is not None:
            found: list[str] | str = [url.host]
        else:
            found = await self._waiting.call(lambda: self._resolved(url), self._permit.hold)
        if isinstance(found, str):
            raise _NotSent("no-address", error=found)
        good: list[str] = []
        bad: str | None = None
        for text in found:
            address = literal(text)
            reason = "not-an-address" if address is None else special(address)
            if address is None or (reason is not None and not self._permit.allows_address(str(unmapped(address)))):
                bad = bad or reason
            else:
                good.append(str(unmapped(address)))
        if bad is not None:
            mixed = {"reason": "mixed-addresses", "among": bad} if good else {"reason": bad}
            raise _NotSent("refused-by-policy", **mixed)
        if not good:
            raise _NotSent("no-address")
        return list(dict.fromkeys(good))

    def _resolved(self, url: Url) -> list[str] | str:
        """Ask the resolver, in a thread of its own; a str names what went wrong."""
        try:
            return list(self._settled.resolve(url.host, url.port))
        except socket.gaierror as error:
            names = {getattr(socket, name): name for name in dir(socket) if name.startswith("EAI_")}
            return names.get(error.errno or 0, "gaierror")
        except OSError as error:
            return name_of(error)
        except Exception as error:  # noqa: BLE001 - a resolver that somebody gave may raise anything
            return type(error).__name__

    async def _secure(self, url: Url) -> str | None:
        self._facts.reached = "tls"
        versions = ["h2", "http/1.1"] if self._wants_http2 else ["http/1.1"]
        try:
            return await self._wire.secure(lambda sock: self._settled.sessions.wrap(sock, url.host, versions))
        except TLSFailed as failed:
            self._waiting.check()
            raise _NotSent("tls-failed", reason=failed.reason) from None
        except Lost as lost:
            self._waiting.check()
            raise _NotSent("tls-failed", error=lost.error) from None

    @property
    def _wants_http2(self) -> bool:
        return self._settled.http2 and self._request.method in meaning.READS

    def _opening(self, url: Url, agreed: str | None, *, credentials: bool) -> tuple[list[bytes], Talk]:
        """Make the bytes of the request, with its secrets."""
        request, limits = self._request, self._settled.limits
        headers = request.resolved(self._key, credentials=credentials)
        if self._wants_http2 and (agreed == "h2" or url.scheme == "http"):
            from counterfoil.recipients.http.http2 import Http2

            second = Http2(self._facts, limits)
            return [second.head(request.method, url, headers=headers)], second
        from counterfoil.recipients.http.http1 import Http1

        talk = Http1(self._facts, limits)
        head = talk.head(request.method, url, headers=headers, body=request.body)
        small = len(request.body) + len(head) <= OFFER_BYTES
        return [head + request.body] if small or not request.body else [head, request.body], talk

    # --- after it

    async def _talk(self, parts: list[bytes], talk: Talk) -> None:
        facts = self._facts
        facts.status, facts.headers, facts.content, facts.cut = None, (), b"", None
        facts.sent_all, facts.answer_bytes = False, 0
        facts.reached = "head"
        lost: Lost | None = None
        try:
            try:
                await self._send(parts, talk)
            except Lost as gone:
                # A peer that has enough may answer and hang up while we are still sending: the answer counts.
                self._waiting.check()
                lost = gone
                facts.more["sending"] = gone.error
            while not talk.ended:
                self._take(await self._wire.receive(), talk)
                if reply := talk.to_send():
                    await self._offer(reply, talk=None)
            facts.reached = "done"
        except Stopped as stopped:
            facts.cut = stopped.why
        except Cut as cut:
            facts.cut = cut.why
            facts.more |= cut.details
        except Lost as gone:
            lost = lost or gone
            facts.cut = _why(self._waiting) or ("reset" if lost.reset else "no-response")
        if facts.cut == "no-response" and lost is not None and lost.reset:
            facts.cut = "reset"
        talk.finish()

    def _take(self, data: bytes, talk: Talk) -> None:
        facts = self._facts
        if not data:
            # An end that we made ourselves is not the peer's.
            self._waiting.check()
        if facts.reached == "sent" and data:
            facts.reached = "answer-head"
        facts.answer_bytes += len(data)
        if not self._permit.received(len(data)):
            with suppress(Cut):
                talk.feed(data)
            if talk.ended:
                return
            raise Cut("budget-bytes-in")
        talk.feed(data)

    async def _send(self, parts: list[bytes], talk: Talk) -> None:
        charged = True
        for part in parts:
            if not await self._offer(part, talk=talk, charged=charged):
                return
            charged = False
            self._facts.reached = "body"
        self._facts.reached = "sent"
        self._facts.sent_all = True

    async def _offer(self, part: bytes, *, talk: Talk | None, charged: bool = False) -> bool:
        """Offer bytes to the socket; False if the peer answered meanwhile and the rest is not sent.

        Args:
            part: the bytes.
            talk: takes in what arrives meanwhile; None: nothing is expected.
            charged: the first piece is charged already.
        """
        facts, wire = self._facts, self._wire
        view = memoryview(part)
        while view:
            piece = view[:OFFER_BYTES]
            if not charged and not self._permit.offered(len(piece)):
                self._waiting.check()
                raise Cut("budget-bytes-out")
            charged = False
            while piece:
                self._waiting.check()
                if talk is not None and facts.bytes_offered and self._answered(talk):
                    return False
                taken = self._try_send(piece)
                facts.bytes_offered += taken
                piece, view = piece[taken:], view[taken:]
                if piece and not taken:
                    await wire.ready(writable=True)
        return True

    def _try_send(self, piece: memoryview) -> int:
        try:
            return self._wire.try_send(piece)
        except Lost:
            # Offered, and nobody knows how much of it went out.
            self._facts.bytes_offered += len(piece)
            raise

    def _answered(self, talk: Talk) -> bool:
        """Take in what has arrived while the request is still being sent; True if it is a final answer."""
        data = self._wire.try_receive()
        if data is not None:
            self._take(data, talk)
        return self._facts.status is not None


def _refusal(refused: Refused) -> _NotSent:
    if refused.reason == "secret-unavailable":
        return _NotSent(refused.reason, **refused.details)
    return _NotSent("refused-by-policy", reason=refused.reason, **refused.details)


def _why(waiting: Waiting) -> str | None:
    """Say whether a connection was lost because it was cut by us, and why."""
    try:
        waiting.check()
    except Stopped as stopped:
        return stopped.why
    return None
