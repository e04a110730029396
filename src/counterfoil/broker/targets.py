"""Where an operation goes: absolute URLs taken apart strictly, and compared without room for two readings.

Whatever two programs might read in two ways (user names in front of a host, dot segments, encoded slashes,
numeric spellings of an address, hosts that are not ASCII) is covered by no grant at all.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from counterfoil.errors import UsageError

_URL: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?P<rest>.*)", re.IGNORECASE
)
_AUTHORITY: Final = re.compile(r"(?P<host>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?", re.IGNORECASE)
_PRINTABLE: Final = re.compile(r"[!-~]+")
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# A segment that some server reads as going up, or as more than one segment; `;` begins parameters of a segment.
_AMBIGUOUS: Final = re.compile(
    r"(?:^|/)(?:\.|%(?:25)*2e){1,2}(?:;[^/]*)?(?=/|$)|%(?:25)*(?:2f|5c|00|c0)", re.IGNORECASE
)
_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}


@dataclass(frozen=True, slots=True)
class Place:
    """A URL taken apart: scheme and host in lower case, the port as a number (None: the scheme has none), the path."""

    scheme: str
    host: str
    port: int | None
    path: str

    @property
    def origin(self) -> str:
        """Scheme, host and port, without a port that goes without saying."""
        port = "" if self.port is None or self.port == _PORTS.get(self.scheme) else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}"

    def covers(self, other: Place) -> bool:
        """Whether `other` is at this origin and, where this has a path, below it."""
        same = (self.scheme, self.host, self.port) == (other.scheme, other.host, other.port)
        if not same or self.path in ("", "/"):
            return same
        return (other.path or "/").startswith(self.path) and _AMBIGUOUS.search(other.path) is None


@lru_cache(1024)
def parse(url: str) -> Place | None:
    """Take an absolute URL apart; None if it is none, or could be read in two ways."""
    if _PRINTABLE.fullmatch(url) is None or "\\" in url:
        return None
    whole = _URL.fullmatch(url)
    authority = None if whole is None else _AUTHORITY.fullmatch(whole["authority"])
    if whole is None or authority is None:
        return None
    scheme, host = whole["scheme"].lower(), _host(authority["host"].lower())
    port = _PORTS.get(scheme) if authority["port"] is None else int(authority["port"])
    if host is None or port == 0 or (port or 0) > 65_535:
        return None
    return Place(scheme, host, port, whole["path"])


def _host(host: str) -> str | None:
    if host.startswith("["):
        try:
            return f"[{ipaddress.IPv6Address(host[1:-1]).compressed}]"
        except ValueError:
            return None
    labels = host.removesuffix(".").split(".")
    if len(host) > 254 or not all(_LABEL.fullmatch(label) for label in labels):
        return None
    if re.fullmatch(r"[0-9]+|0x[0-9a-f]*", labels[-1]):
        # An address in numbers has one spelling here; resolvers also know octal, hexadecimal and short ones.
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            return None
    return host


@lru_cache(1024)
def granted(url: str) -> Place:
    """Check what a grant names: an exact origin, or an origin with a path prefix that ends in `/`.

    Raises:
        UsageError: it is neither.
    """
    place = parse(url)
    if place is None:
        raise UsageError(
            f"a target is an origin (https://api.example.com) or one with a path prefix, not {url!a}",
            hint="no user names, wildcards or numeric spellings; hosts in their ASCII form (xn--…)",
        )
    if "?" in url or "#" in url:
        raise UsageError(f"a target has no query and no fragment: {url!a}")
    if place.path and not place.path.endswith("/"):
        raise UsageError(f"a target's path prefix ends in '/': {url!a}", hint=f"write {url}/")
    if _AMBIGUOUS.search(place.path):
        raise UsageError(f"a target's path has no dot segments and no encoded slashes: {url!a}")
    return place
