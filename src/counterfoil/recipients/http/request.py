"""A request as it was asked for: checked and put in order once, resolved and sent later."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

from counterfoil.errors import UsageError
from counterfoil.outcomes import Rejected
from counterfoil.protocol import codec
from counterfoil.recipients.http import headers as checks
from counterfoil.recipients.http import urls
from counterfoil.recipients.http.bodies import ENCODINGS
from counterfoil.recipients.http.headers import Headers
from counterfoil.recipients.http.refusal import Refused
from counterfoil.recipients.http.urls import Url
from counterfoil.recipients.secret import Secret

CONTENT_BYTES_MAX: Final = 1 << 30
AGENT: Final = "counterfoil"


Value = str | Secret
# What is put before a secret in its header: `Bearer `. With `Basic ` the secret is the password of this user.
Given = tuple[tuple[str, Value, str], ...]


@dataclass(frozen=True, slots=True)
class Request:
    """One request to be.

    Attributes:
        method: in capitals.
        text: the URL as it was asked for, with its parameters.
        url: the same, taken apart; None if it cannot be.
        fault: why it will be refused, None if nothing speaks against it yet.
        headers: those of the recipient and of the operation.
        json: the body as a value, `codec.encode`d into `body`; only where `media` is JSON's.
        body: what is sent.
        media: the media type that goes with it.
    """

    method: str
    text: str
    url: Url | None
    fault: Refused | None
    headers: Given
    json: Any
    body: bytes
    media: str | None

    @property
    def secret(self) -> bool:
        """Whether a header's value is a secret."""
        return any(not isinstance(value, str) for _, value, _ in self.headers)

    def as_media(self, media: str | None) -> Request:
        """Return it with another media type, unless that is None."""
        return self if media is None else replace(self, media=media)

    def fingerprinted(self) -> dict[str, Any]:
        """Return what tells one request from another: secrets by the names of references, the body by its digest."""
        said: dict[str, Any] = {"url": self.text if self.url is None else str(self.url)}
        if self.headers:
            said["headers"] = [[name.lower(), _named(value, before)] for name, value, before in self.headers]
        if self.media is not None or self.body:
            said["media"] = self.media
            said["body"] = {"bytes": len(self.body), "sha256": hashlib.sha256(self.body).hexdigest()}
        return said

    def resolved(self, key: tuple[str, str] | None, *, credentials: bool) -> Headers:
        """Return the headers as they are sent, secrets and the effect key included.

        Args:
            key: the header that carries the effect key, with the key.
            credentials: False: leave out what says who we are, for a redirect to another origin.

        Raises:
            Refused: one of them must not be sent as it is.
        """
        given: list[tuple[str, str]] = []
        for name, value, before in self.headers:
            plain = isinstance(value, str)
            if not credentials and (not plain or name.lower() in checks.CREDENTIALS):
                continue
            given.append((name, value if isinstance(value, str) else _revealed(value, before)))
        if key is not None:
            if any(name.lower() == key[0].lower() for name, _ in given):
                raise Refused("header-of-the-contract", header=key[0].lower())
            given.append(key)
        checks.check(tuple(given))
        ours: list[tuple[str, str]] = [("User-Agent", AGENT), ("Accept", "*/*"), ("Accept-Encoding", ENCODINGS)]
        if self.media is not None:
            ours.append(("Content-Type", self.media))
        return checks.merged(tuple(ours), tuple(given))


def _named(value: Value, before: str) -> Any:
    return value if isinstance(value, str) else {"secret": repr(value), "before": before}


def _revealed(secret_at: Secret, before: str) -> str:
    try:
        secret = secret_at.resolve()
    except Rejected as rejected:
        raise Refused("secret-unavailable", **(rejected.evidence.details or {})) from None
    if before.startswith("Basic "):
        user = before.removeprefix("Basic ")
        return "Basic " + b64encode(f"{user}:{secret}".encode()).decode()
    return before + secret


def made(
    method: str,
    url: str,
    *,
    base: str | None,
    outer: Given,
    json: Any,
    content: Any,
    headers: Any,
    params: Any,
) -> Request:
    """Make a request of what was asked for.

    Raises:
        UsageError: an argument has a type that cannot be sent. What it says is judged when it is performed.
    """
    if not isinstance(url, str):
        raise UsageError(f"a URL is a str, not {type(url).__name__}")
    text = _with_params(urls.join(base, url), params)
    found, fault = _parsed(text, base)
    body, media = _body(json, content)
    merged = _merged(outer, given(headers))
    return Request(method, text, found, fault or _misheaded(merged), merged, json, body, media)


