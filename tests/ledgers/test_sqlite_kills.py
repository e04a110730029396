"""SIGKILL, interrupts and read-only files: what was told stays true."""

# Paths are text here, as SQLite takes them.
# ruff: noqa: PTH101, PTH116, PTH208

import os
import shutil
import signal
import tempfile
import threading

import pytest

from counterfoil.ledgers.sqlite import SqliteLedger
from counterfoil.ledgers.submissions import Submission
from tests.ledgers.support import PATIENCE_S, Meddler, entry, intent, outcome, python, raw, slots_of

WRITER = """
import sys, itertools
from counterfoil.ledgers.sqlite import SqliteLedger
from tests.ledgers.support import entry
ledger = SqliteLedger(sys.argv[1], engine=sys.argv[2])
epoch = ledger.register(sys.argv[3])
for n in itertools.count():
    mine = entry(f"contended/{n}", epoch)
    told = ledger.append(mine)
    own = ledger.append(entry(f"own/{epoch}/{n}", epoch))
    print(f"{n} {told.epoch} own/{epoch}/{n} {own.position}")
"""


@pytest.mark.rule("L1", "L2")
def test_what_was_told_survives_kill_9(path, engine):
    told: dict[str, str] = {}
    own: dict[str, int] = {}
    for life in range(4):
        processes = [python(WRITER, path, engine, str(n)) for n in range(2)]
        for process in processes:
            lines: list[str] = []
            while len(lines) < 25 + life:
                lines.append(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.readlines()
            process.communicate()
            for text in lines:
                if text.endswith("\n"):
                    number, epoch, slot, position = text.split()
                    assert told.setdefault(f"contended/{number}", epoch) == epoch
                    own[slot] = int(position)
    ledger = SqliteLedger(path, engine=engine)
    records = {record.slot: record for record in ledger.read("n", "run")}
    assert {slot: records[slot].epoch for slot in told} == told
    assert {slot: records[slot].position for slot in own} == own
    assert all(ledger.gone(owner.epoch) for owner in ledger.owners())
    ledger.close()
    assert raw(path, engine, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.rule("L1", "L6")
def test_a_reader_misses_nothing_while_others_write(path, engine, open_ledger):
    reader = open_ledger()
    writers = [python(WRITER, path, engine, str(n)) for n in range(2)]
    for process in writers:
        process.stdout.readline()
    seen: list[int] = []
    after, changed = 0, reader.changes(-1)[1]
    while len(seen) < 400:
        _, changed = reader.changes(changed)
        page = reader.read("n", "run", after)
        seen += [record.position for record in page]
        after = seen[-1] if seen else 0
    for process in writers:
        process.kill()
        process.communicate()
    whole = [record.position for record in reader.read("n", "run")]
    assert seen == whole[: len(seen)]
    assert seen == sorted(set(seen))


@pytest.mark.rule("L3")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("statements", "run"), [(4, "run/{}"), (1, "run")], ids=["new run", "known run"])
def test_an_interrupt_anywhere_in_an_append_is_delivered_after_its_answer(open_ledger, when, statements, run):
    ledger = open_ledger()
    watcher = open_ledger(timeout_s=0.5)
    epoch = ledger.register("x")
    ledger.append(entry("known", epoch))
    meddler = Meddler.into(ledger)
    interrupted = 0
    for place in range(1, 50):
        seen = [0]
        here = run.format(place)

        def interrupt(sql, seen=seen, place=place):
            seen[0] += 1
            if seen[0] == place:
                raise KeyboardInterrupt

        setattr(meddler, when, interrupt)
        mine = intent(f"mine/{place}", epoch, run=here)
        other = Submission(entry(f"other/{place}", epoch, run=here), settle=False)
        ledger._group._queue.append(other)  # somebody else waits for the same commit
        try:
            ledger.append(mine)
        except KeyboardInterrupt:
            interrupted += 1
        setattr(meddler, when, lambda sql: None)
        assert not meddler.in_transaction()
        watcher.append(entry(f"watcher/{place}"))
        found = slots_of(ledger, here)
        assert found.count(f"mine/{place}") == 1
        assert found.count(f"other/{place}") == 1
        assert other.reply is not None
        if seen[0] < place:
            break
    else:
        pytest.fail("the loop never came to an end")
    assert interrupted == place - 1 >= statements


@pytest.mark.rule("L3")
@pytest.mark.parametrize("place", ["INSERT INTO counterfoil_record", "COMMIT"])
def test_a_second_interrupt_is_delivered_at_once_and_harms_nobody(ledger, place):
    epoch = ledger.register("x")
    meddler = Meddler.into(ledger)

    def interrupt(sql):
        if sql.startswith(place):
            raise KeyboardInterrupt

    meddler.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        ledger.append(intent("mine", epoch))
    meddler.before = lambda sql: None
    assert not meddler.in_transaction()
    ledger.append(entry("next", epoch))
    assert slots_of(ledger) == ["next"]


INTERRUPTED = """
import os, signal, sys, threading
from counterfoil.ledgers.sqlite import SqliteLedger
from tests.ledgers.support import entry, slots_of
ledger = SqliteLedger(sys.argv[1], engine=sys.argv[2])
epoch = ledger.register("x")
stop = threading.Event()
written = []
def hammer(thread):
    n = 0
    while not stop.is_set():
        written.append(ledger.append(entry(f"{thread}/{n}", epoch)).slot)
        n += 1
threads = [threading.Thread(target=hammer, args=(n,)) for n in range(3)]
for thread in threads:
    thread.start()
def pester():
    while not stop.wait(0.002):
        os.kill(os.getpid(), signal.SIGINT)
pest = threading.Thread(target=pester)
pest.start()
interrupts = n = 0
while interrupts < 150:
    try:
        ledger.append(entry(f"main/{n}", epoch))
        written.append(f"main/{n}")
    except KeyboardInterrupt:
        interrupts += 1
    n += 1
signal.signal(signal.SIGINT, signal.SIG_IGN)
stop.set()
for thread in [pest, *threads]:
    thread.join(60)
    assert not thread.is_alive(), "a caller was forgotten"
found = slots_of(ledger)
assert len(found) == len(set(found))
assert set(written) <= set(found)
ledger.append(entry("last", epoch))
ledger.close()
print("fine")
"""


@pytest.mark.rule("L3")
def test_real_interrupts_forget_no_caller_and_leave_no_transaction(path, engine):
    process = python(INTERRUPTED, path, engine)
    try:
        assert outcome(process).strip() == "fine"
    except AssertionError as error:
        # An interrupt may fall between two lines of the script itself.
        if "KeyboardInterrupt" not in str(error):
            raise
    assert raw(path, engine, "PRAGMA integrity_check") == [("ok",)]


UNPRIVILEGED = """
import os, sys
from counterfoil.errors import LedgerReadOnly, LedgerUnavailable, UsageError
from counterfoil.ledgers.sqlite import SqliteLedger
from tests.ledgers.support import entry, slots_of
import apsw, sqlite3, ctypes
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
def said(use):
    try:
        return use()
    except Exception as error:
        return type(error).__name__
ledger = said(lambda: SqliteLedger(sys.argv[1], engine=sys.argv[2], timeout_s=2.0))
print(ledger if isinstance(ledger, str) else "opened")
if not isinstance(ledger, str):
    print(",".join(slots_of(ledger)))
    print(said(lambda: ledger.append(entry("new")).slot))
    print(said(lambda: ledger.register("nobody")[:2]))
    print({subject: level for level, subject, _, _ in ledger.diagnose()}["folder"])
    ledger.close()
"""


@pytest.fixture
def public(engine):
    """A ledger with one record in a folder that everybody may enter: (folder, file)."""
    if os.getuid() != 0:
        pytest.skip("takes root to become somebody else")
    folder = tempfile.mkdtemp(dir="/tmp")
    os.chmod(folder, 0o755)
    file = f"{folder}/ledger.db"
    ledger = SqliteLedger(file, engine=engine)
    ledger.append(intent("there", ledger.register("root")))
    ledger.close()
    os.chmod(file, 0o644)
    yield folder, file
    shutil.rmtree(folder)


def as_nobody(file, engine):
    """What an unprivileged user is told."""
    return outcome(python(UNPRIVILEGED, file, engine)).split("\n")[:-1]


def test_a_read_only_file_is_read_while_somebody_has_it_open(public, engine):
    _, file = public
    holder = SqliteLedger(file, engine=engine)
    holder.append(entry("more"))
    told = as_nobody(file, engine)
    assert told == ["opened", "there,more", "LedgerReadOnly", "LedgerReadOnly", "error"]
    holder.close()


def test_a_read_only_file_in_a_writable_folder_is_read(public, engine):
    folder, file = public
    os.chmod(folder, 0o777)
    told = as_nobody(file, engine)
    assert told[:4] == ["opened", "there", "LedgerReadOnly", "LedgerReadOnly"]


def test_a_read_only_folder_that_sqlite_cannot_read_in_is_unavailable(public, engine):
    told = as_nobody(public[1], engine)
    assert told[0] in ("opened", "LedgerUnavailable", "LedgerReadOnly")
    assert told[0] != "opened" or told[2:4] == ["LedgerReadOnly", "LedgerReadOnly"]


def test_an_unreadable_file_is_unavailable(public, engine):
    os.chmod(public[1], 0o600)
    assert as_nobody(public[1], engine) == ["LedgerUnavailable"]


def test_a_new_file_in_a_read_only_folder_is_unavailable_and_leaves_nothing(public, engine):
    folder, _ = public
    before = sorted(os.listdir(folder))
    assert as_nobody(f"{folder}/new.db", engine) == ["LedgerUnavailable"]
    assert sorted(os.listdir(folder)) == before


def test_owners_need_a_folder_that_can_be_written(public, engine):
    folder, file = public
    os.chmod(file, 0o666)
    os.chmod(folder, 0o777)
    os.chmod(f"{file}-counterfoil", 0o755)
    told = as_nobody(file, engine)
    assert told == ["opened", "there", "new", "LedgerReadOnly", "error"]


def test_what_root_makes_belongs_to_whom_the_database_belongs(public, engine):
    _, file = public
    shutil.rmtree(f"{file}-counterfoil")
    os.chown(file, 65534, 65534)
    os.chmod(file, 0o600)
    ledger = SqliteLedger(file, engine=engine)
    ledger.accept_restore(by="root", reason="moved")
    epoch = ledger.register("root")
    for name, mode in (("", 0o700), ("/owners", 0o700), (f"/owners/{epoch}.lock", 0o600), ("/generation", 0o600)):
        found = os.stat(f"{file}-counterfoil{name}")
        assert (found.st_uid, found.st_mode & 0o777) == (65534, mode), name
    ledger.close()


def test_threads_of_an_interrupted_leader_are_served(ledger):
    epoch = ledger.register("x")
    meddler = Meddler.into(ledger)
    left = [1]

    def interrupt(sql):
        if sql == "COMMIT" and left[0]:
            left[0] -= 1
            raise KeyboardInterrupt

    meddler.before = interrupt
    done = []

    def work(n):
        try:
            done.append(ledger.append(entry(f"slot/{n}", epoch)).slot)
        except KeyboardInterrupt:
            done.append(f"interrupted {n}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert len(done) == 8
    assert len(slots_of(ledger)) == 8
