"""Where a ledger's stream is: servers, credentials, and what its address may say beside them."""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import unquote

import msgspec

from counterfoil.errors import UsageError

_HINT = "write nats://host:4222/stream, with several servers nats://a:4222,b:4222/stream"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The servers of one NATS system, and how to log in.

    Args:
        servers: `nats://host:port`, tried in turn.
        user: a user, or a token if there is no password; None: nobody.
        password: the user's.
        creds: a file with NATS credentials.
        ca: a file with the certificates of the authority that the servers' are from; None: the system's authorities.
    """

    servers: tuple[str, ...]
    user: str | None = None
    password: str | None = None
    creds: str | None = None
    ca: str | None = None

    def options(self) -> dict[str, Any]:
        """Return what nats-py takes for logging in."""
        found: dict[str, Any] = {}
        if self.user is not None and self.password is None:
            found["token"] = self.user
        elif self.user is not None:
            found.update(user=self.user, password=self.password)
        if self.creds is not None:
            found["user_credentials"] = self.creds
        if self.ca is not None:
            found["tls"] = ssl.create_default_context(cafile=self.ca)
        return found

    def __repr__(self) -> str:
        # What is beside the servers is a secret.
        return f"Place(servers={self.servers!r})"


def place_of(netloc: str, *, creds: str | None = None, ca: str | None = None) -> Place:
    """Take apart what stands between `nats://` and the stream.

    Raises:
        UsageError: it names no servers.
    """
    login, at, hosts = netloc.rpartition("@")
    user, colon, password = login.partition(":")
    return Place(
        servers=tuple(_server(host) for host in hosts.split(",")),
        user=unquote(user) if at else None,
        password=unquote(password) if colon else None,
        creds=creds,
        ca=ca,
    )


def _server(host: str) -> str:
    name, colon, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    if not colon:
        name, port = host, "4222"
    if not name or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536 or "/" in name:
        raise UsageError(f"{host!r} is no NATS server", hint=_HINT)
    return f"nats://{name}:{port}"
