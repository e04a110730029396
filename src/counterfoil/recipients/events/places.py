"""Where a broker is and who we are there, from a URL; passwords are kept out of everything that is shown."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from counterfoil.errors import UsageError
from counterfoil.recipients.secret import Secret

NATS: Final = ("nats", "tls")
RABBITMQ: Final = ("amqp", "amqps")
_PORTS: Final = {"nats": 4222, "tls": 4222, "amqp": 5672, "amqps": 5671}
_STREAM: Final = re.compile(r"[^\s.*>/\\\x00-\x20\x7f]{1,255}")
_EXCHANGE: Final = re.compile(r"[A-Za-z0-9_.:-]{1,255}")
_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")

Auth = Secret | tuple[str, Secret] | None


def urls_of(url: Any) -> tuple[str, tuple[str, ...]]:
    """Check the address or addresses of a broker; return the kind of broker, and each address.

    Raises:
        UsageError: they are none.
    """
    given = url.split(",") if isinstance(url, str) else url
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise UsageError(f"url is a str, not {type(url).__name__}", hint='write "nats://host:4222"')
    found = tuple(one.strip() if isinstance(one, str) else "" for one in given)
    parts = [_parts(one) for one in found]
    kinds = {"nats" if one.scheme in NATS else "rabbitmq" for one in parts}
    if len(kinds) != 1:
        raise UsageError("the addresses are of one broker: nats://…, tls://…, or amqp://…, amqps://…")
    return kinds.pop(), found


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        known = parts.scheme in _PORTS and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        known, parts = False, urlsplit("")
    # What was given is not repeated: it may have a password.
    if not known or re.search(r"[\s\x00-\x20]", url):
        raise UsageError("this is no address of a broker", hint="write nats://host:4222 or amqp://host:5672/vhost")
    return parts


def peer_of(url: str) -> str:
    """Return the host and port of an address."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{f'[{host}]' if ':' in host else host}:{parts.port or _PORTS[parts.scheme]}"


def stream_of(stream: Any) -> str:
    """Check the name of a stream, which becomes part of a subject.

    Raises:
        UsageError: it is none.
    """
    if not isinstance(stream, str) or _STREAM.fullmatch(stream) is None:
        raise UsageError(f"{stream!a} is no name of a stream", hint="without white space, dots, *, > and slashes")
    return stream


def exchange_of(stream: Any) -> str:
    """Check the name of an exchange.

    Raises:
        UsageError: it is none.
    """
    if not isinstance(stream, str) or _EXCHANGE.fullmatch(stream) is None:
        raise UsageError(f"{stream!a} is no name of an exchange", hint="letters, digits and -_.:, at most 255 bytes")
    return stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The servers of a broker, and who we are there.

    Attributes:
        urls: the servers, asked in this order.
        auth: a secret token, or a user's name with his secret.
        credentials: the path of a file with a user's JWT and seed.
        tls: a context that knows a private authority or has a client certificate.
        inbox_prefix: what the reply subjects begin with.
    """

    urls: tuple[str, ...]
    auth: Auth = field(default=None, repr=False)
    credentials: str | None = None
    tls: ssl.SSLContext | None = None
    inbox_prefix: str = "_INBOX"

    def __post_init__(self) -> None:
        prefix: Any = self.inbox_prefix
        if not isinstance(prefix, str) or _PREFIX.fullmatch(prefix) is None:
            raise UsageError(f"inbox_prefix is words joined by dots, not {prefix!a}")
        auth: Any = self.auth
        secret = auth[1] if _is_pair(auth) else auth
        if auth is not None and not isinstance(secret, Secret):
            raise UsageError("auth is a Secret, or a user's name with one", hint='write auth=Secret("env:NATS_TOKEN")')
        tls: Any = self.tls
        if tls is not None and not isinstance(tls, ssl.SSLContext):
            raise UsageError(f"tls is an ssl.SSLContext, not {type(tls).__name__}")

    @staticmethod
    def peer(url: str) -> str:
        """Return an address without who we are."""
        return peer_of(url)

    def options(self) -> dict[str, Any]:
        """Return what nats-py takes; secrets are read now.

        Raises:
            Rejected: a secret cannot be read.
        """
        said: dict[str, Any] = {}
        if isinstance(self.auth, tuple):
            said |= {"user": self.auth[0], "password": self.auth[1].resolve()}
        elif self.auth is not None:
            said["token"] = self.auth.resolve()
        if self.credentials is not None:
            said["user_credentials"] = self.credentials
        if self.tls is not None:
            said["tls"] = self.tls
        return said


def _is_pair(auth: Any) -> bool:
    return isinstance(auth, tuple) and len(auth) == 2 and isinstance(auth[0], str)
