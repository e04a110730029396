"""Speaks S3: signs a request, sends it once, and says what came of it."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from counterfoil.errors import UsageError
from counterfoil.ports.recipient import Permit
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
        self._credentials = credentials
        self._timeout_s = timeout_s
        self.http = HTTP(
            name,
            base_url=place.endpoint,
            timeout_s=timeout_s,
            allow_addresses=allow,
            body_bytes_max=ANSWER_BYTES_MAX,
        )

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
        permit: Permit | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Answer:
        """Send one request, once.

        Raises:
            Rejected: the permit refused it; this request was not sent.
        """
        url = self.url(key, params)
        signed = self._signed(method, url, headers=dict(headers or {}), body=body)
        content = body if method in ("PUT", "POST") else None
        operation = self.http.request(method, url, content=content, headers=signed)
        given = CodeAuthority(self.http.opened, self._timeout_s) if permit is None else permit
        outcome = operation.perform(Asking(cancelled), given)
        response = getattr(outcome, "response", None)
        if response is None:
            return Answer(outcome)
        return Answer(outcome, response.status, response.headers, response.content if response.complete else b"")

    def _signed(self, method: str, url: str, *, headers: dict[str, str], body: bytes) -> dict[str, str]:
        from botocore.auth import S3SigV4Auth  # type: ignore[import-untyped]
        from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
        from botocore.credentials import Credentials  # type: ignore[import-untyped]

        access, secret = self._credentials
        shown = access if isinstance(access, str) else access.resolve()
        request = AWSRequest(method=method, url=url, data=body, headers=headers)
        S3SigV4Auth(Credentials(shown, secret.resolve()), "s3", self.place.region).add_auth(request)
        return {str(name): str(value) for name, value in request.headers.items()}


def overdue(permit: Permit | None) -> bool:
    """Whether a permit's time is over."""
    return permit is not None and time.monotonic() >= permit.deadline
