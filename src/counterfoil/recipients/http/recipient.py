"""`HTTP`: a recipient that is spoken to in HTTP."""

from __future__ import annotations

import importlib.util
import socket
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from counterfoil.errors import UsageError
from counterfoil.protocol import keys
from counterfoil.recipients.http import meaning
from counterfoil.recipients.http.authority import Opened
from counterfoil.recipients.http.exchange import Settled
from counterfoil.recipients.http.headers import is_token
from counterfoil.recipients.http.operation import FORMAT, Operation
from counterfoil.recipients.http.request import Request, authorisation, given, made
from counterfoil.recipients.http.talk import Limits
from counterfoil.recipients.http.tls import Sessions

if TYPE_CHECKING:
    from counterfoil.broker.contracts import Terms

Params = Mapping[str, Any] | Iterable[tuple[str, Any]] | None
HeadersGiven = Mapping[str, Any] | Iterable[tuple[str, Any]] | None

_NOT_OURS: Final = frozenset({"CONNECT", "TRACE"})


class HTTP:
    """A recipient that is spoken to in HTTP: makes operations, and sends nothing by itself.

    An operation makes at most one attempt, on a connection of its own, and its outcome says what reached the wire.
    Mutations are never redirected and never repeated. No proxy, cookie or password is taken from the surroundings.

    Args:
        name: what people call it; grants, records and the outbox know it by this.
        base_url: what relative URLs are below. With it, no operation leaves its origin.
        contract: what its answers prove; None: the default meanings.
        auth: `Secret(…)` for a bearer's token, or `("user", Secret(…))` for basic authentication.
        headers: sent with every operation; values are texts or secrets.
        timeout_s: seconds for one operation, from the resolver to the last byte of the answer.
        allow_addresses: ranges of special addresses (loopback, private …) that are open outside an activation; in one
            only `Grant.allow_addresses` opens any. A special address, or `localhost`, that is written out as the host
            of `base_url` is open for that origin.
        tls: a context that knows a private authority or has a client certificate; it must verify.
        http2: reads may use HTTP/2: by agreement over TLS, and without asking where the URL says `http`.
        resolve: gives the addresses of a host and port; None: the system's resolver.
        head_bytes_max: bound on an answer's head.
        body_bytes_max: bound on an answer's body, as it comes and again decompressed.

    Raises:
        UsageError: an argument is wrong.
    """

    def __init__(
        self,
        name: str = "http",
        *,
        base_url: str | None = None,
        contract: Terms | None = None,
        auth: Any = None,
        headers: HeadersGiven = None,
        timeout_s: float = 30.0,
        allow_addresses: Iterable[str] = (),
        tls: Any = None,
        http2: bool = False,
        resolve: Callable[[str, int], Iterable[str]] | None = None,
        head_bytes_max: int = 65_536,
        body_bytes_max: int = 16_777_216,
    ) -> None:
        _extra()
        self.name = keys.name(name, "the recipient's name")
        if base_url is not None and not isinstance(base_url, str):
            raise UsageError(f"base_url is a str, not {type(base_url).__name__}")
        if contract is not None and not hasattr(contract, "statuses"):
            raise UsageError(
                f"contract is a Contract, not {type(contract).__name__}", hint='see Contract.load("x.toml")'
            )
        if resolve is not None and not callable(resolve):
            raise UsageError(f"resolve is a function of host and port, or None, not {type(resolve).__name__}")
        self.base_url = base_url
        self.contract = contract
        self.timeout_s = keys.seconds(timeout_s, "timeout_s", positive=True)
        self.opened = Opened(allow_addresses, base_url)
        self._headers = (*authorisation(auth), *given(headers))
        limits = Limits(
            head_bytes=_positive(head_bytes_max, "head_bytes_max"),
            body_bytes=_positive(body_bytes_max, "body_bytes_max"),
            decompressed_bytes=body_bytes_max,
        )
        self.settled = Settled(
            contract=contract,
            sessions=Sessions(tls),
            limits=limits,
            http2=bool(http2),
            resolve=resolved if resolve is None else resolve,
        )

    def __repr__(self) -> str:
        return f"HTTP({self.name!r}, base_url={self.base_url!r})"

    def get(
        self,
        url: str,
        *,
        json: Any = None,
        content: bytes | str | None = None,
        headers: HeadersGiven = None,
        params: Params = None,
    ) -> Operation:
        """Make a read; see `request`."""
        return self.request("GET", url, json=json, content=content, headers=headers, params=params)

    def head(self, url: str, *, headers: HeadersGiven = None, params: Params = None) -> Operation:
        """Make a read of the head alone; see `request`."""
        return self.request("HEAD", url, headers=headers, params=params)

    def post(
        self,
        url: str,
        *,
        json: Any = None,
        content: bytes | str | None = None,
        headers: HeadersGiven = None,
        params: Params = None,
    ) -> Operation:
        """Make a POST; see `request`."""
        return self.request("POST", url, json=json, content=content, headers=headers, params=params)

    def put(
        self,
        url: str,
        *,
        json: Any = None,
        content: bytes | str | None = None,
        headers: HeadersGiven = None,
        params: Params = None,
    ) -> Operation:
        """Make a PUT; see `request`."""
        return self.request("PUT", url, json=json, content=content, headers=headers, params=params)

    def patch(
        self,
        url: str,
        *,
        json: Any = None,
        content: bytes | str | None = None,
        headers: HeadersGiven = None,
        params: Params = None,
    ) -> Operation:
        """Make a PATCH; see `request`."""
        return self.request("PATCH", url, json=json, content=content, headers=headers, params=params)

    def delete(
        self,
        url: str,
        *,
        json: Any = None,
        content: bytes | str | None = None,
        headers: HeadersGiven = None,
        params: Params = None,
    ) -> Operation:
        """Make a DELETE; see `request`."""
        return self.request("DELETE", url, json=json, content=content, headers=headers, params=params)

    def request(
        self,
        method: str,
        url: str,
        *,
        json: Any = None,
        content: bytes | str | None = None,
        headers: HeadersGiven = None,
        params: Params = None,
    ) -> Operation:
        """Make an operation; nothing is sent.

        Args:
            method: in any case.
            url: absolute, or below `base_url`.
            json: the body as a JSON value; None for no body.
            content: the body as it is.
            headers: on top of the recipient's.
            params: the query; values that are None are left out, lists are repeated.

        Raises:
            UsageError: an argument has a type that cannot be sent. A URL or header that must not be sent gives
                `Rejected` when the operation is performed.
        """
        made_of = self._made(method, url, json=json, content=content, headers=headers, params=params)
        return Operation(self, made_of, inner=given(headers))

    def _made(self, method: Any, url: str, **what: Any) -> Request:
        if not isinstance(method, str) or not is_token(method) or method.upper() in _NOT_OURS:
            raise UsageError(f"{method!r} is no method that can be sent")
        return made(method.upper(), url, base=self.base_url, outer=self._headers, **what)

    def asking(self, url: str, *, params: Params, headers: HeadersGiven) -> Operation:
        """Make the request of a look-up, which does not ask for a look-up of its own."""
        return Operation(
            self, self._made("GET", url, json=None, content=None, headers=headers, params=params), inner=()
        )

    def reads_http2(self, request: Request) -> bool:
        """Whether a request may go out in HTTP/2."""
        return self.settled.http2 and request.method in meaning.READS

    def restore(self, serialised: Mapping[str, Any]) -> Operation:
        """Make an operation of what `Operation.serialised` returned, perhaps in another process.

        Raises:
            UsageError: it belongs to another recipient, was made by a newer version, or is damaged.
        """
        try:
            name, method, form, arguments = (
                serialised[key] for key in ("recipient", "operation", "format", "arguments")
            )
            if form != FORMAT:
                raise UsageError(
                    f"the operation has format {form!r}, this version knows {FORMAT}",
                    hint="upgrade counterfoil; it was not sent",
                    code="operation-too-new",
                )
            if name != self.name:
                raise UsageError(f"the operation is one of recipient {name!r}, this is {self.name!r}")
            headers = [*map(tuple, arguments.get("headers", []))]
            content = arguments.get("content")
            if content is not None:
                content = b64decode(content, validate=True)
            return self._restored(method, arguments, headers=headers, content=content)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"this is no serialised operation: {type(error).__name__}", code="bad-operation") from None

    def _restored(self, method: str, arguments: Any, *, headers: Any, content: bytes | None) -> Operation:
        media = arguments.get("media")
        request = self._made(
            method, arguments["url"], json=arguments.get("json"), content=content, headers=headers, params=None
        )
        return Operation(self, request.as_media(media), inner=given(headers))


def _extra() -> None:
    if importlib.util.find_spec("h11") is None or importlib.util.find_spec("h2") is None:
        raise UsageError(
            "HTTP recipients need the extra `http`", hint="pip install 'counterfoil[http]'", code="missing-extra"
        )


def resolved(host: str, port: int) -> list[str]:
    """Ask the system's resolver."""
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _positive(value: Any, what: str) -> int:
    if type(value) is not int or value < 1:
        raise UsageError(f"{what} is an int of 1 or more, not {value!r}")
    return value
