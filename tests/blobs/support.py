"""What the tests of blobs share: bytes, what a folder holds, and processes that are killed at every call."""

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 1 << 20


def some_bytes(size: int, seed: int = 0) -> bytes:
    """Bytes of which no two chunks are alike."""
    return random.Random(f"{seed}-{size}").randbytes(size)


def on_their_way(root: Path) -> list[str]:
    """What lies in the folder of what is not sealed."""
    return sorted(path.name for path in (root / "writing").iterdir()) if (root / "writing").is_dir() else []


def data_of(root: Path, reference: dict[str, Any]) -> Path:
    """The file that holds a sealed blob's bytes."""
    digits = reference["digest"].removeprefix("sha256:")
    found: list[Path] = [*(root / "sealed" / digits[:2]).glob(f"{digits}.*/data")]
    assert len(found) == 1
    return found[0]


def killed_at(number: int, work: Callable[[], Any]) -> bool:
    """Do work in another process that is killed at its n-th entry into or return from a call of the system.

    Returns:
        Whether it was killed; False: it came to its end before.
    """
    child = os.fork()
    if child == 0:
        status = 3
        try:
            left = [number]

            def watch(_frame: Any, event: str, called: Any) -> None:
                if event in ("c_call", "c_return") and getattr(called, "__module__", "") in ("posix", "fcntl"):
                    left[0] -= 1
                    if left[0] < 0:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.setprofile(watch)
            work()
            sys.setprofile(None)
            status = 0
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    assert os.WIFSIGNALED(ended) or os.WEXITSTATUS(ended) == 0, "the work itself failed"
    return os.WIFSIGNALED(ended)
