"""What an append in SQLite promises, and how each way of failing is told."""

# Paths are text here, as SQLite takes them.
# ruff: noqa: PTH123

import threading
import time
from functools import partial
from queue import SimpleQueue
from typing import Any

import pytest

from counterfoil.errors import (
    CommitUnknown,
    LedgerCorrupt,
    LedgerReadOnly,
    LedgerUnavailable,
    RunPruned,
    UsageError,
)
from counterfoil.ledgers.sqlite import SqliteLedger
from counterfoil.ledgers.sqlite.engines import BUSY, IOERR, StoreError, connect
from counterfoil.ledgers.submissions import Submission
from counterfoil.protocol.records import RUN, Record
from tests.ledgers.faulty_vfs import IOERR_FSYNC, FaultyDisk
from tests.ledgers.postgres_support import until
from tests.ledgers.support import PATIENCE_S, Meddler, entry, intent, raw, slots_of, sound


def raising(error, on, *, times=1):
    """Raises an error for the first few statements that begin with `on`."""
    left = [times]

    def check(sql):
        if sql.startswith(on) and left[0]:
            left[0] -= 1
            raise error

    return check


@pytest.fixture
def no_engine_twice(engine):
    """Skips the second engine where the disk itself is made of apsw."""
    if engine != "apsw":
        pytest.skip("only apsw lets a disk be written in Python")


@pytest.mark.rule("L2")
@pytest.mark.parametrize(("synchronous", "level"), [("full", 2), ("extra", 3)])
def test_both_connections_run_with_wal_and_full_sync(open_ledger, synchronous, level):
    ledger = open_ledger(synchronous=synchronous)
    database = ledger._database
    for connection in (database.writing(), database.reading()):
        assert connection.execute("PRAGMA journal_mode") == [("wal",)]
        assert connection.execute("PRAGMA synchronous") == [(level,)]


@pytest.mark.rule("L2", "L9")
def test_a_lone_append_syncs_once_before_it_returns(open_ledger, no_engine_twice):
    with FaultyDisk() as disk:
        ledger = open_ledger()
        epoch = ledger.register("x")
        ledger.append(entry("first", epoch))
        for n in range(20):
            before = disk.syncs
            ledger.append(intent(f"slot/{n}", epoch))
            assert disk.syncs == before + 1
        ledger.close()


@pytest.mark.rule("L3")
def test_settling_a_filled_slot_waits_for_a_commit_of_its_own(open_ledger, no_engine_twice):
    with FaultyDisk() as disk:
        ledger = open_ledger()
        mine = entry("slot")
        ledger.append(mine)
        before = disk.syncs
        ledger.append(mine)
        assert disk.syncs == before
        ledger.append(mine, settle=True)
        assert disk.syncs == before + 1
        ledger.close()


@pytest.mark.rule("L2")
def test_what_an_earlier_life_left_in_the_wal_is_synced_at_opening(path, open_ledger, no_engine_twice):
    with FaultyDisk() as disk:
        first = open_ledger()
        first.append(entry("slot"))
        before = disk.syncs
        second = open_ledger()
        assert disk.syncs == before + 1
        first.close()
        second.close()


@pytest.mark.rule("L3")
def test_a_commit_whose_sync_failed_is_unknown_and_settled_by_appending_again(open_ledger, no_engine_twice):
    with FaultyDisk() as disk:
        ledger = open_ledger()
        epoch = ledger.register("x")
        mine, theirs = entry("slot", epoch), entry("slot", epoch, body=b'"theirs"')
        disk.failing = True
        with pytest.raises(CommitUnknown) as unknown:
            ledger.append(mine)
        assert unknown.value.effect_ran == "unknown"
        with pytest.raises(CommitUnknown):
            ledger.append(mine, settle=True)
        disk.failing = False
        record = ledger.append(mine, settle=True)
        assert (record.epoch, record.append_id) == (epoch, mine.append_id)
        assert ledger.append(theirs, settle=True) == record
        assert slots_of(ledger) == ["slot"]
        ledger.close()


