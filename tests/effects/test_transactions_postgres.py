"""Transactions on PostgreSQL when the wire breaks: the proxy loses the COMMIT, its reply, or holds it back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from counterfoil import LedgerUnavailable, UsageError
from counterfoil.effects import record as recording
from counterfoil.protocol.legality import RunCheck
from tests.ledgers.postgres_support import through, until
from tests.servers.proxy import Act, On, Proxy
from tests.support import PATIENCE_S, Colour, Life, eventually, tries

LOST = [Act.LOSE_REPLY, Act.LOSE_END, Act.CUT, Act.PASS_THEN_CUT]
COMMIT = rb"COMMIT"


class Shop:
    """A table beside the ledger's, and how often the body was called."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.calls = 0
        self.execute("CREATE TABLE sale (name TEXT)")

    def execute(self, statement: str) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def sells(self, *statements: str) -> Callable[[Any], int]:
        def body(connection: Any) -> int:
            self.calls += 1
            connection.execute("INSERT INTO sale VALUES ('mug')")
            for statement in statements:
                connection.execute(statement)
            return 1

        return body

    @property
    def sold(self) -> int:
        return int(self.execute("SELECT count(*) FROM sale")[0][0])


@pytest.fixture
def shop(database: str) -> Shop:
    return Shop(database)


@pytest.fixture(params=["blocking", "asyncio"])
def colour(request: pytest.FixtureRequest) -> Colour:
    return Colour(request.param)


@pytest.fixture
def make(colour: Colour, database: str, proxy: Proxy) -> Iterator[Callable[..., Life]]:
    def made() -> Life:
        return colour.life(through(proxy, database))

    yield made
    proxy.rule = None
    proxy.resume()


def sound(life: Life) -> bool:
    return RunCheck(life.session.namespace, "r", life.records()).findings == []


@pytest.mark.rule("T4", "T1")
@pytest.mark.parametrize("act", LOST, ids=lambda act: act.name.lower())
async def test_a_commit_or_its_reply_is_lost_and_the_writes_are_applied_once(make, shop, proxy, act):
    async with make() as life, life.run("r") as run:
        await run.step("before", lambda: 1)
        proxy.rule = rule = On(COMMIT, act, times=1)
        assert await run.transaction("sell", shop.sells()) == 1
        assert rule.links, "the rule met nothing"
        phases = [record.phase for record in life.records()]
        assert shop.sold == 1
        # Either it was there, or it was proved that it never will be and the body ran again.
        assert (phases, shop.calls) in (
            (["result", "committed"], 1),
            (["result", "aborted", "committed"], 2),
        )
        assert (act is Act.CUT) <= (shop.calls == 2)
        assert (act in (Act.LOSE_REPLY, Act.LOSE_END)) <= (shop.calls == 1)
        assert sound(life)


@pytest.mark.rule("T4", "E20")
@pytest.mark.parametrize("lands", [True, False], ids=["lands", "vanishes"])
async def test_a_commit_that_is_still_on_its_way_is_unknown_until_it_is_settled(
    make, shop, proxy, colour, monkeypatch, lands
):
    async with make() as life, life.run("r") as run:
        await run.step("before", lambda: 1)
        pool = life.session.ledger._pool
        # The client is cut off at once; the server still has the transaction open, and nobody can see into it.
        proxy.rule = rule = On(COMMIT, Act.HOLD, times=1)
        monkeypatch.setattr(recording, "SETTLE_S", 0.5)
        for time_s in tries(lambda: rule.links, (1.0, 5.0, 20.0)):
            shop.calls = 0
            monkeypatch.setattr(pool, "timeout_s", time_s)
            with pytest.raises(LedgerUnavailable) as caught:
                await run.transaction("sell", shop.sells())
            assert caught.value.effect_ran == ("unknown" if rule.links else "no")
        monkeypatch.undo()
        assert shop.sold == 0
        if lands:
            proxy.resume()
            until(lambda: shop.sold == 1)
        else:
            shop.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE state = 'idle in transaction' AND datname = current_database()"
            )
        assert await run.transaction("sell", shop.sells()) == 1
        proxy.resume()
        assert sound(life)
    assert shop.sold == 1
    assert shop.calls == (1 if lands else 2)


@pytest.mark.rule("T4")
async def test_aborted_waits_behind_the_commit_and_then_finds_it(make, shop, proxy):
    async with make() as life, life.run("r") as run:
        await run.step("before", lambda: 1)
        proxy.rule = On(COMMIT, Act.HOLD, times=1)
        selling = asyncio.ensure_future(run.beside.transaction("sell", shop.sells()))
        await eventually(lambda: shop.execute("SELECT 1 FROM pg_locks WHERE NOT granted"))
        assert not selling.done()
        proxy.resume()
        assert await selling == 1
        assert [record.phase for record in life.records()] == ["result", "committed"]
    assert (shop.calls, shop.sold) == (1, 1)


