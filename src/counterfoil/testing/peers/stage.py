"""What the connections of one fault peer share: the script, the log, and what wakes those that hang."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from counterfoil.testing.peers.moves import Move, Script
from counterfoil.testing.peers.seen import Request, Seen
from counterfoil.testing.peers.wire import Bell


class Stage:
    """Where every connection takes its next move from.

    Args:
        script: the moves; the last one holds for everything that follows.
        seen: the log.
    """

    def __init__(self, script: Sequence[Script], seen: Seen) -> None:
        self.seen = seen
        self.released = Bell()
        self.stopped = Bell()
        self._script = script
        self._taken = 0
        self._lock = threading.Lock()

    def take(self) -> Script:
        """Return the next move, or the last one again."""
        with self._lock:
            found = self._script[min(self._taken, len(self._script) - 1)]
            self._taken += 1
            return found

    def act(self, request: Request | None, *, acts: bool) -> None:
        """Carry out a request, as far as that is wanted: it is among the items of the peer then."""
        if acts and request is not None:
            self.seen.act(request)

    def decide(self, script: Script, request: Request | None) -> Move:
        """Return the move for a request that was read."""
        if not callable(script):
            return script
        if request is None:
            raise TypeError("a function of requests needs a request")
        return script(request)

    def close(self) -> None:
        """Give back what wakes."""
        self.released.close()
        self.stopped.close()
