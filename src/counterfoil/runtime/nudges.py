"""Who is to be woken when something was staged in this process; other processes notice by themselves."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

_lock = Lock()
_listening: dict[Callable[[], None], object] = {}


def listen(ledger: Any, wake: Callable[[], None]) -> None:
    """Have `wake` called, from any thread, when somebody nudges this database."""
    with _lock:
        _listening[wake] = _place(ledger)


def unlisten(wake: Callable[[], None]) -> None:
    """Take back `listen`."""
    with _lock:
        _listening.pop(wake, None)


def nudge(ledger: Any) -> None:
    """Wake the dispatchers of this process that serve this database."""
    place = _place(ledger)
    with _lock:
        waiting = [wake for wake, where in _listening.items() if where == place]
    for wake in waiting:
        wake()


def _place(ledger: Any) -> object:
    # Several objects may have one database open.
    return getattr(ledger, "path", None) or getattr(ledger, "place", None) or id(ledger)
