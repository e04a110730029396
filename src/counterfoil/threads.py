"""The only module that starts threads, so that what runs beside the caller can be found in one place."""

from __future__ import annotations

import threading
from collections.abc import Callable


def start_daemon(name: str, target: Callable[[], None]) -> threading.Thread:
    """Start a daemon thread: it never keeps the process from ending.

    Args:
        name: shown by debuggers, after the library's own name.
        target: what it runs; its exceptions go to `threading.excepthook`.
    """
    thread = threading.Thread(target=target, name=f"counterfoil-{name}", daemon=True)
    thread.start()
    return thread
