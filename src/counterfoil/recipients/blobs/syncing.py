"""Making files and folders durable: when these return, what was written survives a loss of power."""

from __future__ import annotations

import fcntl
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

# Where the system has it (macOS), only this empties the disk's own cache.
_FULL: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)
_data_sync: Final[Any] = getattr(os, "fdatasync", os.fsync)
_begin: Final[Any] = os.posix_fadvise if sys.platform == "linux" else None


def sync_data(descriptor: int) -> None:
    """Make a file's bytes durable, and its length."""
    if _FULL is None:
        _data_sync(descriptor)
    else:
        fcntl.fcntl(descriptor, _FULL)


def begin_sync(descriptor: int, start: int, size: int) -> None:
    """Have the system begin to write bytes that were just written, where it can be told to; nothing is waited for."""
    if _begin is not None:
        # It is advice: a file system that does not take it has not failed. Linux begins to write before it lets go of
        # what is clean, which these bytes are not yet.
        with suppress(OSError):
            _begin(descriptor, start, size, os.POSIX_FADV_DONTNEED)


def make_folder(folder: Path) -> None:
    """Make a folder where it is missing, with those above it, and make their names durable."""
    if not folder.parent.is_dir():
        make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    # Also where somebody else made it: they may not have come to this yet.
    sync_folder(folder.parent)


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _FULL is None:
            os.fsync(descriptor)
        else:
            fcntl.fcntl(descriptor, _FULL)
    finally:
        os.close(descriptor)
