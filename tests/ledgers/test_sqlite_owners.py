"""Owners in SQLite: a life is over when the lock that died with its process is free, and not before."""

# Paths are text here, as SQLite takes them.
# ruff: noqa: PTH108, PTH110, PTH123, PTH208

import os
import signal
import subprocess

import pytest

from counterfoil.errors import LedgerUnavailable, OwnerRetired
from counterfoil.ledgers.sqlite import SqliteLedger, lifelines
from tests.ledgers.support import PATIENCE_S, end, entry, intent, line, outcome, python, raw, slots_of

LIFE = """
import sys
from counterfoil.ledgers.sqlite import SqliteLedger, lifelines
from tests.ledgers.support import entry, intent
ledger = SqliteLedger(sys.argv[1], engine=sys.argv[2])
epoch = ledger.register("child")
print(epoch)
for order in sys.stdin:
    what, _, argument = order.strip().partition(" ")
    if what == "intent":
        try:
            ledger.append(intent(argument, epoch))
            print("recorded")
        except Exception as error:
            print(type(error).__name__)
    elif what == "fact":
        ledger.append(entry(argument, epoch))
        print("recorded")
    elif what == "gone":
        print(ledger.gone(argument))
    elif what == "fork":
        import ctypes, os, time
        child = ctypes.CDLL(None).fork()  # so that no hook of ours runs in the child
        if child == 0:
            time.sleep(3600)
            os._exit(0)
        print(child)
    elif what == "other":
        other = SqliteLedger(sys.argv[1], engine=sys.argv[2])
        assert not other.gone(epoch)
        assert [row.epoch for row in other.owners() if row.alive] == [epoch]
        other.close()
        print("looked")
    elif what == "close":
        ledger.close()
        print("closed")
"""


def tell(process, order):
    """Gives a life an order and returns its answer."""
    process.stdin.write(order + "\n")
    process.stdin.flush()
    return line(process)


@pytest.fixture
def life(path, engine):
    """Starts lives in processes of their own: (process, epoch)."""
    started = []

    def start():
        process = python(LIFE, path, engine)
        started.append(process)
        return process, line(process)

    yield start
    for process in started:
        end(process)


@pytest.mark.rule("L7")
def test_a_killed_life_is_gone_and_a_living_one_is_not(ledger, life):
    process, epoch = life()
    assert not ledger.gone(epoch)
    assert [(row.label, row.alive) for row in ledger.owners()] == [("child", True)]
    end(process)
    assert [(row.label, row.alive) for row in ledger.owners()] == [("child", False)]
    assert ledger.gone(epoch)
    assert ledger.owners() == []


@pytest.mark.rule("L7")
def test_being_found_gone_is_durable_before_it_is_told(path, engine, ledger, life):
    process, epoch = life()
    end(process)
    assert ledger.gone(epoch)
    assert raw(path, engine, f"SELECT retired FROM counterfoil_owner WHERE epoch = '{epoch}'") == [(1,)]
    assert not os.path.exists(f"{path}-counterfoil/owners/{epoch}.lock")
    assert ledger.gone(epoch)


@pytest.mark.rule("L7")
def test_the_lock_is_taken_before_the_life_is_registered(ledger, monkeypatch):
    seen = []
    hold = ledger._beside.hold

    def noting(epoch):
        hold(epoch)
        known = "SELECT count(*) FROM counterfoil_owner"
        seen.append((epoch, ledger._reader.query(lambda connection: connection.execute(known))[0][0]))

    monkeypatch.setattr(ledger._beside, "hold", noting)
    epoch = ledger.register("x")
    assert seen == [(epoch, 0)]


@pytest.mark.rule("L7")
def test_a_child_does_not_inherit_the_lock(ledger, life):
    process, epoch = life()
    child = int(tell(process, "fork"))
    end_only(process)
    assert ledger.gone(epoch)
    os.kill(child, signal.SIGKILL)


def end_only(process):
    """Kills a process whose child keeps its pipes open."""
    process.kill()
    process.wait(PATIENCE_S)


@pytest.mark.rule("L7")
def test_looking_at_an_own_life_does_not_drop_its_lock(ledger, life, path, engine):
    process, epoch = life()
    assert tell(process, f"gone {epoch}") == "False"
    assert tell(process, "other") == "looked"
    assert not ledger.gone(epoch)
    assert [row.alive for row in ledger.owners()] == [True]
    assert tell(process, "close") == "closed"
    assert ledger.gone(epoch)


@pytest.mark.rule("L7")
def test_a_life_of_another_ledger_object_in_this_process_lives_until_that_closes(open_ledger):
    first, second = open_ledger(), open_ledger()
    epoch = first.register("x")
    assert not second.gone(epoch)
    assert not second.live(epoch)
    assert first.live(epoch)
    second.retire(epoch)
    assert first.live(epoch)
    first.close()
    assert second.gone(epoch)


@pytest.mark.rule("L7", "L8")
def test_a_life_taken_for_gone_decides_nothing_and_keeps_its_facts(path, engine, ledger, life):
    process, epoch = life()
    assert tell(process, "intent a") == "recorded"
    raw_retire = f"UPDATE counterfoil_owner SET retired = 1 WHERE epoch = '{epoch}'"
    raw(path, engine, raw_retire)
    assert tell(process, "intent b") == "OwnerRetired"
    assert tell(process, "fact c") == "recorded"
    assert slots_of(ledger) == ["a", "c"]
    fresh = ledger.register("fresh")
    assert ledger.append(intent("b", fresh)).epoch == fresh


