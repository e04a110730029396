"""Authority outside an activation: the code itself, which opens no special address that it has not named."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from ipaddress import ip_network
from typing import Any

from counterfoil.errors import UsageError
from counterfoil.ports.recipient import Permit
from counterfoil.recipients.http import urls
from counterfoil.recipients.http.addresses import Network, literal, special, unmapped
from counterfoil.recipients.http.refusal import Refused


class Opened:
    """The special addresses that a recipient's code names.

    Args:
        ranges: `("10.0.0.0/8",)`: open for whatever it asks for.
        base: its base URL. Where its host is written as a special address, or as `localhost`, that address is open
            for this origin, and for no other.
    """

    def __init__(self, ranges: Any, base: str | None) -> None:
        if isinstance(ranges, (str, bytes)) or not isinstance(ranges, Iterable):
            raise UsageError("allow_addresses is a tuple of ranges", hint='write allow_addresses=("10.0.0.0/8",)')
        self._ranges = tuple(_range(one) for one in ranges)
        self._base = None
        if base is not None:
            try:
                self._base = urls.parse(base)
            except Refused as refused:
                raise UsageError(f"base_url cannot be used: {refused.reason}") from None
            if self._base.query:
                raise UsageError("base_url has a query", hint="give it with each operation, as params=")

    def allows(self, text: str, origin: str) -> bool:
        """Whether a special address may be connected to, for this origin."""
        address = literal(text)
        if address is None:
            return False
        if any(address.version == ranged.version and address in ranged for ranged in self._ranges):
            return True
        base = self._base
        if base is None or base.origin != origin:
            return False
        if base.host == "localhost":
            return special(address) == "loopback"
        named = literal(base.host)
        return named is not None and unmapped(named) == address


def _range(text: Any) -> Network:
    try:
        return ip_network(text)
    except (TypeError, ValueError):
        raise UsageError(f"allow_addresses has ranges like 10.0.0.0/8, not {text!r}") from None


class CodeAuthority(Permit):
    """The permit of an operation outside an activation: whoever wrote the code allowed it."""

    def __init__(self, opened: Opened, timeout_s: float) -> None:
        self._opened = opened
        self._deadline = time.monotonic() + timeout_s
        self._origin = ""

    @property
    def deadline(self) -> float:
        """When it is abandoned, on `time.monotonic()`."""
        return self._deadline

    def authorise(self, target: str) -> bool:
        """Allow any target, and remember where it is."""
        self._origin = urls.parse(target).origin
        return True

    def allows_address(self, address: str) -> bool:
        """Say whether the code has named a special address."""
        return self._opened.allows(address, self._origin)

    def dispatch(self, *, peer: str | None = None, contract: str | None = None) -> None:
        """Nobody competes for the gate."""

    def offered(self, count: int) -> bool:  # noqa: ARG002 - the port's
        """Charge nothing."""
        return True

    def received(self, count: int) -> bool:  # noqa: ARG002 - the port's
        """Charge nothing."""
        return True

    def on_cancel(self, stop: Callable[[], None]) -> None:
        """Nobody cancels."""

    def hold(self) -> Callable[[], None]:
        """Nobody counts."""
        return _nothing


def _nothing() -> None:
    return
