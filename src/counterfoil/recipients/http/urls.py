"""URLs in one spelling: what grants are compared with is what is connected to and sent."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from counterfoil.recipients.http.addresses import disguised, literal
from counterfoil.recipients.http.refusal import Refused

_PORTS: Final = {"http": 80, "https": 443}
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\\]")
_HOST: Final = re.compile(r"(?!-)[a-z0-9._-]{1,253}")
_PORT: Final = re.compile(r"[0-9]{1,5}")
_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
# Some servers take what follows a semicolon for parameters of the segment.
_DOTS: Final = re.compile(r"(?:^|[/\\])\.{1,2}(?:;[^/\\]*)?(?=[/\\]|$)")
_PATH_SAFE: Final = "/%:@!$&'()*+,;=~"
_QUERY_SAFE: Final = _PATH_SAFE + "?"
BYTES_MAX: Final = 16_384


@dataclass(frozen=True, slots=True)
class Url:
    """An absolute URL, taken apart and put in order.

    Attributes:
        scheme: `http` or `https`.
        host: in lower case, an IPv6 address without brackets.
        port: also where it is the scheme's own.
        path: percent-encoded, opens with a slash.
        query: percent-encoded, without the question mark.
    """

    scheme: str
    host: str
    port: int
    path: str
    query: str

    @property
    def authority(self) -> str:
        """Host and port as the Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"{self.scheme}://{self.authority}"

    @property
    def wire(self) -> str:
        """Path and query, as they are sent."""
        return f"{self.path}?{self.query}" if self.query else self.path

    def __str__(self) -> str:
        return f"{self.origin}{self.wire}"


@lru_cache(1024)
def parse(text: str) -> Url:
    """Take an absolute URL apart.

    Raises:
        Refused: it is none, or could be read in two ways. Nothing is repaired that changes where it leads.
    """
    if _CONTROL.search(text):
        raise Refused("url-control-character")
    if len(text) > BYTES_MAX:
        raise Refused("url-too-long")
    if text != text.strip():
        raise Refused("bad-url")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise Refused("bad-url") from None
    scheme = parts.scheme.lower()
    if scheme not in _PORTS or not text.lower().startswith(f"{scheme}://"):
        raise Refused("scheme-not-http")
    if "@" in parts.netloc:
        raise Refused("userinfo-in-url")
    host, port = _host_and_port(parts.netloc, _PORTS[scheme])
    return Url(scheme, host, port, _path(parts.path), _encoded(parts.query, _QUERY_SAFE))


def _host_and_port(netloc: str, default: int) -> tuple[str, int]:
    host, colon, port = netloc.lower(), "", ""
    if netloc.startswith("["):
        host, bracket, rest = host[1:].partition("]")
        address = literal(host)
        if not bracket or (rest and not rest.startswith(":")) or address is None or address.version != 6 or "%" in host:
            raise Refused("bad-host")
        host, colon, port = str(address), rest[:1], rest[1:]
    else:
        host, colon, port = host.partition(":")
        if not host.isascii():
            raise Refused("host-not-ascii")
        if _HOST.fullmatch(host) is None or ".." in host or host.startswith("."):
            raise Refused("bad-host")
        if disguised(host):
            raise Refused("disguised-address")
    if not colon:
        return host, default
    if _PORT.fullmatch(port) is None or not 0 < int(port) < 65_536:
        raise Refused("bad-port")
    return host, int(port)


def _encoded(text: str, safe: str) -> str:
    if _PERCENT.search(text):
        raise Refused("bad-percent-encoding")
    try:
        return quote(text, safe=safe)
    except UnicodeEncodeError:
        raise Refused("bad-url") from None


def _path(text: str) -> str:
    path = _encoded(text, _PATH_SAFE) or "/"
    # Servers disagree about when `..` is resolved, and a prefix that was granted would not hold.
    if _DOTS.search(unquote(path)) or _DOTS.search(unquote(unquote(path))):
        raise Refused("dot-segments")
    if _CONTROL.search(unquote(path)):
        raise Refused("url-control-character")
    return path


def join(base: str | None, url: str) -> str:
    """Put a relative URL below a base; an absolute one stays as it is."""
    if base is None or re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", url):
        return url
    return (
        base
        if not url
        else f"{base.rstrip('/')}{url}"
        if url.startswith("?")
        else f"{base.rstrip('/')}/{url.lstrip('/')}"
    )
