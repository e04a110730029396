"""Grants: what may be asked for. Nothing is allowed that no grant allows, and a grant only ever narrows."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Final

from counterfoil.broker import targets as urls
from counterfoil.errors import UsageError
from counterfoil.protocol import keys

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_GIVEN: Final = "give less, not more: make another grant for what this one does not allow"


@dataclass(frozen=True, slots=True)
class Grant:
    """The authority to ask one recipient for some operations, at some targets.

    Args:
        recipient: the recipient's name.
        operations: the verbs that may be asked for, as the recipient spells them: `("POST",)`, `("send",)`.
        targets: where operations with a URL may go: exact origins (`https://api.example.com`), or origins with a path
            prefix that ends in `/`. Nowhere, if empty; operations without a URL need none.
        allow_addresses: ranges of special addresses (loopback, private …) that are open: `("127.0.0.1/32",)`.

    Raises:
        UsageError: a part of it is not as it should be.
    """

    recipient: str
    _: KW_ONLY
    operations: tuple[str, ...]
    targets: tuple[str, ...] = ()
    allow_addresses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        keys.name(self.recipient, "the grant's recipient")
        for what in ("operations", "targets", "allow_addresses"):
            object.__setattr__(self, what, _texts(getattr(self, what), what))
        for operation in self.operations:
            keys.name(operation, "an operation of the grant")
        for target in self.targets:
            urls.granted(target)
        for network in self.allow_addresses:
            _network(network)

    def attenuate(
        self,
        *,
        operations: Iterable[str] | None = None,
        targets: Iterable[str] | None = None,
        allow_addresses: Iterable[str] | None = None,
    ) -> Grant:
        """Make a narrower grant; what is not given stays as it is.

        Raises:
            UsageError: it would be wider in any part (`code="grant-widened"`).
        """
        narrower = replace(
            self,
            operations=self.operations if operations is None else _texts(operations, "operations"),
            targets=self.targets if targets is None else _texts(targets, "targets"),
            allow_addresses=self.allow_addresses if allow_addresses is None else _texts(allow_addresses, "addresses"),
        )
        for operation in narrower.operations:
            if operation not in self.operations:
                raise _widened(f"the operation {operation!r}")
        for target in narrower.targets:
            if not self.reaches(urls.granted(target)):
                raise _widened(f"the target {target!r}")
        for network in narrower.allow_addresses:
            if not any(_within(_network(network), _network(own)) for own in self.allow_addresses):
                raise _widened(f"the addresses {network!r}")
        return narrower

    def reaches(self, place: urls.Place) -> bool:
        """Whether a place is at or below one of the targets."""
        return any(urls.granted(target).covers(place) for target in self.targets)

    def allows(self, recipient: str, operation: str, target: str | None) -> bool:
        """Whether it covers an operation."""
        if recipient != self.recipient or operation not in self.operations:
            return False
        if target is None:
            return True
        place = urls.parse(target)
        return place is not None and self.reaches(place)

    def opens(self, address: str) -> bool:
        """Whether a special address is in one of its ranges; an IPv4 address in IPv6 dress counts as what it is."""
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        found = getattr(found, "ipv4_mapped", None) or found
        return any(found in _network(network) for network in self.allow_addresses)


def _texts(given: Any, what: str) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(f"{what} is a tuple of str, not {given!r}", hint=f"write {what}=({given!r},)")
    found = tuple(given)
    if not all(isinstance(text, str) for text in found):
        raise UsageError(f"{what} is a tuple of str, not {found!r}")
    return found


def _network(given: str) -> Network:
    try:
        return ipaddress.ip_network(given)
    except ValueError:
        raise UsageError(
            f"allow_addresses takes ranges like '127.0.0.1/32' or 'fd00::/8', not {given!r}",
            hint="the bits after the prefix are 0",
        ) from None


def _within(narrow: Any, wide: Any) -> bool:
    return bool(narrow.version == wide.version and narrow.subnet_of(wide))


def _widened(what: str) -> UsageError:
    return UsageError(f"{what} is not in the grant that was to be narrowed", hint=_GIVEN, code="grant-widened")