@pytest.mark.rule("L7")
def test_a_retired_epoch_fills_no_intent_again(ledger, life):
    process, epoch = life()
    end(process)
    assert ledger.gone(epoch)
    with pytest.raises(OwnerRetired):
        ledger.append(intent("a", epoch))
    assert ledger.append(entry("b", epoch)).slot == "b"


@pytest.mark.rule("L7")
def test_of_many_observers_all_find_a_dead_life_gone_and_none_a_living_one(ledger, life):
    dead, dead_epoch = life()
    alive, alive_epoch = life()
    observers = [life()[0] for _ in range(3)]
    end(dead)
    answers = {tell(one, f"gone {dead_epoch}") for one in observers}
    assert answers == {"True"}
    assert {tell(one, f"gone {alive_epoch}") for one in [*observers, alive]} == {"False"}
    assert tell(alive, "intent a") == "recorded"
    assert ledger.gone(dead_epoch)


@pytest.mark.rule("L7")
def test_a_registered_life_without_its_lock_file_is_over(path, ledger, life):
    process, epoch = life()
    end(process)
    os.unlink(f"{path}-counterfoil/owners/{epoch}.lock")
    assert ledger.gone(epoch)


@pytest.mark.rule("L7")
@pytest.mark.parametrize("epoch", ["1.0badc0de", "999.0badc0de", "../../ledger.db", "x", "1.0badc0de/../x"])
def test_an_epoch_from_elsewhere_is_not_proved_to_be_over(ledger, epoch):
    ledger.register("x")
    ledger.append(entry("fact", epoch))
    assert not ledger.gone(epoch)
    assert not ledger.live(epoch)
    assert ledger.gone("")


@pytest.mark.rule("L7")
def test_an_unfinished_registration_leaves_no_living_owner(open_ledger, path, engine, monkeypatch):
    ledger = open_ledger()
    advance = ledger._beside.advance
    monkeypatch.setattr(ledger._beside, "advance", lambda generation: 1 / 0 if generation else advance(0))
    with pytest.raises(ZeroDivisionError):
        ledger.register("x")
    other = open_ledger()
    assert all(not row.alive for row in other.owners())
    ((epoch,),) = raw(path, engine, "SELECT epoch FROM counterfoil_owner") or [("",)]
    assert other.gone(epoch)


@pytest.mark.rule("L14")
def test_each_registration_and_retirement_advances_the_generation(path, open_ledger):
    ledger = open_ledger()

    def kept():
        with open(f"{path}-counterfoil/generation") as file:
            return int(file.read())

    first = ledger.register("x")
    assert (first.partition(".")[0], kept()) == ("1", 1)
    second = ledger.register("y")
    assert (second.partition(".")[0], kept()) == ("2", 2)
    ledger.retire(first)
    assert kept() == 3
    ledger.retire(first)
    assert kept() == 3
    assert ledger.register("z").partition(".")[0] == "4"


def test_lives_register_side_by_side(path, engine, ledger):
    script = (
        "import sys; from counterfoil.ledgers.sqlite import SqliteLedger\n"
        "ledger = SqliteLedger(sys.argv[1], engine=sys.argv[2])\n"
        "print(*[ledger.register('x') for _ in range(5)])"
    )
    processes = [python(script, path, engine) for _ in range(6)]
    epochs = [epoch for process in processes for epoch in outcome(process).split()]
    assert len({epoch.partition(".")[0] for epoch in epochs}) == 30
    assert all(ledger.gone(epoch) for epoch in epochs)
    assert os.listdir(f"{path}-counterfoil/owners") == []
    assert ledger.restored() is None


def test_a_life_registers_from_several_threads_at_once(ledger):
    import threading

    epochs = []
    threads = [threading.Thread(target=lambda: epochs.append(ledger.register("x"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(set(epochs)) == 8
    assert all(ledger.live(epoch) for epoch in epochs)


@pytest.mark.rule("L7", "L8")
def test_retiring_is_serialised_with_intents(path, engine, life):
    """An intent is in the ledger before the life is found gone, or never."""
    watcher = SqliteLedger(path, engine=engine)
    for n in range(5):
        process, epoch = life()
        assert tell(process, f"intent before/{n}") == "recorded"
        process.stdin.write(f"intent after/{n}\n")
        process.stdin.flush()
        end_only(process)
        assert watcher.gone(epoch)
        found = slots_of(watcher)
        with pytest.raises(OwnerRetired):
            watcher.append(intent(f"late/{n}", epoch))
        assert slots_of(watcher) == found
        assert f"before/{n}" in found
    watcher.close()


def test_subprocesses_are_not_disturbed_by_an_open_ledger(ledger):
    epoch = ledger.register("x")
    subprocess.run(["true"], check=True)
    assert ledger.live(epoch)
    ledger.append(intent("a", epoch))


HOLDER = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(descriptor, fcntl.LOCK_EX)
print("holding", flush=True)
sys.stdin.read()
"""


@pytest.mark.rule("L7")
def test_a_registration_that_somebody_blocks_ends_with_a_clear_error(ledger, path, monkeypatch):
    """A process that is stopped at that very moment must not hang every other one for ever."""
    ledger.register("first")
    monkeypatch.setattr(lifelines, "TURN_S", 0.05)
    holder = python(HOLDER, f"{path}-counterfoil/registration.lock")
    try:
        assert line(holder) == "holding"
        with pytest.raises(LedgerUnavailable) as raised:
            ledger.register("me")
        assert raised.value.code == "registration-busy"
        assert raised.value.effect_ran == "no"
    finally:
        end(holder)
    monkeypatch.undo()
    assert not ledger.gone(ledger.register("me"))
