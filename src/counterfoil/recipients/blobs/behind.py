"""Digests what was written and reads it back, in other threads, while more is written and while the disk writes it."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from hashlib import sha256
from typing import Final

from counterfoil import threads
from counterfoil.recipients.blobs.chunks import CHUNK_BYTES, Chunks
from counterfoil.recipients.blobs.pieces import Piece, Pieces
from counterfoil.recipients.blobs.syncing import begin_sync, sync_data

# Bytes that are handed over together: for less it is not worth waking anybody.
AHEAD_BYTES: Final = 4 << 20
# That many times as much may wait; whoever writes waits then.
WINDOWS_MAX: Final = 4
# What is left at the end is done in the caller's own thread where it is no more than this.
LITTLE_BYTES: Final = 1 << 18

Window = list[Piece]


class _Changed(Exception):
    """The file does not hold what was written."""


class Trail:
    """Works on windows in another thread, one after the other; the first error ends it.

    Args:
        work: is done to each.
    """

    def __init__(self, work: Callable[[Window], None]) -> None:
        self._work = work
        self._turn = threading.Condition()
        self._windows: deque[Window] = deque()
        self._working = self._stopped = False
        self._error: BaseException | None = None

    def add(self, window: Window) -> None:
        """Have a window worked on; waits where too many wait."""
        with self._turn:
            self._turn.wait_for(lambda: self._over or len(self._windows) < WINDOWS_MAX)
            if self._over:
                return
            self._windows.append(window)
            if self._working:
                return
            self._working = True
        threads.submit(self._go)

    def finish(self) -> None:
        """Return when all is done.

        Raises:
            Exception: what the work raised.
        """
        self._idle()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Return when nothing is done any more."""
        self._stopped = True
        self._idle()
        self._windows.clear()

    @property
    def _over(self) -> bool:
        return self._stopped or self._error is not None

    def _idle(self) -> None:
        with self._turn:
            self._turn.wait_for(lambda: not self._working)

    def _go(self) -> None:
        error: BaseException | None = None
        while True:
            with self._turn:
                self._error = self._error or error
                if self._over or not self._windows:
                    self._working = False
                    self._turn.notify_all()
                    return
                window = self._windows[0]
            try:
                self._work(window)
            except BaseException as raised:  # noqa: BLE001 - whoever waits gets it
                error = raised
            with self._turn:
                # Only now: what is being worked on takes room, too.
                self._windows.popleft()
                self._turn.notify_all()


class WriteBehind:
    """What goes on behind whoever writes a file: its digest is made, the disk begins with it, and it is read back.

    What is read back is compared with what was written, byte by byte, so the digest of the one is that of the other;
    the digests of the chunks are made of what was read back. That finds bytes that never came into the file, came to
    another place in it, or were changed there by somebody else. What the disk itself loses later it does not find.

    Args:
        descriptor: of the file, which is open for reading too; it must stay open until `stop` has returned.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._window = Pieces()
        self._begun = 0
        self._last: Window = []
        self._whole = sha256()
        self._digests = Trail(self._digest)
        self._read_at = 0
        self._piece = bytearray()
        self._chunks = Chunks()
        self._reads = Trail(self._read_back)
        # The one sync that is waited for: nobody before it can have been told its error instead.
        self._syncs = Trail(lambda _: sync_data(descriptor))

    def wrote(self, data: memoryview) -> None:
        """Take note of bytes that were written; waits where too many are not digested or not read back."""
        self._window.add(data)
        if self._window.size >= AHEAD_BYTES:
            self._hand_over()

    def digest(self) -> str:
        """Return the SHA-256 of all that was written, in hexadecimal digits, and begin to sync; nothing follows."""
        if self._window.size > LITTLE_BYTES:
            self._hand_over()
        if self._begun:
            self._syncs.add([])
        self._digests.finish()
        self._last = self._window.take()
        self._digest(self._last)
        return self._whole.hexdigest()

    def finish(self) -> bytes | None:
        """Sync the file, while what is left is read back; after `digest`.

        Returns:
            The digests of the chunks, one after the other; None: the file does not hold what was written.

        Raises:
            OSError: the sync failed, or what was begun before it, or the file cannot be read.
        """
        if not self._begun:
            sync_data(self._descriptor)
        self._syncs.finish()
        try:
            self._reads.finish()
            self._read_back(self._last)
        except _Changed:
            return None
        return self._chunks.finished()

    def stop(self) -> None:
        """Return when nothing is done to the file any more."""
        for trail in (self._digests, self._reads, self._syncs):
            trail.stop()
        # This and its trails hold each other, so they live on until somebody collects them.
        self._piece, self._last = bytearray(), []

    def _hand_over(self) -> None:
        size, window = self._window.size, self._window.take()
        begin_sync(self._descriptor, self._begun, size)
        self._begun += size
        self._reads.add(window)
        self._digests.add(window)

    def _digest(self, window: Window) -> None:
        for each in window:
            self._whole.update(each)

    def _read_back(self, window: Window) -> None:
        """Read a window back, compare it with what was written, and digest its chunks."""
        for each in window:
            written = memoryview(each)
            for start in range(0, len(written), CHUNK_BYTES):
                self._compare(written[start : start + CHUNK_BYTES])

    def _compare(self, written: memoryview) -> None:
        piece = self._piece
        if len(written) != len(piece):
            piece = self._piece = bytearray(len(written))
        if os.preadv(self._descriptor, [piece], self._read_at) != len(piece):
            raise _Changed
        # A bytearray is compared as memory; another memoryview would be, byte by byte.
        if piece != written:  # pyright: ignore[reportUnnecessaryComparison]
            raise _Changed
        self._read_at += len(piece)
        self._chunks.add(memoryview(piece))
