"""Reading a PostgreSQL ledger: nothing that commits late is missed, and what others record is noticed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import psycopg
import pytest

from counterfoil import Runtime
from counterfoil.errors import LedgerUnavailable
from counterfoil.ledgers.postgres import listener, names, rows, writer
from counterfoil.ledgers.postgres.connections import Connection
from counterfoil.ledgers.submissions import Submission
from counterfoil.protocol.records import EFFECT, Entry
from tests.ledgers.postgres_support import PATIENCE_S, Doing, opened, until
from tests.ledgers.support import entry
from tests.support import quick, tries

_schemas = count(1)

Open = Callable[..., Any]


@pytest.fixture
def url(shared_database: str) -> str:
    """A ledger of its own."""
    return f"{shared_database}?schema=reading_{next(_schemas)}"


@pytest.fixture
def open_ledger(url: str) -> Iterator[Open]:
    made: list[Any] = []

    def open_one(where: str = url) -> Any:
        made.append(opened(where))
        return made[-1]

    yield open_one
    for ledger in made:
        ledger.close()


class Slowly:
    """Appends in a transaction that stays open for as long as a test likes."""

    def __init__(self, ledger: Any, shared_database: str) -> None:
        self._question = writer.question(ledger.schema)
        self._connection = Connection.open(shared_database)
        self._connection.give_up = time.monotonic() + 600
        self._connection.execute("BEGIN")

    def append(self, one: Entry) -> Any:
        (reply,) = writer.replies(writer.ask(self._connection, self._question, [one], patience_s=0), [one])
        return reply

    def commit(self) -> None:
        self._connection.execute("COMMIT")
        self._connection.close()


@pytest.mark.rule("L1")
def test_within_a_run_positions_are_in_the_order_of_commits(open_ledger, shared_database):
    ledger = open_ledger()
    ledger.append(entry("first"))
    slow = Slowly(ledger, shared_database)
    early = slow.append(entry("early"))
    late = Doing(lambda: ledger.append(entry("late")))
    assert late.lasts(0.3)
    seen = ledger.read("n", "run")
    assert [record.slot for record in seen] == ["first"]
    slow.commit()
    assert late.result().position > early.position
    assert [record.slot for record in ledger.read("n", "run", seen[-1].position)] == ["early", "late"]


@pytest.mark.rule("L9")
def test_what_is_committed_together_does_not_wait_for_a_run_that_somebody_holds(open_ledger, shared_database):
    ledger = open_ledger()
    for run in range(10):
        ledger.append(entry("first", run=f"r{run}"))
    slow = Slowly(ledger, shared_database)
    slow.append(entry("held", run="r0"))
    batch = [Submission(entry("second", run=f"r{run}"), settle=False) for run in range(10)]
    ledger._pool.timeout_s = ledger._writer._lock_s = 2 * PATIENCE_S
    committing = Doing(lambda: ledger._writer.commit(batch))
    until(lambda: all(item.reply is not None for item in batch[1:]))
    assert batch[0].reply is None
    assert [getattr(item.reply, "slot", None) for item in batch[1:]] == ["second"] * 9
    # Whoever waits for what is held waits so long.
    ledger._writer._lock_s = 0.1
    late = Submission(entry("third", run="r0"), settle=False)
    ledger._writer.commit([late])
    assert isinstance(late.reply, LedgerUnavailable)
    assert (late.reply.code, late.reply.effect_ran) == ("ledger-busy", "no")
    slow.commit()
    committing.result()
    assert getattr(batch[0].reply, "slot", None) == "second"


@pytest.mark.rule("P2")
def test_what_commits_late_is_noticed_when_it_does_and_once(open_ledger, url, shared_database):
    ledger, watching = open_ledger(), open_ledger(f"{url}&poll=0.001")
    ledger.append(entry("x", run="a"))
    _, seen = watching.changes(-1)
    slow = Slowly(ledger, shared_database)
    slow.append(entry("early", run="a"))
    ledger.append(entry("late", run="b"))
    time.sleep(0.01)
    changed, seen = watching.changes(seen)
    assert changed == {("n", "b")}
    slow.commit()
    changed, seen = watching.changes(seen)
    assert changed == {("n", "a")}
    time.sleep(0.01)
    assert watching.changes(seen) == (set(), seen)


@pytest.mark.rule("P2")
def test_somebody_elses_long_transaction_makes_nothing_new_again(open_ledger, url, shared_database):
    ledger, watching = open_ledger(), open_ledger(f"{url}&poll=0.001")
    _, seen = watching.changes(-1)
    with psycopg.connect(shared_database) as connection:
        connection.execute("SELECT pg_current_xact_id()")
        for n in range(3):
            ledger.append(entry(f"slot/{n}"))
            time.sleep(0.01)
            changed, seen = watching.changes(seen)
            assert changed == {("n", "run")}
            time.sleep(0.01)
            assert watching.changes(seen) == (set(), seen)


@pytest.mark.rule("P2")
def test_what_a_server_that_counts_anew_has_is_noticed(open_ledger, url):
    ledger, watching = open_ledger(), open_ledger(f"{url}&poll=0.001")
    _, seen = watching.changes(-1)
    watching._tail._last = "9000000000:9000000000:"
    ledger.append(entry("slot"))
    time.sleep(0.01)
    changed, seen = watching.changes(seen)
    assert changed == {("n", "run")}
    time.sleep(0.01)
    assert watching.changes(seen) == (set(), seen)


@pytest.mark.rule("P2")
def test_an_outcome_that_another_process_records_is_heard_of_before_anybody_polls(open_ledger, monkeypatch):
    monkeypatch.setattr(listener, "FLOOR_S", 3600.0)
    ledger, watching = open_ledger(), open_ledger()
    _, seen = watching.changes(-1)
    until(lambda: watching._listener._bell.hearing)
    for n in range(4):
        _, seen = watching.changes(seen)
        ledger.append(entry(f"slot/{n}", kind=EFFECT, phase="accepted"))
        until(partial(heard, watching, seen))


def heard(watching: Any, seen: int) -> bool:
    return ("n", "run") in watching.changes(seen)[0]


@pytest.mark.rule("P2")
def test_with_poll_nothing_is_listened_to_or_notified(open_ledger, url, shared_database):
    ledger = open_ledger(f"{url}&poll=0.05")
    with psycopg.connect(shared_database, autocommit=True) as connection:
        connection.execute(f"LISTEN {names.channel(ledger.schema)}".encode())
        watching = open_ledger(f"{url}&poll=0.05")
        _, seen = watching.changes(-1)
        took: list[float] = []
        for n in tries(lambda: quick(took, 1), range(20)):
            ledger.append(entry(f"slot/{n}", kind=EFFECT, phase="accepted"))
            began = time.monotonic()
            until(partial(heard, watching, seen))
            took.append(time.monotonic() - began)
            _, seen = watching.changes(seen)
        assert list(connection.notifies(timeout=0.3)) == []
        listening = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE query = %s AND pid <> pg_backend_pid()",
            (f"LISTEN {names.channel(ledger.schema)}",),
        ).fetchone()
    assert listening == (0,)


@pytest.mark.rule("P2")
def test_a_delivery_from_another_process_ends_a_wait_within_a_second(url):
    took: list[float] = []
    with Runtime(url) as waiting, Runtime(url) as delivering:
        for number in tries(lambda: quick(took, 1.5), range(20)):
            run_id = f"r{number}"
            answer = Doing(partial(waiting.run(run_id).wait_for, "approval", "7"))
            until(partial(delivering.show, run_id))
            began = time.monotonic()
            assert delivering.deliver(run_id, "approval", "7", {"yes": True})
            assert answer.result() == {"yes": True}
            took.append(time.monotonic() - began)


@pytest.mark.rule("X13")
def test_a_held_snapshot_and_a_history_leave_no_dead_rows(open_ledger, shared_database):
    ledger = open_ledger()
    epoch = ledger.register("busy")
    counted = f"""
        SELECT relname, pg_stat_get_tuples_inserted(c.oid), pg_stat_get_dead_tuples(c.oid)
        FROM pg_class c JOIN pg_namespace s ON s.oid = relnamespace
        WHERE nspname = '{ledger.schema}' AND relname IN ('record', 'run', 'owner')"""

    def tables(looking: psycopg.Connection[Any]) -> dict[str, tuple[int, int]]:
        # A backend reports what it did at most once a second.
        ledger.append(entry(f"report/{time.monotonic()}"))
        return {name: (inserted, dead) for name, inserted, dead in looking.execute(counted.encode()).fetchall()}

    with psycopg.connect(shared_database) as holding, psycopg.connect(shared_database, autocommit=True) as looking:
        holding.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holding.execute("SELECT count(*) FROM pg_class")
        for n in range(100):
            ledger.append(entry(f"intent/{n}", epoch, run=f"r{n % 7}", kind=EFFECT, phase="intent", decision=True))
            ledger.append(entry(f"outcome/{n}", epoch, run=f"r{n % 7}", kind=EFFECT, phase="accepted"))
        until(lambda: tables(looking)["record"][0] >= 200)
        assert [dead for _, dead in tables(looking).values()] == [0, 0, 0]


@pytest.mark.rule("X13")
def test_a_plan_that_was_made_for_a_small_ledger_holds_for_a_large_one(open_ledger, url, shared_database):
    ledger = open_ledger(f"{url}&pool=1")
    epoch = ledger.register("busy")
    scans = f"SELECT relname, seq_scan, idx_scan FROM pg_stat_user_tables WHERE schemaname = '{ledger.schema}'"

    def counted(looking: psycopg.Connection[Any]) -> dict[str, tuple[int, int]]:
        with ledger.pool.take() as connection:
            connection.execute("SELECT pg_stat_force_next_flush()")
        return {name: (sequential, indexed) for name, sequential, indexed in looking.execute(scans.encode()).fetchall()}

    with psycopg.connect(shared_database, autocommit=True) as looking:
        ledger.append(entry("first", epoch))
        for table in ("run", "record", "owner"):
            looking.execute(f"ANALYZE {ledger.schema}.{table}".encode())
        before = counted(looking)
        for n in range(40):
            ledger.append(entry(f"slot/{n}", epoch, run=f"r{n}", decision=True))
        after = counted(looking)
        assert after["run"][1] - before["run"][1] >= 40
    for table in ("run", "record", "owner"):
        assert after[table][0] == before[table][0], (table, before, after)


@pytest.mark.rule("L4")
def test_a_record_of_a_newer_format_or_kind_comes_back_as_unknown(open_ledger, shared_database):
    ledger = open_ledger()
    for slot in ("kind", "format", "sound"):
        ledger.append(entry(slot))
    with psycopg.connect(shared_database, autocommit=True) as connection:
        connection.execute(f"UPDATE {ledger.schema}.record SET kind = 999 WHERE slot = 'kind'".encode())
        connection.execute(f"UPDATE {ledger.schema}.record SET format = 2 WHERE slot = 'format'".encode())
    kinds = {record.slot: record.kind for record in ledger.read("n", "run")}
    assert kinds == {"kind": "unknown", "format": "unknown", "sound": "durability/step"}
    assert ledger.append(entry("format")).format == 2


def test_a_long_run_is_read_in_pages(open_ledger, monkeypatch):
    monkeypatch.setattr("counterfoil.ledgers.postgres.reader.PAGE", 7)
    ledger = open_ledger()
    for n in range(20):
        ledger.append(entry(f"slot/{n}"))
    assert [record.slot for record in ledger.read("n", "run")] == [f"slot/{n}" for n in range(20)]
    assert rows.COLUMNS
