"""The schema: made by many processes at once, printable, and never newer than who reads it."""

import sqlite3
import threading

import pytest

from counterfoil.errors import LedgerUnavailable
from counterfoil.ledgers.sqlite import SqliteLedger, migrations, sql
from counterfoil.ledgers.sqlite.engines import connect
from tests.ledgers.support import PATIENCE_S, entry, line, outcome, python, raw, slots_of

pytestmark = pytest.mark.rule("L11")

CREATE = """
import sys
from counterfoil.ledgers.sqlite import SqliteLedger
from tests.ledgers.support import entry
print("ready")
sys.stdin.readline()
ledger = SqliteLedger(sys.argv[1], engine=sys.argv[2])
epoch = ledger.register(sys.argv[3])
won = ledger.append(entry("same", epoch))
ledger.append(entry(f"mine/{sys.argv[3]}", epoch))
print(won.epoch)
ledger.close()
"""


def test_twenty_processes_create_one_ledger_at_once(path, engine):
    processes = [python(CREATE, path, engine, str(n)) for n in range(20)]
    for process in processes:
        assert line(process) == "ready"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    winners = {outcome(process).strip() for process in processes}
    assert len(winners) == 1
    ledger = SqliteLedger(path, engine=engine)
    assert sorted(slots_of(ledger)) == sorted(["same", *(f"mine/{n}" for n in range(20))])
    assert ledger.restored() is None
    assert ledger.owners() == [] or not any(owner.alive for owner in ledger.owners())
    ledger.close()
    assert raw(path, engine, "SELECT version, name FROM counterfoil_schema") == [(1, "0001_ledger")]
    assert raw(path, engine, "PRAGMA journal_mode") == [("wal",)]


def test_a_database_that_is_in_use_without_wal_is_waited_for(path, engine, open_ledger):
    raw(path, engine, "CREATE TABLE basket (x)")
    reader = connect(engine, path)
    reader.command("BEGIN")
    reader.execute("SELECT * FROM basket")
    opened: list[SqliteLedger] = []
    opening = threading.Thread(target=lambda: opened.append(open_ledger()))
    opening.start()
    opening.join(0.4)
    assert opening.is_alive()
    reader.command("COMMIT")
    reader.close()
    opening.join(PATIENCE_S)
    opened[0].append(entry("slot"))


def test_a_newer_schema_is_refused_and_left_alone(path, engine, open_ledger):
    ledger = open_ledger()
    ledger.append(entry("slot"))
    ledger.close()
    raw(path, engine, "INSERT INTO counterfoil_schema (version, name) VALUES (99, 'from the future')")
    with pytest.raises(LedgerUnavailable, match="version 99") as refused:
        open_ledger()
    assert (refused.value.effect_ran, refused.value.code) == ("no", "schema-newer")
    assert raw(path, engine, "SELECT count(*) FROM counterfoil_record") == [(1,)]


def test_the_printed_schema_is_the_one_that_is_made(path, tmp_path, engine, open_ledger):
    open_ledger().close()
    by_hand = str(tmp_path / "by-hand.db")
    connection = sqlite3.connect(by_hand)
    connection.executescript(sql())
    connection.close()
    schema = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
    assert raw(by_hand, engine, schema) == raw(path, engine, schema)
    ledger = open_ledger(by_hand)
    ledger.append(entry("slot"))
    assert slots_of(ledger) == ["slot"]


def test_a_migration_that_fails_leaves_nothing(path, engine, open_ledger, monkeypatch):
    text = migrations.text
    monkeypatch.setattr(migrations, "text", lambda name: f"{text(name)}\n\nCREATE TABLE broken (;\n")
    with pytest.raises(LedgerUnavailable):
        open_ledger()
    assert raw(path, engine, "SELECT name FROM sqlite_master") == []
    monkeypatch.undo()
    open_ledger().append(entry("slot"))


def test_a_later_migration_goes_on_from_what_is_there(path, engine, open_ledger, monkeypatch):
    ledger = open_ledger()
    ledger.append(entry("slot"))
    ledger.close()
    text = migrations.text
    later = {"0002_later": "CREATE TABLE counterfoil_later (x INTEGER);\n"}
    monkeypatch.setattr(migrations.LEDGER, "scripts", ("0001_ledger", "0002_later"))
    monkeypatch.setattr(migrations, "text", lambda name: later.get(name) or text(name))
    assert "0002_later" in sql()
    ledger = open_ledger()
    assert slots_of(ledger) == ["slot"]
    ledger.close()
    assert raw(path, engine, "SELECT version FROM counterfoil_schema ORDER BY 1") == [(1,), (2,)]
    monkeypatch.undo()
    with pytest.raises(LedgerUnavailable, match="version 2"):
        open_ledger()
