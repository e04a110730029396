"""What this machine is about to change in a bucket, written down and durable before it does.

One folder for each upload, locked by whoever uploads, with a log of one JSON value a line. It is operational state:
by it leftovers are found and removed, and nothing else is made of it (rule K5).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from counterfoil.protocol import codec
from counterfoil.recipients.blobs import locks
from counterfoil.recipients.blobs.syncing import make_folder, sync_data, sync_folder

_LOG: Final = "log"


class Journal:
    """A folder of logs.

    Args:
        path: on a file system of this machine.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.uploads = self.path / "uploads"
        self._made = False

    def begin(self, unique: str) -> Log:
        """Begin the log of one upload, and hold its lock."""
        if not self._made or not self.uploads.is_dir():
            make_folder(self.path)
            make_folder(self.uploads)
            self._made = True
        folder = self.uploads / unique
        held = None
        # Whoever cleans may have been faster than our lock; then there is nothing to lose yet.
        while held is None:
            folder.mkdir(exist_ok=True)
            held = locks.lock_folder(folder, wait=True)
        sync_folder(self.uploads)
        return Log(folder, held)

    def left(self) -> Iterator[tuple[str, Log | None]]:
        """Go through the logs of uploads; None for one that somebody holds, or that cannot be read."""
        if not self.uploads.is_dir():
            return
        for folder in sorted(self.uploads.iterdir()):
            held, log = None, None
            try:
                held = locks.lock_folder(folder, wait=False)
                log = None if held is None else Log(folder, held)
            except OSError:
                # It cannot be read: whoever can may be at it.
                if held is not None:
                    os.close(held)
            yield folder.name, log


class Log:
    """One upload's log; whoever has it holds its lock.

    Attributes:
        entries: what it says so far.
    """

    def __init__(self, folder: Path, held: int) -> None:
        self._folder = folder
        self._held = held
        self.entries = list(_read(folder / _LOG))

    def write(self, what: str, *, durable: bool = True, **facts: Any) -> None:
        """Add an entry; it is durable on return, or with the next one."""
        entry = {"what": what, "at": time.time(), **facts}
        new = not (self._folder / _LOG).exists()
        with (self._folder / _LOG).open("ab", buffering=0) as file:
            # After what a crash may have cut: a line of its own.
            file.write(b"\n" + codec.encode(entry, what="an entry of the journal") + b"\n")
            if durable:
                sync_data(file.fileno())
        if new:
            sync_folder(self._folder)
        self.entries.append(entry)

    def last(self, what: str) -> dict[str, Any] | None:
        """Return the last entry of a kind."""
        return next((entry for entry in reversed(self.entries) if entry["what"] == what), None)

    def first(self, what: str) -> dict[str, Any] | None:
        """Return the first entry of a kind."""
        return next((entry for entry in self.entries if entry["what"] == what), None)

    def close(self) -> None:
        """Let go of it; it stays for whoever cleans up."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def remove(self) -> None:
        """Remove it: nothing is left to be cleaned up."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self.close()


def _read(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    for line in path.read_bytes().split(b"\n"):
        try:
            entry = codec.decode(line) if line else None
        except ValueError:
            # Cut by a crash: it was not durable, so nothing was done on it.
            continue
        if isinstance(entry, dict) and isinstance(entry.get("what"), str):
            yield entry
