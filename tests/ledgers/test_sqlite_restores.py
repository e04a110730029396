"""A database that went back in time is read, and takes nothing new until a person accepts it."""

# Paths are text here, as SQLite takes them.
# ruff: noqa: PTH108, PTH110, PTH123

import json
import os
import shutil

import pytest

from counterfoil.errors import LedgerReadOnly, OwnerRetired
from counterfoil.ledgers.sqlite.engines import connect
from counterfoil.protocol.records import LEDGER, RUN
from tests.ledgers.support import entry, intent, outcome, python, raw, slots_of

pytestmark = pytest.mark.rule("L14")


def backup(path, engine, copy):
    """Copies a database through its engine, as a backup tool does."""
    raw(path, engine, f"VACUUM INTO '{copy}'")


def restore(path, copy):
    """Puts a backup in place of a database that nobody has open."""
    for leftover in (f"{path}-wal", f"{path}-shm"):
        if os.path.exists(leftover):
            os.unlink(leftover)
    shutil.copyfile(copy, path)


@pytest.fixture
def went_back(path, engine, open_ledger, tmp_path):
    """A ledger restored from a backup that is one life old."""
    ledger = open_ledger()
    ledger.append(intent("kept", ledger.register("first")))
    ledger.close()
    backup(path, engine, tmp_path / "backup.db")
    ledger = open_ledger()
    ledger.append(intent("lost", ledger.register("second")))
    ledger.close()
    restore(path, tmp_path / "backup.db")
    return open_ledger()


def test_it_is_read_and_refuses_everything_else(went_back):
    assert "generation" in went_back.restored()
    assert slots_of(went_back) == ["kept"]
    uses = [
        lambda: went_back.append(entry("fact")),
        lambda: went_back.append(entry("kept"), settle=True),
        lambda: went_back.register("third"),
        lambda: went_back.bury("n", "run", tombstone=entry("t", kind=RUN, phase="tombstone"), kept=[], drop=[]),
    ]
    for use in uses:
        with pytest.raises(LedgerReadOnly, match="accept-restore") as refused:
            use()
        assert refused.value.effect_ran == "no"
    assert slots_of(went_back) == ["kept"]
    found = {subject: level for level, subject, _, _ in went_back.diagnose()}
    assert found["generation"] == "error"


def test_an_acceptance_is_recorded_and_opens_it(went_back, open_ledger):
    other = open_ledger()
    assert other.restored()
    generation = went_back.accept_restore(by="ann", reason="the disk died")
    assert generation == 3
    assert went_back.restored() is None
    assert other.restored() is None
    assert went_back.accepted_generation() == other.accepted_generation() == 3
    (record,) = went_back.read("", "ledger")
    assert (record.slot, record.kind, record.phase) == ("accepted-restore/3", LEDGER, "accepted-restore")
    assert json.loads(record.body) == {"by": "ann", "reason": "the disk died", "generation": 3}
    assert record.epoch == ""
    for ledger in (went_back, other):
        epoch = ledger.register("after")
        assert int(epoch.partition(".")[0]) > generation
        ledger.append(intent(f"new/{epoch}", epoch))


def test_a_life_of_before_is_over_after_the_acceptance(went_back):
    (owner,) = went_back.owners()
    went_back.accept_restore(by="ann", reason="the disk died")
    assert went_back.gone(owner.epoch)
    with pytest.raises(OwnerRetired):
        went_back.append(intent("again", owner.epoch))


def test_a_backup_taken_during_a_life_is_older_than_its_end(path, engine, open_ledger, tmp_path):
    ledger = open_ledger()
    epoch = ledger.register("only")
    ledger.append(intent("kept", epoch))
    backup(path, engine, tmp_path / "backup.db")
    ledger.append(intent("lost", epoch))
    ledger.retire(epoch)
    ledger.close()
    restore(path, tmp_path / "backup.db")
    assert open_ledger().restored()


