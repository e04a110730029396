"""Recipients by name: how a stored operation is found again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from counterfoil.errors import UsageError
from counterfoil.protocol import codec

# What a recipient that speaks HTTP knows by itself.
_VERBS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Registry:
    """The recipients that a dispatcher knows.

    Args:
        recipients: recipients, or a mapping from names to them.

    Raises:
        UsageError: one is no recipient, or two have the same name.
    """

    def __init__(self, recipients: Iterable[Any] | Mapping[str, Any]) -> None:
        given = recipients.values() if isinstance(recipients, Mapping) else recipients
        if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
            raise UsageError(f"a dispatcher takes a list of recipients, not {type(recipients).__name__}")
        self._recipients: dict[str, Any] = {}
        for recipient in given:
            name = getattr(recipient, "name", None)
            if not isinstance(name, str) or not callable(getattr(recipient, "restore", None)):
                raise UsageError(f"{type(recipient).__name__} is no recipient", hint="for example Recipient('mail')")
            if name in self._recipients:
                raise UsageError(f"there are two recipients with the name {name!r}")
            self._recipients[name] = recipient
        if not self._recipients:
            raise UsageError("a dispatcher needs at least one recipient")

    def known(self) -> dict[str, tuple[str, ...]]:
        """Return what can be dispatched: recipient to its operations."""
        return {name: tuple(getattr(one, "operations", _VERBS)) for name, one in self._recipients.items()}

    def restore(self, body: bytes) -> Any:
        """Make an operation of its stored form.

        Raises:
            UsageError: nobody here knows it, or its arguments do not fit any more.
        """
        stored = codec.decode(body)
        return self._recipients[stored["recipient"]].restore(stored)