def _misheaded(headers: Given) -> Refused | None:
    """Say what is wrong with the headers already, so that nothing is connected to for them; secrets are read later."""
    try:
        checks.check(tuple((name, value if isinstance(value, str) else "secret") for name, value, _ in headers))
    except Refused as refused:
        return refused
    return None


def _parsed(text: str, base: str | None) -> tuple[Url | None, Refused | None]:
    try:
        found = urls.parse(text)
        if base is not None and found.origin != urls.parse(base).origin:
            return found, Refused("outside-base-url")
    except Refused as refused:
        return None, refused
    return found, None


def _with_params(url: str, params: Any) -> str:
    if params is None:
        return url
    pairs = list(params.items()) if isinstance(params, Mapping) else params
    if isinstance(pairs, (str, bytes)) or not isinstance(pairs, Iterable):
        raise UsageError(f"params are a dict, or pairs of names and values, not {type(params).__name__}")
    said: list[tuple[str, str]] = []
    for pair in pairs:
        name, value = _pair(pair, "params")
        several = value if isinstance(value, (list, tuple)) else (value,)
        said.extend((name, _scalar(one, name)) for one in several if one is not None)
    if not said:
        return url
    whole, mark, fragment = url.partition("#")
    return f"{whole}{'&' if '?' in whole else '?'}{urlencode(said)}{mark}{fragment}"


def _pair(pair: Any, what: str) -> tuple[str, Any]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], str):
        raise UsageError(f"{what} are a dict with names of type str, or pairs of such a name and a value")
    return pair[0], pair[1]


def _scalar(value: Any, name: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    hint = "a secret goes into auth= or headers=, since URLs are logged everywhere" if isinstance(value, Secret) else ""
    raise UsageError(f"params[{name!r}] is a str or a number, not {type(value).__name__}", hint=hint)


def _body(json: Any, content: Any) -> tuple[bytes, str | None]:
    if content is None:
        # JSON's null is a body only where somebody says so: content=b"null".
        return (b"", None) if json is None else (codec.encode(json, what="json"), "application/json")
    if json is not None:
        raise UsageError("give a request either json or content")
    if isinstance(content, str):
        return content.encode(), "text/plain; charset=utf-8"
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise UsageError(
            f"content is bytes or str, not {type(content).__name__}", hint="what is sent is kept until it is"
        )
    body = bytes(content)
    if len(body) > CONTENT_BYTES_MAX:
        raise UsageError(f"content has {len(body)} bytes, {CONTENT_BYTES_MAX} at most")
    return body, "application/octet-stream"


def given(headers: Any) -> Given:
    """Check the types of headers; their names and values are judged when they are sent."""
    if headers is None:
        return ()
    pairs = list(headers.items()) if isinstance(headers, Mapping) else headers
    if isinstance(pairs, (str, bytes)) or not isinstance(pairs, Iterable):
        raise UsageError(f"headers are a dict, or pairs of names and values, not {type(headers).__name__}")
    found: list[tuple[str, Value, str]] = []
    for pair in pairs:
        name, value = _pair(pair, "headers")
        if not isinstance(value, (str, Secret)):
            raise UsageError(f"header {name!r} is a str or a Secret, not {type(value).__name__}")
        found.append((name, value, ""))
    return tuple(found)


def _merged(outer: Given, inner: Given) -> Given:
    names = {name.lower() for name, _, _ in inner}
    return tuple(one for one in outer if one[0].lower() not in names) + inner


def authorisation(auth: Any) -> Given:
    """Make a header of `auth`: a secret for a bearer, or a user's name with a secret for basic authentication."""
    if auth is None:
        return ()
    if isinstance(auth, tuple) and len(auth) == 2 and isinstance(auth[0], str) and isinstance(auth[1], Secret):
        if ":" in auth[0]:
            raise UsageError("a user's name for basic authentication has no colon")
        return (("Authorization", auth[1], f"Basic {auth[0]}"),)
    if isinstance(auth, Secret):
        return (("Authorization", auth, "Bearer "),)
    raise UsageError(
        f"auth is a Secret, or a user's name with one, not {type(auth).__name__}",
        hint='write auth=Secret("env:API_TOKEN"): a secret in the code ends up in its repository',
    )
