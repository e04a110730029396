"""Lanes: each commits in groups on a connection of its own, and each run keeps to one, so its order is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock

from counterfoil.ledgers.groups import Group
from counterfoil.ledgers.submissions import Submission, Submissions
from counterfoil.protocol.records import Record


class Lanes:
    """Spreads runs over lanes.

    Args:
        count: how many.
        commit: sets the reply of each submission, with one commit for all.
    """

    def __init__(self, count: int, commit: Callable[[Sequence[Submission]], None]) -> None:
        self._lanes = [_Lane(commit) for _ in range(count)]

    def append(self, item: Submission) -> Record:
        """Commit one entry, together with whatever else its lane has queued, and return its record."""
        return self._lane(item).group.append(item)

    def put(self, item: Submission) -> None:
        """Queue one entry for its lane's thread."""
        lane = self._lane(item)
        lane.submissions.put(lane, item)

    def stop(self) -> None:
        """Let the threads end after what was put before."""
        for lane in self._lanes:
            lane.submissions.stop()

    def _lane(self, item: Submission) -> _Lane:
        entry = item.entry
        return self._lanes[hash((entry.namespace, entry.run)) % len(self._lanes)]


class _Lane:
    def __init__(self, commit: Callable[[Sequence[Submission]], None]) -> None:
        lock = Lock()
        self.group = Group(lambda: lock, commit)
        self.submissions = Submissions(self, _Lane._serve)

    def _serve(self, batch: list[Submission]) -> None:
        self.group.serve(batch)
