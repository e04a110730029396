"""Has the disk write, and reads back what it has, while more bytes are made: sealing waits for the last of them."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Final

from counterfoil import threads
from counterfoil.recipients.blobs.chunks import Chunks
from counterfoil.recipients.blobs.pieces import Piece, Pieces
from counterfoil.recipients.blobs.syncing import sync_data

# Bytes that are synced and read back together: less is not worth a sync of its own.
AHEAD_BYTES: Final = 4 << 20
# That many times as much may wait for the disk; whoever writes waits then.
WINDOWS_MAX: Final = 3
# What is read at once: it is compared and digested while it is near the processor.
READ_BYTES: Final = 1 << 18


class WriteBehind:
    """Syncs a file and reads it back in other threads: one sync at a time, and one reader of what was synced.

    What is read back is compared with what was written, byte by byte, so the digest of the one is that of the other;
    the digests of the chunks are made of what was read back. An error of any sync is an error of the file: the system
    may tell it once only.

    Args:
        descriptor: of the file, which is open for reading too; it must stay open until `finish` or `stop` has returned.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._turn = threading.Condition()
        self._window = Pieces()
        # Written, and not read back yet; windows are counted as they are added, synced and read.
        self._windows: deque[list[Piece]] = deque()
        self._added = self._synced = self._read = 0
        self._syncing = self._reading = self._stopped = False
        self._error: OSError | None = None
        self._same = True
        self._at = 0
        self._chunks = Chunks()

    def wrote(self, data: memoryview) -> None:
        """Take note of bytes that were written; waits for the disk where too many wait for it."""
        self._window.add(data)
        if self._window.size < AHEAD_BYTES:
            return
        with self._turn:
            self._turn.wait_for(lambda: self._over or len(self._windows) < WINDOWS_MAX)
            self._add()
            if self._syncing:
                return
            self._syncing = True
        threads.submit(self._sync)

    def finish(self) -> bytes | None:
        """Sync what is left, and read back what is left.

        Returns:
            The digests of the chunks, one after the other; None: the file does not hold what was written.

        Raises:
            OSError: a sync failed, or the file cannot be read.
        """
        with self._turn:
            self._turn.wait_for(lambda: not self._syncing)
            self._add()
            self._syncing = True
        self._sync()
        self._idle()
        if self._error is not None:
            raise self._error
        return self._chunks.finished() if self._same else None

    def stop(self) -> None:
        """Return when nothing is done to the file any more."""
        self._stopped = True
        self._idle()

    @property
    def _over(self) -> bool:
        """Whether it makes no difference what else is on the disk."""
        return self._stopped or self._error is not None or not self._same

    def _idle(self) -> None:
        with self._turn:
            self._turn.wait_for(lambda: not self._syncing and not self._reading)

    def _add(self) -> None:
        window = self._window.take()
        if not self._over:
            self._windows.append(window)
            self._added += 1

    def _sync(self) -> None:
        """Sync until all that was added is synced, and have it read back."""
        more = True
        while more:
            upto, error = self._added, None
            try:
                sync_data(self._descriptor)
            except OSError as raised:
                error = raised
            with self._turn:
                self._error = self._error or error
                self._synced = upto
                more = self._synced < self._added and not self._over
                read, self._reading = not self._reading, True
                self._syncing = more
                self._turn.notify_all()
            if read and more:
                threads.submit(self._read_back)
            elif read:
                self._read_back()

    def _read_back(self) -> None:
        """Read what is synced, and what is synced meanwhile, and compare it with what was written."""
        piece, error = bytearray(READ_BYTES), None
        while True:
            with self._turn:
                self._error = self._error or error
                if self._over or self._read == self._synced:
                    self._reading = False
                    self._turn.notify_all()
                    return
                window = self._windows[0]
            try:
                self._same = all(self._compared(memoryview(each), piece) for each in window)
            except OSError as raised:
                error = raised
            with self._turn:
                self._windows.popleft()
                self._read += 1
                self._turn.notify_all()

    def _compared(self, written: memoryview, piece: bytearray) -> bool:
        """Read bytes back and digest them; False if they are not what was written."""
        for start in range(0, len(written), READ_BYTES):
            part = written[start : start + READ_BYTES]
            if len(part) != len(piece):
                piece = bytearray(len(part))
            if os.preadv(self._descriptor, [piece], self._at) != len(piece):
                return False
            # A bytearray is compared as memory; another memoryview would be, byte by byte.
            if piece != part:  # pyright: ignore[reportUnnecessaryComparison]
                return False
            self._at += len(piece)
            self._chunks.add(memoryview(piece))
        return True
