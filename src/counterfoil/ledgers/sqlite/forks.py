"""What happens around `fork()`: the parent goes on unharmed, the child is refused.

Hooks run for `os.fork` and `multiprocessing`'s fork, not for `subprocess`. A fork made behind Python's back (by a
server written in C) leaves inherited connections: the child never closes them, and may not open the same file.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import time
import weakref
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Final

from counterfoil.ledgers.sqlite import lifelines, presence

if TYPE_CHECKING:
    from counterfoil.ledgers.sqlite.database import Database
    from counterfoil.ledgers.sqlite.presence import Identity

# A fork waits this long for a transaction to end; one that hangs must not hang the fork.
_PATIENCE_S: Final = 10.0
# The module mmap has no name for it.
_MADV_WIPEONFORK: Final = 18

_lock = Lock()
_watched: weakref.WeakSet[Database] = weakref.WeakSet()
_suspended: list[Database] = []
_inherited: set[Identity] = set()
_hooked = False


class Birthmark:
    """Tells a process from its children without asking the kernel each time, where Linux wipes a page at a fork."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._page: mmap.mmap | None = None
        if sys.platform == "linux":
            page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with suppress(OSError):  # a kernel older than 4.14
                page.madvise(_MADV_WIPEONFORK)
                page[0] = 1
                self._page = page

    def inherited(self) -> bool:
        """Return whether this process is a child of the one that made this."""
        page = self._page
        return os.getpid() != self._process if page is None else page[0] == 0


def watch(database: Database) -> None:
    """Look after a database when this process forks."""
    global _hooked  # noqa: PLW0603
    with _lock:
        _watched.add(database)
        if not _hooked:
            os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
            _hooked = True


def inherited(file: Identity) -> bool:
    """Return whether this process inherited connections to a file, which makes new ones unsafe."""
    return file in _inherited


def notice() -> None:
    """Do what the hooks would have done, in a child that finds itself to be one."""
    if any(not database.forked for database in _watched):
        _in_child()


def _before() -> None:
    give_up = time.monotonic() + _PATIENCE_S
    _lock.acquire()
    _suspended.extend(database for database in list(_watched) if database.suspend(give_up))


def _in_parent() -> None:
    for database in _suspended:
        database.resume()
    _suspended.clear()
    _lock.release()


def _in_child() -> None:
    global _lock  # noqa: PLW0603
    _lock = Lock()
    _suspended.clear()
    presence.forget_in_child()
    lifelines.forget_in_child()
    for database in list(_watched):
        left = database.orphan()
        if left:
            _inherited.add(database.file)
            _leak(left)
    _watched.clear()


def _leak(connections: tuple[object, ...]) -> None:
    # Closing one here would end a transaction, or checkpoint, in memory that the parent shares: so they must
    # outlive the interpreter, whose end would collect a mere global. apsw's module closes all connections when it
    # goes, so it must not go either.
    for kept in (*connections, sys.modules.get("apsw")):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
