"""A group of appends is one statement where nothing is to be looked up, and means what a transaction means."""

import threading

import pytest

from counterfoil.errors import CommitUnknown, LedgerUnavailable, OwnerRetired, RunPruned
from counterfoil.ledgers.sqlite.engines import BUSY, StoreError, connect
from counterfoil.ledgers.submissions import Submission
from counterfoil.protocol.records import RUN, Record
from tests.ledgers.faulty_vfs import IOERR_FSYNC, FaultyDisk
from tests.ledgers.support import Meddler, entry, intent, slots_of, sound


def served(ledger, entries):
    batch = [Submission(one, settle=False) for one in entries]
    ledger._group.serve(batch)
    return [item.reply for item in batch]


@pytest.fixture
def epoch(ledger):
    epoch = ledger.register("x")
    for run in ("run", "other"):
        ledger.append(entry("first", epoch, run=run))
    return epoch


@pytest.mark.rule("L1", "L9")
@pytest.mark.parametrize("count", [2, 3, 63, 64])
def test_a_group_is_one_statement_and_keeps_its_order(ledger, epoch, count):
    meddler = Meddler.into(ledger)
    entries = [intent(f"slot/{n}", epoch, run=("run", "other")[n % 2], body=b"1" * n) for n in reversed(range(count))]
    replies = served(ledger, entries)
    assert len(meddler.statements) == 1
    assert [reply.position for reply in replies] == list(range(replies[0].position, replies[0].position + count))
    assert [reply.slot for reply in replies] == [one.slot for one in entries]
    for run in ("run", "other"):
        read = [record for record in ledger.read("n", run) if record.slot != "first"]
        assert read == [reply for reply, one in zip(replies, entries, strict=True) if one.run == run]
        assert all(sound(record, run) for record in read)


@pytest.mark.rule("L2", "L9")
def test_a_group_is_synced_once_before_it_is_answered(open_ledger, engine):
    if engine != "apsw":
        pytest.skip("only apsw lets a disk be written in Python")
    with FaultyDisk() as disk:
        ledger = open_ledger()
        epoch = ledger.register("x")
        ledger.append(entry("first", epoch))
        before = disk.syncs
        served(ledger, [intent(f"slot/{n}", epoch) for n in range(40)])
        assert disk.syncs == before + 1
        ledger.close()


@pytest.mark.rule("L3")
@pytest.mark.parametrize("committed", [False, True])
def test_a_group_whose_sync_failed_is_unknown_for_each_and_settled_by_each(ledger, epoch, committed):
    meddler = Meddler.into(ledger)
    left = [1]

    def lost(sql):
        if left[0] and sql.startswith("INSERT"):
            left[0] = 0
            raise StoreError("lost", IOERR_FSYNC)

    if committed:
        meddler.after = lost
    else:
        meddler.before = lost
    entries = [entry(f"slot/{n}", epoch) for n in range(3)]
    replies = served(ledger, entries)
    assert all(isinstance(reply, CommitUnknown) for reply in replies)
    assert len({id(reply) for reply in replies}) == 3
    assert not ledger.live(epoch)
    refused = served(ledger, [intent("a", epoch), intent("b", epoch)])
    assert [getattr(reply, "code", "") for reply in refused] == ["sync-failed"] * 2
    for one in entries:
        assert ledger.append(one, settle=True).append_id == one.append_id
    assert slots_of(ledger) == ["first", "slot/0", "slot/1", "slot/2"]


@pytest.mark.rule("L1")
def test_a_slot_that_another_has_filled_meanwhile_answers_for_itself_alone(open_ledger, ledger, epoch):
    theirs = open_ledger().append(entry("b", body=b'"theirs"'))
    entries = [entry(slot, epoch) for slot in "abcc"]
    a, b, first, second = served(ledger, entries)
    assert b == theirs
    assert (a.append_id, first.append_id, second) == (entries[0].append_id, entries[2].append_id, first)
    assert slots_of(ledger) == ["first", "b", "a", "c"]


@pytest.mark.rule("L8", "L10")
def test_what_another_has_retired_or_pruned_meanwhile_is_refused_in_a_group_too(open_ledger, ledger, epoch):
    other = open_ledger()
    other.append(entry("run/finished", run="other", kind=RUN, phase="finished"))
    tombstone = entry("run/tombstone", run="other", kind=RUN, phase="tombstone")
    other.bury("n", "other", tombstone=tombstone, kept=[], drop=[])
    kept, pruned = served(ledger, [entry("a", epoch), entry("a", epoch, run="other")])
    assert isinstance(kept, Record)
    assert isinstance(pruned, RunPruned)
    other._lives._own.add(epoch)  # as one who takes the life for gone
    other.retire(epoch)
    refused, fact = served(ledger, [intent("b", epoch), entry("c", epoch)])
    assert isinstance(refused, OwnerRetired)
    assert isinstance(fact, Record)


@pytest.mark.rule("L9")
def test_lives_that_share_a_ledger_share_a_commit(ledger, epoch):
    second = ledger.register("y")
    served(ledger, [entry("a", second)])
    meddler = Meddler.into(ledger)
    replies = served(ledger, [intent("b", epoch), intent("c", second)])
    assert [reply.epoch for reply in replies] == [epoch, second]
    assert meddler.commits() == 1


@pytest.mark.rule("L3")
def test_a_group_waits_out_a_short_hold_and_a_long_one_is_definite(path, engine, open_ledger):
    ledger = open_ledger(timeout_s=0.3)
    epoch = ledger.register("x")
    ledger.append(entry("first", epoch))
    holder = connect(engine, path)
    holder.command("BEGIN IMMEDIATE")
    replies = served(ledger, [entry("a", epoch), entry("b", epoch)])
    assert all(isinstance(reply, LedgerUnavailable) and reply.code != "commit-unknown" for reply in replies)
    assert not any(isinstance(reply, CommitUnknown) for reply in replies)
    meddler = Meddler.into(ledger)
    freed = threading.Event()

    def free(sql):
        if not freed.is_set():
            freed.set()
            holder.command("ROLLBACK")
            raise StoreError("busy", BUSY)

    meddler.before = free
    assert all(isinstance(reply, Record) for reply in served(ledger, [entry("a", epoch), entry("b", epoch)]))
    holder.close()
