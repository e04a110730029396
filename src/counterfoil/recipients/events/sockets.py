"""Ending a connection so that nothing of it is sent any more."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import Final

# Close without waiting, and tell the peer by a reset: what the kernel still holds is not sent.
_RESET: Final = struct.pack("ii", 1, 0)


def reset(writer: asyncio.StreamWriter) -> None:
    """Abort a stream: neither asyncio nor the kernel sends what they still hold."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError, ValueError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
