"""A disk whose syncs are counted, and fail or wait on demand."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import apsw

IOERR_FSYNC = 10 | 4 << 8


class FaultyDisk(apsw.VFS):
    """While entered, what apsw opens goes through here.

    Attributes:
        syncs: how often a write-ahead log was synced.
        failing: whether the next such sync fails, as it does when the disk has lost what it was given.
        during: called in each sync, of whatever file.
        threads: those that came here for anything: to open, read, write, lock or sync.
    """

    def __init__(self) -> None:
        super().__init__("faulty", "unix", makedefault=True)
        self.syncs = 0
        self.failing = False
        self.during: Callable[[], None] = lambda: None
        self.threads: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unregister()
        apsw.set_default_vfs("unix")

    def xOpen(self, name: Any, flags: Any) -> apsw.VFSFile:
        self.seen()
        return _File(self, name, flags)

    def xAccess(self, pathname: str, flags: int) -> bool:
        self.seen()
        return super().xAccess(pathname, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self.seen()
        super().xDelete(filename, syncdir)

    def seen(self) -> None:
        """Note which thread is here."""
        self.threads.add(threading.get_ident())


class _File(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: Any, flags: Any) -> None:
        self._disk = disk
        self._wal = (name.filename() if isinstance(name, apsw.URIFilename) else str(name)).endswith("-wal")
        super().__init__("unix", name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:
        self._disk.seen()
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.seen()
        super().xWrite(data, offset)

    def xLock(self, level: int) -> None:
        self._disk.seen()
        super().xLock(level)

    def xSync(self, flags: int) -> None:
        self._disk.seen()
        self._disk.during()
        if self._wal:
            self._disk.syncs += 1
            if self._disk.failing:
                error: Any = apsw.IOError("the disk lost what it was given")
                error.result = 10
                error.extendedresult = IOERR_FSYNC
                raise error
        super().xSync(flags)