@pytest.mark.rule("T1")
async def test_a_deadlock_makes_a_body_run_again_and_both_are_applied_once(make, shop):
    shop.execute("CREATE TABLE stock (sku TEXT PRIMARY KEY, count INT)")
    shop.execute("INSERT INTO stock VALUES ('a', 10), ('b', 10)")
    both = threading.Barrier(2)
    calls: list[str] = []

    def takes(*skus: str) -> Callable[[Any], int]:
        def body(connection: Any) -> int:
            calls.append(skus[0])
            connection.execute("UPDATE stock SET count = count - 1 WHERE sku = %s", (skus[0],))
            if len(calls) <= 2:
                both.wait(PATIENCE_S)
            connection.execute("UPDATE stock SET count = count - 1 WHERE sku = %s", (skus[1],))
            return 1

        return body

    async with make() as life:
        works = (
            life.run("one").beside.transaction("take", takes("a", "b")),
            life.run("two").beside.transaction("take", takes("b", "a")),
        )
        assert list(await asyncio.gather(*works)) == [1, 1]
    assert len(calls) == 3
    assert shop.execute("SELECT sku, count FROM stock ORDER BY sku") == [("a", 8), ("b", 8)]


@pytest.mark.rule("T1")
async def test_a_body_that_goes_on_after_a_failed_statement_is_told(make, shop):
    def swallows(connection: Any) -> int:
        try:
            connection.execute("SELECT 1 / 0")
        except psycopg.errors.DivisionByZero:
            return 1
        raise AssertionError("it divided by zero")

    async with make() as life, life.run("r") as run:
        with pytest.raises(UsageError) as caught:
            await run.transaction("sell", swallows)
        assert (caught.value.code, caught.value.effect_ran) == ("transaction-failed", "no")
        # Its own error, let out, is its own.
        with pytest.raises(psycopg.errors.DivisionByZero):
            await run.transaction("sell", shop.sells("SELECT 1 / 0"))
        assert life.records() == []
    assert shop.sold == 0


@pytest.mark.rule("T1")
@pytest.mark.parametrize("begins", ["COPY sale FROM STDIN", "COPY sale TO STDOUT"])
async def test_a_body_that_leaves_a_statement_open_is_told_and_holds_nothing_up(make, shop, begins):
    kept = []

    def copies(connection: Any) -> int:
        shop.sells()(connection)
        copy = connection.cursor().copy(begins)
        copy.__enter__()
        kept.append(copy)
        return 1

    async with make() as life, life.run("r") as run:
        with pytest.raises(UsageError) as caught:
            await asyncio.wait_for(run.transaction("sell", copies), PATIENCE_S)
        assert (caught.value.code, caught.value.effect_ran) == ("statement-open", "no")
        assert life.records() == []
        assert await run.transaction("sell", shop.sells()) == 1
        assert shop.sold == 1
        assert sound(life)


@pytest.mark.rule("T1", "E20")
@pytest.mark.parametrize("asks", [True, False], ids=["which-the-body-notices", "which-it-does-not"])
async def test_a_connection_that_is_lost_before_the_commit_leaves_nothing(make, shop, asks):
    def ends_itself(connection: Any) -> None:
        shop.sells()(connection)
        shop.execute(f"SELECT pg_terminate_backend({connection.info.backend_pid})")
        if asks:
            connection.execute("SELECT 1")

    async with make() as life, life.run("r") as run:
        with pytest.raises(LedgerUnavailable) as caught:
            await run.transaction("sell", ends_itself)
        assert (caught.value.code, caught.value.effect_ran) == ("ledger-unreachable", "no")
        assert shop.sold == 0
        assert await run.transaction("sell", shop.sells()) == 1
        assert sound(life)


@pytest.mark.rule("T1")
async def test_bodies_of_one_receipt_take_turns_and_the_second_does_not_run(make, shop, colour):
    entered, leave = threading.Event(), threading.Event()

    def slow(connection: Any) -> Any:
        entered.set()
        assert leave.wait(PATIENCE_S)
        return shop.sells()(connection)

    async with make() as one, make() as two:
        first = asyncio.ensure_future(one.run("r").beside.transaction("sell", slow))
        await eventually(entered.is_set)
        second = asyncio.ensure_future(two.run("r").beside.transaction("sell", shop.sells()))
        await asyncio.sleep(0.2)
        assert not second.done()
        leave.set()
        assert [await first, await second] == [1, 1]
    assert (shop.calls, shop.sold) == (1, 1)


@pytest.mark.rule("T1")
async def test_transactions_beyond_the_pool_are_told_that_it_is_busy(colour, database, shop):
    entered, leave = threading.Event(), threading.Event()

    def slow(connection: Any) -> int:
        entered.set()
        assert leave.wait(PATIENCE_S)
        return 1

    async with colour.life(f"{database}?pool=1") as life:
        held = asyncio.ensure_future(life.run("r").beside.transaction("slow", slow))
        await eventually(entered.is_set)
        life.session.ledger._pool.timeout_s = 0.2
        with pytest.raises(LedgerUnavailable) as caught:
            await life.run("r").transaction("other", shop.sells())
        assert (caught.value.code, caught.value.effect_ran) == ("ledger-busy", "no")
        life.session.ledger._pool.timeout_s = PATIENCE_S
        leave.set()
        assert await held == 1
