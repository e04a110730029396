"""Disks for apsw that fail a sync, or lose at a power cut whatever was not synced."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from pathlib import Path
from typing import Any, Final

import apsw

SECTOR: Final = 512
_IOERR_FSYNC: Final = 10 | 4 << 8


class FailingDisk(apsw.VFS):
    """Fails one sync of a database or its WAL, or all from one on.

    Args:
        nth: which, counting from 1.
        for_good: those after it fail too.
    """

    def __init__(self, nth: int, *, for_good: bool) -> None:
        self._nth = nth
        self._for_good = for_good
        self.syncs = 0
        self.failed = 0
        super().__init__("failing", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: Any) -> apsw.VFSFile:
        """Open a file whose syncs are counted."""
        return _FailingFile(self, name, flags)

    def sync(self) -> None:
        """Count a sync, and fail it if it is its turn."""
        self.syncs += 1
        if self.syncs == self._nth or (self._for_good and self.syncs > self._nth):
            self.failed += 1
            error: Any = apsw.IOError("the disk lost what it was given")
            error.result, error.extendedresult = 10, _IOERR_FSYNC
            raise error


class _FailingFile(apsw.VFSFile):
    def __init__(self, disk: FailingDisk, name: Any, flags: Any) -> None:
        self._disk = disk
        super().__init__("unix", name, flags)

    def xSync(self, flags: int) -> None:
        self._disk.sync()
        super().xSync(flags)


class VolatileDisk(apsw.VFS):
    """Keeps what was synced and what was only written; at the power cut it leaves what a disk might hold then.

    That is what was synced, and of what was not any subset of its sectors, and any of the truncations. The cut comes
    at the n-th write or sync, before it or in its middle, and kills this process.

    Args:
        folder: of the files.
        after: where the files are left as they are after the cut.
        nth: which write or sync, counting from 1.
        chance: which sectors make it.
    """

    def __init__(self, folder: Path, after: Path, *, nth: int, chance: random.Random) -> None:
        self._folder = folder
        self._after = after
        self.left = nth
        self._chance = chance
        self._lock = threading.RLock()
        self._synced: dict[str, bytearray] = {}
        self._pending: dict[str, list[tuple[int, bytes | None]]] = {}
        super().__init__("volatile", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: Any) -> apsw.VFSFile:
        """Open a file that is watched; what is in it at first is on the disk."""
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is None:
            return apsw.VFSFile("unix", name, flags)
        with self._lock:
            if path not in self._synced:
                found = Path(path)
                self._synced[path] = bytearray(found.read_bytes() if found.exists() else b"")
                self._pending[path] = []
        return _VolatileFile(self, path, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        """Remove a file, for good."""
        super().xDelete(filename, syncdir)
        with self._lock:
            self._synced.pop(filename, None)
            self._pending.pop(filename, None)

    def written(self, path: str, offset: int, data: bytes | None) -> None:
        """Note a write, or a truncation at `offset`."""
        with self._lock:
            self._pending.setdefault(path, []).append((offset, data))
            self._synced.setdefault(path, bytearray())
            self._tick()

    def synced(self, path: str) -> None:
        """Note a sync that is about to happen."""
        with self._lock:
            self._tick()

    def kept(self, path: str) -> None:
        """Note a sync that has happened."""
        with self._lock:
            _apply(self._synced.setdefault(path, bytearray()), self._pending.pop(path, []))

    def _tick(self) -> None:
        self.left -= 1
        if self.left == 0:
            self._cut()

    def _cut(self) -> None:
        # The folder beside is synced by whoever writes it, file by file, so it is left as it is.
        for found in self._folder.glob("*-counterfoil"):
            shutil.copytree(found, self._after / found.name)
        for path, image in self._synced.items():
            _apply(image, [part for write in self._pending.get(path, []) for part in self._survivors(write)])
            if image or self._chance.random() < 0.5:
                (self._after / Path(path).name).write_bytes(image)
        os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()

    def _survivors(self, write: tuple[int, bytes | None]) -> list[tuple[int, bytes | None]]:
        offset, data = write
        if self._chance.random() < 0.3:
            return []
        if data is None or self._chance.random() < 0.4:
            return [write]
        sectors = range(0, len(data), SECTOR)
        return [(offset + at, data[at : at + SECTOR]) for at in sectors if self._chance.random() < 0.5]


def _apply(image: bytearray, writes: list[tuple[int, bytes | None]]) -> None:
    for offset, data in writes:
        if data is None:
            del image[offset:]
            continue
        image.extend(bytes(max(0, offset - len(image))))
        image[offset : offset + len(data)] = data


class _VolatileFile(apsw.VFSFile):
    def __init__(self, disk: VolatileDisk, path: str, name: Any, flags: Any) -> None:
        self._disk = disk
        self._path = path
        super().__init__("unix", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:
        super().xWrite(data, offset)
        self._disk.written(self._path, offset, bytes(data))

    def xTruncate(self, size: int) -> None:
        super().xTruncate(size)
        self._disk.written(self._path, size, None)

    def xSync(self, flags: int) -> None:
        self._disk.synced(self._path)
        super().xSync(flags)
        self._disk.kept(self._path)
