"""Ledger URLs: what is understood, and what is refused with its mend."""

# Paths are text here, as SQLite takes them.
# ruff: noqa: PTH208

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from counterfoil.errors import LedgerUnavailable, UsageError
from counterfoil.ledgers.jetstream.place import place_of
from counterfoil.ledgers.memory import MemoryLedger
from counterfoil.ledgers.sqlite import SqliteLedger
from counterfoil.ledgers.urls import NatsUrl, PostgresUrl, SqliteUrl, parse, without_password


def test_a_relative_path_is_looked_up_when_the_ledger_is_opened(tmp_path, monkeypatch):
    url = parse("sqlite:///shop.db")
    monkeypatch.chdir(tmp_path)
    ledger = url.open()
    assert isinstance(ledger, SqliteLedger)
    ledger.close()
    assert (tmp_path / "shop.db").exists()


def test_four_slashes_are_an_absolute_path():
    assert parse("sqlite:////var/shop.db") == SqliteUrl(path="/var/shop.db")


def test_options_are_read():
    url = parse("sqlite:///a b#1.db?engine=sqlite3&timeout=2.5&synchronous=extra&strict=1")
    assert url == SqliteUrl(path="a b#1.db", engine="sqlite3", timeout_s=2.5, synchronous="extra", strict=True)


def test_each_memory_ledger_is_a_new_one():
    url = parse("memory:")
    first, second = url.open(), url.open()
    assert isinstance(first, MemoryLedger)
    assert first is not second


@pytest.mark.parametrize(
    "url",
    [
        "",
        "shop.db",
        "/var/shop.db",
        "sqlite:",
        "sqlite:shop.db",
        "sqlite:/shop.db",
        "sqlite://",
        "sqlite://host/shop.db",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///folder/",
        "sqlite:///a%20b.db",
        "sqlite:///a\0b.db",
        "sqlite:///a\udc80b.db",
        "sqlite:///shop.db?",
        "sqlite:///shop.db?mode=ro",
        "sqlite:///shop.db?engine",
        "sqlite:///shop.db?engine=pysqlite",
        "sqlite:///shop.db?engine=apsw&engine=apsw",
        "sqlite:///shop.db?timeout=0",
        "sqlite:///shop.db?timeout=-1",
        "sqlite:///shop.db?timeout=inf",
        "sqlite:///shop.db?timeout=nan",
        "sqlite:///shop.db?timeout=soon",
        "sqlite:///shop.db?synchronous=normal",
        "sqlite:///shop.db?synchronous=off",
        "sqlite:///shop.db?strict=yes",
        "memory://",
        "memory:x",
        "http://example.org/shop.db",
        "file:shop.db",
        "postgresql:shop",
        "postgresql://localhost/shop?pool=0",
        "postgresql://localhost/shop?pool=many",
        "postgresql://localhost/shop?pool=2&pool=2",
        "postgresql://localhost/shop?timeout=0",
        "postgresql://localhost/shop?beat=-1",
        "postgresql://localhost/shop?poll=never",
        "postgresql://localhost/shop?schema=pg_catalog",
        "postgresql://localhost/shop?schema=it's",
        "postgresql://localhost/shop?schema=",
        "postgresql://localhost/shop?sslmod=require",
        "postgresql://localhost:port/shop",
        "nats:localhost",
        "nats://",
        "nats://host:port",
        "nats://host:0",
        "nats://a:4222,/stream",
        "nats://host/a.b",
        "nats://host/stream/more",
        "nats://host?replicas=2",
        "nats://host?beat=0",
        "nats://host?monitor=host:8222",
        "nats://host?allow_lazy_sync=perhaps",
        "nats://host?timeout=1&timeout=2",
        "nats://host?sync=always",
        None,
        7,
    ],
)
def test_anything_else_is_refused_with_its_mend(url):
    with pytest.raises(UsageError) as refused:
        parse(url)
    assert refused.value.hint


@pytest.mark.rule("L2")
@pytest.mark.parametrize("level", ["normal", "off", "0", "1"])
def test_a_weaker_sync_is_refused(tmp_path, level):
    with pytest.raises(UsageError, match="full"):
        parse(f"sqlite:///shop.db?synchronous={level}")
    with pytest.raises(UsageError):
        SqliteLedger(str(tmp_path / "shop.db"), synchronous=level)
    assert os.listdir(tmp_path) == []


