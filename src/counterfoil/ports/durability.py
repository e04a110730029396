"""The port that a mounted body sees: narrow on purpose, so that hosts may implement it. It does not grow (rule S7).

Effects are not part of it: they belong to the engine's own interface, `Run` and `AsyncRun`, which fit it too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Durability(Protocol):
    """Durable steps, sleeps and deliveries of one run, blocking."""

    def step(self, name: str, body: Callable[..., Any], *, inputs: Any = None) -> Any:
        """Run a computation and record its result after it; a replay returns the record."""
        ...

    def sleep(self, seconds: float, *, name: str) -> None:
        """Return when `seconds` have passed since the first call under this name, also across restarts."""
        ...

    def wait_for(self, event: str, id: str, *, timeout: float | None = None) -> Any:
        """Return the payload that is delivered for (event, id)."""
        ...

    def deliver(self, event: str, id: str, payload: Any = None) -> bool:
        """Record a delivery once: True if this one was recorded, False if an equal one was there."""
        ...


@runtime_checkable
class AsyncDurability(Protocol):
    """The same, awaited."""

    async def step(self, name: str, body: Callable[..., Any], *, inputs: Any = None) -> Any:
        """Run a computation and record its result after it; a replay returns the record."""
        ...

    async def sleep(self, seconds: float, *, name: str) -> None:
        """Return when `seconds` have passed since the first call under this name, also across restarts."""
        ...

    async def wait_for(self, event: str, id: str, *, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - pinned
        """Return the payload that is delivered for (event, id)."""
        ...

    async def deliver(self, event: str, id: str, payload: Any = None) -> bool:
        """Record a delivery once: True if this one was recorded, False if an equal one was there."""
        ...
