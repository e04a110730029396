"""One blob on its way into a folder: reserve, write, seal."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from counterfoil.errors import BlobDamaged, RecipientError
from counterfoil.outcomes import Accepted, Evidence, Failed, Outcome, Rejected, Uncertain
from counterfoil.recipients.blobs import layout, locks
from counterfoil.recipients.blobs.behind import AHEAD_BYTES, WriteBehind
from counterfoil.recipients.blobs.beside import all_of
from counterfoil.recipients.blobs.chunks import Record
from counterfoil.recipients.blobs.reference import Reference
from counterfoil.recipients.blobs.store import Upload
from counterfoil.recipients.blobs.syncing import sync_data, sync_folder

if TYPE_CHECKING:
    from counterfoil.recipients.blobs.folder import Folder

_CREATE: Final = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_TAKEN: Final = frozenset({errno.EEXIST, errno.ENOTEMPTY})
# With these a file system says that it has not renamed. Others, and ENOENT after a lost reply of a server, do not say.
_NOT_RENAMED: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EMLINK, errno.EXDEV}
)


class Staged(Upload):
    """A blob that only its writer sees."""

    def __init__(self, folder: Folder, media_type: str) -> None:
        self._folder = folder
        self._media_type = media_type
        self._size = 0
        folder.make(folder.sealed)
        folder.make(folder.writing)
        self._path, self._lock = _reserved(folder.writing)
        try:
            self._data = os.open(self._path / layout.DATA, _CREATE, 0o666)
        except OSError:
            os.close(self._lock)
            raise
        self._behind = WriteBehind(self._data)
        self.attempts = 0
        self._over = False

    def write(self, data: memoryview) -> None:
        """Take the next bytes."""
        # Not more at once than what the disk may already begin with.
        for start in range(0, len(data), AHEAD_BYTES):
            rest = part = data[start : start + AHEAD_BYTES]
            while rest:
                rest = rest[os.write(self._data, rest) :]
            self._size += len(part)
            self._behind.wrote(part)

    def seal(self, expected: Callable[[Reference], str | None], gate: Callable[[], None]) -> Outcome[Any]:
        """Make it durable, verify it, and let it be seen; see the port."""
        try:
            written = Reference(f"sha256:{self._behind.digest()}", self._size, self._media_type)
            if (against := expected(written)) is not None:
                return _rejected(against, written=written.digest, size=written.size)
            table = self._behind.finish()
            if table is None or os.fstat(self._data).st_size != written.size:
                return _rejected("wrong-digest", written=written.digest)
            place = self._folder.place(written)
            self._write_record(Record(written, table), place)
        except OSError as error:
            return _rejected("not-stored", error=name_of(error))
        gate()
        return self._publish(written, place)

    def abandon(self) -> None:
        """Let go of it and of what was written."""
        if self._over:
            return
        self._over = True
        with suppress(OSError):
            layout.remove(self._path)
        self._let_go()

    def _let_go(self) -> None:
        self._behind.stop()
        os.close(self._data)
        os.close(self._lock)

    def _write_record(self, record: Record, place: Path) -> None:
        """Write the record; it is durable on return, and so is all that the rename needs."""
        descriptor = os.open(self._path / layout.RECORD, _CREATE, 0o444)
        try:
            rest = memoryview(record.encoded())
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            # At once: a file system makes one commit of them.
            all_of(
                [
                    lambda: sync_data(descriptor),
                    lambda: sync_folder(self._path),
                    lambda: self._folder.make(place.parent),
                ]
            )
        finally:
            os.close(descriptor)

    def _publish(self, wanted: Reference, place: Path) -> Outcome[Any]:
        try:
            self._path.rename(place)
        except OSError as error:
            if error.errno in _TAKEN:
                return self._present(wanted)
            if error.errno in _NOT_RENAMED:
                return Failed(_evidence("refused", error=name_of(error)))
            return Uncertain(_evidence("not-known-to-be-sealed", phase="dispatched", error=name_of(error)))
        self._over = True
        self._let_go()
        try:
            self._folder.sync(wanted)
        except OSError as error:
            return Uncertain(_evidence("not-known-to-be-durable", phase="dispatched", error=name_of(error)))
        return accepted(wanted)

    def _present(self, wanted: Reference) -> Outcome[Any]:
        """Answer where the blob was sealed before: what is there is checked, and never replaced."""
        try:
            found = self._folder.settle(wanted)
        except BlobDamaged as damaged:
            return Failed(_evidence("damaged", fault=damaged.fault))
        except (OSError, RecipientError) as error:
            return Uncertain(_evidence("not-known-to-be-durable", phase="dispatched", error=name_of(error)))
        if found is None:
            return Uncertain(_evidence("not-known-to-be-sealed", phase="dispatched", error="EEXIST"))
        return accepted(wanted, already=True)


def accepted(wanted: Reference, *, already: bool = False) -> Accepted[dict[str, Any]]:
    """Say that a blob is sealed; `already`: it was before."""
    details = {"attempts": 1, "already": already}
    evidence = Evidence("sealed", phase="acknowledged", promises=("durable", "immutable"), details=details)
    return Accepted(wanted.as_json(), evidence=evidence)


def name_of(error: BaseException) -> str:
    """Name what the system said."""
    number = error.errno if isinstance(error, OSError) else None
    return type(error).__name__ if number is None else errno.errorcode.get(number, str(number))


def _rejected(kind: str, **details: Any) -> Rejected:
    return Rejected(Evidence(kind, phase="not-dispatched", details={"attempts": 0, **details}))


def _evidence(kind: str, *, phase: str = "acknowledged", **details: Any) -> Evidence:
    return Evidence(kind, phase=phase, details={"attempts": 1, **details})


def _reserved(writing: Path) -> tuple[Path, int]:
    """Make a folder that nobody has, and lock it."""
    while True:
        path = writing / os.urandom(12).hex()
        path.mkdir()
        try:
            held = locks.lock_folder(path, wait=True)
        except OSError:
            path.rmdir()
            raise
        # Whoever cleans may have been faster than our lock; then there is nothing to lose yet.
        if held is not None:
            return path, held
