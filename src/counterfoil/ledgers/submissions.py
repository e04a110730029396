"""A queue before a ledger's one writer thread: what has gathered is committed and told together."""

from __future__ import annotations

import logging
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any, Final

from counterfoil.ports.ledger import Deliver, Reply
from counterfoil.protocol.records import Entry
from counterfoil.threads import start_daemon

BATCH_MAX: Final = 1024
# Fewer are not halved: a commit costs more than what is done meanwhile.
HALVED_MIN: Final = 32
# How long a putter stops for the taker, at most.
_STOP_S: Final = 0.002
_log: Final = logging.getLogger("counterfoil")


class Submission:
    """One entry on its way, and later the reply.

    With `deliver` the reply is told in the ledger's thread; otherwise a caller waits, by `wake` if it must.
    """

    __slots__ = ("abandoned", "deliver", "entry", "reply", "settle", "token", "wake")

    def __init__(
        self,
        entry: Entry,
        *,
        settle: bool,
        token: object = None,
        deliver: Deliver | None = None,
    ) -> None:
        self.entry = entry
        self.settle = settle
        self.token = token
        self.deliver = deliver
        self.reply: Reply | None = None
        self.wake: Lock | None = None
        self.abandoned = False


class _Queue:
    """Many put, one takes what there is. Waking the taker costs a putter more than the rest, so an awake one is not.

    An event loop keeps the interpreter's lock for all that it puts in one go, and the taker, though awake, waits for
    it: the loop would work while nothing is committed, and wait while everything is. Where a commit is shorter than
    the loop's work for it, the taker takes half of what is under way and commits it while the loop works on the other
    half; the loop stops for the moment of taking. On a slow disk one commit for all is faster.
    """

    def __init__(self) -> None:
        self._items: deque[tuple[Any, Submission] | None] = deque()
        self._asleep = False
        self._bell = Lock()
        self._bell.acquire()
        self._halving = False
        self._half = BATCH_MAX
        self._stopped = False
        self._taken = Lock()
        self._taken.acquire()
        # When a commit began and ended behind which nothing was left to take; (0, 0) outside of that.
        self._commit = (0.0, 0.0)

    def put(self, item: tuple[Any, Submission] | None) -> None:
        """Put an item behind the others; None is the end."""
        self._items.append(item)
        # The taker says that it sleeps before it looks for the last time: one of the two sees the other.
        if self._asleep:
            # It takes a while to wake up: until it has, one ring is enough.
            if self._bell.locked():
                _release(self._bell)
            elif len(self._items) >= self._half and not self._stopped and item is not None:
                self._taken.acquire(blocking=False)  # what was said too late
                self._stopped = True
                self._taken.acquire(timeout=_STOP_S)

    def tells(self, count: int, *, began: float) -> None:
        """Say before telling so many what comes next: to take. Whoever is told may keep the interpreter's lock.

        Args:
            count: how many are told, who put again perhaps.
            began: when their commit began, on `time.perf_counter()`.
        """
        waiting = len(self._items)
        if not waiting:
            self._commit = (began, time.perf_counter())
        under_way = count + waiting
        self._half = under_way // 2 if self._halving and under_way >= HALVED_MIN else BATCH_MAX
        self._asleep = True

    def take(self) -> list[tuple[Any, Submission] | None]:
        """Wait for items, and take some of them, nothing behind an end."""
        items = self._items
        while not items:
            self._asleep = True
            if not items:
                self._bell.acquire()
        self._asleep = False
        began, ended = self._commit
        if ended:
            self._halving = ended - began < time.perf_counter() - ended
            self._commit = (0.0, 0.0)
        most = min(max(self._half, len(items) // 2), BATCH_MAX)
        taken: list[tuple[Any, Submission] | None] = []
        while items and len(taken) < most:
            taken.append(items.popleft())
            if taken[-1] is None:
                break
        if self._stopped:
            self._stopped = False
            _release(self._taken)
        return taken


def _release(lock: Lock) -> None:
    with suppress(RuntimeError):  # somebody else has
        lock.release()


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
                    queue, serve = self._queue, self._serve
                    start_daemon("ledger-writer", lambda: _work(queue, serve))
                    self._started = True
        self._queue.put((owner, submission))

    def stop(self) -> None:
        """Let the thread end after what was put before."""
        self._queue.put(None)


def _work(queue: _Queue, serve: Callable[[Any, list[Submission]], None]) -> None:
    ended = False
    while not ended:
        taken = queue.take()
        began = time.perf_counter()
        ended = taken[-1] is None
        owner = None if taken[0] is None else taken[0][0]
        batch = [item[1] for item in taken if item is not None]
        if batch:
            serve(owner, batch)
            queue.tells(len(batch), began=began)
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
