"""Header names and values, checked by us for every protocol version (rule H6)."""

from __future__ import annotations

import re
from typing import Final

from counterfoil.recipients.http.refusal import Refused

_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# Printable ASCII, tabs inside, and what Latin-1 has above; neither CR, LF, NUL nor any other control character.
_VALUE: Final = re.compile(r"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?")
# Framing and routing are made here from what is known to be true; hop-by-hop headers are the connection's own.
OWNED: Final = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
BYTES_MAX: Final = 32_768
CREDENTIALS: Final = frozenset({"authorization", "cookie"})

Headers = tuple[tuple[str, str], ...]


def is_token(name: str) -> bool:
    """Whether a text can be a header's name, or a method."""
    return _TOKEN.fullmatch(name) is not None


def check(headers: Headers) -> None:
    """Check headers that somebody gave.

    Raises:
        Refused: a name or a value that could be read as something else, or that is not theirs to set.
    """
    for name, value in headers:
        if not is_token(name):
            raise Refused("bad-header-name")
        if name.lower() in OWNED:
            raise Refused("header-not-yours", header=name.lower())
        if _VALUE.fullmatch(value) is None:
            raise Refused("bad-header-value", header=name.lower())
    if sum(len(name) + len(value) for name, value in headers) > BYTES_MAX:
        raise Refused("headers-too-large")


def merged(*layers: Headers) -> Headers:
    """Put headers on top of others; a later one of the same name, in any case, takes the place of all earlier ones."""
    found: dict[str, list[tuple[str, str]]] = {}
    for layer in layers:
        for name in {name.lower() for name, _ in layer}:
            found.pop(name, None)
        for name, value in layer:
            found.setdefault(name.lower(), []).append((name, value))
    return tuple(pair for pairs in found.values() for pair in pairs)
