"""A PostgreSQL ledger that is restored under the feet of a process that lives on."""

from __future__ import annotations

import psycopg
import pytest

from counterfoil import Accepted, LedgerUnavailable, Runtime
from counterfoil.errors import LedgerReadOnly
from tests.servers.postgres import Cluster


@pytest.mark.rule("L14")
def test_a_dump_that_is_restored_under_a_living_process_takes_nothing_from_it(postgres: Cluster, database: str) -> None:
    name = database.rpartition("/")[2]
    sent: list[str] = []

    def send(ctx: object) -> str:
        sent.append("sent")
        return "item"

    with Runtime(database) as runtime, runtime.run("r") as run:
        run.effect("kept", run=send, reconcile=lambda: None)
        dump = postgres.dump(name)
        run.effect("lost", run=send, reconcile=lambda: None)
        postgres.drop(name)
        postgres.restore(dump, database=name)
        runtime.show("r")
        with pytest.raises(LedgerReadOnly) as refused:
            run.effect("new", run=send, reconcile=lambda: None)
    assert refused.value.effect_ran == "no"
    assert len(sent) == 2
    with psycopg.connect(database) as connection:
        slots = connection.execute("SELECT slot FROM counterfoil.record WHERE slot LIKE 'effect/%'").fetchall()
    assert {slot for (slot,) in slots} == {"effect/kept/1/intent", "effect/kept/1/outcome"}


@pytest.mark.rule("L14")
def test_tables_that_are_restored_in_place_under_a_living_process_take_nothing_from_it(
    postgres: Cluster, database: str
) -> None:
    name = database.rpartition("/")[2]
    sent: list[str] = []

    def send(ctx: object) -> str:
        sent.append("sent")
        return "item"

    with Runtime(database) as runtime, runtime.run("r") as run:
        run.effect("kept", run=send, reconcile=lambda: None)
        dump = postgres.dump(name)
        run.effect("lost", run=send, reconcile=lambda: None)
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("DROP SCHEMA counterfoil CASCADE")
        postgres.tool("pg_restore", "-d", database, dump)
        with pytest.raises((LedgerReadOnly, LedgerUnavailable)) as refused:
            run.effect("new", run=send, reconcile=lambda: None)
    assert refused.value.effect_ran == "no"
    assert len(sent) == 2


@pytest.mark.rule("L14")
def test_a_server_that_crashed_and_recovered_has_not_gone_back_in_time(durable_postgres: Cluster) -> None:
    url = durable_postgres.url()
    with Runtime(url) as runtime, runtime.run("r") as run:
        run.effect("first", run=lambda: "sent", reconcile=lambda: None)
        durable_postgres.restart("kill")
        assert isinstance(run.effect("second", run=lambda: "sent", reconcile=lambda: None), Accepted)
