"""Authority outside an activation: the code itself, which named the broker and the stream."""

from __future__ import annotations

from collections.abc import Callable

from counterfoil.ports.recipient import Permit


class CodeAuthority(Permit):
    """The permit of an operation outside an activation: whoever wrote the code allowed it.

    Args:
        deadline: when it is abandoned, on `time.monotonic()`.
    """

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline

    @property
    def deadline(self) -> float:
        """When it is abandoned, on `time.monotonic()`."""
        return self._deadline

    def authorise(self, target: str) -> bool:  # noqa: ARG002 - the port's
        """Allow it."""
        return True

    def allows_address(self, address: str) -> bool:  # noqa: ARG002 - the port's
        """Allow it: an address of a broker is the code's own."""
        return True

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
