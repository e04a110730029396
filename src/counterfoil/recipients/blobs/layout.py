"""What the folder of one blob holds, on its way as sealed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

DATA: Final = "data"
RECORD: Final = "record"


def remove(folder: Path) -> int | None:
    """Remove a folder that somebody left on its way, and return what it held; None: it, or what is in it, is not ours.

    The caller holds its lock.
    """
    size = 0
    try:
        for name in (RECORD, DATA):
            with suppress(FileNotFoundError):
                length = (folder / name).lstat().st_size
                (folder / name).unlink()
                size += length
        folder.rmdir()
    except OSError:
        return None
    return size
