"""Opening a PostgreSQL ledger: what cannot be opened is refused in time, with what mends it; `doctor` sees the rest."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from counterfoil import Runtime
from counterfoil.errors import LedgerReadOnly, LedgerUnavailable, UsageError
from counterfoil.ledgers import postgres as ours
from counterfoil.ledgers.postgres import migrations, opening
from counterfoil.ledgers.urls import parse
from tests.ledgers.postgres_support import Doing, opened, until
from tests.ledgers.support import entry, intent
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import Cluster
from tests.servers.proxy import Act, On
from tests.support import quick, tries

# Without a bound of its own it would wait for ever, or for as long as a test may take.
AT_MOST_S = 60
SECRET = "hunter2"

# What a role needs that may create nothing: docs/how-to/postgres.md says the same.
GRANTS = """
GRANT USAGE ON SCHEMA counterfoil TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA counterfoil TO {role};
GRANT USAGE, UPDATE ON ALL SEQUENCES IN SCHEMA counterfoil TO {role};
"""


@pytest.fixture
def role(postgres: Cluster, database: str) -> Iterator[str]:
    """A role that may log in with a password and create nothing."""
    name = f"role_{database.rpartition('/')[2]}"
    hba = postgres.data / "pg_hba.conf"
    before = hba.read_text(encoding="utf-8")
    hba.write_text(f"host all {name} 127.0.0.1/32 scram-sha-256\n{before}", encoding="utf-8")
    postgres.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{SECRET}'", "SELECT pg_reload_conf()")
    yield name
    hba.write_text(before, encoding="utf-8")
    owned = f"REASSIGN OWNED BY {name} TO postgres", f"DROP OWNED BY {name}"
    postgres.execute(*owned, database=database.rpartition("/")[2])
    postgres.execute("SELECT pg_reload_conf()", f"DROP ROLE {name}")


def as_role(database: str, role: str, password: str = SECRET) -> str:
    parts = urlsplit(database)
    return parts._replace(netloc=f"{role}:{password}@{parts.hostname}:{parts.port}").geturl()


def refused(url: str) -> Any:
    """Open what cannot be opened, in time, and return the error."""
    began = time.monotonic()
    with pytest.raises((LedgerUnavailable, UsageError)) as error:
        opened(url)
    assert time.monotonic() - began < AT_MOST_S
    assert error.value.hint
    assert error.value.effect_ran == "no"
    assert SECRET not in str(error.value)
    return error.value


def execute(url: str, *statements: str) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
            rows = cursor.fetchall() if cursor.description else []
    return rows


# --- what cannot be opened


def test_a_wrong_password_is_said(database, role):
    assert "password" in str(refused(as_role(database, role, "wrong")))


def test_a_missing_database_is_named(postgres):
    assert "nowhere" in str(refused(postgres.url("nowhere")))


def test_a_server_that_is_not_there_is_said_at_once(database):
    assert refused("postgresql://127.0.0.1:1/shop").code == "ledger-unreachable"
    assert refused("postgresql://no-such-host.invalid/shop").code == "ledger-unreachable"


def test_a_server_that_never_answers_hangs_nobody():
    with closing(socket.create_server(("127.0.0.1", 0))) as mute:
        error = refused(f"postgresql://127.0.0.1:{mute.getsockname()[1]}/shop?connect_timeout=2")
    assert error.code == "ledger-unreachable"
    assert "connect_timeout=8" in opening.complete("postgresql://127.0.0.1/shop")


@pytest.mark.parametrize("silent_at", [rb"getdatabaseencoding", rb"pg_tables"])
def test_a_server_that_falls_silent_while_it_is_opened_hangs_nobody(postgres, database, proxy, silent_at):
    proxy.rule = On(silent_at, Act.SWALLOW_REPLY)
    assert refused(f"{postgres.url(database.rpartition('/')[2], port=proxy.port)}?timeout=1").hint


@pytest.mark.rule("L11")
def test_a_role_that_may_not_make_the_schema_is_told_how_it_is_made(database, role):
    error = refused(as_role(database, role))
    assert isinstance(error, UsageError)
    assert error.code == "schema-missing"
    assert "migrate" in error.hint
    assert execute(database, "SELECT count(*) FROM pg_namespace WHERE nspname = 'counterfoil'") == [(0,)]


def test_looking_makes_nothing(database):
    url: Any = parse(database)
    with pytest.raises(UsageError, match="migrate"):
        url.check()
    assert execute(database, "SELECT count(*) FROM pg_namespace WHERE nspname = 'counterfoil'") == [(0,)]
    opened(database).close()
    url.check()


@pytest.mark.rule("L11")
def test_a_newer_schema_is_refused(database):
    opened(database).close()
    execute(database, "INSERT INTO counterfoil.migration VALUES (99, 'from the future')")
    assert refused(database).code == "schema-newer"


def test_a_role_without_rights_on_the_tables_is_told_what_it_lacks(database, role):
    opened(database).close()
    error = refused(as_role(database, role))
    assert error.code == "ledger-denied"


def test_an_old_server_is_refused(database, monkeypatch):
    monkeypatch.setattr(opening, "VERSION_MIN", 990_000)
    assert "too old" in str(refused(database))


@pytest.mark.rule("L13")
def test_a_database_that_cannot_hold_every_name_is_refused(postgres, database):
    name = f"latin_{database.rpartition('/')[2]}"
    postgres.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0")
    try:
        assert "LATIN1" in str(refused(postgres.url(name)))
    finally:
        postgres.drop(name)


def test_one_connection_is_enough(database):
    with Runtime(f"{database}?pool=1") as runtime, runtime.run("r") as run:
        assert run.effect("e", run=lambda: "p", reconcile=lambda: None) is not None
        assert [view.name for view in runtime.effects()] == ["e"]


# --- a role that may create nothing


@pytest.mark.rule("L11")
@pytest.mark.parametrize("by_hand", [True, False])
def test_once_migrated_a_role_that_may_create_nothing_does_everything(database, role, by_hand):
    if by_hand:
        execute(database, ours.sql())
    else:
        opened(database).close()
    execute(database, GRANTS.format(role=role))
    url = as_role(database, role)
    with Runtime(url) as runtime:
        with runtime.run("r") as run:
            run.step("s", lambda: 1)
            run.effect("e", run=lambda: "p", reconcile=lambda: None)
            run.finish()
        assert list(runtime.prune(older_than_s=0, reason="room", by="me").pruned) == ["r"]
        ledger: Any = runtime.ledger
        assert [row.pruned for row in ledger.runs(runtime.namespace)] == [True]
        assert {level for level, *_ in ledger.diagnose()} <= {"ok", "error"}  # fsync is off in tests
        assert ledger.accept_restore(by="me", reason="a drill") == 2
    silent, observer = opened(f"{url}?beat=0.1"), opened(f"{url}?beat=0.1")
    epoch = silent.register("silent")
    silent.append(intent("slot", epoch))
    silent._lives._heart.stop()
    until(lambda: observer.gone(epoch))
    for ledger in (silent, observer):
        ledger.close()


@pytest.mark.rule("L11")
def test_the_printed_migrations_make_what_opening_makes(postgres, database):
    execute(database, ours.sql("by_hand"))
    ours.PostgresLedger(database, schema="by_itself").close()
    described = """
        SELECT relname, attname, format_type(atttypid, atttypmod), attnotnull, relkind
        FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid JOIN pg_namespace n ON n.oid = relnamespace
        WHERE nspname = '{0}' AND attnum > 0 ORDER BY relname, attnum"""
    functions = """
        SELECT proname, pg_get_function_identity_arguments(p.oid), replace(prosrc, '"{0}"', '') FROM pg_proc p
        JOIN pg_namespace n ON n.oid = pronamespace WHERE nspname = '{0}' ORDER BY proname"""
    for query in (described, functions, "SELECT version, name FROM {0}.migration"):
        assert execute(database, query.format("by_hand")) == execute(database, query.format("by_itself"))
    with pytest.raises(psycopg.errors.DuplicateTable):
        execute(database, ours.sql("by_hand"))
    assert len(migrations.LEDGER.scripts) == execute(database, "SELECT max(version) FROM by_hand.migration")[0][0]


# --- what `doctor` sees


def found(ledger: Any) -> dict[str, tuple[str, str, str]]:
    return {subject: (level, text, mend) for level, subject, text, mend in ledger.diagnose()}


@pytest.mark.rule("N3")
def test_the_doctor_names_what_the_guarantees_rest_on(database, postgres):
    execute(database, f"ALTER DATABASE {database.rpartition('/')[2]} SET synchronous_commit = off")
    # What beats seldom is not silent so soon, however slow the machine.
    silent, ledger = opened(f"{database}?beat=0.1"), opened(f"{database}?beat=20")
    silent.register("worker 7")
    silent._lives._heart.stop()
    ledger.register("doctor")
    until(lambda: found(ledger)["owners"][0] == "warning")
    seen = found(ledger)
    assert seen["server"][:2] == ("ok", f"PostgreSQL {execute(database, 'SHOW server_version')[0][0]}")
    assert (seen["fsync"][0], seen["full-page-writes"][0]) == ("error", "error")
    assert seen["synchronous-commit"][0] == "warning"
    assert seen["primary"][0] == seen["schema"][0] == seen["generation"][0] == seen["pooler"][0] == "ok"
    assert seen["clock-offset"][0] == "ok"
    assert (seen["owners"][0], seen["owners"][1]) == ("warning", "1 alive, silent: worker 7")
    assert all(mend for level, _, mend in seen.values() if level != "ok")
    for one in (silent, ledger):
        one.close()


@pytest.mark.rule("N3", "L14")
def test_the_doctor_names_a_clock_that_is_wrong_and_a_ledger_that_moved(database, monkeypatch):
    ledger = opened(database)
    execute(database, "UPDATE counterfoil.ledger SET timeline = '00000007'")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    seen = found(ledger)
    assert seen["clock-offset"][0] == "warning"
    offset = float(seen["clock-offset"][1].partition(" is ")[2].partition(" s ")[0])
    assert offset == pytest.approx(-3600, abs=60)
    assert seen["generation"][0] == "error"
    assert "accept-restore" in seen["generation"][2]
    ledger.close()


@pytest.mark.rule("L14")
@pytest.mark.parametrize("moved", ["system_identifier = 7", "timeline = '00000007'", "database = 7", "record = 7"])
def test_a_ledger_that_lives_elsewhere_now_registers_nobody_until_it_is_accepted(database, moved):
    ledger = opened(database)
    epoch = ledger.register("before")
    execute(database, f"UPDATE counterfoil.ledger SET {moved}")
    assert ledger.restored()
    with pytest.raises(LedgerReadOnly, match="accept-restore"):
        ledger.register("after")
    if moved.startswith("timeline"):
        with pytest.raises(LedgerReadOnly, match="accept-restore"):
            ledger.append(entry("slot", epoch))
    position = ledger.accept_restore(by="me", reason="looked")
    assert position == ledger.accepted_generation() == 2
    assert ledger.restored() is None
    assert not ledger.live(epoch)
    fresh = ledger.register("after")
    assert fresh.startswith("2.")
    assert ledger.append(entry("slot", fresh)).position > 1 << 40
    ledger.close()


# --- through a pooler


@pytest.mark.rule("L3", "L7", "P2")
def test_through_a_transaction_pooler_everything_works_and_the_doctor_says_so(pgbouncer: PgBouncer, database):
    url = f"{pgbouncer.url(database.rpartition('/')[2])}?poll=0.05&beat=0.2"
    with Runtime(url) as runtime, Runtime(url) as other:
        with runtime.run("r") as run:
            for n in range(20):
                run.effect(f"e{n}", run=lambda: "p", reconcile=lambda: None)
        assert len(other.effects()) == 20
        ledger: Any = runtime.ledger
        assert found(ledger)["pooler"][0] == "warning"
        (epoch,) = [owner.epoch for owner in ledger.owners()]
        beats = f"SELECT count FROM counterfoil.beat b JOIN counterfoil.owner o ON o.id = b.owner AND epoch = '{epoch}'"
        (before,) = execute(database, beats)[0]
        until(lambda: execute(database, beats)[0][0] >= before + 4)
        until(lambda: [owner.alive for owner in ledger.owners()] == [True])


@pytest.mark.rule("P2")
def test_a_pooler_is_noticed_without_being_told(pgbouncer: PgBouncer, database, caplog):
    url = pgbouncer.url(database.rpartition("/")[2])
    took: list[float] = []
    with Runtime(url) as waiting, Runtime(url) as delivering:
        for number in tries(lambda: quick(took, 1), range(20)):
            with waiting.run(f"r{number}") as run:
                answer = Doing(lambda run=run: run.wait_for("approval", "7"))  # type: ignore[misc]
                until(lambda number=number: delivering.show(f"r{number}"))  # type: ignore[misc]
                began = time.monotonic()
                delivering.deliver(f"r{number}", "approval", "7", "yes")
                assert answer.result() == "yes"
                took.append(time.monotonic() - began)
    assert "poll=" in caplog.text
