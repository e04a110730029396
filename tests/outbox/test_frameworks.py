"""Staging through SQLAlchemy and Django (X1), on SQLite."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from counterfoil import UsageError
from tests.outbox.shop import FileShop


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(primary_key=True)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileShop]:
    shop = FileShop(tmp_path / "shop.db", "sqlite3")
    yield shop
    shop.close()


@pytest.fixture
def sql(store: FileShop) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(f"sqlite:///{store.path}")
    yield engine
    engine.dispose()


@pytest.mark.rule("X1", "T2")
def test_an_orm_session_stages_with_its_objects(store: FileShop, sql: sqlalchemy.Engine) -> None:
    with Session(sql) as session, session.begin():
        store.outbox.stage(session, store.operation("first"), key="before-any-row")
        session.add(Order(id="o1"))
        store.outbox.stage(session, store.operation("bo"), key="o1", lane="L")
        with session.begin_nested() as inner:
            session.add(Order(id="gone"))
            store.outbox.stage(session, store.operation("al"), key="gone", lane="L")
            inner.rollback()
    with Session(sql) as session:
        session.add(Order(id="o2"))
        store.outbox.stage(session, store.operation("cy"), key="o2")
        session.rollback()
    assert store.orders() == {"o1"}
    assert [store.outbox.receipt(key) is not None for key in ("before-any-row", "o1", "gone", "o2")] == [
        True,
        True,
        False,
        False,
    ]
    store.dispatch()
    assert sorted(to for _, to in store.box.log) == ["bo", "first"]


@pytest.mark.rule("X1", "T2")
def test_core_and_scoped_sessions_stage_too(store: FileShop, sql: sqlalchemy.Engine) -> None:
    with sql.begin() as connection:
        connection.execute(sqlalchemy.insert(Order).values(id="o1"))
        store.outbox.stage(connection, store.operation("bo"), key="o1")
        savepoint = connection.begin_nested()
        store.outbox.stage(connection, store.operation("al"), key="gone")
        savepoint.rollback()
    scoped = scoped_session(sessionmaker(sql))
    scoped.add(Order(id="o2"))
    store.outbox.stage(scoped, store.operation("cy"), key="o2")
    scoped.commit()
    scoped.remove()
    with sql.connect() as connection:
        connection.execute(sqlalchemy.insert(Order).values(id="o3"))
        store.outbox.stage(connection, store.operation("di"), key="o3")
        connection.rollback()
    assert store.orders() == {"o1", "o2"}
    assert [store.outbox.receipt(key) is not None for key in ("o1", "gone", "o2", "o3")] == [True, False, True, False]


@pytest.mark.rule("X1")
def test_sqlalchemy_without_a_transaction_is_refused(store: FileShop, sql: sqlalchemy.Engine) -> None:
    with Session(sql) as session, pytest.raises(UsageError, match="no open transaction") as caught:
        store.outbox.stage(session, store.operation("bo"), key="o1")
    assert "session.begin()" in caught.value.hint
    with sql.connect() as connection, pytest.raises(UsageError, match="no open transaction"):
        store.outbox.stage(connection, store.operation("bo"), key="o1")
    with sql.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sqlalchemy.insert(Order).values(id="o1"))
        with pytest.raises(UsageError, match="no open transaction"):
            store.outbox.stage(connection, store.operation("bo"), key="o1")
    assert store.outbox.receipt("o1") is None


@pytest.mark.rule("X1")
def test_sqlalchemy_on_another_database_is_refused(store: FileShop, tmp_path: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    with Session(engine) as session, session.begin(), pytest.raises(UsageError, match="the outbox is in"):
        store.outbox.stage(session, store.operation("bo"), key="o1")
    engine.dispose()


WITHOUT_GREENLET = """
import sys
sys.modules["greenlet"] = None  # SQLAlchemy does not bring it along
import sqlalchemy
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from counterfoil import Outbox
from tests.outbox.shop import Mailbox, recipients

outbox = Outbox(f"sqlite:///{sys.argv[1]}?engine=sqlite3")
mail = recipients(Mailbox())["mail"].operations["send"]
engine = sqlalchemy.create_engine(f"sqlite:///{sys.argv[1]}")
row = sqlalchemy.text("INSERT INTO orders (id) VALUES (:id)")
with engine.begin() as connection:
    connection.execute(row, {"id": "core"})
    outbox.stage(connection, mail(to="bo"), key="core")
with Session(engine) as session, session.begin():
    session.execute(row, {"id": "orm"})
    outbox.stage(session, mail(to="bo"), key="orm")
scoped = scoped_session(sessionmaker(engine))
scoped.execute(row, {"id": "scoped"})
outbox.stage(scoped, mail(to="bo"), key="scoped")
scoped.commit()
scoped.remove()
outbox.close()
engine.dispose()
"""


@pytest.mark.rule("X1")
def test_sqlalchemy_stages_without_what_only_its_asyncio_twins_need(store: FileShop) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT_GREENLET, str(store.path)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert store.orders() == {"core", "orm", "scoped"}
    assert all(store.outbox.receipt(key) for key in ("core", "orm", "scoped"))


DJANGO = """
import sys
import django
from django.conf import settings
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1]}})
django.setup()
from django.db import connection, transaction
from counterfoil import Outbox, UsageError
from tests.outbox.shop import Mailbox, recipients

outbox = Outbox(f"sqlite:///{sys.argv[1]}?engine=sqlite3")
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
    outbox.stage(connection, mail(to="bo"), key="o1")
    try:
        with transaction.atomic():
            row("gone")
            outbox.stage(connection, mail(to="al"), key="gone")
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
with transaction.atomic():
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM orders")
        cursor.fetchall()
    refused("has read already")
with transaction.atomic():
    transaction.set_rollback(True)
    refused("to be rolled back")
outbox.close()
connection.close()
"""


@pytest.mark.rule("X1", "T2")
def test_django_stages_inside_atomic(store: FileShop) -> None:
    # Django is configured once for a process, so it gets one of its own.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DJANGO, str(store.path)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert store.orders() == {"o1"}
    assert [store.outbox.receipt(key) is not None for key in ("before-any-row", "o1", "gone", "no")] == [
        True,
        True,
        False,
        False,
    ]


def test_what_is_no_connection_of_a_framework_is_refused(store: FileShop) -> None:
    with pytest.raises(UsageError, match="takes a connection, not sqlalchemy"):
        store.outbox.stage(sqlalchemy.text("x"), store.operation("bo"), key="o1")
    with sqlite3.connect(store.path) as connection, pytest.raises(UsageError, match="takes a connection, not sqlite3"):
        store.outbox.stage(connection.cursor(), store.operation("bo"), key="o1")
    connection.close()
