"""Lock files: the only module that opens them, since closing any descriptor of one drops its lock.

A lock here is a POSIX record lock. It belongs to a process, dies with it however it dies, and is not
inherited by a child after `fork()`. A process does not conflict with itself, so what this process holds is
looked up in a registry before a file is ever opened.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from threading import Lock, RLock
from typing import Final

from counterfoil.errors import LedgerUnavailable

TURN_S: Final = 30.0
_TURN_PAUSE_S: Final = 0.005

Identity = tuple[int, int]

# What a lock answers when somebody else has it.
_TAKEN: Final = (errno.EACCES, errno.EAGAIN)

_registry_lock = RLock()
_held: dict[str, tuple[Identity, int]] = {}
_turn = Lock()


def hold(path: str, *, like: str) -> bool:
    """Create a lock file and hold it until `let_go` or the end of this process.

    Args:
        path: the file.
        like: the file whose owner and permissions it gets, as SQLite does for its own files.

    Returns:
        False if somebody else holds it.
    """
    with _registry_lock:
        descriptor = _opened(path, like=like)
        if not _locked(descriptor):
            os.close(descriptor)
            return False
        _held[path] = (_identity(os.fstat(descriptor)), descriptor)
        return True


def let_go(path: str) -> None:
    """Remove a lock file that this process holds, and its lock with it."""
    with _registry_lock:
        held = _held.pop(path, None)
        if held is not None:
            _remove(path)
            os.close(held[1])


def held_here(path: str) -> bool:
    """Return whether this process holds a lock file, by whatever path it was opened."""
    with _registry_lock:
        try:
            found = _identity(os.stat(path))  # noqa: PTH116
        except OSError:
            return False
        return any(held == found for held, _ in _held.values())


def seize(path: str, *, remove: bool) -> bool | None:
    """Find out whether the holder of a lock file is gone, by taking its lock for a moment.

    Args:
        path: the file.
        remove: remove the file if its holder is gone.

    Returns:
        True if nobody holds it, False if somebody does or that cannot be found out, None if there is no
        such file.
    """
    with _registry_lock:
        if held_here(path):
            return False
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError:
            return False
        try:
            free = _locked(descriptor)
            if free and remove:
                _remove(path)
            return free
        finally:
            os.close(descriptor)


@contextmanager
def turn(path: str, *, like: str) -> Generator[None, None, None]:
    """Hold a lock file for the length of a block, waiting for other processes and threads.

    Raises:
        LedgerUnavailable: others hold it for 30 s (a process that was stopped at that very moment, perhaps).
    """
    end = time.monotonic() + TURN_S
    if not _turn.acquire(timeout=TURN_S):
        raise _busy()
    try:
        descriptor = _opened(path, like=like)
        try:
            while not _locked(descriptor):
                if time.monotonic() >= end:
                    raise _busy()
                time.sleep(_TURN_PAUSE_S)
            yield
        finally:
            os.close(descriptor)
    finally:
        _turn.release()


def _busy() -> LedgerUnavailable:
    return LedgerUnavailable(
        f"another process has held the ledger's registration lock for {TURN_S:g} s",
        code="registration-busy",
        effect_ran="no",
        hint="is one of its processes stopped?",
    )


@contextmanager
def turn_if_free(path: str, *, like: str) -> Generator[bool, None, None]:
    """Hold a lock file for the length of a block if nobody else does; say which it is."""
    if not _turn.acquire(blocking=False):
        yield False
        return
    try:
        descriptor = _opened(path, like=like)
        try:
            yield _locked(descriptor)
        finally:
            os.close(descriptor)
    finally:
        _turn.release()


def forget_in_child() -> None:
    """Start anew in a child: it holds none of its parent's locks, and closing its copies drops none."""
    global _registry_lock, _turn  # noqa: PLW0603
    _registry_lock = RLock()
    _turn = Lock()
    for _, descriptor in _held.values():
        os.close(descriptor)
    _held.clear()


def made_like(descriptor: int, present: os.stat_result) -> None:
    """Give a new file the permissions, and where we may the owner, that another file has, as SQLite does."""
    mine, mode = os.fstat(descriptor), present.st_mode & 0o666
    if mine.st_uid == os.geteuid() and mine.st_mode & 0o666 != mode:
        os.fchmod(descriptor, mode)
    if os.geteuid() == 0 and (mine.st_uid, mine.st_gid) != (present.st_uid, present.st_gid):
        os.fchown(descriptor, present.st_uid, present.st_gid)


def _opened(path: str, *, like: str) -> int:
    present = os.stat(like)  # noqa: PTH116
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, present.st_mode & 0o666)
    try:
        made_like(descriptor, present)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _locked(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return True


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino
