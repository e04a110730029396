"""A child after fork() is refused, harms nobody, and may open a ledger of its own."""

import pytest

from counterfoil.ledgers.sqlite import SqliteLedger
from tests.ledgers.support import PATIENCE_S, entry, outcome, python, raw, slots_of

pytestmark = pytest.mark.rule("L12")

START = """
import os, sys, threading, time
from counterfoil.errors import ForkedLedger
from counterfoil.ledgers.sqlite import SqliteLedger
from tests.ledgers.support import entry, intent, slots_of
path, engine, ending = sys.argv[1:4]
ledger = SqliteLedger(path, engine=engine)
epoch = ledger.register("parent")
ledger.append(intent("before", epoch))

def refused(use):
    try:
        use()
    except ForkedLedger:
        return True
    return False

def all_refused():
    return all(map(refused, (
        lambda: ledger.append(entry("child")),
        lambda: ledger.submit(entry("child"), settle=False, token=1, deliver=print),
        lambda: ledger.read("n", "run"),
        lambda: ledger.changes(-1),
        lambda: ledger.runs("n"),
        lambda: ledger.register("child"),
        lambda: ledger.retire(epoch),
        lambda: ledger.gone(epoch),
        lambda: ledger.owners(),
        lambda: ledger.restored(),
        lambda: ledger.bury("n", "run", tombstone=entry("t"), kept=[], drop=[]),
    )))

def leave(code):
    if ending == "os._exit":
        os._exit(code)
    sys.exit(code)

def wait(child):
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
"""

FORKS = (
    START
    + """
stop = threading.Event()
written = []
def hammer():
    while not stop.is_set():
        written.append(ledger.append(entry(f"slot/{len(written)}", epoch)).slot)
        ledger.read("n", "run", 10**9)
thread = threading.Thread(target=hammer)
thread.start()
for n in range(8):
    child = os.fork()
    if child == 0:
        fine = all_refused()
        ledger.close()
        leave(0 if fine else 1)
    wait(child)
    ledger.append(intent(f"after/{n}", epoch))
    assert ledger.live(epoch)
stop.set()
thread.join()
found = set(slots_of(ledger))
assert {"before", *written, *(f"after/{n}" for n in range(8))} <= found
assert "child" not in found
print("fine", flush=True)
sys.stdin.readline()
"""
)


@pytest.mark.parametrize("ending", ["os._exit", "sys.exit"])
def test_children_are_refused_and_the_parent_goes_on(path, engine, ending):
    process = python(FORKS, path, engine, ending)
    assert process.stdout.readline() == "fine\n", process.communicate()[1]
    watcher = SqliteLedger(path, engine=engine)
    (owner,) = watcher.owners()
    assert owner.alive
    assert not watcher.gone(owner.epoch)
    outcome(process)
    assert watcher.gone(owner.epoch)
    watcher.close()
    assert raw(path, engine, "PRAGMA integrity_check") == [("ok",)]


MULTIPROCESSING = (
    START
    + """
import multiprocessing
def work(results):
    results.put(all_refused())
context = multiprocessing.get_context("fork")
results = context.Queue()
children = [context.Process(target=work, args=(results,)) for _ in range(3)]
for child in children:
    child.start()
assert [results.get(timeout=60) for _ in children] == [True] * 3
for child in children:
    child.join(60)
    assert child.exitcode == 0
ledger.append(intent("after", epoch))
assert ledger.live(epoch)
"""
)


def test_children_of_multiprocessing_are_refused_too(path, engine):
    outcome(python(MULTIPROCESSING, path, engine, "-"))


OWN_LEDGER = (
    START
    + """
ready, go = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    try:
        own = SqliteLedger(path, engine=engine)
        assert not own.gone(epoch), "the parent is alive"
        mine = own.register("child")
        own.append(intent("child/1", mine))
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        for n in range(50):
            own.append(entry(f"child/more/{n}", mine))
        assert "parent/0" in slots_of(own)
        own.close()
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        leave(1)
    leave(0)
os.read(ready[0], 1)
assert "child/1" in slots_of(ledger)
ledger.close()
again = SqliteLedger(path, engine=engine)
again.append(entry("parent/0"))
os.write(go[1], b"x")
for n in range(1, 50):
    again.append(entry(f"parent/{n}"))
wait(child)
assert len(slots_of(again)) == 102
again.close()
"""
)


@pytest.mark.parametrize("ending", ["os._exit", "sys.exit"])
def test_a_child_may_open_the_same_file_anew(path, engine, ending):
    outcome(python(OWN_LEDGER, path, engine, ending))
    assert raw(path, engine, "PRAGMA integrity_check") == [("ok",)]


