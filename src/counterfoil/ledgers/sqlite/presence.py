"""Which SQLite library of this process uses which file: two libraries on one file break each other's locks.

POSIX locks belong to the process: a second library does not know that the first holds one, and closing any
descriptor of the file drops the locks of both.
"""

from __future__ import annotations

import os
import sys
from threading import Lock
from typing import Final
from weakref import WeakSet

from counterfoil.errors import UsageError

Identity = tuple[int, int]

_MENDS: Final = {
    "apsw": "open the ledger with ?engine=sqlite3, so that one library serves the file",
    "sqlite3": "open the ledger with ?engine=apsw, so that one library serves the file",
}


class Presence:
    """One use of a file by an engine of this process; it ends with `release`, or when it is collected."""

    def __init__(self, file: Identity, engine: str) -> None:
        self.file = file
        self.engine = engine


# Weak, since a collection may come at any point of this module, with the lock held: what it ends needs no lock.
_lock = Lock()
_present: WeakSet[Presence] = WeakSet()


def identity(path: str) -> Identity | None:
    """Return what the system calls a file, whatever its path; None if it is not there."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino


def claim(file: Identity, engine: str) -> Presence:
    """Enter this process's use of a file by an engine; it lasts as long as what is returned.

    Raises:
        UsageError: another SQLite library uses the file in this process, as far as can be seen.
    """
    with _lock:
        engines = {one.engine for one in _present if one.file == file}
        if engines - {engine}:
            raise UsageError(f"this process has the file open with {engines.pop()}", hint=_MENDS[engine])
        if not engines and _foreign(file, engine):
            raise UsageError("another SQLite library of this process has the file open", hint=_MENDS[engine])
        claimed = Presence(file, engine)
        _present.add(claimed)
        return claimed


def release(claimed: Presence) -> None:
    """End a use."""
    with _lock:
        _present.discard(claimed)


def _foreign(file: Identity, engine: str) -> bool:
    through_apsw = _open_in_apsw(file)
    if engine == "sqlite3":
        return through_apsw
    # Descriptors do not say whose they are; with an apsw connection of the application's there, they are
    # taken for its own.
    return not through_apsw and _descriptor_open(file)


def _open_in_apsw(file: Identity) -> bool:
    apsw = sys.modules.get("apsw")
    if apsw is None:
        return False
    for connection in apsw.connections():
        try:
            if identity(connection.filename) == file:
                return True
        except Exception:  # noqa: BLE001, S112
            continue  # closed meanwhile, or busy in another thread
    return False


def _descriptor_open(file: Identity) -> bool:
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            names = os.listdir(folder)  # noqa: PTH208
        except OSError:
            continue
        return any(_names(name, file) for name in names)
    return False


def _names(name: str, file: Identity) -> bool:
    try:
        found = os.fstat(int(name))
    except (OSError, ValueError):
        return False
    return (found.st_dev, found.st_ino) == file


def forget_in_child() -> None:
    """Start anew in a child: what the parent uses is no use of the child's."""
    global _lock, _present  # noqa: PLW0603
    _lock = Lock()
    _present = WeakSet()
