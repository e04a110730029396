"""The outbox's main story on PostgreSQL 16, behind a transaction pooler (X14), and through Django on a server (X1)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import psycopg
import pytest

from counterfoil import AsyncOutbox, Lane, Runtime
from tests.outbox.lives import Life
from tests.outbox.shop import BEAT_S, PostgresShop
from tests.servers.pgbouncer import PgBouncer


class PooledShop(PostgresShop):
    """A shop in a database of its own, of which everything goes through a pooler that knows no sessions.

    Args:
        pooled: the database's address at the pooler.
    """

    def __init__(self, database: str, name: str, *, pooled: str) -> None:
        self.pooled = pooled
        super().__init__(database, name)

    @property
    def url(self) -> str:
        return f"{self.pooled}?schema=cf_{self.name}&beat={BEAT_S}&timeout=60&poll=0.05"

    @url.setter
    def url(self, url: str) -> None:
        del url

    @contextmanager
    def connected(self, **more: Any) -> Iterator[Any]:
        more.setdefault("autocommit", True)
        with psycopg.connect(self.pooled, prepare_threshold=None, **more) as connection:
            yield connection


def tells_its_story(shop: PostgresShop, *, table: str) -> None:
    """Stage in every way, lose a life in between, and deliver each once, lanes in order."""
    with suppress(ZeroDivisionError), shop.transaction() as connection:
        shop.outbox.stage(connection, shop.operation("rolled-back"), key="rolled-back", lane="L")
        raise ZeroDivisionError
    for number in range(4):
        shop.order(f"l{number}", lane="L")
        shop.order(f"s{number}", lane=Lane("S", on_stuck="skip"), recipient="door" if number == 1 else "mail")
        shop.order(f"k{number}", recipient="bank")

    def body(connection: Any) -> str:
        connection.execute(f"INSERT INTO {table} (id) VALUES ('run')")
        return shop.outbox.stage(connection, shop.operation("run"), lane="L").key

    with Runtime(shop.url) as runtime, runtime.run("r") as run:
        key = run.transaction("sell", body)

    def loses(ctx: Any) -> None:
        raise ConnectionResetError

    shop.box.does["s1"] = loses
    life = Life(shop, concurrency=4, batch=8)
    started = life.turn()
    assert started
    life.call()
    life.crash()
    shop.dispatch()
    log = [to for _, to in shop.box.log]
    assert sorted(set(log)) == sorted([f"{letter}{number}" for letter in "lsk" for number in range(4)] + ["run"])
    assert shop.box.twice() == []
    assert [to for to in log if to[0] in "lr"] == ["l0", "l1", "l2", "l3", "run"]
    assert [to for to in log if to[0] == "s"] == ["s0", "s1", "s2", "s3"]
    assert shop.receipt("s1").state == "uncertain"
    assert shop.receipt(key).state == "accepted"
    assert len(shop.orders()) == 13


@pytest.mark.rule("X1", "X3", "X11", "T1")
@pytest.mark.parametrize("postgres_major", [16], indirect=True)
def test_on_postgresql_16(database: str) -> None:
    shop = PostgresShop(database, "shop")
    tells_its_story(shop, table="shop.orders")
    shop.close()


@pytest.fixture
def pooled(pgbouncer: PgBouncer, database: str) -> Iterator[PooledShop]:
    shop = PooledShop(database, "pooled", pooled=pgbouncer.url(database.rpartition("/")[2]))
    yield shop
    shop.close()


@pytest.mark.rule("X14", "X1", "X3", "X11", "T1")
def test_behind_a_transaction_pooler(pooled: PooledShop) -> None:
    tells_its_story(pooled, table="orders")


@pytest.mark.rule("X14", "X1")
async def test_asyncpg_stages_behind_a_transaction_pooler(pooled: PooledShop) -> None:
    connection: Any = await asyncpg.connect(pooled.pooled, statement_cache_size=0)
    async with AsyncOutbox(pooled.url) as outbox:
        for number in range(3):
            async with connection.transaction():
                await connection.execute(f"INSERT INTO orders (id) VALUES ('o{number}')")
                await outbox.stage(connection, pooled.operation(f"o{number}"), key=f"o{number}", lane="L")
    await connection.close()
    await asyncio.to_thread(pooled.dispatch)
    assert [to for _, to in pooled.box.log] == ["o0", "o1", "o2"]


DJANGO = """
import sys
import django
from urllib.parse import urlsplit
from django.conf import settings
url, name = urlsplit(sys.argv[1]), sys.argv[2]
settings.configure(DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": url.path[1:], "USER": url.username, "HOST": url.hostname,
    "PORT": url.port, "OPTIONS": {"options": f"-csearch_path={name}"}}})
django.setup()
from django.db import connection, transaction
from counterfoil import Outbox, UsageError
from tests.outbox.shop import Mailbox, recipients

outbox = Outbox(sys.argv[3])
mail = recipients(Mailbox())["mail"].operations["send"]


def row(key):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders (id) VALUES (%s)", [key])


def refused(why):
    try:
        outbox.stage(connection, mail(to="no"), key="no")
    except UsageError as error:
        assert why in str(error), error
    else:
        raise AssertionError("it was staged")


refused("no open transaction")
with transaction.atomic():
    outbox.stage(connection, mail(to="first"), key="before-any-row")
    row("o1")
    outbox.stage(connection, mail(to="bo"), key="o1", lane="L")
    try:
        with transaction.atomic():
            row("gone")
            outbox.stage(connection, mail(to="al"), key="gone", lane="L")
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    outbox.stage(connection, mail(to="cy"), key="o2", lane="L")
with transaction.atomic():
    transaction.set_rollback(True)
    refused("to be rolled back")
outbox.close()
connection.close()
"""


@pytest.mark.rule("X1", "T2")
def test_django_on_a_server_stages_inside_atomic(server: PostgresShop) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DJANGO, server.database, server.name, server.url],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert server.orders() == {"o1"}
    found = [server.outbox.receipt(key) is not None for key in ("before-any-row", "o1", "gone", "o2", "no")]
    assert found == [True, True, False, True, False]
    server.dispatch()
    assert [to for _, to in server.box.log if to != "first"] == ["bo", "cy"]
