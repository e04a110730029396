"""The recipient port: an operation that is bound to its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Operation(Protocol[T_co]):
    """How to perform an effect, how to ask the recipient about it, and what each answer proves."""

    @property
    def settings(self) -> Settings:
        """What holds for the operation whatever its arguments are."""
        ...

    @property
    def request(self) -> Any:
        """The request as a JSON value, for its fingerprint."""
        ...

    def run(self, context: Any) -> T_co | Any:
        """Perform it; may return an awaitable."""
        ...

    @property
    def verify(self) -> Callable[..., Any] | None:
        """Checks a proof, or None."""
        ...

    @property
    def reconcile(self) -> Any:
        """Ask the recipient: a callable that takes the context, or `UNASKABLE`."""
        ...


class Settings(Protocol):
    """What an operation says about its recipient, until contracts say it."""

    @property
    def recipient(self) -> str:
        """What the recipient is called."""
        ...

    @property
    def visibility_s(self) -> float:
        """Seconds that the recipient may take to show an effect."""
        ...

    @property
    def retryable(self) -> bool:
        """Whether a failed attempt may be followed by another one, where the call has a retry policy."""
        ...

    @property
    def keep_key(self) -> bool:
        """Whether all attempts share one key."""
        ...

    @property
    def proof_type(self) -> Any:
        """The type that proofs are decoded into, or None for plain JSON."""
        ...
