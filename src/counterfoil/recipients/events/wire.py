"""nats-py's transport with what it lacks: a hard end, and a word on whether it takes anything more."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from nats.aio.transport import TcpTransport

from counterfoil.recipients.events.sockets import reset


class Wire(TcpTransport):
    """One TCP connection, with or without TLS."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._draining = 0
        self._clear: asyncio.Event | None = None

    def __bool__(self) -> bool:
        # nats-py takes the place of a transport that is not connected yet with one of its own.
        return True

    @property
    def stalled(self) -> bool:
        """Whether the socket takes nothing now, so that what is written would only be kept."""
        return self._draining > 0

    async def drain(self) -> None:
        """Wait until the socket has taken enough of what was written."""
        self._draining += 1
        try:
            # The side that reads hears of a lost connection too. Raised here it would keep nats-py from closing, and
            # us from being told.
            with suppress(OSError):
                await super().drain()  # type: ignore[no-untyped-call]
        finally:
            self._draining -= 1
            if self._clear is not None and not self._draining:
                self._clear.set()

    async def clear(self) -> None:
        """Wait until it is no longer stalled."""
        if self.stalled:
            self._clear = asyncio.Event()
            await self._clear.wait()

    def cut(self) -> None:
        """End the connection at once: neither asyncio nor the kernel sends what they still hold."""
        if self._io_writer is not None:
            reset(self._io_writer)
