"""One HTTP operation with its arguments, in its three modes: now, once, and as what an outbox keeps."""

from __future__ import annotations

import time
from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from counterfoil.errors import UsageError
from counterfoil.outcomes import Accepted, Outcome
from counterfoil.ports.recipient import Permit
from counterfoil.protocol.unaskable import UNASKABLE
from counterfoil.recipients.http import blocking
from counterfoil.recipients.http.authority import CodeAuthority
from counterfoil.recipients.http.exchange import Exchange
from counterfoil.recipients.http.look_ups import Question
from counterfoil.recipients.http.meaning import READS
from counterfoil.recipients.http.refusal import Refused
from counterfoil.recipients.http.request import Given, Request
from counterfoil.recipients.proving import proved

if TYPE_CHECKING:
    from counterfoil.recipients.http.recipient import HTTP

FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the recipient's contract says of every operation."""

    recipient: str
    operation: str
    visibility_s: float = 0.0
    retryable: bool = False
    keep_key: bool = False
    proof_type: Any = None


class Operation:
    """One HTTP request, as an effect: how to perform it, how to ask about it, and what each answer proves.

    Args:
        http: the recipient.
        request: the request.
        inner: the headers that were given with the operation, not with the recipient.
    """

    def __init__(self, http: HTTP, request: Request, *, inner: Given) -> None:
        self._http = http
        self._request = request
        self._inner = inner
        contract = http.contract
        self.settings = Settings(
            recipient=http.name,
            operation=request.method,
            visibility_s=0.0 if contract is None else contract.visibility_s,
            retryable=contract is not None and contract.retryable is True,
            keep_key=contract is not None and contract.keep_key,
        )
        if self._look_up is not None and request.fault is None:
            # Found out now, not when a crash has made the look-up necessary.
            Question(self._look_up, "", request.json)

    def __repr__(self) -> str:
        # Neither the query nor the headers: either may hold what is nobody's business.
        url = self._request.url
        where = (
            self._request.fault.reason if self._request.fault is not None else f"{url and url.origin}{url and url.path}"
        )
        return f"<{self._http.name}: {self._request.method} {where}>"

    @property
    def verify(self) -> None:
        """Nothing checks a proof that its own contract pointed at."""
        return

    @property
    def contract(self) -> Any:
        """The recipient's contract, None if it has none."""
        return self._http.contract

    @property
    def request(self) -> Any:
        """The request as a JSON value, for its fingerprint: secrets by the names of their references."""
        arguments = self._request.fingerprinted()
        return {"recipient": self._http.name, "operation": self._request.method, "arguments": arguments}

    @property
    def target(self) -> str | None:
        """The URL that grants are compared with, without its query; None for a request that will be refused anyway."""
        url = self._request.url
        return None if url is None or self._request.fault is not None else f"{url.origin}{url.path}"

    @property
    def bytes_out(self) -> int | None:
        """Bytes of the request, where they can be known before secrets and the effect key are in it."""
        request, contract = self._request, self._http.contract
        keyed = contract is not None and contract.idempotency is not None
        if (
            request.url is None
            or request.fault is not None
            or request.secret
            or keyed
            or self._http.reads_http2(request)
        ):
            return None
        try:
            headers = request.resolved(None, credentials=True)
        except Refused:
            return None
        from counterfoil.recipients.http.http1 import bytes_of

        return bytes_of(request.method, request.url, headers, body=request.body)

    # --- now

    def perform(self, context: Any, permit: Permit) -> Outcome[Any]:
        """Perform it under a permit, blocking.

        Returns:
            What became of it; `.response` has what was answered.

        Raises:
            Rejected: the permit refused it; nothing was sent.
        """
        waiting = blocking.BlockingWaiting(self._deadline(permit), lambda: bool(context.cancelled))
        exchange = self._exchange(context, permit, waiting)
        permit.on_cancel(exchange.abort)
        return blocking.run(exchange.run())

    async def perform_async(self, context: Any, permit: Permit) -> Outcome[Any]:
        """Perform it under a permit, on the running loop."""
        from counterfoil.recipients.http.looped import LoopedWaiting

        waiting = LoopedWaiting(self._deadline(permit), lambda: bool(context.cancelled))
        exchange = self._exchange(context, permit, waiting)
        permit.on_cancel(exchange.abort)
        return await exchange.run()

    def _exchange(self, context: Any, permit: Permit, waiting: Any) -> Exchange:
        return Exchange(
            self._http.settled, self._request, permit, waiting=waiting, key=context.key, attempt=context.attempt
        )

    def _deadline(self, permit: Permit) -> float:
        return min(permit.deadline, time.monotonic() + self._http.timeout_s)

    # --- once

    def run(self, context: Any) -> Any:
        """Perform it as an effect: what is accepted is returned as `Accepted`, with its evidence.

        Raises:
            Rejected, Failed: proved; see their evidence.
            Unproved: nothing proves how it ended.
        """
        return proved(self.perform(context, self._authority()))

    async def run_async(self, context: Any) -> Accepted[Any]:
        """Perform it as an effect, on the running loop."""
        return proved(await self.perform_async(context, self._authority()))

    def _authority(self) -> CodeAuthority:
        return CodeAuthority(self._http.opened, self._http.timeout_s)

    @property
    def reconcile(self) -> Any:
        """Ask the recipient, as its contract says; `UNASKABLE` without a look-up."""
        return UNASKABLE if self._look_up is None else self._ask

    @property
    def reconcile_async(self) -> Any:
        """Ask the recipient on the running loop."""
        return UNASKABLE if self._look_up is None else self._ask_async

    @property
    def _look_up(self) -> Any:
        # A read leaves nothing behind that could be looked up; the look-up itself is one.
        contract = self._http.contract
        return None if contract is None or self._request.method in READS else contract.look_up

    def _question(self, context: Any) -> tuple[Question, Operation]:
        question = Question(self._look_up, context.key, self._request.json)
        asked = self._http.asking(question.url, params=question.params, headers=question.headers)
        return question, asked

    def _ask(self, context: Any) -> Accepted[Any] | None:
        question, asked = self._question(context)
        return question.answered(asked.perform(context, asked.until(context)))

    async def _ask_async(self, context: Any) -> Accepted[Any] | None:
        question, asked = self._question(context)
        return question.answered(await asked.perform_async(context, asked.until(context)))

    def until(self, context: Any) -> CodeAuthority:
        """Return the authority of a look-up, which ends when its caller goes away."""
        deadline = context.deadline
        rest = self._http.timeout_s if deadline is None else min(self._http.timeout_s, deadline - time.monotonic())
        return CodeAuthority(self._http.opened, rest)

    # --- after commit

    def serialised(self) -> dict[str, Any]:
        """Return what an outbox keeps: a JSON value that `HTTP.restore` of a recipient of the same name takes.

        Raises:
            UsageError: it would be refused anyway, or has a secret of its own, which is not to be kept.
        """
        request = self._request
        if request.fault is not None:
            raise UsageError(f"this request would be refused: {request.fault.reason}")
        arguments: dict[str, Any] = {"url": request.text}
        if self._inner:
            arguments["headers"] = [[name, _plain(name, value)] for name, value, _ in self._inner]
        if request.json is not None:
            arguments["json"] = request.json
        elif request.media is not None:
            arguments |= {"content": b64encode(request.body).decode(), "media": request.media}
        return {
            "recipient": self._http.name,
            "operation": request.method,
            "format": FORMAT,
            "arguments": arguments,
        }


def _plain(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    raise UsageError(
        f"header {name!r} has a secret, which an outbox does not keep",
        hint="give the secret to the recipient: HTTP(auth=…) or HTTP(headers=…)",
    )
