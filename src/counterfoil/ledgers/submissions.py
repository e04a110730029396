"""A queue before a ledger's one writer thread: what has gathered is committed and told together."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Final

from counterfoil.ports.ledger import Deliver, Reply
from counterfoil.protocol.records import Entry
from counterfoil.threads import start_daemon

BATCH_MAX: Final = 1024
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


class Submissions:
    """Hands what was put to `owner.serve` in a thread that starts with the first submission.

    The thread holds the owner only while it serves it, so that a ledger that nobody closed can be
    collected.
    """

    def __init__(self, owner: Any, serve: Callable[[Any, list[Submission]], None]) -> None:
        self._queue: SimpleQueue[tuple[Any, Submission] | None] = SimpleQueue()
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


def _work(
    queue: SimpleQueue[tuple[Any, Submission] | None],
    serve: Callable[[Any, list[Submission]], None],
) -> None:
    ended = False
    while not ended:
        first = queue.get()
        if first is None:
            return
        owner, submission = first
        batch = [submission]
        try:
            while len(batch) < BATCH_MAX:
                more = queue.get_nowait()
                if more is None:
                    ended = True
                    break
                batch.append(more[1])
        except Empty:
            pass
        serve(owner, batch)
        tell(batch)
        del first, owner, submission, batch


def tell(batch: list[Submission]) -> None:
    """Call each distinct `deliver` once with its replies, in the order of submission."""
    letters: dict[Deliver, list[tuple[object, Reply]]] = {}
    for item in batch:
        if item.deliver is not None and item.reply is not None:
            letters.setdefault(item.deliver, []).append((item.token, item.reply))
    for deliver, replies in letters.items():
        try:
            deliver(replies)
        except Exception:  # noqa: BLE001
            # A listener that is gone (a closed event loop) must not end the thread that serves all others.
            _log.exception("the replies of a commit could not be delivered")
