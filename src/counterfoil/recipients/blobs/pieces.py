"""Bytes that were written, kept for a while as they came: copied only where they must be."""

from __future__ import annotations

from typing import Final

# Less than this is copied: to keep it as it came costs more than it is worth.
LITTLE_BYTES: Final = 1 << 16
Piece = bytes | bytearray | memoryview


class Pieces:
    """Keeps bytes that their owner may change as soon as it has written them.

    Attributes:
        size: how many there are.
    """

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[Piece] = []

    def add(self, data: memoryview) -> None:
        """Keep further bytes."""
        self.size += len(data)
        last = self._pieces[-1] if self._pieces else None
        if len(data) >= LITTLE_BYTES:
            # Nobody can change what is `bytes`.
            self._pieces.append(data if type(data.obj) is bytes else bytes(data))
        elif isinstance(last, bytearray):
            last += data
        elif data:
            self._pieces.append(bytearray(data))

    def take(self) -> list[Piece]:
        """Return what is kept, and keep it no longer."""
        pieces, self._pieces, self.size = self._pieces, [], 0
        return pieces