def test_a_nats_url_names_servers_a_stream_and_what_is_allowed():
    url = parse("nats://u:p@a:1,b/books?replicas=3&timeout=7&beat=0.5&monitor=http://a:8222,http://b:8222")
    monitors = ("http://a:8222", "http://b:8222")
    assert url == NatsUrl(servers="u:p@a:1,b", stream="books", timeout_s=7.0, beat_s=0.5, replicas=3, monitors=monitors)
    assert parse("nats://a?allow_lazy_sync=1") == NatsUrl(servers="a", allow_lazy_sync=True)
    assert "u:p" not in repr(url)
    assert without_password("nats://token@a:1/books") == "nats://***@a:1/books"
    place = place_of("u%40x:p%2F@a:1,b,[::1]:7")
    assert place.servers == ("nats://a:1", "nats://b:4222", "nats://[::1]:7")
    assert place.options() == {"user": "u@x", "password": "p/"}
    assert place_of("s3cret@a").options() == {"token": "s3cret"}
    assert "s3cret" not in repr(place_of("s3cret@a"))


def test_a_missing_nats_py_is_named_when_the_url_is_read(monkeypatch):
    monkeypatch.setattr("counterfoil.ledgers.urls.find_spec", without("nats"))
    with pytest.raises(UsageError, match=r"counterfoil\[nats\]"):
        parse("nats://localhost")


def test_what_is_ours_is_taken_out_of_a_postgresql_url_and_the_rest_is_libpqs():
    url = parse("postgresql://u:p@h:1/d?schema=books&sslmode=require&pool=2&timeout=7&beat=0.5&poll=2")
    conninfo = "postgresql://u:p@h:1/d?sslmode=require"
    assert url == PostgresUrl(conninfo=conninfo, schema="books", pool=2, timeout_s=7.0, beat_s=0.5, poll_s=2.0)
    assert "u:p" not in repr(url)


def test_a_missing_psycopg_is_named_when_the_url_is_read(monkeypatch):
    monkeypatch.setattr("counterfoil.ledgers.urls.find_spec", without("psycopg"))
    with pytest.raises(UsageError, match=r"counterfoil\[postgres\]"):
        parse("postgresql://localhost/shop")


def without(missing):
    return lambda name: None if name == missing else find_spec(name)


def test_an_engine_that_is_not_installed_is_named_when_the_url_is_read(monkeypatch):
    monkeypatch.setattr("counterfoil.ledgers.urls.find_spec", without("apsw"))
    with pytest.raises(UsageError, match="pip install apsw"):
        parse("sqlite:///shop.db")


def test_a_folder_is_no_database(tmp_path):
    with pytest.raises(UsageError, match="folder"):
        parse(f"sqlite:///{tmp_path}").open()
    assert os.listdir(tmp_path) == []


def test_a_missing_folder_is_named_and_not_made(tmp_path):
    with pytest.raises(UsageError, match="no folder"):
        parse(f"sqlite:///{tmp_path}/not/there.db").open()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("engine", ["apsw", "sqlite3"])
def test_a_file_that_is_no_database_is_left_alone(tmp_path, engine):
    file = tmp_path / "notes.txt"
    file.write_bytes(b"Dear diary, " * 1000)
    with pytest.raises(UsageError, match="no SQLite database"):
        parse(f"sqlite:///{file}?engine={engine}").open()
    assert os.listdir(tmp_path) == ["notes.txt"]
    assert file.read_bytes() == b"Dear diary, " * 1000


def test_a_path_that_the_system_refuses_is_unavailable_or_refused(tmp_path):
    with pytest.raises((LedgerUnavailable, UsageError)):
        parse(f"sqlite:///{tmp_path}/{'x' * 300}.db").open()
    assert os.listdir(tmp_path) == []


def test_reading_a_url_loads_no_engine_and_no_event_loop():
    script = (
        "import sys; from counterfoil.ledgers.urls import parse; parse('sqlite:///x.db'); parse('memory:').open()\n"
        "print([name for name in ('apsw', 'sqlite3', 'fcntl', 'asyncio', 'ctypes') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert shown.stdout.strip() == "[]"


def test_the_default_engine_does_not_load_the_other(tmp_path):
    script = (
        "import sys; from counterfoil.ledgers.urls import parse; parse('sqlite:///' + sys.argv[1]).open().close()\n"
        "print([name for name in ('sqlite3', 'asyncio') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, str(tmp_path / "x.db")]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert shown.stdout.strip() == "[]"


def test_a_system_without_record_locks_is_refused_with_a_clear_error(monkeypatch):
    """Windows has none; the memory ledger works there."""
    monkeypatch.setattr("counterfoil.ledgers.urls.find_spec", without("fcntl"))
    with pytest.raises(UsageError, match="record locks") as raised:
        parse("sqlite:///here.db")
    assert "Linux and macOS" in raised.value.hint
    assert parse("memory:").open() is not None
