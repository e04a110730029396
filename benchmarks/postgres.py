"""The PostgreSQL ledger beside raw statements, pgbench and DBOS, all on one server with fsync."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import psycopg

from benchmarks import ours, peers
from benchmarks.measure import Contender, Opened, Slice, Watch, after
from benchmarks.raw import INTENT, OUTCOME
from benchmarks.server import readable, served
from benchmarks.tables import raced, ratio, show
from counterfoil.ledgers.postgres.ledger import PostgresLedger
from tests.servers.postgres import Cluster
from tests.servers.starting import until

CALLERS = 64
PGBENCH_CLIENTS = 8
CONNECTIONS = 4
RUN_SIZE = 1000
# Two for appending, one for the heart, one for listening.
POOLED = "?pool=2"
COLUMNS = "run, slot, kind, body, owner, append_id, at, check_sum, format"
INSERT = f"INSERT INTO counterfoil.record ({COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"
PLAIN = "INSERT INTO plain (body) VALUES (%s)"
# As a prepared statement each client's `n` is a parameter.
SCRIPT = "\\set n :n + 1\n" + "".join(
    f"INSERT INTO counterfoil.record ({COLUMNS})"
    f" VALUES (:client_id + 1, 'effect/e' || :n || '/1/{what}', {kind}, '{body}', 1, :n, 1.7e9, 1234567890, 1);\n"
    for kind, what, body in ((5, "intent", INTENT.decode()), (6, "outcome", OUTCOME.decode()))
)
SCRIPT_PLAIN = """INSERT INTO plain (body) VALUES ('{}');
INSERT INTO plain (body) VALUES ('{"proof":1}');
"""
DEAD = (
    "SELECT relname, n_tup_ins, n_dead_tup FROM pg_stat_user_tables WHERE schemaname = 'counterfoil'"
    " ORDER BY n_dead_tup DESC, relname"
)


def parts(grown: int) -> dict[str, Callable[..., dict[str, Any]]]:
    """The parts, by title; `grown`: how many effects are on record where it is measured whether that costs."""

    def flat(cluster: Cluster, folder: str, *, hurried: bool) -> dict[str, Any]:
        return fresh_and_grown(cluster, folder, grown=grown, hurried=hurried)

    return {
        "postgres, one caller": served(alone),
        "postgres, 64 callers": served(together),
        "postgres, many effects on record": served(flat),
        "postgres, a snapshot held open": served(snapshot),
    }


def database(cluster: Cluster, name: str) -> str:
    """Make a database with a ledger's tables, and one plain table; return its address."""
    url = cluster.database(name)
    PostgresLedger(url).close()
    cluster.execute(
        "CREATE TABLE plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea)", database=name
    )
    return url


# --- what it is compared with


def raw(url: str, *, commits: bool = False, plain: bool = False) -> Opened:
    """Two inserts and commits for each effect, with nothing between the program and psycopg.

    Args:
        url: of a database that `database` made.
        commits: execute and commit, instead of statements in autocommit.
        plain: into the plain table, instead of the ledger's.
    """

    @contextmanager
    def opened(_folder: str) -> Iterator[Slice]:
        numbers = count()
        with psycopg.connect(url, autocommit=not commits) as connection:

            def record(number: int, kind: int, what: str, body: bytes) -> None:
                if plain:
                    connection.execute(PLAIN, (body,))
                else:
                    slot = f"effect/e{number}/1/{what}"
                    connection.execute(INSERT, (1, slot, kind, body, 1, number, 1.7e9, 1_234_567_890, 1))
                if commits:
                    connection.commit()

            def slice_(effects: int) -> None:
                for number in (next(numbers) for _ in range(effects)):
                    record(number, 5, "intent", INTENT)
                    record(number, 6, "outcome", OUTCOME)

            yield slice_

    return opened


def pgbench(cluster: Cluster, url: str, *, plain: bool = False) -> Opened:
    """Two inserts and commits for each effect by the clients of pgbench, whose own count is what is believed."""

    @contextmanager
    def opened(_folder: str) -> Iterator[Slice]:
        script = readable(cluster, f"insert-{plain}.sql", SCRIPT_PLAIN if plain else SCRIPT)
        begun = [0]

        def slice_(effects: int) -> Watch:
            each = effects // PGBENCH_CLIENTS
            clients = ("-n", "-M", "prepared", "-c", str(PGBENCH_CLIENTS), "-j", "2")
            said = cluster.tool("pgbench", *clients, "-t", str(each), "-D", f"n={begun[0]}", "-f", script, url)
            begun[0] += each
            found = re.search(r"^tps = ([\d.]+) \(without", said, re.MULTILINE)
            assert found is not None, said
            return Watch(each * PGBENCH_CLIENTS / float(found[1]))

        yield slice_

    return opened


# --- the parts


