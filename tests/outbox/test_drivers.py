"""Staging on PostgreSQL (X1, X2, X11, X14): every driver, in both colours, and what only concurrency shows."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from counterfoil import AsyncInbox, AsyncOutbox, Inbox, NameConflict, Outbox, UsageError
from tests.ledgers.postgres_support import until
from tests.outbox.shop import PostgresShop
from tests.support import PATIENCE_S

INSERT = "INSERT INTO orders (id) VALUES ('o1')"


def staged(shop: PostgresShop, *keys: str) -> list[bool]:
    return [shop.outbox.receipt(key) is not None for key in keys]


@pytest.mark.rule("X1", "T2")
def test_psycopg_stages_in_its_own_transactions(server: PostgresShop) -> None:
    with server.connected(autocommit=False, row_factory=dict_row) as connection:
        server.outbox.stage(connection, server.operation("first"), key="first")
        connection.execute(INSERT)
        with suppress(ZeroDivisionError), connection.transaction():
            server.outbox.stage(connection, server.operation("gone"), key="gone")
            raise ZeroDivisionError
        with pytest.raises(NameConflict):
            server.outbox.stage(connection, server.operation("other"), key="first")
        server.outbox.stage(connection, server.operation("last"), key="last")
        connection.commit()
        server.outbox.stage(connection, server.operation("lost"), key="lost")
        connection.rollback()
    with server.connected() as connection:
        with pytest.raises(UsageError, match="no open transaction"):
            server.outbox.stage(connection, server.operation("auto"), key="auto")
        with connection.transaction():
            server.outbox.stage(connection, server.operation("in"), key="in")
            with pytest.raises(psycopg.errors.UniqueViolation), connection.transaction():
                connection.execute(INSERT)
    assert staged(server, "first", "gone", "last", "lost", "auto", "in") == [True, False, True, False, False, True]
    assert server.orders() == {"o1"}


@pytest.mark.rule("X1", "X2")
@pytest.mark.parametrize("kind", [psycopg.Cursor, psycopg.ClientCursor, psycopg.RawCursor])
def test_psycopg_stages_in_a_pipeline_and_with_any_kind_of_cursor(server: PostgresShop, kind: Any) -> None:
    inbox = Inbox(server.url)
    with server.connected(autocommit=False) as connection:
        connection.cursor_factory = kind
        connection.execute(INSERT)
        server.outbox.stage(connection, server.operation("first $1 %s"), key="first")
        if kind is not psycopg.ClientCursor:  # psycopg has none for pipelines
            with connection.pipeline():
                connection.execute("INSERT INTO orders (id) VALUES ('o2')")
                server.outbox.stage(connection, server.operation("piped"), key="piped", lane="a")
                server.outbox.stage(connection, server.operation("piped"), key="piped", lane="a")
                with pytest.raises(NameConflict):
                    server.outbox.stage(connection, server.operation("other"), key="piped")
                assert [inbox.once(connection, "billing", "m") for _ in range(2)] == [True, False]
        connection.commit()
    inbox.close()
    assert staged(server, "first", "piped") == [True, kind is not psycopg.ClientCursor]


@pytest.mark.rule("X1")
def test_a_transaction_that_has_failed_is_refused(server: PostgresShop) -> None:
    with server.connected(autocommit=False) as connection:
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM nowhere")
        with pytest.raises(UsageError, match="has failed"):
            server.outbox.stage(connection, server.operation("bo"), key="o1")


@pytest.mark.rule("X1")
def test_another_database_is_refused_and_its_transaction_stays_usable(server: PostgresShop, database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE orders (id TEXT PRIMARY KEY)")
        with pytest.raises(UsageError, match="another database"):
            server.outbox.stage(connection, server.operation("bo"), key="o1")
        # An outbox of the same name is not the same outbox.
        Outbox(f"{database}?schema=cf_{server.name}").migrate()
        with pytest.raises(UsageError, match="another database"):
            server.outbox.stage(connection, server.operation("bo"), key="o1")
        connection.execute(INSERT)


@pytest.mark.rule("X1", "T2")
async def test_asyncpg_stages_in_its_own_transactions(server: PostgresShop) -> None:
    connection: Any = await asyncpg.connect(server.database, server_settings={"search_path": server.name})
    async with AsyncOutbox(server.url) as outbox:
        with pytest.raises(UsageError, match="no open transaction"):
            await outbox.stage(connection, server.operation("auto"), key="auto")
        with pytest.raises(UsageError, match="AsyncOutbox"):
            server.outbox.stage(connection, server.operation("auto"), key="auto")
        async with connection.transaction():
            await connection.execute(INSERT)
            await outbox.stage_many(
                connection,
                [
                    (server.operation("a"), {"key": "a", "lane": "L", "not_before": 5.0, "expires_at": 4e9}),
                    (server.operation("b"), {"key": "b", "lane": "L", "policy": "at-most-once"}),
                ],
            )
            with suppress(ZeroDivisionError):
                async with connection.transaction():
                    await outbox.stage(connection, server.operation("gone"), key="gone", lane="L")
                    raise ZeroDivisionError
            await outbox.stage(connection, server.operation("a"), key="a", lane="L")
            with pytest.raises(NameConflict):
                await outbox.stage(connection, server.operation("other"), key="a")
            await outbox.stage(connection, server.operation("c"), key="c", lane="L")
    await connection.close()
    assert staged(server, "a", "b", "gone", "c", "auto") == [True, True, False, True, False]
    server.dispatch()
    assert [to for _, to in server.box.log] == ["a", "b", "c"]


@pytest.mark.rule("X1", "T2")
async def test_psycopg_stages_on_a_loop(server: PostgresShop) -> None:
    connection = await psycopg.AsyncConnection.connect(server.database, row_factory=dict_row)
    async with AsyncOutbox(server.url) as outbox, connection:
        await outbox.stage(connection, server.operation("bo"), key="bo")
        await connection.commit()
        await outbox.stage(connection, server.operation("gone"), key="gone")
        await connection.rollback()
        await connection.set_autocommit(True)
        with pytest.raises(UsageError, match="no open transaction"):
            await outbox.stage(connection, server.operation("auto"), key="auto")
        async with connection.transaction():
            await outbox.stage(connection, server.operation("in"), key="in")
    assert staged(server, "bo", "gone", "auto", "in") == [True, False, False, True]


@pytest.mark.rule("X1", "T2")
def test_sqlalchemy_stages_in_both_forms(server: PostgresShop) -> None:
    engine = sqlalchemy.create_engine(server.database.replace("postgresql://", "postgresql+psycopg://"))
    with Session(engine) as session, session.begin():
        server.outbox.stage(session, server.operation("orm"), key="orm", lane="L")
        with session.begin_nested() as inner:
            server.outbox.stage(session, server.operation("gone"), key="gone", lane="L")
            inner.rollback()
    with engine.begin() as connection:
        server.outbox.stage(connection, server.operation("core"), key="core", lane="L")
    with engine.connect() as connection, pytest.raises(UsageError, match="no open transaction"):
        server.outbox.stage(connection, server.operation("no"), key="no")
    automatic = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    with automatic, automatic.begin(), pytest.raises(UsageError, match="no open transaction"):
        server.outbox.stage(automatic, server.operation("no"), key="no")
    engine.dispose()
    assert staged(server, "orm", "gone", "core", "no") == [True, False, True, False]


@pytest.mark.rule("X1", "T2")
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_sqlalchemy_stages_on_a_loop(server: PostgresShop, driver: str) -> None:
    engine = create_async_engine(server.database.replace("postgresql://", f"postgresql+{driver}://"))
    async with AsyncOutbox(server.url) as outbox:
        async with AsyncSession(engine) as session, session.begin():
            await outbox.stage(session, server.operation("orm"), key="orm", lane="L")
            inner = await session.begin_nested()
            await outbox.stage(session, server.operation("gone"), key="gone", lane="L")
            await inner.rollback()
        async with engine.begin() as connection:
            await outbox.stage(connection, server.operation("core"), key="core", lane="L")
        async with engine.connect() as connection:
            with pytest.raises(UsageError, match="no open transaction"):
                await outbox.stage(connection, server.operation("no"), key="no")
    await engine.dispose()
    assert staged(server, "orm", "gone", "core", "no") == [True, False, True, False]


@pytest.mark.rule("X3", "X14")
def test_what_commits_late_is_delivered_once(server: PostgresShop) -> None:
    with server.connected(autocommit=False) as late:
        server.outbox.stage(late, server.operation("late"), key="late")
        server.order("early")
        server.dispatch()
        assert [to for _, to in server.box.log] == ["early"]
        late.commit()
    server.dispatch()
    assert [to for _, to in server.box.log] == ["early", "late"]


@pytest.mark.rule("X11")
def test_lanes_are_in_commit_order_and_a_rollback_leaves_no_gap(server: PostgresShop) -> None:
    order: list[str] = []
    with server.connected(autocommit=False) as first:
        server.outbox.stage(first, server.operation("rolled-back"), key="rolled-back", lane="L")

        def second() -> None:
            server.order("second", lane="L")
            order.append("second")

        waits = threading.Thread(target=second)
        waits.start()
        # The lane's tail is locked until the first transaction ends; other lanes are not.
        until(server.held_up)
        assert order == []
        server.order("other", lane="M")
        first.rollback()
        waits.join(PATIENCE_S)
    server.dispatch()
    assert sorted(to for _, to in server.box.log) == ["other", "second"]


@pytest.mark.rule("X11")
def test_a_head_that_was_staged_while_the_one_before_it_ended_is_not_forgotten(server: PostgresShop) -> None:
    server.order("a0", lane="L")
    with server.connected(autocommit=False) as late:
        # It sees a0 as the head, and a0's end does not see it.
        server.outbox.stage(late, server.operation("a1"), key="a1", lane="L")
        server.dispatch()
        late.commit()
    server.dispatch()
    assert [to for _, to in server.box.log] == ["a0", "a1"]


@pytest.mark.rule("X2")
def test_two_transactions_that_stage_one_key_make_one_intent(server: PostgresShop) -> None:
    with server.connected(autocommit=False) as first:
        server.outbox.stage(first, server.operation("bo"), key="o1")
        waits = threading.Thread(target=lambda: server.order("o1", to="bo"))
        waits.start()
        until(server.held_up)
        assert waits.is_alive()
        first.commit()
        waits.join(PATIENCE_S)
    server.dispatch()
    assert [to for _, to in server.box.log] == ["bo"]


async def test_an_inbox_takes_a_message_once_in_every_driver(server: PostgresShop) -> None:
    inbox = Inbox(server.url)
    inbox.migrate()
    with server.connected(autocommit=False) as connection:
        assert [inbox.once(connection, "billing", "m1") for _ in range(2)] == [True, False]
        connection.rollback()
        assert inbox.once(connection, "billing", "m1")
        connection.commit()
    inbox.close()
    looped: Any = await asyncpg.connect(server.database)
    async with AsyncInbox(server.url) as taken, looped.transaction():
        assert [await taken.once(looped, "billing", m) for m in ("m1", "m2")] == [False, True]
    await looped.close()