@pytest.mark.rule("L3")
def test_after_a_failed_sync_a_life_starts_no_effect_and_keeps_its_facts(open_ledger, no_engine_twice):
    with FaultyDisk() as disk:
        ledger = open_ledger()
        epoch = ledger.register("x")
        earlier = ledger.append(intent("effect/a/1/intent", epoch))
        disk.failing = True
        with pytest.raises(CommitUnknown):
            ledger.append(intent("effect/b/1/intent", epoch))
        disk.failing = False
        assert not ledger.live(epoch)
        for settle in (False, True):
            with pytest.raises(LedgerUnavailable) as refused:
                ledger.append(intent("effect/b/1/intent", epoch), settle=settle)
            assert (refused.value.code, refused.value.effect_ran) == ("sync-failed", "no")
            assert not isinstance(refused.value, CommitUnknown)
        assert ledger.append(intent("effect/a/1/intent", epoch), settle=True) == earlier
        assert ledger.append(entry("effect/a/1/outcome", epoch)).slot == "effect/a/1/outcome"
        ledger.close()


@pytest.mark.rule("L3")
@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("settler", ["itself", "another process"])
def test_a_lost_reply_to_commit_is_settled_whichever_way_it_went(open_ledger, committed, settler):
    ledger = open_ledger()
    epoch = ledger.register("x")
    meddler = Meddler.into(ledger)
    lost = raising(StoreError("lost", IOERR_FSYNC), "COMMIT")
    if committed:
        meddler.after = lost
    else:
        meddler.before = lost
    mine, theirs = entry("slot", epoch), entry("slot", body=b'"theirs"')
    with pytest.raises(CommitUnknown):
        ledger.append(mine)
    if settler == "itself":
        assert ledger.append(mine, settle=True).append_id == mine.append_id
    else:
        told = open_ledger().append(theirs, settle=True)
        assert told.append_id == (mine if committed else theirs).append_id
        assert ledger.append(mine, settle=True) == told
    assert len(ledger.read("n", "run")) == 1


@pytest.mark.rule("L3")
def test_everybody_in_a_batch_learns_that_its_commit_is_unknown(ledger):
    epoch = ledger.register("x")
    Meddler.into(ledger).before = raising(StoreError("lost", IOERR_FSYNC), "COMMIT")
    batch = [Submission(entry(f"slot/{n}", epoch), settle=False) for n in range(3)]
    ledger._group.serve(batch)
    assert all(isinstance(item.reply, CommitUnknown) for item in batch)
    assert len({id(item.reply) for item in batch}) == 3


@pytest.mark.rule("L3")
def test_an_io_error_before_commit_is_definite(ledger):
    meddler = Meddler.into(ledger)
    meddler.before = raising(StoreError("no disk", IOERR), "INSERT INTO counterfoil_record")
    with pytest.raises(LedgerUnavailable) as failed:
        ledger.append(entry("slot"))
    assert not isinstance(failed.value, CommitUnknown)
    assert failed.value.effect_ran == "no"
    assert not meddler.in_transaction()
    assert ledger.append(entry("slot")).slot == "slot"


@pytest.mark.rule("L3")
def test_a_busy_commit_is_committed_again(ledger):
    meddler = Meddler.into(ledger)
    meddler.before = raising(StoreError("busy", BUSY), "COMMIT", times=3)
    assert ledger.append(entry("slot")).slot == "slot"
    assert meddler.commits() == 4
    assert slots_of(ledger) == ["slot"]


@pytest.mark.rule("L3")
def test_a_commit_that_stays_busy_is_rolled_back_and_definite(open_ledger):
    ledger = open_ledger(timeout_s=0.1)
    meddler = Meddler.into(ledger)
    meddler.before = raising(StoreError("busy", BUSY), "COMMIT", times=10_000)
    with pytest.raises(LedgerUnavailable) as busy:
        ledger.append(entry("slot"))
    assert (busy.value.code, busy.value.effect_ran) == ("ledger-busy", "no")
    assert not meddler.in_transaction()
    assert slots_of(ledger) == []


def test_a_database_that_is_held_too_long_is_unavailable_and_definite(path, engine, open_ledger):
    ledger = open_ledger(timeout_s=0.2)
    holder = connect(engine, path)
    holder.command("BEGIN IMMEDIATE")
    with pytest.raises(LedgerUnavailable) as busy:
        ledger.append(entry("slot"))
    assert (busy.value.code, busy.value.effect_ran) == ("ledger-busy", "no")
    assert busy.value.hint
    holder.command("ROLLBACK")
    holder.close()
    assert ledger.append(entry("slot")).slot == "slot"


def test_a_short_hold_is_waited_out(path, engine, ledger):
    holder = connect(engine, path)
    holder.command("BEGIN IMMEDIATE")
    waiting = threading.Thread(target=lambda: ledger.append(entry("slot")))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    holder.command("COMMIT")
    waiting.join(PATIENCE_S)
    assert slots_of(ledger) == ["slot"]
    holder.close()


