"""The wire of events: with a hard end, and a word on whether it takes anything more."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from counterfoil import nats_wire
from counterfoil.recipients.events.sockets import reset

GATHERED_BYTES: Final = 1 << 20


class Wire(nats_wire.Wire):
    """One TCP connection, with or without TLS."""

    @property
    def stalled(self) -> bool:
        """Whether the socket takes nothing now, so that what is written would only be kept."""
        if self._io_writer is None or self.gathered_bytes > GATHERED_BYTES:
            return True
        transport = self._io_writer.transport
        # asyncio's own mark, above which it asks for a pause.
        return bool(transport.get_write_buffer_size() > transport.get_write_buffer_limits()[1])

    async def drain(self) -> None:
        """Wait until the socket has taken enough of what was written."""
        # The side that reads hears of a lost connection too. Raised here it would keep nats-py from closing, and us
        # from being told.
        with suppress(OSError):
            await super().drain()  # type: ignore[no-untyped-call]

    async def clear(self) -> None:
        """Wait until it is no longer stalled, or the connection is lost."""
        self.flush()
        await self.drain()

    def cut(self) -> None:
        """End the connection at once: neither we nor asyncio nor the kernel send what they still hold."""
        self.forget()
        if self._io_writer is not None:
            reset(self._io_writer)
