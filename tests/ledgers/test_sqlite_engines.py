"""Two SQLite libraries: what each is good for, and that they never meet on one file."""

# Paths are text here, as SQLite takes them.
# ruff: noqa: PTH110, PTH116, PTH211

import gc
import logging
import os
import sqlite3
import time
import weakref
from queue import SimpleQueue

import apsw
import pytest

from counterfoil.errors import UsageError
from counterfoil.ledgers.sqlite import SqliteLedger, database
from counterfoil.ledgers.sqlite.engines import connect, resets_wal_wrongly
from tests.ledgers.support import PATIENCE_S, entry, slots_of


@pytest.fixture
def there(path):
    """A database that is there already."""
    SqliteLedger(path).close()
    return path


def test_a_file_that_the_application_has_open_with_sqlite3_is_not_opened_with_apsw(there):
    application = sqlite3.connect(there)
    application.execute("SELECT * FROM sqlite_master").fetchall()
    with pytest.raises(UsageError, match="engine=sqlite3"):
        SqliteLedger(there, engine="apsw")
    ledger = SqliteLedger(there, engine="sqlite3")
    ledger.append(entry("slot"))
    assert application.execute("SELECT count(*) FROM counterfoil_record").fetchone() == (1,)
    ledger.close()
    application.close()
    SqliteLedger(there, engine="apsw").close()


def test_a_file_that_the_application_has_open_with_apsw_is_not_opened_with_sqlite3(there):
    application = apsw.Connection(there)
    with pytest.raises(UsageError, match="engine=apsw"):
        SqliteLedger(there, engine="sqlite3")
    ledger = SqliteLedger(there, engine="apsw")
    ledger.append(entry("slot"))
    ledger.close()
    application.close()
    SqliteLedger(there, engine="sqlite3").close()


@pytest.mark.parametrize("engines", [("apsw", "sqlite3"), ("sqlite3", "apsw")])
def test_two_ledgers_of_a_process_use_one_engine_for_a_file(path, tmp_path, engines):
    first = SqliteLedger(path, engine=engines[0])
    os.symlink(path, tmp_path / "link.db")
    for name in (path, str(tmp_path / "link.db")):
        with pytest.raises(UsageError, match=f"engine={engines[0]}"):
            SqliteLedger(name, engine=engines[1])
    second = SqliteLedger(str(tmp_path / "link.db"), engine=engines[0])
    second.append(entry("slot"))
    assert slots_of(first) == ["slot"]
    first.close()
    with pytest.raises(UsageError):
        SqliteLedger(path, engine=engines[1])
    second.close()
    SqliteLedger(path, engine=engines[1]).close()


def test_a_ledger_that_nobody_closed_is_forgotten(path):
    ledger = SqliteLedger(path, engine="apsw")
    told: SimpleQueue[list] = SimpleQueue()
    ledger.submit(entry("slot"), settle=False, token=1, deliver=told.put)
    told.get(timeout=PATIENCE_S)
    left = weakref.ref(ledger)
    del ledger
    give_up = time.monotonic() + PATIENCE_S
    while left() is not None and time.monotonic() < give_up:  # until the ledger's thread is back at its queue
        gc.collect()
        time.sleep(0.001)
    other = SqliteLedger(path, engine="sqlite3")
    assert slots_of(other) == ["slot"]
    other.close()


def test_a_refused_opening_leaves_no_claim(there):
    application = sqlite3.connect(there)
    application.execute("SELECT * FROM sqlite_master").fetchall()
    for _ in range(2):
        with pytest.raises(UsageError):
            SqliteLedger(there, engine="apsw")
    application.close()
    SqliteLedger(there, engine="apsw").close()


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ((3, 6, 23), False),
        ((3, 7, 0), True),
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 0), True),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 52, 0), False),
        ((4, 0, 0), False),
    ],
)
def test_the_versions_with_the_wal_reset_defect_are_known(version, affected):
    assert resets_wal_wrongly(version) is affected


@pytest.fixture
def old_library(monkeypatch):
    """Takes the library for one with the defect, whichever it is."""
    monkeypatch.setattr(database, "library_version", lambda engine: (3, 40, 1))
    monkeypatch.setattr(database, "_warned", set())


@pytest.mark.usefixtures("old_library")
def test_a_library_with_the_defect_is_warned_about_once(path, open_ledger, engine, caplog):
    with caplog.at_level(logging.WARNING, logger="counterfoil"):
        ledger = open_ledger()
        open_ledger()
    (warning,) = caplog.records
    assert "engine=apsw" in warning.getMessage()
    finding = {subject: (level, mend) for level, subject, _, mend in ledger.diagnose()}["sqlite"]
    assert finding[0] == "error"
    assert "3.51.3" in finding[1]


@pytest.mark.usefixtures("old_library")
def test_a_library_with_the_defect_is_refused_on_demand(path, open_ledger):
    with pytest.raises(UsageError, match="engine=apsw"):
        open_ledger(strict=True)
    assert not os.path.exists(path)


@pytest.mark.usefixtures("old_library")
def test_with_the_defect_one_holder_of_a_lock_checkpoints(path, open_ledger, monkeypatch):
    monkeypatch.setattr("counterfoil.ledgers.sqlite.checkpoints._COMMITS", 10)
    monkeypatch.setattr("counterfoil.ledgers.sqlite.checkpoints._PAGES", 20)
    ledger = open_ledger()
    ledger.register("x")
    for connection in (ledger._database.writing(), ledger._database.reading()):
        assert connection.execute("PRAGMA wal_autocheckpoint") == [(0,)]
    sizes = []
    for n in range(300):
        ledger.append(entry(f"slot/{n}"))
        sizes.append(os.stat(f"{path}-wal").st_size)
    assert max(sizes) < 300 * 4096
    other = open_ledger()
    with ledger._beside.checkpoint_turn() as mine:
        assert mine
        before = max(sizes)
        for n in range(100):
            other.append(entry(f"more/{n}"))
        assert os.stat(f"{path}-wal").st_size > before


def test_a_good_library_checkpoints_by_itself(open_ledger, engine):
    ledger = open_ledger()
    if ledger._database.affected:
        pytest.skip("this one has the defect")
    assert ledger._database.writing().execute("PRAGMA wal_autocheckpoint") == [(1000,)]


def test_after_a_long_reader_the_log_gets_small_again(path, tmp_path, open_ledger, engine, monkeypatch):
    monkeypatch.setattr(database, "WAL_BYTES_MAX", 100_000)
    ledger = open_ledger()
    ledger.append(entry("slot"))
    reader = connect(engine, path)
    reader.command("BEGIN")
    reader.execute("SELECT * FROM counterfoil_record")
    for n in range(60):
        ledger.append(entry(f"slot/{n}", body=b'"' + b"x" * 10_000 + b'"'))
    assert os.stat(f"{path}-wal").st_size > 500_000
    levels = {subject: level for level, subject, _, _ in ledger.diagnose()}
    assert levels["wal-size"] == "ok"  # under the real bound
    reader.command("COMMIT")
    reader.close()
    ledger._database.writing().execute("PRAGMA wal_checkpoint(RESTART)")
    ledger.append(entry("last"))
    assert os.stat(f"{path}-wal").st_size <= 100_000