def test_a_full_disk_is_definite_and_passes(ledger):
    connection = ledger._database.writing()
    pages = connection.execute("PRAGMA page_count")[0][0]
    connection.execute(f"PRAGMA max_page_count = {pages + 4}")
    with pytest.raises(LedgerUnavailable) as full:
        ledger.append(entry("big", body=b'"' + b"x" * 200_000 + b'"'))
    assert (full.value.code, full.value.effect_ran) == ("ledger-full", "no")
    assert not isinstance(full.value, CommitUnknown)
    assert slots_of(ledger) == []
    connection.execute("PRAGMA max_page_count = 1000000")
    ledger.append(entry("big", body=b'"' + b"x" * 200_000 + b'"'))
    assert slots_of(ledger) == ["big"]


def test_a_removed_or_replaced_file_is_noticed(path, tmp_path, ledger, monkeypatch):
    monkeypatch.setattr("counterfoil.ledgers.sqlite.database._LOOK_EVERY_S", 0.0)
    ledger.append(entry("slot"))
    (tmp_path / "ledger.db").rename(tmp_path / "moved.db")
    with pytest.raises(LedgerReadOnly) as moved:
        ledger.append(entry("slot/2"))
    assert moved.value.code == "ledger-moved"
    (tmp_path / "ledger.db").write_bytes(b"")
    with pytest.raises(LedgerReadOnly):
        ledger.append(entry("slot/3"))
    (tmp_path / "moved.db").rename(tmp_path / "ledger.db")
    ledger.append(entry("slot/4"))
    assert slots_of(ledger) == ["slot", "slot/4"]


WRONG_TYPES: dict[str, Any] = {"body": "not bytes", "check": 0, "epoch": object()}
BAD: list[Any] = [
    partial(entry, "bad \ud800"),
    partial(entry, "slot", run="bad \udfff"),
    partial(entry, "bad", kind="durability/unheard-of"),
    partial(entry, "bad", phase="unheard-of"),
    partial(entry, "bad", at=float("nan")),
    partial(entry, "bad", append_id=2**63),
    partial(entry, "bad", **WRONG_TYPES),
]


@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
def test_an_entry_that_cannot_be_recorded_fails_alone(ledger, bad):
    try:
        wrong = bad()
    except UnicodeEncodeError:
        wrong = bad(check=0)
    batch = [Submission(entry(f"slot/{n}"), settle=False) for n in range(2)]
    batch.insert(1, Submission(wrong, settle=False))
    ledger._group.serve(batch)
    assert isinstance(batch[1].reply, UsageError)
    assert isinstance(batch[0].reply, Record)
    assert isinstance(batch[2].reply, Record)
    assert slots_of(ledger) == ["slot/0", "slot/1"]


def test_a_body_beyond_the_limit_of_sqlite_fails_alone(ledger, engine):
    connection = ledger._database.writing()._connection
    limit = connection.limit if engine == "apsw" else connection.setlimit
    limit(0, 100_000)
    batch = [Submission(entry(f"slot/{n}", body=b"1" * size), settle=False) for n, size in enumerate((9, 200_000, 9))]
    ledger._group.serve(batch)
    assert isinstance(batch[1].reply, UsageError)
    assert slots_of(ledger) == ["slot/0", "slot/2"]


@pytest.mark.rule("L1", "L9")
def test_a_batch_answers_each_entry_in_its_own_way(ledger):
    epoch, retired = ledger.register("x"), ledger.register("y")
    ledger.retire(retired)
    there = ledger.append(entry("there", epoch))
    entries = [
        entry("a", epoch),
        entry("there", epoch),
        entry("a", epoch),
        intent("b", retired),
        intent("a", retired),
        entry("c", retired),
        *[entry(f"many/{n}", epoch) for n in range(150)],
        entry("run/finished", epoch, run="other", kind=RUN, phase="finished"),
        entry("run/tombstone", epoch, run="other", kind=RUN, phase="tombstone"),
        entry("late", epoch, run="other"),
    ]
    batch = [Submission(one, settle=False) for one in entries]
    meddler = Meddler.into(ledger)
    ledger._group.serve(batch)
    assert meddler.commits() == 1
    replies = [item.reply for item in batch]
    assert replies[1] == there
    assert replies[2] == replies[0]
    assert type(replies[3]).__name__ == "OwnerRetired"
    assert replies[4] == replies[0]
    assert isinstance(replies[-1], RunPruned)
    assert slots_of(ledger) == ["there", "a", "c", *[f"many/{n}" for n in range(150)]]
    assert [record for record in replies if isinstance(record, Record) and record.slot.startswith("many")] == list(
        ledger.read("n", "run")
    )[3:]


