"""How many statements a hundred effects cost (X13): a regression shows without a clock."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from counterfoil.ledgers.postgres.connections import Connection
from counterfoil.ledgers.sqlite import engines
from counterfoil.runtime import dispatching
from tests.outbox.lives import Life
from tests.outbox.shop import FileShop, PostgresShop, Shop


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts what reaches either store, by its first word."""
    counts: Counter[str] = Counter()

    def counting(kind: type, name: str) -> None:
        before = getattr(kind, name)

        def counted(self: Any, sql: Any, *args: Any, **more: Any) -> Any:
            text = sql.decode() if isinstance(sql, bytes) else sql
            # The heart beats in a thread of its own, by time and not by effects.
            counts[text.split()[0]] += threading.current_thread() is threading.main_thread()
            return before(self, sql, *args, **more)

        monkeypatch.setattr(kind, name, counted)

    for name in ("execute", "insert", "command"):
        counting(engines._Apsw, name)
    counting(psycopg.Cursor, "execute")
    counting(Connection, "ask")
    return counts


@pytest.mark.rule("X13", "X3")
@pytest.mark.parametrize(
    ("hundreds", "postgres", "sqlite"),
    # Claim, send-right and end of a hundred take a transaction each; in a stream they share one with other hundreds.
    [(1, 12, 28), (10, 4, 15)],
    ids=["alone", "in-a-stream"],
)
def test_a_hundred_effects_cost_a_few_statements(
    lone: Shop, counted: Counter[str], monkeypatch: pytest.MonkeyPatch, hundreds: int, postgres: int, sqlite: int
) -> None:
    life = Life(lone, "mail", concurrency=100, batch=100)
    for letter, count in (("p", 100), ("q", 100 * hundreds)):
        with lone.transaction() as connection:
            operations = [(lone.operation(f"{letter}{number}"), f"{letter}{number}") for number in range(count)]
            lone.outbox.stage_many(connection, operations)
        if letter == "p":
            life.settle()
    # Looking around costs by time, not by effects.
    life.engine._sweep_at = float("inf")
    monkeypatch.setattr(life.engine._opened.store, "changed", lambda: False)
    # How quick the handlers are is not what is asked here.
    monkeypatch.setattr(dispatching, "QUICK_S", 60.0)
    counted.clear()
    life.engine.nudged()
    for _ in range(3 + hundreds):
        life.jobs += life.engine.turn()[0]
        life.call()
    assert life.engine.in_hand == 0
    # On SQLite rows are inserted 64 at a time.
    assert counted.total() <= hundreds * (postgres if isinstance(lone, PostgresShop) else sqlite), counted
    assert lone.receipt(f"q{100 * hundreds - 1}").state == "accepted"


@pytest.mark.rule("X11", "X13")
def test_lanes_that_go_on_together_cost_one_statement_on_a_server(
    server: Any, counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(server, "mail", concurrency=50, batch=50)
    server.order("warm")
    life.settle()
    with server.transaction() as connection:
        wanted = [
            (server.operation(f"{letter}{n}"), {"key": f"{letter}{n}", "lane": f"lane-{n}"})
            for letter in "ab"
            for n in range(50)
        ]
        server.outbox.stage_many(connection, wanted)
    life.engine._sweep_at = float("inf")
    monkeypatch.setattr(life.engine._opened.store, "changed", lambda: False)
    monkeypatch.setattr(dispatching, "QUICK_S", 60.0)
    counted.clear()
    for _ in range(6):
        life.engine.nudged()
        life.jobs += life.engine.turn()[0]
        life.call()
    # Two of six rounds end fifty each, which lets fifty lanes go on.
    assert counted.total() <= 6 * 3 + 2 * 2, counted
    assert [to[0] for _, to in server.box.log] == ["w"] + ["a"] * 50 + ["b"] * 50


@pytest.mark.rule("X1")
def test_staging_costs_one_statement_on_a_server(lone: Shop, counted: Counter[str]) -> None:
    with lone.transaction() as connection:
        lone.outbox.stage(connection, lone.operation("first"), key="first")
        counted.clear()
        lone.outbox.stage(connection, lone.operation("bo"), key="o1")
    # What the application's own connection of SQLite runs is not seen here.
    assert +counted == Counter({"WITH": 1, "COMMIT": 1} if isinstance(lone, PostgresShop) else {})


@pytest.mark.rule("X1")
def test_staging_writes_four_pages_on_sqlite(tmp_path: Path) -> None:
    shop = FileShop(tmp_path / "shop.db", "apsw")
    written: list[int] = []
    with shop.connected() as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        for number, staged in enumerate((True, False, True)):
            before = Path(f"{shop.path}-wal").stat().st_size
            connection.execute(shop.begin)
            connection.execute("INSERT INTO orders (id) VALUES (?)", (f"o{number}",))
            if staged:
                shop.outbox.stage(connection, shop.operation("bo"), key=f"o{number}")
            connection.execute("COMMIT")
            # A page, and its header.
            written.append((Path(f"{shop.path}-wal").stat().st_size - before) // (4096 + 24))
    # Two tables, and an index of each.
    assert written[2] - written[1] == 4, written
    shop.close()


@pytest.mark.rule("X13")
def test_on_sqlite_a_history_and_a_held_snapshot_make_no_round_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [0]

    def profiled(event: dict[str, Any]) -> None:
        steps[0] += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    before = engines._Apsw.__init__

    def opened(self: Any, path: str) -> None:
        before(self, path)
        self._connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, profiled)

    monkeypatch.setattr(engines._Apsw, "__init__", opened)
    # One sweep for each hundred, however long they take.
    monkeypatch.setattr(dispatching, "SWEEP_S", 1e6)
    monkeypatch.setattr(dispatching, "QUICK_S", 60.0)
    shop = FileShop(tmp_path / "shop.db", "apsw")
    life = Life(shop, "mail", concurrency=100, batch=100)

    def hundred(letter: str) -> int:
        with shop.transaction() as connection:
            operations = [(shop.operation(f"{letter}{number}"), f"{letter}{number}") for number in range(100)]
            shop.outbox.stage_many(connection, operations)
        steps[0] = 0
        life.engine._sweep_at = 0.0
        life.settle()
        return steps[0]

    hundred("warm")
    first = hundred("a")
    assert first > 1_000
    with shop.connected() as holder:
        holder.execute("BEGIN")
        holder.execute("SELECT count(*) FROM orders").fetchall()
        last = [hundred(f"b{number}-") for number in range(20)][-1]
        holder.execute("ROLLBACK")
    # The sweep looks at the same few rows.
    assert last <= 1.1 * first
    shop.close()
