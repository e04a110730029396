"""A queue before a ledger's one writer thread: what has gathered is committed and told together."""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any, Final

import msgspec

from counterfoil.ports.ledger import Deliver, Reply
from counterfoil.protocol.records import Entry
from counterfoil.threads import start_daemon

BATCH_MAX: Final = 1024
_log: Final = logging.getLogger("counterfoil")


class Submission(msgspec.Struct, eq=False):
    """One entry on its way, and later the reply.

    With `deliver` the reply is told in the ledger's thread; otherwise a caller waits, by `wake` if another commits for
    it, and then wakes the `following` one.
    """

    entry: Entry
    settle: bool
    token: object = None
    deliver: Deliver | None = None
    reply: Reply | None = None
    wake: Lock | None = None
    following: Lock | None = None
    abandoned: bool = False


class _Queue:
    """Many put, one takes all there is. Waking the taker costs a putter more than the rest, so an awake one is not."""

    def __init__(self) -> None:
        self._items: deque[tuple[Any, Submission] | None] = deque()
        self._asleep = False
        self._bell = Lock()
        self._bell.acquire()

    def put(self, item: tuple[Any, Submission] | None) -> None:
        """Put an item behind the others; None is the end."""
        self._items.append(item)
        # The taker says that it sleeps before it looks for the last time: one of the two sees the other.
        # It takes a while to wake up: until it has, one ring is enough.
        if self._asleep and self._bell.locked():
            with suppress(RuntimeError):  # somebody else has rung
                self._bell.release()

    def take(self, most: int) -> list[tuple[Any, Submission] | None]:
        """Wait for items, and take up to `most` of them, nothing behind an end."""
        items = self._items
        while not items:
            self._asleep = True
            if not items:
                self._bell.acquire()
            self._asleep = False
        taken: list[tuple[Any, Submission] | None] = []
        while items and len(taken) < most:
            taken.append(items.popleft())
            if taken[-1] is None:
                break
        return taken


class Submissions:
    """Hands what was put to `owner.serve` in a thread that starts with the first submission.

    The thread holds the owner only while it serves it, so that a ledger that nobody closed can be
    collected.
    """

    def __init__(self, owner: Any, serve: Callable[[Any, list[Submission]], None]) -> None:
        self._queue = _Queue()
        self._serve = serve
        self._started = False
        self._lock = Lock()
        weakref.finalize(owner, self._queue.put, None).atexit = False

    def put(self, owner: Any, submission: Submission) -> None:
        """Queue a submission; never blocks on the store."""
        if not self._started:
            with self._lock:
                if not self._started:
                    start_daemon("ledger-writer", partial(_work, self._queue, self._serve))
                    self._started = True
        self._queue.put((owner, submission))

    def stop(self) -> None:
        """Let the thread end after what was put before."""
        self._queue.put(None)


def _work(queue: _Queue, serve: Callable[[Any, list[Submission]], None]) -> None:
    ended = False
    while not ended:
        taken = queue.take(BATCH_MAX)
        ended = taken[-1] is None
        owner = None if taken[0] is None else taken[0][0]
        batch = [item[1] for item in taken if item is not None]
        if batch:
            serve(owner, batch)
            tell(batch)
        del owner, batch, taken


def tell(batch: list[Submission]) -> None:
    """Call each distinct `deliver` once with its replies, in the order of submission."""
    letters: dict[Deliver, list[tuple[object, Reply]]] = {}
    letter: list[tuple[object, Reply]] = []
    last: Deliver | None = None
    for item in batch:
        if item.deliver is not None and item.reply is not None:
            if item.deliver is not last:
                last = item.deliver
                letter = letters.setdefault(last, [])
            letter.append((item.token, item.reply))
    for deliver, replies in letters.items():
        try:
            deliver(replies)
        except Exception:  # noqa: BLE001
            # A listener that is gone (a closed event loop) must not end the thread that serves all others.
            _log.exception("the replies of a commit could not be delivered")