@pytest.mark.rule("L9")
def test_what_the_writer_noted_behind_its_commit_tells_of_others_and_never_of_itself(path, engine, ledger):
    """The claim that the caches of the writer rest on."""
    ledger.append(entry("slot"))
    connection, other = ledger._database.writing(), connect(engine, path)

    def version():
        connection.command("BEGIN IMMEDIATE")
        try:
            return connection.version()
        finally:
            connection.command("ROLLBACK")

    def write(writer):
        writer.command("BEGIN IMMEDIATE")
        writer.execute("UPDATE counterfoil_ledger SET settled = settled + 1")
        writer.command("COMMIT")

    seen = set()
    for _ in range(3):
        write(connection)
        noted = connection.version() if engine == "apsw" else version()
        assert version() == noted
        ledger.read("n", "run")
        assert version() == noted
        write(other)
        assert version() != noted
        seen.add(version())
    assert len(seen) == 3
    write(connection)
    noted = connection.version() if engine == "apsw" else version()
    other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.execute("SELECT count(*) FROM counterfoil_record")
    write(other)
    assert version() != noted
    # Between our commit and the note behind it somebody else may commit: the note has not seen that.
    write(connection)
    write(other)
    noted = connection.version() if engine == "apsw" else noted
    assert version() != noted
    other.close()


@pytest.mark.rule("L8", "L10")
def test_what_another_connection_has_changed_is_seen_by_the_next_append(open_ledger):
    first, second = open_ledger(), open_ledger()
    epoch = first.register("x")
    first.append(intent("a", epoch))
    second._lives._own.add(epoch)  # as one who takes the life for gone
    second.retire(epoch)
    with pytest.raises(Exception, match="retired"):
        first.append(intent("b", epoch))
    first.append(entry("fact", epoch))
    second.append(entry("run/finished", kind=RUN, phase="finished"))
    tombstone = entry("run/tombstone", kind=RUN, phase="tombstone")
    second.bury("n", "run", tombstone=tombstone, kept=[], drop=["a"])
    with pytest.raises(RunPruned):
        first.append(entry("c", epoch))


@pytest.mark.rule("L9")
def test_what_is_submitted_together_is_committed_and_told_together(ledger):
    meddler = Meddler.into(ledger)
    told: SimpleQueue[list] = SimpleQueue()
    other: SimpleQueue[list] = SimpleQueue()
    with ledger._database.write_lock:
        ledger.submit(entry("slot/first"), settle=False, token="first", deliver=told.put)
        for n in range(200):
            deliver = told.put if n % 2 else other.put
            ledger.submit(entry(f"slot/{n}"), settle=False, token=n, deliver=deliver)
    letters, got = [], 0
    while got < 101:
        letters.append(told.get(timeout=PATIENCE_S))
        got += len(letters[-1])
    others: list[list] = []
    while sum(map(len, others)) < 100:
        others.append(other.get(timeout=PATIENCE_S))
    assert meddler.commits() <= 2
    assert max(len(letters), len(others)) <= 2
    assert [token for letter in others for token, _ in letter] == list(range(0, 200, 2))
    assert [token for letter in letters for token, _ in letter] == ["first", *range(1, 200, 2)]


@pytest.mark.rule("L9")
def test_many_threads_share_commits_and_a_lone_one_starts_no_thread(ledger):
    threads_before = set(threading.enumerate())
    ledger.append(entry("lone"))
    assert set(threading.enumerate()) <= threads_before
    meddler = Meddler.into(ledger)
    # Each comes while somebody else commits: what has gathered meanwhile is one commit more.
    for n in range(20):
        works = [partial(ledger.append, entry(f"slot/{thread}/{n}")) for thread in range(16)]
        threads = [threading.Thread(target=work) for work in works]
        with ledger._database.write_lock:
            for thread in threads:
                thread.start()
            until(lambda: len(ledger._group._queue) == 16)
        for thread in threads:
            thread.join(PATIENCE_S)
    assert len(ledger.read("n", "run")) == 321
    assert meddler.commits() == 20