def alone(cluster: Cluster, folder: str, *, hurried: bool) -> dict[str, Any]:
    """One caller, who waits for the disk twice for each effect."""
    contenders = [
        Contender("two raw statements per effect", raw(database(cluster, "autocommit"))),
        Contender("two raw statements and COMMITs", raw(database(cluster, "commits"), commits=True)),
        Contender("two raw statements, a plain table", raw(database(cluster, "plain"), plain=True)),
        Contender("counterfoil, blocking", ours.blocking(url=database(cluster, "blocking"))),
        Contender("counterfoil, with a request", ours.blocking(url=database(cluster, "asked"), request=ours.REQUEST)),
        Contender("counterfoil, asyncio", ours.looped(1, url=database(cluster, "looped"))),
        Contender("DBOS, a step", peers.dbos(1, url=cluster.database("dbos"))),
    ]
    rounds, slice_s = (6, 0.08) if hurried else (24, 0.2)
    aims = {"counterfoil, blocking": 0.8}
    found = raced(contenders, folder, base="two raw", aims=aims, rounds=rounds, slice_s=slice_s)
    of_commits = ratio(found, "counterfoil, blocking", "two raw statements and COMMITs")
    show("blocking, of two statements and COMMITs", _two(of_commits), "0.80")
    return found


def together(cluster: Cluster, folder: str, *, hurried: bool) -> dict[str, Any]:
    """Many callers who share commits."""
    one, many, asked = (database(cluster, name) + POOLED for name in ("one", "many", "asked"))
    ours_, floor, peer = "counterfoil, one run", "pgbench, 8 clients", "DBOS, a step"
    contenders = [
        Contender(floor, pgbench(cluster, database(cluster, "pgbench")), PGBENCH_CLIENTS),
        Contender("pgbench, a plain table", pgbench(cluster, database(cluster, "plain"), plain=True), PGBENCH_CLIENTS),
        Contender(ours_, watched(cluster, "one", ours.looped(CALLERS, url=one)), CALLERS),
        Contender("counterfoil, a run for each", ours.looped(CALLERS, url=many, run_size=RUN_SIZE), CALLERS),
        Contender("counterfoil, with a request", ours.looped(CALLERS, url=asked, request=ours.REQUEST), CALLERS),
        Contender(peer, peers.dbos(CALLERS, url=cluster.database("dbos")), CALLERS),
    ]
    rounds, slice_s = (4, 0.15) if hurried else (16, 0.4)
    found = raced(contenders, folder, base="pgbench", aims={ours_: 1.0}, rounds=rounds, slice_s=slice_s)
    show("times DBOS", _two(ratio(found, ours_, peer)), "15")
    show("connections at most", str(_seen.get("one", 0)), f"at most {CONNECTIONS}")
    return found


_seen: dict[str, int] = {}


def watched(cluster: Cluster, name: str, opened: Opened) -> Opened:
    """A contender whose connections are counted at its end."""
    asked = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' AND backend_type = 'client backend'"

    @contextmanager
    def again(folder: str) -> Iterator[Slice]:
        with opened(folder) as slice_, cluster.connect() as connection:
            yield slice_
            _seen[name] = connection.execute(asked.encode()).fetchall()[0][0]

    return again


def fresh_and_grown(cluster: Cluster, folder: str, *, grown: int, hurried: bool) -> dict[str, Any]:
    """The same effects in a fresh ledger and in one that has recorded many."""
    fresh, large = (database(cluster, name) + POOLED for name in ("fresh", "large"))
    filled = max(1, grown // CALLERS) * CALLERS
    looped = [ours.looped(CALLERS, url=url, run_size=RUN_SIZE) for url in (fresh, large)]
    blocking = [ours.blocking(url=url, run_size=RUN_SIZE) for url in (fresh, large)]
    many, one = f"{CALLERS} callers, {filled:,} on record", f"one caller, {filled:,} on record"
    rounds, slice_s = (6, 0.1) if hurried else (24, 0.3)
    crowd = [
        Contender(f"{CALLERS} callers, a fresh ledger", looped[0], CALLERS),
        Contender(many, after(looped[1], filled), CALLERS),
    ]
    lone = [Contender("one caller, a fresh ledger", blocking[0]), Contender(one, blocking[1])]
    how: dict[str, Any] = {"base": "a fresh one", "rounds": rounds, "slice_s": slice_s}
    found = raced(crowd, f"{folder}/crowd", aims={many: 0.9}, **how)
    return found | raced(lone, f"{folder}/lone", aims={one: 0.9}, **how)


def snapshot(cluster: Cluster, _folder: str, *, hurried: bool) -> dict[str, Any]:
    """Whether effects leave dead rows behind while somebody holds a snapshot, so that no vacuum could take them."""
    url, effects = database(cluster, "held"), (2_000 if hurried else 20_000) // CALLERS * CALLERS
    with ours.looped(CALLERS, url=url)("") as slice_, psycopg.connect(url) as reader:
        slice_(CALLERS)
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM counterfoil.record")
        slice_(effects)
        rows = _statistics(cluster, url, at_least=2 * effects)
    show("effects under the snapshot", f"{effects:,}")
    for table, added, dead in rows:
        if added or dead:
            by_time = table in ("beat", "owner")
            show(f"{table}: rows added, dead ones", f"{added:,}, {dead:,}", "by time only" if by_time else "0 dead")
    return {"effects": effects, "tables": {table: {"added": added, "dead": dead} for table, added, dead in rows}}


def _statistics(cluster: Cluster, url: str, *, at_least: int) -> list[tuple[Any, ...]]:
    """Read what the server has counted, once it has counted the records: a connection tells it after a while."""
    name = url.rpartition("/")[2]
    found: list[tuple[Any, ...]] = []

    def counted() -> bool:
        found[:] = cluster.execute(DEAD, database=name)
        return any(table == "record" and added >= at_least for table, added, _ in found)

    until(counted, failing=lambda: f"not counted yet: {found}")
    return found


def _two(value: float | None) -> str:
    return "did not run" if value is None else f"{value:.2f}"