def test_a_database_moved_without_its_folder_counts_as_restored(path, engine, open_ledger, tmp_path):
    ledger = open_ledger()
    ledger.register("x")
    ledger.close()
    shutil.copyfile(path, tmp_path / "copy.db")
    copy = open_ledger(str(tmp_path / "copy.db"))
    assert "generation" in copy.restored()
    with pytest.raises(LedgerReadOnly):
        copy.append(entry("slot"))
    assert copy.accept_restore(by="ann", reason="moved") == 2
    copy.append(entry("slot"))


@pytest.mark.parametrize("text", ["", "x", "1\n2", "-"])
def test_an_unreadable_generation_file_counts_as_missing(path, open_ledger, text):
    ledger = open_ledger()
    ledger.register("x")
    ledger.close()
    with open(f"{path}-counterfoil/generation", "w") as file:
        file.write(text)
    ledger = open_ledger()
    assert ledger.restored()
    ledger.accept_restore(by="ann", reason="damaged")
    assert ledger.restored() is None


def test_a_crash_before_the_file_follows_is_no_restore(path, open_ledger):
    ledger = open_ledger()
    ledger.register("x")
    ledger.close()
    with open(f"{path}-counterfoil/generation", "w") as file:
        file.write("0\n")
    ledger = open_ledger()
    assert ledger.restored() is None
    ledger.append(entry("slot"))
    assert ledger.register("y").startswith("2.")


def test_a_crash_in_the_first_registration_of_all_is_no_restore(path, open_ledger, monkeypatch):
    ledger = open_ledger()
    advance = ledger._beside.advance
    monkeypatch.setattr(ledger._beside, "advance", lambda generation: advance(0) if generation == 0 else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ledger.register("x")
    ledger.close()
    assert open_ledger().restored() is None


def test_a_ledger_without_owners_needs_no_folder(path, open_ledger):
    ledger = open_ledger()
    ledger.append(entry("slot"))
    assert ledger.restored() is None
    assert not os.path.exists(f"{path}-counterfoil")


def test_going_back_under_an_open_ledger_is_noticed_by_its_next_append(path, engine, open_ledger, tmp_path):
    ledger = open_ledger()
    ledger.register("first")
    backup(path, engine, tmp_path / "backup.db")
    epoch = ledger.register("second")
    ledger.append(intent("lost", epoch))
    script = """
import sys, sqlite3
source, target = sqlite3.connect(sys.argv[2]), sqlite3.connect(sys.argv[1])
with target:
    source.backup(target)
target.close()
"""
    outcome(python(script, path, str(tmp_path / "backup.db")))
    with pytest.raises(LedgerReadOnly, match="accept-restore"):
        ledger.append(entry("fact"))
    assert ledger.restored()
    ledger.accept_restore(by="ann", reason="restored in place")
    with pytest.raises(OwnerRetired):
        ledger.append(intent("lost", epoch))
    ledger.append(intent("lost", ledger.register("third")))


def test_a_lone_append_notices_another_generation_too(path, engine, open_ledger):
    # Its owner and its run are still there: nothing but the generation tells.
    ledger = open_ledger()
    epoch = ledger.register("before")
    for slot in ("a", "b"):
        ledger.append(entry(slot, epoch=epoch))
    raw(path, engine, "UPDATE counterfoil_ledger SET generation = generation - 1")
    with pytest.raises(LedgerReadOnly, match="went back in time"):
        ledger.append(entry("c", epoch=epoch))
    assert slots_of(ledger) == ["a", "b"]


def test_a_person_may_accept_what_could_not_be_noticed(open_ledger):
    ledger = open_ledger()
    ledger.register("x")
    assert ledger.accepted_generation() == 0
    assert ledger.accept_restore(by="ann", reason="the whole machine was restored") == 2
    assert ledger.accept_restore(by="ann", reason="again") == 3
    assert [record.slot for record in ledger.read("", "ledger")] == ["accepted-restore/2", "accepted-restore/3"]


def test_an_acceptance_and_its_record_are_one_transaction(path, engine, open_ledger, monkeypatch):
    ledger = open_ledger()
    ledger.register("x")
    monkeypatch.setattr(ledger._writer, "fill", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ledger.accept_restore(by="ann", reason="why")
    connection = connect(engine, path)
    assert connection.execute("SELECT generation, accepted FROM counterfoil_ledger") == [(1, 0)]
    connection.close()