@pytest.mark.rule("L4")
def test_damaged_rows_fail_closed_one_by_one(path, engine, open_ledger):
    ledger = open_ledger()
    epoch = ledger.register("x")
    damages = [
        "slot = CAST(x'ff00ff' AS TEXT)",
        "slot = 'another'",
        "slot = x'0102'",
        "kind = 'text'",
        "kind = 999",
        "kind = 6",
        "body = 'text'",
        "body = CAST(x'ff' AS TEXT)",
        "body = 7",
        "owner = 999",
        "owner = 'x'",
        "owner = 0",
        "append_id = 'x'",
        "append_id = 77777",
        "at = 'x', append_id = append_id + 1",
        "check_sum = 'x'",
        "check_sum = 1.5",
        "check_sum = check_sum + 1",
        "format = 2",
    ]
    for n in range(len(damages) + 1):
        ledger.append(entry(f"slot/{n:02}", epoch))
    ledger.close()
    for n, damage in enumerate(damages):
        raw(path, engine, f"UPDATE counterfoil_record SET {damage} WHERE slot = 'slot/{n:02}'")
    records = open_ledger().read("n", "run")
    assert len(records) == len(damages) + 1
    for n, record in enumerate(records[:-1]):
        assert record.kind == "unknown" or not sound(record), damages[n]
    assert records[-2].format == 2
    assert sound(records[-1])
    assert records[-1].kind != "unknown"


@pytest.mark.rule("L4")
def test_a_record_of_a_newer_kind_or_format_is_returned_as_unknown(path, engine, open_ledger):
    ledger = open_ledger()
    ledger.append(entry("kind"))
    ledger.append(entry("format"))
    ledger.close()
    raw(path, engine, "UPDATE counterfoil_record SET kind = 200 WHERE slot = 'kind'")
    raw(path, engine, "UPDATE counterfoil_record SET format = 9 WHERE slot = 'format'")
    newer, later = open_ledger().read("n", "run")
    assert (newer.kind, newer.format) == ("unknown", 1)
    assert (later.kind, later.format) == ("unknown", 9)


@pytest.mark.rule("L4")
@pytest.mark.parametrize("damage", ["DELETE FROM counterfoil_record", "UPDATE counterfoil_record SET slot = 'x'"])
def test_an_index_that_leads_astray_is_told_for_that_slot_only(path, engine, open_ledger, damage):
    ledger = open_ledger()
    for n in range(3):
        ledger.append(entry(f"slot/{n}"))
    ledger.close()
    index = "name = 'counterfoil_record_slot'"
    (kept,) = raw(path, engine, f"SELECT type, name, tbl_name, rootpage, sql FROM sqlite_master WHERE {index}")
    raw(path, engine, "PRAGMA writable_schema = ON", f"DELETE FROM sqlite_master WHERE {index}")
    raw(path, engine, f"{damage} WHERE slot = 'slot/1'")
    connection = connect(engine, path)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", kept)
    connection.close()
    ledger = open_ledger()
    batch = [Submission(entry(slot), settle=False) for slot in ("new", "slot/1", "slot/2")]
    ledger._group.serve(batch)
    assert isinstance(batch[1].reply, LedgerCorrupt)
    assert isinstance(batch[0].reply, Record)
    assert isinstance(batch[2].reply, Record)
    with pytest.raises(LedgerCorrupt):
        ledger.append(intent("slot/1", ledger.register("x")))


@pytest.mark.rule("L4")
def test_a_smashed_file_is_corrupt_and_not_empty(path, open_ledger):
    ledger = open_ledger()
    for n in range(0, 600, 60):
        ledger._group.serve([Submission(entry(f"slot/{m}"), settle=False) for m in range(n, n + 60)])
    ledger.close()
    with open(path, "r+b") as file:
        file.seek(0, 2)
        size = file.tell()
        for page in range(4096 * 12, size, 4096):
            file.seek(page)
            file.write(b"\xee" * 4096)
    with pytest.raises(LedgerCorrupt):
        open_ledger().read("n", "run")


def test_a_reader_is_not_kept_waiting_by_a_commit_in_progress(ledger):
    ledger.append(entry("slot"))
    with ledger._database.write_lock:
        connection = ledger._database.writing()
        connection.command("BEGIN IMMEDIATE")
        connection.execute("UPDATE counterfoil_ledger SET settled = settled + 1")
        assert slots_of(ledger) == ["slot"]
        assert ledger.changes(0)[0] == {("n", "run")}
        connection.command("ROLLBACK")


