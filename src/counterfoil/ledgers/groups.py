"""Group commit: whoever has the lock commits what everybody else has queued meanwhile.

A lone caller finds the lock free and the queue empty, and pays for its own commit only. Of those who must wait, the
first waits for the lock and commits for the others; of those who are answered, each wakes the next: woken all at once
they would stand in line for the interpreter's lock, in front of whoever commits next.

An interrupt (Ctrl-C) of a waiting caller is passed on after its append has an answer; a second one at once, and then
the entry may be recorded or not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from typing import Final

from counterfoil.ledgers.submissions import BATCH_MAX, Submission
from counterfoil.protocol.records import Record

# This bounds the delay if an interrupt falls just where one was to wake the next.
_RECHECK_S: Final = 1.0


class Group:
    """Commits together what concurrent callers append.

    Args:
        lock: returns the lock that a commit needs.
        commit: sets the reply of each submission, with one commit for all.
    """

    def __init__(self, lock: Callable[[], Lock], commit: Callable[[Sequence[Submission]], None]) -> None:
        self._lock = lock
        self._commit = commit
        self._queue: deque[Submission] = deque()

    def append(self, item: Submission) -> Record:
        """Commit one entry, together with whatever else is queued, and return its record.

        Raises:
            CounterfoilError: the reply was an error.
        """
        interrupt: BaseException | None = None
        lock = self._lock()
        if not self._queue and not lock.locked():
            # Nobody else is here: a commit of its own, without the queue.
            try:
                with lock:
                    self._commit((item,))
            except BaseException as error:  # noqa: BLE001
                # Rolled back, or committed: to append the same again is right in both cases.
                interrupt = error
            if self._queue:
                self._hand_on()
        if item.reply is None:
            interrupt = self._queued(item, interrupt)
        if interrupt is not None:
            raise interrupt
        reply = item.reply
        if isinstance(reply, BaseException):
            raise reply
        assert reply is not None
        return reply

    def _queued(self, item: Submission, interrupt: BaseException | None) -> BaseException | None:
        """Queue an entry until it has a reply; return what has interrupted that."""
        if self._queue:
            item.wake = Lock()
            item.wake.acquire()
        self._queue.append(item)
        try:
            while item.reply is None:
                try:
                    self._wait(item)
                except BaseException as error:
                    if interrupt is not None:
                        item.abandoned = True
                        raise
                    interrupt = error
        finally:
            if item.following is not None:
                _wake(item.following)
        return interrupt

    def serve(self, batch: Sequence[Submission]) -> None:
        """Commit a batch, together with whatever else is queued."""
        answered = None
        try:
            with self._lock():
                answered = self._lead(list(batch))
        finally:
            self._hand_on(answered)

    def _wait(self, item: Submission) -> None:
        if item.wake is not None:
            if not self._is_first(item):  # those before it may have gone before it came
                item.wake.acquire(timeout=_RECHECK_S)
            if item.reply is None:
                item.wake = None  # it commits for those behind it
            return
        answered = None
        try:
            with self._lock():
                if item.reply is None:
                    answered = self._lead([])
        finally:
            self._hand_on(answered)

    def _is_first(self, item: Submission) -> bool:
        try:
            return self._queue[0] is item
        except IndexError:
            return False

    def _lead(self, batch: list[Submission]) -> Lock | None:
        """Commit a batch and what is queued; return what wakes the first of those that wait for their answers."""
        queue = self._queue
        try:
            while queue and len(batch) < BATCH_MAX:
                batch.append(queue.popleft())
            awaited = [item for item in batch if not item.abandoned]
            first = _linked(awaited)
            self._commit(awaited)
        except BaseException:
            # Rolled back, or committed: to append the same again is right in both cases.
            queue.extendleft(item for item in reversed(batch) if item.reply is None)
            for item in batch:
                if item.wake is not None:
                    _wake(item.wake)
            raise
        return first

    def _hand_on(self, answered: Lock | None = None) -> None:
        if self._queue:
            with suppress(IndexError):  # somebody else has taken it
                wake = self._queue[0].wake
                if wake is not None:
                    _wake(wake)
        if answered is not None:
            _wake(answered)


def _linked(batch: Sequence[Submission]) -> Lock | None:
    """Let each that waits for its answer wake the next, and return what wakes the first."""
    first = None
    for item in reversed(batch):
        if (wake := item.wake) is not None:  # read once: one that has waited for long stops waiting for it
            item.following, first = first, wake
    return first


def _wake(wake: Lock) -> None:
    with suppress(RuntimeError):  # awake already
        wake.release()
