"""The outbox on SQLite and PostgreSQL: what staging adds, how fast and how soon it is dispatched, beside two queues."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import psycopg

from benchmarks import delivered, queues
from benchmarks.measure import Contender, Opened, Slice, Watch, watching
from benchmarks.queues import BATCH, pages
from benchmarks.server import served
from benchmarks.tables import raced, ratio, show
from counterfoil import UNASKABLE, AsyncDispatcher, Dispatcher, Outbox, Recipient
from tests.servers.postgres import Cluster

RATE_AIMS = {"SQLite": "20,000", "PostgreSQL": "12,000"}
STAGE_AIMS_MS = {"SQLite": 0.15, "PostgreSQL": 0.3}
IDLE_S = (0.05, 0.25)
ORDERS = "CREATE TABLE orders (id bigint PRIMARY KEY, customer text)"


def parts(grown: int) -> dict[str, Callable[..., dict[str, Any]]]:
    """The parts, by title; `grown`: how many intents were delivered where it is measured whether that costs."""

    def flat(cluster: Cluster, folder: str, *, hurried: bool) -> dict[str, Any]:
        return fresh_and_grown(cluster, folder, grown=grown, hurried=hurried)

    return {
        "outbox, staging": served(staging),
        "outbox, dispatch": served(dispatch),
        "outbox, from commit to dispatch": served(delay),
        "outbox, many intents delivered": served(flat),
        "outbox, under a held snapshot": served(held),
    }


# --- an application


def recipient(*, called: Callable[[int], Any] | None = None, blocking: bool = False) -> Recipient:
    """Something that does nothing, or tells that it was called."""
    made = Recipient("noop")
    if blocking:

        @made.operation(reconcile=UNASKABLE)
        def send(number: int) -> int:
            if called is not None:
                called(number)
            return number

    else:

        @made.operation(reconcile=UNASKABLE)
        async def send(number: int) -> int:
            return number

    return made


@contextmanager
def shop(url: str) -> Iterator[tuple[Any, Outbox]]:
    """An application's connection that begins and commits only when told to, and its outbox in the same database."""
    outbox = Outbox(url)
    outbox.migrate()
    with closing(_connected(url)) as connection, closing(outbox):
        connection.execute(ORDERS)
        yield connection, outbox


def _connected(url: str) -> Any:
    if not url.startswith("sqlite"):
        return psycopg.connect(url, autocommit=True)
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.set_busy_timeout(60_000)
    connection.execute("PRAGMA synchronous = full")
    return connection


def begin(url: str) -> str:
    return "BEGIN IMMEDIATE" if url.startswith("sqlite") else "BEGIN"


def insert(url: str) -> str:
    mark = "?" if url.startswith("sqlite") else "%s"
    return f"INSERT INTO orders (id, customer) VALUES ({mark}, {mark})"


