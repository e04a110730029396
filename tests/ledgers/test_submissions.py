"""The queue before a ledger's thread: all at once on a slow disk, halves where a commit is short."""

import time
from queue import SimpleQueue

import pytest

from counterfoil.ledgers.memory import MemoryLedger
from counterfoil.ledgers.submissions import BATCH_MAX, Submission, _Queue
from counterfoil.protocol.records import Record
from tests.ledgers.support import entry

_ITEM = Submission(entry("slot"), settle=False)


def drained(queue: _Queue) -> list[int]:
    """How many are taken each time, with nobody putting more."""
    found = []
    while queue._items:
        found.append(len(queue.take()))
        queue.tells(found[-1], began=time.perf_counter())
    return found


def after_a_round(*, commit_s: float, loop_s: float) -> _Queue:
    """A queue behind which a commit of 64 took so long, and the loop's work for the next 64 so long."""
    queue = _Queue()
    queue.tells(64, began=time.perf_counter() - commit_s)
    time.sleep(loop_s)
    for _ in range(64):
        queue._items.append(("owner", _ITEM))
    assert len(queue.take()) == 64
    return queue


@pytest.mark.rule("L9")
def test_a_short_commit_takes_half_of_what_is_under_way_and_a_long_one_all():
    for commit_s, loop_s, wanted in ((0.0, 0.02, [32, 32]), (30.0, 0.0, [64])):
        queue = after_a_round(commit_s=commit_s, loop_s=loop_s)
        queue.tells(64, began=time.perf_counter() - commit_s)
        for _ in range(64):
            queue._items.append(("owner", _ITEM))
        assert drained(queue)[: len(wanted)] == wanted


@pytest.mark.rule("L9")
def test_few_are_never_halved():
    queue = after_a_round(commit_s=0.0, loop_s=0.02)
    queue.tells(31, began=time.perf_counter())
    assert queue._half == BATCH_MAX


@pytest.mark.rule("L9")
def test_a_putter_stops_once_and_not_for_long_where_nobody_takes():
    queue = after_a_round(commit_s=0.0, loop_s=0.02)
    queue.tells(64, began=time.perf_counter())
    began = time.perf_counter()
    stopped = 0
    for _ in range(1000):
        queue.put(("owner", _ITEM))
        stopped += queue._stopped
    assert stopped == 1000 - 31
    assert time.perf_counter() - began < 5
    queue.take()
    assert not queue._stopped


@pytest.mark.rule("L9")
def test_nothing_is_lost_or_reordered_by_halving():
    served: SimpleQueue[int] = SimpleQueue()
    ledger = MemoryLedger()
    told: SimpleQueue[list] = SimpleQueue()
    for number in range(5000):
        ledger.submit(entry(f"slot/{number}"), settle=False, token=number, deliver=told.put)
    while served.qsize() < 5000:
        for token, reply in told.get(timeout=30):
            assert isinstance(reply, Record)
            served.put(token)
    assert [served.get() for _ in range(5000)] == list(range(5000))
    assert [record.slot for record in ledger.read("n", "run")] == [f"slot/{number}" for number in range(5000)]
