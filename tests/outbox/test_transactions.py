"""Staging inside `Run.transaction` (T1, X2): row, intent and receipt are committed together, or none of them is."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from counterfoil import AsyncOutbox, AsyncRuntime, Intent, NameConflict, Outbox, Runtime, StagedIntent, UsageError
from counterfoil.errors import CommitUnknown
from counterfoil.ports import transacting
from counterfoil.staging import driver_module
from tests.outbox.shop import FileShop, PostgresShop, Shop


class Sale:
    """A body that saves an order and stages its mail, both without a key and with one."""

    def __init__(self, shop: Shop, outbox: Outbox, *, fails: int = 0) -> None:
        self.shop = shop
        self.outbox = outbox
        self.fails = fails
        self.staged: list[list[StagedIntent]] = []

    def __call__(self, connection: Any) -> int:
        made: list[StagedIntent] = []
        self.staged.append(made)
        stage = self.outbox.stage
        operation = self.shop.operation
        self.order(connection, "o1")
        made.append(stage(connection, operation("bo")))
        made.append(stage(connection, operation("cy"), key="named"))
        connection.execute("SAVEPOINT part")
        made.append(stage(connection, operation("gone")))
        connection.execute("ROLLBACK TO SAVEPOINT part")
        made += self.outbox.stage_many(connection, [Intent(operation("al"), lane="L"), (operation("di"), "pair")])
        if len(self.staged) <= self.fails:
            raise ZeroDivisionError
        return len(self.staged)

    def order(self, connection: Any, key: str) -> None:
        table = f"{self.shop.name}.orders" if isinstance(self.shop, PostgresShop) else "orders"
        connection.execute(f"INSERT INTO {table} (id) VALUES ('{key}')")

    def is_there(self) -> bool:
        """Whether its order, its intents and its receipt are there; all of them are, or none."""
        order = "o1" in self.shop.orders()
        last = self.staged[-1]
        found = {one.key for one in last if self.outbox.receipt(one.key) is not None}
        with Runtime(self.shop.url) as runtime:
            receipts = [record for record in runtime.show("r") if record.phase == "committed"]
        assert found == ({one.key for one in last if one != last[2]} if order else set())
        assert len(receipts) == order
        return order


@pytest.mark.rule("T1", "X2", "T2")
def test_what_is_staged_in_a_transaction_has_an_identity_of_its_run_and_ordinal(shop: Shop) -> None:
    with Runtime(shop.url) as runtime, runtime.run("r") as run:
        sale = Sale(shop, Outbox(runtime), fails=1)
        with pytest.raises(ZeroDivisionError):
            run.transaction("sell", sale)
        assert not sale.is_there()
        assert run.transaction("sell", sale) == 2
        # A replay does not call the body, and stages nothing.
        assert run.transaction("sell", sale) == 2
        assert sale.is_there()
        assert sale.staged[0] == sale.staged[1]
        assert len(sale.staged) == 2
        (record,) = runtime.show("r")
        assert record.body["staged"] == 5
        # Another transaction, and another run, stage others.
        again = [run.transaction(name, lambda it: sale.outbox.stage(it, shop.operation("x")).key) for name in "pq"]
        with runtime.run("s") as other:
            again.append(other.transaction("p", lambda it: sale.outbox.stage(it, shop.operation("x")).key))
    ids = {one.effect_id for one in sale.staged[0]}
    assert len(ids) == 5
    assert len({*again, *(one.key for one in sale.staged[0])}) == 8
    # The one with a key of its own is the one that everybody knows by it.
    with shop.transaction() as connection:
        assert shop.outbox.stage(connection, shop.operation("cy"), key="named") == sale.staged[0][1]
    shop.dispatch()
    assert sorted(to for _, to in shop.box.log) == ["al", "bo", "cy", "di", "x", "x", "x"]


@pytest.mark.rule("T1", "T4", "X2")
@pytest.mark.parametrize("lands", [True, False])
def test_a_commit_of_which_nobody_hears_stages_once(lone: Shop, monkeypatch: pytest.MonkeyPatch, lands: bool) -> None:
    with Runtime(lone.url) as runtime, runtime.run("r") as run:
        sale = Sale(lone, Outbox(runtime))
        ledger: Any = runtime.ledger
        real: Callable[..., Any] = ledger.transact
        left = [1]

        def lost(entry: Any, work: Any) -> Any:
            if not left:
                return real(entry, work)
            left.clear()
            if lands:
                real(entry, work)
            else:
                with pytest.raises(ZeroDivisionError):
                    real(entry, _then_fails(work))
            raise CommitUnknown("nobody heard")

        monkeypatch.setattr(ledger, "transact", lost)
        assert run.transaction("sell", sale) == (1 if lands else 2)
        assert sale.is_there()
        assert all(made == sale.staged[0] for made in sale.staged)


def _then_fails(work: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    def body(connection: Any) -> bytes:
        work(connection)
        raise ZeroDivisionError

    return body


@pytest.mark.rule("X2")
def test_a_refused_intent_of_a_transaction_uses_up_nothing_that_was_staged(shop: Shop) -> None:
    shop.order("taken")

    def body(connection: Any) -> list[str]:
        outbox = shop.outbox
        first = outbox.stage(connection, shop.operation("a"))
        with pytest.raises(UsageError):
            outbox.stage(connection, shop.operation("b"), lane="")
        # Of these the first one is staged, so its place is never given out again.
        with pytest.raises(NameConflict):
            outbox.stage_many(connection, [Intent(shop.operation("c")), (shop.operation("d"), "taken")])
        return [first.key, outbox.stage(connection, shop.operation("e")).key]

    with Runtime(shop.url) as runtime, runtime.run("r") as run:
        keys = run.transaction("sell", body)
        (record,) = runtime.show("r")
    assert record.body["staged"] == 4
    assert len(set(keys)) == 2
    shop.dispatch()
    assert sorted(to for _, to in shop.box.log) == ["a", "c", "e", "taken"]


@pytest.mark.rule("X2")
def test_only_the_connection_of_the_transaction_itself_gives_keys(file: FileShop) -> None:
    def body(connection: Any) -> None:
        with file.connected() as beside:
            assert transacting.of(driver_module(beside).raw(beside)) is None
        assert transacting.of(driver_module(connection).raw(connection)) is not None

    with Runtime(file.url) as runtime, runtime.run("r") as run:
        run.transaction("look", body)
    with file.transaction() as connection, pytest.raises(UsageError, match="needs a key"):
        file.outbox.stage(connection, file.operation("bo"))


@pytest.mark.rule("T1", "X2")
async def test_the_asyncio_colour_stages_in_its_transactions_with_the_same_keys(shop: Shop) -> None:
    with Runtime(shop.url) as blocking, blocking.run("r") as run:
        sale = Sale(shop, Outbox(blocking), fails=1)
        with pytest.raises(ZeroDivisionError):
            run.transaction("sell", sale)
    async with AsyncRuntime(shop.url) as runtime, runtime.run("r") as later:
        sale.outbox = Outbox(runtime)
        assert await later.transaction("sell", sale) == 2
        assert sale.staged[0] == sale.staged[1]
        receipt = await AsyncOutbox(runtime).receipt(sale.staged[1][0].key)
        assert receipt is not None
        assert receipt.effect_id == sale.staged[1][0].effect_id
    sale.outbox = shop.outbox
    assert sale.is_there()


@pytest.mark.rule("T1", "X1", "X2")
@pytest.mark.parametrize("store", ["sqlite3", "postgres"])
def test_through_sqlalchemy_a_transaction_stages_too(opens: Callable[[str], Shop], store: str) -> None:
    import sqlalchemy
    from sqlalchemy.orm import Session as Orm

    shop = opens(store)
    keys: list[str] = []

    def body(connection: Any) -> None:
        keys.append(shop.outbox.stage(connection, shop.operation("core")).key)
        with connection.begin_nested() as inner:
            shop.outbox.stage(connection, shop.operation("gone"))
            inner.rollback()
        with Orm(connection, join_transaction_mode="create_savepoint") as session:
            session.execute(sqlalchemy.text("SELECT 1"))
            keys.append(shop.outbox.stage(session, shop.operation("orm")).key)
            session.commit()
        if len(keys) == 2:
            raise ZeroDivisionError

    with Runtime(shop.url) as runtime, runtime.run("r") as run:
        with pytest.raises(ZeroDivisionError):
            run.transaction("sell", body, connection="sqlalchemy")
        run.transaction("sell", body, connection="sqlalchemy")
    assert keys[:2] == keys[2:]
    shop.dispatch()
    assert sorted(to for _, to in shop.box.log) == ["core", "orm"]


@pytest.mark.rule("X1")
def test_staging_does_not_wait_for_tables_that_its_own_transaction_keeps_from_being_made(tmp_path: Any) -> None:
    shop = FileShop(tmp_path / "shop.db", "sqlite3")
    path = tmp_path / "bare.db"
    with Runtime(f"sqlite:///{path}?engine=sqlite3") as runtime:
        outbox = Outbox(runtime)
        with sqlite3.connect(path, isolation_level=None) as connection:
            connection.execute("BEGIN IMMEDIATE")
            with pytest.raises(UsageError, match="no outbox") as caught:
                outbox.stage(connection, shop.operation("bo"), key="o1")
            assert "migrate" in caught.value.hint
            connection.execute("COMMIT")
            outbox.migrate()
            connection.execute("BEGIN IMMEDIATE")
            outbox.stage(connection, shop.operation("bo"), key="o1")
            connection.execute("COMMIT")
        connection.close()
    shop.close()