def stores(cluster: Cluster, folder: str, name: str) -> dict[str, str]:
    """Two fresh databases, by what they are."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    return {"SQLite": f"sqlite:///{folder}/{name}.db", "PostgreSQL": cluster.database(name)}


# --- what staging adds


def staging(cluster: Cluster, folder: str, *, hurried: bool) -> dict[str, Any]:
    """A transaction of one row, without and with an intent, one after the other."""
    pairs, found = 150 if hurried else 2_000, {}
    print(f"  {'median of one transaction, ms':38}{'one row':>12}{'and an intent':>19}{'added':>12}{'aim':>12}")
    for store, url in stores(cluster, folder, "staging").items():
        with shop(url) as (connection, outbox):
            plain, staged = _transactions(url, connection, outbox=outbox, pairs=pairs)
        added = statistics.median(with_ - without for with_, without in zip(staged, plain, strict=True))
        row = [statistics.median(plain), statistics.median(staged), added]
        aim = f"at most {STAGE_AIMS_MS[store]}"
        print(f"  {store:38}{row[0] * 1e3:12.3f}{row[1] * 1e3:19.3f}{row[2] * 1e3:12.3f}{aim:>12}")
        found[store] = {"plain_ms": row[0] * 1e3, "staged_ms": row[1] * 1e3, "added_ms": row[2] * 1e3}
    return found


def _transactions(url: str, connection: Any, *, outbox: Outbox, pairs: int) -> tuple[list[float], list[float]]:
    send = recipient().operations["send"]
    opening, statement = begin(url), insert(url)
    taken: dict[bool, list[float]] = {False: [], True: []}
    warm = 20
    for number in range(pairs + warm):
        # In turn: neither always comes after the other.
        for with_intent in (number % 2 == 0, number % 2 == 1):
            began = time.perf_counter()
            connection.execute(opening)
            connection.execute(statement, (2 * number + with_intent, "somebody"))
            if with_intent:
                outbox.stage(connection, send(number=number), key=f"order-{number}")
            connection.execute("COMMIT")
            if number >= warm:
                taken[with_intent].append(time.perf_counter() - began)
    return taken[False], taken[True]


# --- how fast it is dispatched


def dispatched(url: str, *, blocking: bool = False, history: int = 0) -> Opened:
    """Intents that were staged and committed before, delivered by one dispatcher after it has delivered many."""

    @contextmanager
    def opened(_folder: str) -> Iterator[Slice]:
        noop, numbers = recipient(blocking=blocking), count()
        how: dict[str, Any] = {"batch": BATCH, "concurrency": BATCH}
        with shop(url) as (connection, outbox), asyncio.Runner() as runner:
            if blocking:
                dispatcher: Any = Dispatcher(url, [noop], **how).__enter__()
            else:
                dispatcher = AsyncDispatcher(url, [noop], **how)
                runner.run(dispatcher.__aenter__())

            def slice_(intents: int) -> Watch:
                for page in pages(numbers, intents):
                    connection.execute(begin(url))
                    operations = [(noop.operations["send"](number=number), f"order-{number}") for number in page]
                    outbox.stage_many(connection, operations)
                    connection.execute("COMMIT")
                before = dispatcher.counts.get("accepted", 0)
                with watching() as watch:
                    idle = dispatcher.run_until_idle() if blocking else runner.run(dispatcher.run_until_idle())
                assert idle
                assert dispatcher.counts["accepted"] - before == intents, dispatcher.counts
                return watch

            if history:
                slice_(BATCH)
                delivered.deliver(connection, history - BATCH)
            yield slice_
            if blocking:
                dispatcher.__exit__(None, None, None)
            else:
                runner.run(dispatcher.__aexit__(None, None, None))

    return opened


def dispatch(cluster: Cluster, folder: str, *, hurried: bool) -> dict[str, Any]:
    """One process, batches of 100, a recipient that does nothing."""
    lite, server = stores(cluster, folder, "dispatch").values()
    lite_, server_ = stores(cluster, folder, "threads").values()
    ours, peer, slow = "PostgreSQL", "pgqueuer, batch 100", "procrastinate, 100 at once"
    contenders = [
        Contender(ours, dispatched(server), BATCH),
        Contender("PostgreSQL, blocking handler", dispatched(server_, blocking=True), BATCH),
        Contender("SQLite", dispatched(lite), BATCH),
        Contender("SQLite, blocking handler", dispatched(lite_, blocking=True), BATCH),
        Contender(peer, queues.pgqueuer(cluster.database("pgqueuer")), BATCH),
        Contender(slow, queues.procrastinate(cluster.database("procrastinate")), BATCH // 4),
    ]
    rounds, slice_s = (3, 0.15) if hurried else (16, 0.5)
    found = raced(contenders, folder, base="PostgreSQL", aims={}, rounds=rounds, slice_s=slice_s)
    for store, aimed in RATE_AIMS.items():
        if "per_s" in found[store]:
            show(f"{store}, per second", f"{found[store]['per_s']:,.0f}", aimed)
    for name, aim in ((peer, "1.3"), (slow, "20")):
        times = ratio(found, ours, name)
        show(f"PostgreSQL, times {name}", "did not run" if times is None else f"{times:.2f}", aim)
    return found


# --- how soon it is dispatched


def attend(url: str, pipe: Any) -> None:
    """Be a dispatcher's process: tell when a handler was called, until it is told to stop."""

    def called(number: int) -> None:
        pipe.send((number, time.monotonic()))

    with Dispatcher(url, [recipient(called=called, blocking=True)], batch=BATCH) as dispatcher:
        pipe.send("ready")
        dispatcher.run()


