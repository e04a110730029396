"""Who commits for others, and who wakes whom: nobody is left to find out by looking again."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from counterfoil.ledgers import groups
from counterfoil.ledgers.sqlite import SqliteLedger
from counterfoil.protocol.records import Record
from tests.ledgers.support import Meddler, entry, slots_of

BOUND_S = 120.0


@pytest.fixture(autouse=True)
def nobody_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is not woken sleeps longer than the test."""
    monkeypatch.setattr(groups, "_RECHECK_S", 10 * BOUND_S)


class Caller(threading.Thread):
    """Appends one entry in a thread; `reply` is what came of it."""

    def __init__(self, ledger: SqliteLedger, slot: str) -> None:
        super().__init__(name=slot, daemon=True)
        self._ledger = ledger
        self.reply: Record | BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.reply = self._ledger.append(entry(self.name))
        except BaseException as error:
            self.reply = error


def queued(ledger: SqliteLedger) -> list[str]:
    return [item.entry.slot for item in list(ledger._group._queue)]


def until(holds: Callable[[], Any]) -> None:
    give_up = time.monotonic() + BOUND_S
    while not holds():
        assert time.monotonic() < give_up, "it never came"
        time.sleep(0.002)


def behind_the_lock(ledger: SqliteLedger, slots: str) -> list[Caller]:
    """Callers that queue up, in this order, behind the write lock, which somebody else has."""
    callers = []
    for slot in slots:
        callers.append(Caller(ledger, slot))
        until(lambda: len(queued(ledger)) == len(callers))
    return callers


@pytest.mark.rule("L9")
def test_what_waits_for_another_user_of_the_lock_is_committed_together_when_it_is_free(ledger):
    """The outbox and transactions hold the lock too, and know nothing of who queues behind it."""
    ledger.append(entry("first"))
    meddler = Meddler.into(ledger)
    with ledger._database.write_lock:
        callers = behind_the_lock(ledger, "abcd")
    for caller in callers:
        caller.join(BOUND_S)
        assert isinstance(caller.reply, Record)
    assert slots_of(ledger) == ["first", "a", "b", "c", "d"]
    assert len(meddler.statements) <= 3  # a look, which one transaction needs


@pytest.mark.rule("L9")
def test_each_of_many_threads_is_woken(ledger):
    ledger.append(entry("first"))
    replies: list[Record] = []

    def work(thread):
        replies.extend(ledger.append(entry(f"slot/{thread}/{n}")) for n in range(25))

    threads = [threading.Thread(target=work, args=(thread,), daemon=True) for thread in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
    assert len(replies) == 400
    assert len(slots_of(ledger)) == 401


@pytest.mark.rule("L9")
def test_one_that_was_interrupted_twice_does_not_keep_those_behind_it_from_being_woken(ledger, monkeypatch):
    class Torn:
        """A lock whose waiters are interrupted."""

        def __init__(self):
            self._lock = threading.Lock()
            self.release = self._lock.release

        def acquire(self, timeout=None):
            if timeout is not None:
                raise KeyboardInterrupt
            return self._lock.acquire()

    monkeypatch.setattr(groups, "Lock", lambda: Torn() if threading.current_thread().name == "b" else threading.Lock())
    ledger.append(entry("first"))
    with ledger._database.write_lock:
        a, b, c, d = behind_the_lock(ledger, "abcd")
        b.join(BOUND_S)
        assert isinstance(b.reply, KeyboardInterrupt)
    for caller in (a, c, d):
        caller.join(BOUND_S)
        assert isinstance(caller.reply, Record)
    assert slots_of(ledger) == ["first", "a", "c", "d"]


@pytest.mark.rule("L9")
def test_one_that_commits_for_others_and_fails_leaves_them_to_the_next(ledger):
    ledger.append(entry("first"))
    meddler = Meddler.into(ledger)
    left = [2]

    def interrupt(sql):
        if left[0] and threading.current_thread().name == "a":
            left[0] -= 1
            raise KeyboardInterrupt

    meddler.before = interrupt
    with ledger._database.write_lock:
        a, *others = behind_the_lock(ledger, "abcd")
    a.join(BOUND_S)
    assert isinstance(a.reply, KeyboardInterrupt)
    for caller in others:
        caller.join(BOUND_S)
        assert isinstance(caller.reply, Record)
    assert {"b", "c", "d"} <= set(slots_of(ledger))


@pytest.mark.rule("L9")
def test_one_that_comes_when_those_before_it_have_just_gone_commits_for_itself(ledger, monkeypatch):
    came, go_on = threading.Event(), threading.Event()

    def held_up():
        if threading.current_thread().name == "b":
            came.set()
            assert go_on.wait(BOUND_S)
        return threading.Lock()

    monkeypatch.setattr(groups, "Lock", held_up)
    ledger.append(entry("first"))
    with ledger._database.write_lock:
        (a,) = behind_the_lock(ledger, "a")
        b = Caller(ledger, "b")
        assert came.wait(BOUND_S)
    a.join(BOUND_S)
    assert isinstance(a.reply, Record)
    go_on.set()
    b.join(BOUND_S)
    assert isinstance(b.reply, Record)
