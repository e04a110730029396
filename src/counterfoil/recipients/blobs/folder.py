"""Blobs in a folder of this machine.

    writing/<random>/data, record       on their way; the folder is locked by whoever writes there
    sealed/<2 digits>/<name>/data, record   sealed: a name is its blob's whole reference

Sealing renames the folder of a blob, with all that is in it durable, to a name at which nothing may be yet: a folder
with something in it is never replaced by a rename. That is the one step at which the blob appears.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from counterfoil.errors import BlobMissing, RecipientError
from counterfoil.protocol import codec
from counterfoil.recipients.blobs import locks
from counterfoil.recipients.blobs.beside import all_of
from counterfoil.recipients.blobs.chunks import HEADER_BYTES_MAX, Record, damaged, decoded, record_bytes_max
from counterfoil.recipients.blobs.layout import DATA, RECORD, remove
from counterfoil.recipients.blobs.lending import Line
from counterfoil.recipients.blobs.reference import Reference, reference
from counterfoil.recipients.blobs.staged import Staged
from counterfoil.recipients.blobs.store import Cleaned, Sealed, Store, Unnamed, Upload
from counterfoil.recipients.blobs.syncing import make_folder, sync_folder

_NAME: Final = re.compile(r"([0-9a-f]{64})\.(\d{1,15})\.[0-9a-f]{16}")
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


class Folder(Store):
    """A store in a folder; it is made when the first blob is written.

    Args:
        path: the folder, on a file system that has locks, and renames that replace no folder with something in it.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.writing = self.path / "writing"
        self.sealed = self.path / "sealed"
        self._durable: set[Path] = set()

    def __repr__(self) -> str:
        return f"Folder({str(self.path)!r})"

    # --- places

    def place(self, wanted: Reference) -> Path:
        """Return where a blob is once it is sealed."""
        name = wanted.name
        return self.sealed / name[:2] / name

    def make(self, folder: Path) -> None:
        """Make a folder of ours where it is missing, with those above it, and make its name durable."""
        if folder in self._durable:
            return
        if folder != self.path:
            self.make(folder.parent)
        # Those beside it become durable with it: each of them is met sooner or later.
        beside = _names(self.sealed) if folder.parent == self.sealed else []
        make_folder(folder)
        self._durable.update(self.sealed / name for name in beside)
        self._durable.add(folder)

    @property
    def target(self) -> None:
        """A folder has no address."""
        return

    def begin(
        self,
        media_type: str,
        *,
        line: Line | None = None,  # noqa: ARG002 - the port's
        cancelled: Callable[[], bool] = lambda: False,  # noqa: ARG002 - the port's
    ) -> Upload:
        """Reserve a place for a blob."""
        return Staged(self, media_type)

    # --- reading

    def open(self, wanted: Reference) -> Sealed:
        """Open a sealed blob."""
        return SealedFolder(self.place(wanted), wanted)

    def settle(self, wanted: Reference) -> Reference | None:
        """Look whether a blob is sealed, and make sure that it stays so."""
        try:
            found = self.open(wanted)
        except BlobMissing:
            return None
        try:
            for number in range(found.record.chunks):
                found.chunk(number)
        finally:
            found.close()
        self.sync(wanted)
        return wanted

    def sync(self, wanted: Reference) -> None:
        """Make the name of a blob durable: whoever renamed it may not have come to that."""
        shard = self.place(wanted).parent
        self.make(shard)
        all_of([lambda: sync_folder(shard), lambda: sync_folder(self.writing)])

    def references(self, prefix: str) -> Iterator[Reference | Unnamed]:
        """Go through the sealed blobs whose digest's digits begin so, in the order of their digests."""
        for shard in _names(self.sealed):
            if not (shard.startswith(prefix[:2]) and len(shard) == 2):
                continue
            for name in _names(self.sealed / shard):
                if name.startswith(prefix) and (parts := _NAME.fullmatch(name)):
                    told = _told(self.sealed / shard / name)
                    yield told or Unnamed(f"sha256:{parts[1]}", int(parts[2]))

    def told(self) -> dict[str, Any]:
        """Say what the place can do: a rename never replaces a blob."""
        return {"kind": "folder", "create": "atomic"}

    # --- cleaning

    def clean(self, *, limit: int, within_s: float) -> Cleaned:
        """Remove what was left behind by those that are gone, within bounds."""
        until = time.monotonic() + within_s
        turn = locks.lock_folder(self.writing, wait=False)
        if turn is None:
            # Nothing was ever written there, or somebody else is cleaning: one at a time is enough.
            return Cleaned(busy=self.writing.is_dir())
        swept: list[Cleaned] = []
        removed = 0
        try:
            for name in _names(self.writing):
                over = removed >= limit or time.monotonic() >= until
                swept.append(Cleaned(left=1) if over else _swept(self.writing / name))
                removed += swept[-1].removed
            sync_folder(self.writing)
        finally:
            os.close(turn)
        return Cleaned(
            removed=removed,
            bytes_removed=sum(each.bytes_removed for each in swept),
            in_flight=sum(each.in_flight for each in swept),
            left=sum(each.left for each in swept),
        )


