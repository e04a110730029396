"""What the parts of the matrix share: an activation with an audit, what happens in it, and what is seen afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from counterfoil import AsyncBroker, Broker, Grant
from counterfoil.ledgers.memory import MemoryLedger
from tests.servers.proxy import Link
from tests.support import Colour, eventually, in_thread


@dataclass(frozen=True)
class Seen:
    """What did follow.

    Attributes:
        outcome: what the caller was told.
        permits: those that were not given back.
        next_accepted: whether the next operation was accepted.
        peer: how often the recipient was reached by it.
        journal: the state of its attempt in the ledger.
    """

    outcome: Any
    permits: int
    next_accepted: bool
    peer: int
    journal: str


class Brokered:
    """Performs in an activation whose audit is required, in either colour.

    Args:
        colour: which.
        grants: what may be done.
    """

    def __init__(self, colour: Colour, *grants: Grant) -> None:
        self.colour = colour
        self._grants = grants
        self._life = colour.life(MemoryLedger())
        made = Broker if colour.blocking else AsyncBroker
        self.broker: Any = made(self._life.inner, audit="required")
        self.activation: Any = None

    async def __aenter__(self) -> Self:
        await self._life.__aenter__()
        self.activation = self.broker.activation(grants=self._grants)
        await self._either(self.activation.__enter__ if self.colour.blocking else self.activation.__aenter__)
        return self

    async def __aexit__(self, *error: object) -> None:
        leave = self.activation.__exit__ if self.colour.blocking else self.activation.__aexit__
        await self._either(lambda: leave(*error))
        await self.close(timeout_s=None)
        await self._life.__aexit__(*error)

    async def _either(self, act: Callable[[], Any]) -> Any:
        return await in_thread(act) if self.colour.blocking else await act()

    async def perform(self, operation: Any, **options: Any) -> Any:
        """Perform it now."""
        return await self._either(lambda: self.activation.perform(operation, **options))

    def begin(self, operation: Any, **options: Any) -> asyncio.Task[Any]:
        """Start a call; its outcome is the task's result."""
        return asyncio.ensure_future(self.perform(operation, **options))

    async def close(self, *, timeout_s: float | None) -> None:
        """Shut the broker down."""
        options = {} if timeout_s is None else {"timeout_s": timeout_s}
        await self._either(lambda: self.broker.close(**options))

    async def idle(self) -> None:
        """Wait until nothing is owned any more."""
        await eventually(lambda: self.broker.report().idle)

    async def journal(self) -> str:
        """Return the state of the only attempt that the ledger knows."""
        (view,) = await self._life.effects()
        return str(view.state)


async def happens(cause: str, brokered: Brokered, *, links: Iterable[Link]) -> None:
    """Have something happen to the call that is under way; a deadline comes by itself."""
    if cause == "reset":
        for link in links:
            link.reset()
    elif cause in ("cancel", "revocation"):
        (brokered.activation.cancel if cause == "cancel" else brokered.activation.revoke)()
    elif cause == "shutdown":
        await brokered.close(timeout_s=0.05)


def connections_to(port: int) -> int:
    """Count this machine's connections to a port that nobody has closed."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text("utf-8").splitlines()[1:]]
    return sum(row[2].endswith(f":{port:04X}") and row[3] in ("01", "02", "08") for row in rows)


__all__ = ["Brokered", "Seen", "connections_to", "happens"]
