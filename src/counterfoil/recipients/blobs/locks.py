"""Locks on folders: held while something is written there, and gone with the process that held them.

They belong to the open folder (`flock`), not to its name: they go along with a rename, and closing another descriptor
does not drop them. A child after `fork()` shares them; what its parent left is cleaned up when the child has gone too.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Final

_NO_FOLDER: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


def lock_folder(path: Path, *, wait: bool) -> int | None:
    """Lock a folder.

    Args:
        path: the folder.
        wait: wait for whoever has it.

    Returns:
        A descriptor; closing it lets go of the lock. None: there is no such folder (any more), or somebody has it.

    Raises:
        OSError: it cannot be found out: too many files are open, or the file system has no locks.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NO_FOLDER:
            return None
        raise
    ours = False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        # Whoever had it may have renamed or removed it: then it is another folder that is at this path, or none.
        found, here = os.fstat(descriptor), path.lstat()
        ours = (found.st_dev, found.st_ino) == (here.st_dev, here.st_ino)
    except (BlockingIOError, FileNotFoundError):
        return None
    finally:
        if not ours:
            os.close(descriptor)
    return descriptor if ours else None
