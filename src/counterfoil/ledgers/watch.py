"""How long other lives have been silent, on this process's own monotonic clock; no time stamps are compared."""

from __future__ import annotations

import time
from threading import Lock
from typing import Final

BEATS: Final = 3


class _Seen:
    """One life's counter as this process sees it."""

    __slots__ = ("at", "count", "silent_s")

    def __init__(self, count: int, at: float) -> None:
        self.count = count
        self.at = at
        self.silent_s = 0.0


class Watch:
    """How long other lives have been silent while this process was looking."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._seen: dict[str, _Seen] = {}

    def look(self, epoch: str, count: int, beat_s: float) -> bool:
        """Take note of a counter; return whether its life has been silent for long enough."""
        now = time.monotonic()
        with self._lock:
            seen = self._seen.get(epoch)
            if seen is None or seen.count != count:
                self._seen[epoch] = _Seen(count, now)
                return False
            seen.silent_s += min(now - seen.at, beat_s)
            seen.at = now
            return seen.silent_s >= BEATS * beat_s

    def silent_s(self, epoch: str) -> float:
        """Return how long a life has been seen to be silent, in seconds."""
        with self._lock:
            seen = self._seen.get(epoch)
            return seen.silent_s if seen is not None else 0.0

    def keep_only(self, epochs: set[str]) -> None:
        """Forget the lives that are over."""
        with self._lock:
            for epoch in self._seen.keys() - epochs:
                del self._seen[epoch]