ORPHAN = (
    START
    + """
child = os.fork()
if child == 0:
    own = SqliteLedger(path, engine=engine)
    os.read(0, 1)
    while not own.gone(epoch):
        time.sleep(0.01)
    for n in range(20):
        own.append(entry(f"child/{n}"))
    own.close()
    print("orphan done", flush=True)
    os._exit(0)
print("parent done", flush=True)
os._exit(0)
"""
)


def test_a_childs_own_ledger_outlives_its_parent(path, engine):
    """The parent held connections at the fork: the child's locks must be real ones."""
    process = python(ORPHAN, path, engine, "-")
    assert process.stdout.readline() == "parent done\n"
    process.wait(PATIENCE_S)
    other = SqliteLedger(path, engine=engine)
    other.append(entry("other"))
    other.close()
    process.stdin.write("x")
    process.stdin.close()
    assert process.stdout.readline() == "orphan done\n", process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    last = SqliteLedger(path, engine=engine)
    assert len(slots_of(last)) == 22
    last.close()
    assert raw(path, engine, "PRAGMA integrity_check") == [("ok",)]


BEHIND = (
    START
    + """
import ctypes
libc = ctypes.CDLL(None)
def fork_of_a_server(*, told):
    child = libc.fork()
    if child == 0 and told:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    return child
for told in (True, False):
    # In the middle of a transaction that has outgrown its cache: its pages are in the shared log already.
    ledger._database.write_lock.acquire()
    connection = ledger._database.writing()
    connection.execute("PRAGMA cache_size = 2")
    connection.command("BEGIN IMMEDIATE")
    connection.execute("CREATE TABLE IF NOT EXISTS basket (x)")
    for n in range(300):
        connection.execute("INSERT INTO basket VALUES (zeroblob(3000))")
    child = fork_of_a_server(told=told)
    if child == 0:
        fine = all_refused() and refused(lambda: SqliteLedger(path, engine=engine))
        ledger.close()
        leave(0 if fine else 1)
    wait(child)
    connection.command("COMMIT")
    ledger._database.write_lock.release()
    count = ledger._reader.query(lambda connection: connection.execute("SELECT count(x) FROM basket"))
    assert count == [(300 if told else 600,)], count
    ledger.append(intent(f"after/{told}", epoch))
    assert ledger.live(epoch)
print("fine", flush=True)
sys.stdin.readline()
"""
)


@pytest.mark.parametrize("ending", ["os._exit", "sys.exit"])
def test_a_fork_behind_pythons_back_is_refused_and_closes_nothing(path, engine, ending):
    process = python(BEHIND, path, engine, ending)
    assert process.stdout.readline() == "fine\n", process.communicate()[1]
    watcher = SqliteLedger(path, engine=engine)
    assert [row.alive for row in watcher.owners()] == [True]
    watcher.close()
    outcome(process)
    assert raw(path, engine, "PRAGMA integrity_check") == [("ok",)]


MEMORY = """
import os
from counterfoil.errors import ForkedLedger
from counterfoil.ledgers.memory import MemoryLedger
from tests.ledgers.support import entry
ledger = MemoryLedger()
epoch = ledger.register("x")
child = os.fork()
if child == 0:
    for use in (lambda: ledger.append(entry("child")), lambda: ledger.read("n", "run"), lambda: ledger.live(epoch)):
        try:
            use()
            os._exit(1)
        except ForkedLedger:
            pass
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
ledger.append(entry("parent"))
assert [record.slot for record in ledger.read("n", "run")] == ["parent"]
"""


def test_a_memory_ledger_is_refused_in_a_child_too():
    outcome(python(MEMORY))


WATCHED = """
import sys
opened = []
def note(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        opened.append(str(arguments[0]))
sys.addaudithook(note)
from counterfoil.ledgers.sqlite import SqliteLedger
from tests.ledgers.support import entry, intent
path = sys.argv[1]
ledger = SqliteLedger(path, engine=sys.argv[2])
epoch = ledger.register("x")
ledger.append(intent("a", epoch))
ledger.read("n", "run")
ledger.diagnose()
ledger.gone(epoch)
ledger.accept_restore(by="x", reason="y")
import os
if os.fork() == 0:
    os._exit(0)
ledger.append(entry("b", epoch))
ledger.retire(epoch)
ledger.close()
files = {name for name in opened if "ledger.db" in name}
assert f"{path}-counterfoil/registration.lock" in files, files
print(sorted(name for name in files if not name.startswith(f"{path}-counterfoil")))
"""


def test_our_code_never_opens_the_database_its_log_or_its_shared_memory(path, engine):
    assert outcome(python(WATCHED, path, engine)).strip() == "[]"