def test_reading_takes_pages_in_order_and_without_a_sort(ledger, monkeypatch):
    monkeypatch.setattr("counterfoil.ledgers.sqlite.reader.PAGE", 7)
    for n in range(30):
        ledger.append(entry(f"slot/{n}", run=f"run/{n % 2}"))
    assert slots_of(ledger, "run/1") == [f"slot/{n}" for n in range(1, 30, 2)]
    sql = "SELECT seq FROM counterfoil_record WHERE run = 1 AND seq > 2 ORDER BY seq LIMIT 7"
    (step,) = ledger._reader.query(lambda connection: connection.execute(f"EXPLAIN QUERY PLAN {sql}"))
    assert "(run=? AND rowid>?)" in step[-1]


def test_a_ledger_shares_its_database_with_the_application(path, engine, open_ledger):
    raw(path, engine, "CREATE TABLE basket (x)", "PRAGMA user_version = 7", "PRAGMA application_id = 8")
    ledger = open_ledger()
    ledger.append(entry("slot"))
    ledger.close()
    assert raw(path, engine, "PRAGMA user_version") == [(7,)]
    assert raw(path, engine, "PRAGMA application_id") == [(8,)]
    tables = "SELECT name FROM sqlite_master WHERE name NOT LIKE 'counterfoil_%' AND name NOT LIKE 'sqlite_%'"
    assert raw(path, engine, tables) == [("basket",)]


def test_diagnosis_finds_nothing_wrong_with_a_fresh_ledger(open_ledger, no_engine_twice):
    ledger = open_ledger()
    ledger.register("x")
    findings = {subject: level for level, subject, _, _ in ledger.diagnose()}
    assert set(findings.values()) == {"ok"}
    assert {"sqlite", "journal-mode", "synchronous", "schema", "wal-size", "generation", "owners"} < set(findings)


def test_the_ledger_keeps_every_port_that_it_claims():
    from counterfoil.ports import ledger as ports

    for name in ("Ledger", "Batching", "Owners", "Notifier", "Restorable", "Catalogue", "Retention", "Closing"):
        assert issubclass(SqliteLedger, getattr(ports, name))
    assert issubclass(SqliteLedger, ports.Diagnosable)


def test_a_listener_that_fails_does_not_end_the_thread_that_serves_all(ledger, caplog):
    def broken(replies):
        raise RuntimeError("the loop is closed")

    told: SimpleQueue[list] = SimpleQueue()
    ledger.submit(entry("slot/1"), settle=False, token=1, deliver=broken)
    ledger.submit(entry("slot/2"), settle=False, token=2, deliver=told.put)
    ((token, reply),) = told.get(timeout=PATIENCE_S)
    assert (token, reply.slot) == (2, "slot/2")
    assert slots_of(ledger) == ["slot/1", "slot/2"]
    assert "could not be delivered" in caplog.text


@pytest.mark.rule("L12")
def test_connections_opened_again_make_no_new_database(path, tmp_path, ledger):
    ledger.append(entry("slot"))
    assert ledger._database.suspend(time.monotonic() + PATIENCE_S)
    (tmp_path / "ledger.db").rename(tmp_path / "moved.db")
    ledger._database.resume()
    for use in (lambda: ledger.append(entry("slot/2")), lambda: ledger.read("n", "run")):
        with pytest.raises(LedgerReadOnly):
            use()
    assert not (tmp_path / "ledger.db").exists()
    (tmp_path / "moved.db").rename(tmp_path / "ledger.db")
    assert slots_of(ledger) == ["slot"]
    ledger.append(entry("slot/2"))


@pytest.mark.rule("L3", "L7")
def test_a_registration_whose_commit_is_unknown_did_not_happen(open_ledger):
    ledger = open_ledger()
    Meddler.into(ledger).before = raising(StoreError("lost", IOERR_FSYNC), "COMMIT")
    with pytest.raises(LedgerUnavailable) as refused:
        ledger.register("x")
    assert refused.value.effect_ran == "no"
    assert not isinstance(refused.value, CommitUnknown)
    assert not any(owner.alive for owner in open_ledger().owners())


def test_a_name_that_is_no_text_is_refused_and_not_empty(ledger):
    with pytest.raises(UsageError):
        ledger.read("n", "bad \ud800")
    with pytest.raises(UsageError):
        ledger.register("bad \ud800")
