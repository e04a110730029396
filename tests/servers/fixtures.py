"""The servers as fixtures: each is started when the first test asks for it, one per worker, and ends with the worker.

def test_it(database: str) -> None: ...                                  # a database of its own on PostgreSQL 18

@pytest.mark.parametrize("postgres_major", [16, 18], indirect=True)
def test_on_both(database: str) -> None: ...
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import Final, TypeVar
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.servers.finding import Missing, missing
from tests.servers.nats import NatsCluster
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import Cluster
from tests.servers.proxy import Proxy

T = TypeVar("T")
NEWEST: Final = 18
_numbers = count(1)


@pytest.fixture(scope="session")
def postgres_clusters() -> Iterator[Callable[[int], Cluster]]:
    """Gives the shared cluster of a major version: without fsync, so never for tests of crashes."""
    started: dict[int, Cluster] = {}

    def of(major: int) -> Cluster:
        if major not in started:
            started[major] = _make(lambda: Cluster(major)).create()
        return started[major]

    yield of
    for cluster in started.values():
        cluster.remove()


@pytest.fixture
def postgres_major(request: pytest.FixtureRequest) -> int:
    """The major version that a test runs on: the newest, unless it is parametrized."""
    return int(getattr(request, "param", NEWEST))


@pytest.fixture
def postgres(postgres_clusters: Callable[[int], Cluster], postgres_major: int) -> Cluster:
    """The shared cluster: make databases in it, and change nothing that others would notice."""
    return postgres_clusters(postgres_major)


@pytest.fixture
def database(postgres_major: int, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of an empty database: on the shared cluster, or on the server at `TEST_POSTGRES_<major>_URL`."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    given = os.environ.get(f"TEST_POSTGRES_{postgres_major}_URL")
    admin = given or request.getfixturevalue("postgres").url()
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
        yield urlsplit(admin)._replace(path=f"/{name}").geturl()
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


@pytest.fixture(scope="session")
def shared_database(postgres_clusters: Callable[[int], Cluster]) -> Iterator[str]:
    """The address of one database for all tests of a worker, each of which keeps to a schema of its own.

    With `TEST_POSTGRES_POOLED` in the environment it is reached through PgBouncer.
    """
    given = os.environ.get(f"TEST_POSTGRES_{NEWEST}_URL")
    name = f"shared_{os.getpid()}"
    address = given or postgres_clusters(NEWEST).database(name)
    if not os.environ.get("TEST_POSTGRES_POOLED"):
        yield address
        return
    with _make(lambda: PgBouncer(postgres_clusters(NEWEST)), optional=True) as pooler:
        yield pooler.url(name)


@pytest.fixture
def durable_postgres(postgres_major: int) -> Iterator[Cluster]:
    """A cluster of one test, with fsync: it may be stopped, killed and restarted."""
    with _make(lambda: Cluster(postgres_major, durable=True)) as cluster:
        yield cluster


@pytest.fixture
def replicated_postgres(postgres_major: int) -> Iterator[tuple[Cluster, Cluster]]:
    """A primary and its streaming standby, of one test."""
    with _make(lambda: Cluster(postgres_major)) as primary, ExitStack() as ends:
        standby = primary.standby()
        ends.callback(standby.remove)
        yield primary, standby


@pytest.fixture
def proxy(postgres: Cluster) -> Iterator[Proxy]:
    """A proxy in front of the shared cluster: `postgres.url(name, port=proxy.port)`."""
    with Proxy(postgres.port) as between:
        yield between


@pytest.fixture
def pgbouncer(postgres: Cluster) -> Iterator[PgBouncer]:
    """A transaction pooler in front of the shared cluster."""
    with _make(lambda: PgBouncer(postgres), optional=True) as pooler:
        yield pooler


@pytest.fixture(scope="session")
def nats() -> Iterator[NatsCluster]:
    """One NATS server with JetStream, shared: make streams of your own in it."""
    with _make(lambda: NatsCluster(1)) as server:
        yield server


@pytest.fixture
def nats_proxy(nats: NatsCluster) -> Iterator[Proxy]:
    """A proxy in front of the shared NATS server."""
    with Proxy(nats.nodes[0].port) as between:
        yield between


@pytest.fixture
def own_nats() -> Iterator[NatsCluster]:
    """One NATS server of one test, which syncs each write: it may be stopped and killed."""
    with _make(lambda: NatsCluster(1, sync_always=True)) as server:
        yield server


@pytest.fixture
def nats_cluster() -> Iterator[NatsCluster]:
    """Three NATS servers of one test, which sync each write."""
    with _make(lambda: NatsCluster(3, sync_always=True)) as servers:
        yield servers


def _make(make: Callable[[], T], *, optional: bool = False) -> T:
    try:
        return make()
    except Missing as error:
        missing(error, optional=optional)
