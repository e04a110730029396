"""What is known of the stream's end without a look: sequences have no gaps, and some messages end nothing.

Where one message of ours comes right behind another, nobody's tombstone and nobody's retirement is between them. So
what a look has shown, for instance that nothing ends a run, goes on being known as long as only we publish.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

_KNOWN_MAX: Final = 10_000


class Stretch:
    """The last messages of the stream, as long as they are ours and end nothing.

    What can be ended, runs and lives, is named by anything that tells one from another.
    """

    def __init__(self) -> None:
        self._begin = 0
        self._end = -1
        # Up to which sequence nothing has ended it.
        self._known: dict[Hashable, int] = {}

    def took(self, sequence: int) -> int:
        """Note a message of ours that ends nothing, in the order of the stream.

        Returns:
            A sequence: the messages behind it, up to this one, are all of that kind.
        """
        if sequence != self._end + 1:
            self._begin = sequence - 1
        self._end = sequence
        return self._begin

    def saw(self, names: Sequence[Hashable], reached: int) -> None:
        """Note that as of a sequence nothing has ended these."""
        for name in names:
            self._known[name] = max(self._known.pop(name, -1), reached)
        while len(self._known) > _KNOWN_MAX:
            del self._known[next(iter(self._known))]

    def covers(self, names: Sequence[Hashable], since: int, sequence: int) -> bool:
        """Return whether nothing can have ended these before a message of ours.

        Args:
            names: runs and lives.
            since: what `took` returned for the message.
            sequence: the message's.
        """
        if since < 0:
            return False
        known = self._known
        for name in names:
            if known.get(name, -1) < since:
                return False
        for name in names:
            known[name] = max(known[name], sequence)
        return True

    def broke(self) -> None:
        """Forget all: a server that was away may not be what it was."""
        self._end = -1
        self._known.clear()
