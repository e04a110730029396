"""Has the disk write while more bytes are made and digested, so that sealing waits for the last of them only."""

from __future__ import annotations

import threading
from typing import Final

from counterfoil import threads
from counterfoil.recipients.blobs.syncing import sync_data

# Less than this is not worth a thread.
AHEAD_BYTES: Final = 8 << 20


class WriteBehind:
    """Syncs a file in another thread, one sync at a time.

    An error of any of them is an error of the file: the system may tell it once only.

    Args:
        descriptor: of the file; it must stay open until `wait` has returned.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._unsynced = 0
        self._idle = threading.Event()
        self._idle.set()
        self._error: OSError | None = None

    def wrote(self, count: int) -> None:
        """Take note of bytes that were written."""
        self._unsynced += count
        if self._unsynced >= AHEAD_BYTES and self._idle.is_set():
            self._unsynced = 0
            self._idle.clear()
            threads.submit(self._sync)

    def finish(self) -> None:
        """Begin the last sync; at once where that is little."""
        self._idle.wait()
        if self._unsynced < AHEAD_BYTES // 8:
            self._sync()
        else:
            self._idle.clear()
            threads.submit(self._sync)

    def wait(self) -> None:
        """Return when no sync is under way.

        Raises:
            OSError: one of them failed.
        """
        self._idle.wait()
        if self._error is not None:
            raise self._error

    def _sync(self) -> None:
        try:
            sync_data(self._descriptor)
        except OSError as error:
            self._error = self._error or error
        finally:
            self._idle.set()
