"""The servers of the tests do what tests rely on: they start, crash, come back, and the proxy breaks what it must."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest

from tests.servers.finding import POSTGRES_MAJORS
from tests.servers.nats import NatsCluster
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import Cluster
from tests.servers.proxy import Act, On, Proxy, lose_reply, lose_request
from tests.servers.starting import PATIENCE_S, until

BOTH = pytest.mark.parametrize("postgres_major", [16, 18], indirect=True)


def rows(url: str) -> int:
    with psycopg.connect(url) as connection:
        (found,) = connection.execute("SELECT count(*) FROM t").fetchone() or (0,)
        return int(found)


@pytest.fixture
def table(database: str) -> str:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (n int)")
    return database


def through(proxy: Proxy, url: str) -> psycopg.Connection:
    return psycopg.connect(url, port=proxy.port, connect_timeout=60)


@pytest.mark.parametrize("postgres_major", POSTGRES_MAJORS, indirect=True)
def test_each_major_version_starts(postgres: Cluster, database: str) -> None:
    with psycopg.connect(database) as connection:
        assert connection.info.server_version // 10_000 == postgres.major


@BOTH
def test_what_was_committed_survives_an_immediate_stop_and_kill(durable_postgres: Cluster) -> None:
    durable_postgres.execute("CREATE TABLE t (n int)", "INSERT INTO t VALUES (1)")
    for mode in ("immediate", "kill"):
        durable_postgres.restart(mode)
        durable_postgres.execute("INSERT INTO t VALUES (1)")
    assert durable_postgres.execute("SELECT count(*), current_setting('fsync') FROM t") == [(3, "on")]


@BOTH
def test_a_standby_follows_and_is_promoted_to_another_timeline(replicated_postgres: tuple[Cluster, Cluster]) -> None:
    primary, standby = replicated_postgres
    primary.execute("CREATE TABLE t (n int)", "INSERT INTO t VALUES (1)")
    primary.catch_up(standby)
    assert standby.execute("SELECT pg_is_in_recovery(), count(*) FROM t") == [(True, 1)]
    standby.promote()
    assert standby.execute("SELECT timeline_id FROM pg_control_checkpoint()") is not None
    standby.execute("INSERT INTO t VALUES (2)")


def test_a_dump_is_restored_into_another_database(postgres: Cluster, table: str) -> None:
    name = table.rpartition("/")[2]
    restored = postgres.restore(postgres.dump(name), database=f"{name}_restored")
    assert rows(restored) == 0
    postgres.drop(f"{name}_restored")


def test_a_lost_reply_of_commit_leaves_the_commit(proxy: Proxy, table: str) -> None:
    proxy.rule = lose_reply(rb"COMMIT", times=1)
    connection = through(proxy, table)
    connection.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(psycopg.OperationalError):
        connection.commit()
    assert rows(table) == 1


def test_a_lost_commit_leaves_nothing(proxy: Proxy, table: str) -> None:
    proxy.rule = lose_request(rb"COMMIT", times=1)
    connection = through(proxy, table)
    connection.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(psycopg.OperationalError):
        connection.commit()
    assert rows(table) == 0


def test_a_held_commit_comes_when_the_client_has_long_gone(proxy: Proxy, table: str) -> None:
    proxy.rule = held = On(rb"COMMIT", Act.HOLD, times=1)
    connection = through(proxy, table)
    connection.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(psycopg.OperationalError):
        connection.commit()
    assert len(held.links) == 1
    with through(proxy, table) as other:
        assert other.execute("SELECT count(*) FROM t").fetchone() == (0,)
    proxy.resume()
    until(lambda: rows(table) == 1, failing=lambda: "it does not come")


@BOTH
def test_a_commit_waits_for_a_synchronous_standby_and_says_when_it_did_not(
    replicated_postgres: tuple[Cluster, Cluster],
) -> None:
    primary, standby = replicated_postgres
    primary.execute("CREATE TABLE t (n int)")
    primary.wait_for(standby)
    notices: list[str | None] = []
    with primary.connect() as connection, primary.connect() as other:
        connection.add_notice_handler(lambda diagnostic: notices.append(diagnostic.sqlstate))
        pid = connection.info.backend_pid
        waiting = threading.Thread(target=lambda: connection.execute("INSERT INTO t VALUES (2)"), daemon=True)
        waiting.start()
        waits = f"SELECT wait_event FROM pg_stat_activity WHERE pid = {pid}".encode()
        until(lambda: other.execute(waits).fetchone() == ("SyncRep",), failing=lambda: "the commit does not wait")
        other.execute(f"SELECT pg_cancel_backend({pid})".encode())
        waiting.join(PATIENCE_S)
    assert notices == ["01000"]
    standby.freeze(frozen=False)


def test_requests_are_delayed_and_replies_swallowed(proxy: Proxy, table: str) -> None:
    proxy.rule = On(rb"INSERT", 0.05, times=1)
    with through(proxy, table) as connection:
        began = time.monotonic()
        connection.execute("INSERT INTO t VALUES (1)")
        assert time.monotonic() - began >= 0.05
    proxy.rule = On(rb"INSERT", Act.SWALLOW_REPLY)
    connection = through(proxy, table)
    connection.pgconn.send_query(b"INSERT INTO t VALUES (2)")
    connection.pgconn.flush()
    until(lambda: rows(table) == 2, failing=lambda: "the request does not arrive")
    connection.pgconn.consume_input()
    assert connection.pgconn.is_busy()
    connection.close()
    assert b"INSERT INTO t VALUES (2)" in proxy.sent


def test_a_pooler_gives_a_session_to_others_after_each_transaction(pgbouncer: PgBouncer, table: str) -> None:
    name = table.rpartition("/")[2]
    with psycopg.connect(pgbouncer.url(name), autocommit=True) as connection:
        pids = {connection.execute("SELECT pg_backend_pid()").fetchone() for _ in range(3)}
        with psycopg.connect(pgbouncer.url(name), autocommit=True) as other:
            pids |= {other.execute("SELECT pg_backend_pid()").fetchone() for _ in range(3)}
    assert 1 <= len(pids) <= 4


async def test_jetstream_acknowledges_on_one_node_and_on_three(nats: NatsCluster, nats_cluster: NatsCluster) -> None:
    from nats import connect

    for servers, replicas in ((nats, 1), (nats_cluster, 3)):
        client = await connect(servers.urls, allow_reconnect=False, connect_timeout=60)
        stream = client.jetstream(timeout=60)
        await stream.add_stream(name="S", subjects=["s.>"], num_replicas=replicas)
        assert (await stream.publish("s.a", b"1")).seq == 1
        await stream.delete_stream("S")
        await client.close()
