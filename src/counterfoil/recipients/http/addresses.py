"""Which addresses may be connected to: the special ranges of IPv4 and IPv6, and numbers dressed up as names."""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# The registries of special-purpose addresses (RFC 6890 and its updates), written down here because what the
# standard library takes for global differs between its versions. Metadata services come first: their reason says more.
_SPECIAL: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("metadata", ("169.254.169.254/32", "169.254.170.2/32", "100.100.100.200/32", "fd00:ec2::/32")),
    ("unspecified", ("0.0.0.0/8", "::/128")),
    ("loopback", ("127.0.0.0/8", "::1/128")),
    ("private", ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10")),
    ("link-local", ("169.254.0.0/16", "fe80::/10")),
    ("shared", ("100.64.0.0/10",)),
    ("multicast", ("224.0.0.0/4", "ff00::/8")),
    ("broadcast", ("255.255.255.255/32",)),
    (
        "reserved",
        (
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.31.196.0/24",
            "192.52.193.0/24",
            "192.88.99.0/24",
            "192.175.48.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "240.0.0.0/4",
            "64:ff9b:1::/48",
            "100::/64",
            "2001::/23",
            "2001:db8::/32",
            "3fff::/20",
            "5f00::/16",
        ),
    ),
)
_RANGES: Final = tuple((slug, ip_network(text)) for slug, texts in _SPECIAL for text in texts)
# Ranges of IPv6 that carry an IPv4 address, and how far from the right it stands: it is judged too.
_CARRIERS: Final = (
    (IPv6Network("::ffff:0:0/96"), 0),
    (IPv6Network("::ffff:0:0:0/96"), 0),
    (IPv6Network("::/96"), 0),
    (IPv6Network("64:ff9b::/96"), 0),
    (IPv6Network("2002::/16"), 80),
)
# Nothing else of IPv6 is given out to hosts of the internet; the two others stand for IPv4 addresses.
_PUBLIC: Final = tuple(map(IPv6Network, ("2000::/3", "::ffff:0:0/96", "64:ff9b::/96")))
_NUMBER: Final = re.compile(r"\d+|0[xX][0-9a-fA-F]*")


@lru_cache(1024)
def literal(host: str) -> Address | None:
    """Return the address that a host is written as, None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def disguised(host: str) -> bool:
    """Whether a host is a number in a spelling that resolvers would read as an address: `127.1`, `0x7f000001`."""
    last = host.rstrip(".").rpartition(".")[2]
    return literal(host) is None and _NUMBER.fullmatch(last) is not None


@lru_cache(1024)
def special(address: Address) -> str | None:
    """Say why an address needs to be opened by name (`loopback`, `private`, …); None: it is a public one."""
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return "link-local"
        for network, shift in _CARRIERS:
            if address in network and address > IPv6Address(1):
                found = special(IPv4Address(int(address) >> shift & 0xFFFFFFFF))
                if found is not None:
                    return found
    for slug, ranged in _RANGES:
        if address.version == ranged.version and address in ranged:
            return slug
    if isinstance(address, IPv6Address) and not any(address in network for network in _PUBLIC):
        return "reserved"
    return None


def unmapped(address: Address) -> Address:
    """Return the IPv4 address that an IPv4-mapped one stands for; any other one unchanged."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped
