"""The schema of a PostgreSQL ledger: made by ten processes at once, or by hand for a role that may make nothing."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.connection import Connection

import psycopg
import pytest

from counterfoil import Accepted, Runtime, UsageError
from counterfoil.errors import LedgerUnavailable
from counterfoil.ledgers.postgres import sql
from tests.servers.postgres import Cluster
from tests.torture.processes import Crew

BOTH = pytest.mark.parametrize("postgres_major", [16, 18], indirect=True)
PROCESSES = 10
PATIENCE_S = 60.0


@pytest.fixture
def worker(postgres: Cluster, database: str) -> Iterator[str]:
    """The address of the database for a role that may create nothing in it."""
    name = database.rpartition("/")[2]
    role = f"worker_{name}"
    postgres.execute(f"CREATE ROLE {role} LOGIN", f"REVOKE ALL ON DATABASE {name} FROM PUBLIC")
    postgres.execute(f"GRANT CONNECT ON DATABASE {name} TO {role}")
    yield postgres.url(name, user=role)
    postgres.execute(f"DROP OWNED BY {role}", database=name)
    postgres.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def granted(postgres: Cluster, database: str, worker: str) -> None:
    """Give a role what the how-to lists."""
    role = worker.partition("//")[2].partition("@")[0]
    postgres.execute(
        f"GRANT USAGE ON SCHEMA counterfoil TO {role}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA counterfoil TO {role}",
        f"GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA counterfoil TO {role}",
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA counterfoil TO {role}",
        database=database.rpartition("/")[2],
    )


def opener(connection: Connection, url: str) -> None:
    """Open a ledger when told to, and use it; says in which namespace."""
    connection.send("ready")
    connection.recv()
    with Runtime(url) as runtime, runtime.run("r") as run:
        outcome = run.effect("a", run=lambda: "sent", reconcile=lambda: None)
        connection.send((runtime.namespace, isinstance(outcome, Accepted)))


@pytest.mark.rule("L11")
@BOTH
def test_ten_processes_that_start_together_make_one_ledger(database: str) -> None:
    with Crew() as crew:
        workers = [crew.start(opener, database) for _ in range(PROCESSES)]
        assert [each.receive(PATIENCE_S) for each in workers] == ["ready"] * PROCESSES
        for each in workers:
            each.send("go")
        said = [each.receive(PATIENCE_S) for each in workers]
    assert len(set(said)) == 1, said
    assert said[0][1]
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT count(*) FROM counterfoil.ledger").fetchone() == (1,)
        intents = "SELECT count(*) FROM counterfoil.record WHERE slot LIKE '%/intent'"
        assert connection.execute(intents).fetchone() == (1,)


@pytest.mark.rule("L11")
def test_a_role_that_may_create_nothing_is_told_what_to_do(worker: str) -> None:
    with pytest.raises(UsageError) as refused, Runtime(worker):
        pass
    assert "migrate" in refused.value.hint
    assert refused.value.effect_ran == "no"


@pytest.mark.rule("L11")
@BOTH
def test_a_role_that_may_create_nothing_uses_what_somebody_else_has_made(
    postgres: Cluster, database: str, worker: str
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(sql().encode())
    granted(postgres, database, worker)
    with Runtime(worker) as runtime:
        with runtime.run("r") as run:
            assert isinstance(run.effect("a", run=lambda: "sent", reconcile=lambda: None), Accepted)
            run.finish()
        assert [view.state for view in runtime.effects()] == ["accepted"]
    with Runtime(worker) as runtime, runtime.run("r") as run:
        assert isinstance(run.effect("a", run=lambda: "sent", reconcile=lambda: None), Accepted)


@pytest.mark.rule("L11")
def test_a_newer_schema_is_refused(database: str) -> None:
    with Runtime(database) as runtime:
        runtime.effects()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("INSERT INTO counterfoil.migration (version, name) VALUES (999, 'of the future')")
    with pytest.raises(LedgerUnavailable) as refused, Runtime(database):
        pass
    assert (refused.value.code, refused.value.effect_ran) == ("schema-newer", "no")
    assert "999" in str(refused.value)
