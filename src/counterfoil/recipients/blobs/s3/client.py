"""Speaks S3: signs a request, sends it once, and says what came of it."""

from __future__ import annotations

import copy
import importlib.util
import time
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from typing import Any, Final, Self
from urllib.parse import quote, urlencode

from counterfoil.errors import UsageError
from counterfoil.recipients.blobs.lending import Line
from counterfoil.recipients.blobs.s3.answers import Answer
from counterfoil.recipients.blobs.s3.place import Place
from counterfoil.recipients.http.authority import CodeAuthority
from counterfoil.recipients.http.recipient import HTTP
from counterfoil.recipients.secret import Secret

ANSWER_BYTES_MAX: Final = 64 << 20


class Asking:
    """What a request of the client is told as its context."""

    def __init__(self, cancelled: Callable[[], bool]) -> None:
        self.key = ""
        self.attempt = 1
        self.deadline = None
        self._cancelled = cancelled

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits any more."""
        return self._cancelled()


class Client:
    """One bucket's client.

    Args:
        place: where the bucket is.
        name: of the recipient.
        credentials: the access key and the secret key.
        timeout_s: seconds for one request.
        allow: special addresses that are open, as `HTTP` takes them.
    """

    def __init__(
        self, place: Place, *, name: str, credentials: tuple[str | Secret, Secret], timeout_s: float, allow: Any
    ) -> None:
        if importlib.util.find_spec("botocore") is None:
            raise UsageError(
                "blobs at s3:// need the extra `s3`", hint="pip install 'counterfoil[s3]'", code="missing-extra"
            )
        self.place = place
        self.line: Line | None = None
        self.cancelled: Callable[[], bool] = _never
        self._credentials = credentials
        self._timeout_s = timeout_s
        self.http = HTTP(
            name,
            base_url=place.endpoint,
            timeout_s=timeout_s,
            allow_addresses=allow,
            body_bytes_max=ANSWER_BYTES_MAX,
        )

    def under(self, line: Line | None, cancelled: Callable[[], bool]) -> Self:
        """Return the same client for requests under somebody's permit; None: under the code's own authority."""
        other = copy.copy(self)
        other.line, other.cancelled = line, cancelled
        return other

    @property
    def overdue(self) -> bool:
        """Whether the time of the permit is over."""
        return self.line is not None and time.monotonic() >= self.line.permit.deadline

    def url(self, key: str, params: Mapping[str, str] | None = None) -> str:
        """Return the URL of an object, or of the bucket where the key is empty."""
        place = self.place
        path = f"/{place.bucket}" + (f"/{quote(key, safe='/-_.~')}" if key else "")
        query = f"?{urlencode(sorted(params.items()), quote_via=quote, safe='-_.~')}" if params else ""
        return f"{place.endpoint}{path}{query}"

    def ask(
        self,
        method: str,
        key: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        digest: str | None = None,
    ) -> Answer:
        """Send one request, once.

        Args:
            method: of the request.
            key: of an object; "": the bucket itself.
            params: the query.
            headers: further ones.
            body: of the request.
            digest: of the body, SHA-256 in hexadecimal digits, where it is known.

        Raises:
            Rejected: the permit refused it; this request was not sent.
        """
        url = self.url(key, params)
        digest = digest or sha256(body).hexdigest()
        signed = self._signed(method, url, headers=dict(headers or {}), digest=digest)
        content = body if method in ("PUT", "POST") else None
        operation = self.http.request(method, url, content=content, headers=signed)
        if self.line is None:
            outcome = operation.perform(Asking(self.cancelled), CodeAuthority(self.http.opened, self._timeout_s))
        else:
            lent = self.line.lend()
            try:
                outcome = operation.perform(Asking(self.cancelled), lent)
            finally:
                lent.give_back()
        response = getattr(outcome, "response", None)
        if response is None:
            return Answer(outcome)
        content = response.content if response.complete else b""
        return Answer(outcome, response.status, response.headers, content, cut=not response.complete)

    def _signed(self, method: str, url: str, *, headers: dict[str, str], digest: str) -> dict[str, str]:
        from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
        from botocore.credentials import Credentials  # type: ignore[import-untyped]

        access, secret = self._credentials
        shown = access if isinstance(access, str) else access.resolve()
        request = AWSRequest(method=method, url=url, headers=headers)
        signer = _signer()(Credentials(shown, secret.resolve()), "s3", self.place.region)
        signer.digest = digest
        signer.add_auth(request)
        return {str(name): str(value) for name, value in request.headers.items()}


@cache
def _signer() -> Any:
    """Return a signer of requests whose bodies' digests are known."""
    from botocore.auth import S3SigV4Auth  # type: ignore[import-untyped]

    class Signer(S3SigV4Auth):  # type: ignore[misc]
        digest = ""

        def payload(self, request: Any) -> str:  # noqa: ARG002 - the library's
            return self.digest

    return Signer


def _never() -> bool:
    return False