def delay(cluster: Cluster, folder: str, *, hurried: bool) -> dict[str, Any]:
    """From the commit in one process to the handler in another that had nothing to do; nobody nudges it."""
    found = {}
    for store, url in stores(cluster, folder, "delay").items():
        delays = _delays(url, times=15 if hurried else 200)
        median, slow = statistics.median(delays) * 1e3, statistics.quantiles(delays, n=20)[-1] * 1e3
        show(f"{store}, median, ms", f"{median:.1f}", "under 50")
        show(f"{store}, one in twenty is slower than, ms", f"{slow:.1f}")
        found[store] = {"median_ms": median, "p95_ms": slow}
    return found


def _delays(url: str, *, times: int) -> list[float]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    with shop(url) as (connection, outbox):
        send, delays = recipient().operations["send"], []
        process = context.Process(target=attend, args=(url, there), daemon=True)
        process.start()
        try:
            assert here.recv() == "ready"
            for number in range(times):
                # At random, so that it does not keep step with the dispatcher's looks.
                time.sleep(random.uniform(*IDLE_S))
                connection.execute(begin(url))
                connection.execute(insert(url), (number, "somebody"))
                outbox.stage(connection, send(number=number), key=f"order-{number}")
                connection.execute("COMMIT")
                committed = time.monotonic()
                told, at = here.recv()
                assert told == number
                delays.append(max(0.0, at - committed))
        finally:
            process.terminate()
            process.join()
    return delays


# --- whether what was delivered costs


def fresh_and_grown(cluster: Cluster, folder: str, *, grown: int, hurried: bool) -> dict[str, Any]:
    """The same intents in a fresh outbox and in one that has delivered many."""
    found: dict[str, Any] = {}
    small, large = stores(cluster, folder, "small"), stores(cluster, folder, "large")
    for store in small:
        name = f"{store}, {grown:,} delivered"
        contenders = [
            Contender(f"{store}, a fresh outbox", dispatched(small[store]), BATCH),
            Contender(name, dispatched(large[store], history=grown), BATCH),
        ]
        rounds, slice_s = (4, 0.12) if hurried else (16, 0.4)
        found |= raced(
            contenders, f"{folder}/{store}", base="a fresh one", aims={name: 0.9}, rounds=rounds, slice_s=slice_s
        )
    looked = [_pages(url["PostgreSQL"]) for url in (small, large)]
    show("PostgreSQL, pages looked at for a claim", f"{looked[0]:.1f}, {looked[1]:.1f}", "the same")
    return found | {"pages": looked}


def _pages(url: str) -> float:
    """How many pages PostgreSQL looks at for each intent that is claimed."""
    send = recipient().operations["send"]
    with closing(_connected(url)) as connection, closing(Outbox(url)) as outbox:
        connection.execute("BEGIN")
        outbox.stage_many(connection, [(send(number=number), f"page-{number}") for number in range(BATCH)])
        connection.execute("COMMIT")
        ((epoch,),) = connection.execute("SELECT counterfoil.register('0', 'a benchmark', 5)").fetchall()
        return delivered.pages_of_claims(connection, epoch, claims=BATCH) / BATCH


# --- whether somebody who looks at an old state for long slows it down


def held(cluster: Cluster, folder: str, *, hurried: bool) -> dict[str, Any]:
    """A transaction that keeps its snapshot while many are delivered: the last tenth beside the first one."""
    slices, found = 4 if hurried else 20, {}
    intents = 300 if hurried else 1_000
    for store, url in stores(cluster, folder, "held").items():
        with dispatched(url)(folder) as slice_, closing(_connected(url)) as holder:
            slice_(intents)
            holder.execute("BEGIN" if url.startswith("sqlite") else "BEGIN ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT count(*) FROM orders").fetchall()
            watches = [slice_(intents) for _ in range(10 * slices)]
            holder.execute("ROLLBACK")
        tenths = [watches[start : start + slices] for start in (0, 9 * slices)]
        first, last = (statistics.median(intents / watch.wall_s for watch in tenth if watch) for tenth in tenths)
        early, late = (statistics.median(watch.cpu_s or 0.0 for watch in tenth if watch) for tenth in tenths)
        show(
            f"{store}, of {10 * slices * intents:,} the last tenth of the first", f"{last / first:.2f}", "at least 0.7"
        )
        show(f"{store}, processor time, first and last, µs", f"{early / intents * 1e6:.0f}, {late / intents * 1e6:.0f}")
        found[store] = {"first_per_s": first, "last_per_s": last, "ratio": last / first}
    return found