class SealedFolder(Sealed):
    """A sealed blob that is open for reading."""

    def __init__(self, place: Path, wanted: Reference) -> None:
        self._wanted = wanted
        self._record = decoded(_whole(place / RECORD, wanted), wanted)
        try:
            self._data = os.open(place / DATA, _READ)
        except OSError as error:
            raise damaged(wanted, "truncated", f"its data cannot be opened: {type(error).__name__}") from None
        length = os.fstat(self._data).st_size
        if length != wanted.size:
            self.close()
            raise damaged(wanted, "truncated" if length < wanted.size else "wrong-digest", f"there are {length} bytes")

    @property
    def record(self) -> Record:
        """What is kept beside it."""
        return self._record

    def chunk(self, number: int) -> bytes:
        """Return a chunk's bytes, verified."""
        start, end = self._record.span(number)
        try:
            data = os.pread(self._data, end - start, start)
        except OSError as error:
            raise unreadable(self._wanted, error) from error
        return self._record.verify(number, data)

    def close(self) -> None:
        """Let go of it."""
        if self._data >= 0:
            os.close(self._data)
            self._data = -1


def _swept(folder: Path) -> Cleaned:
    """Remove one leftover, unless somebody is writing there."""
    try:
        held = locks.lock_folder(folder, wait=False)
    except OSError:
        return Cleaned(left=1)
    if held is None:
        return Cleaned(in_flight=int(folder.is_dir()))
    try:
        gone = remove(folder)
    finally:
        os.close(held)
    return Cleaned(left=1) if gone is None else Cleaned(removed=1, bytes_removed=gone)


def _told(place: Path) -> Reference | None:
    """Return the reference that a blob's own record tells: its name has no room for the media type."""
    try:
        with (place / RECORD).open("rb") as file:
            found = reference(codec.decode(file.readline(HEADER_BYTES_MAX))["blob"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return found if found.name == place.name else None


def unreadable(wanted: Reference, error: OSError) -> RecipientError:
    """Make the error of a blob that may be well, but cannot be read now."""
    return RecipientError(
        f"blob {wanted.digest} cannot be read: {type(error).__name__}", code="blob-unreadable", effect_ran="no"
    )


def _whole(path: Path, wanted: Reference) -> bytes:
    try:
        descriptor = os.open(path, _READ)
    except FileNotFoundError:
        if path.parent.is_dir():
            raise damaged(wanted, "bad-record", "it has no record") from None
        raise BlobMissing(f"there is no blob {wanted.digest} of {wanted.size} bytes, {wanted.media_type}") from None
    except OSError as error:
        raise unreadable(wanted, error) from error
    with os.fdopen(descriptor, "rb") as file:
        return file.read(record_bytes_max(wanted))


def _names(folder: Path) -> list[str]:
    """List a folder in order; nothing where it is not one."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names, not paths
    except (FileNotFoundError, NotADirectoryError):
        return []
