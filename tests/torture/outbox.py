"""Dispatchers are killed, stopped and continued at random while an application stages intents.

The application is a process of its own. Its transactions roll back, roll back to savepoints, and end with the process
before, at and after COMMIT. Handlers lose replies, refuse, are never dispatched, and kill their process. The judge is
the recipient's log.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from typing import Any, Final
from urllib.parse import urlsplit
from zlib import crc32

import psycopg

from counterfoil import UNASKABLE, Contract, Dispatcher, Evidence, Failed, Outbox, Receipt, Recipient, Rejected
from counterfoil.outbox.terms import Terms
from tests.outbox.application import connected
from tests.servers.proxy import Act, Piece, Proxy
from tests.torture.arena import Arena, Site, site
from tests.torture.postgres.place import PostgresSite, cluster_of, postgres_site
from tests.torture.processes import Crew, Worker
from tests.torture.recipient import Client

PATIENCE_S: Final = 120.0
LANES: Final = 5
TERMS: Final = Terms(timeout_s=5.0, backoff_s=0.02, backoff_max_s=0.2, looks=6, attempts=50, kills=3, revoked=200)
RESENDS: Final = 2
POLICIES: Final = ("asked", "dumb", "keyed")
LANDS_S: Final = 0.002
LOST_ONE_IN: Final = 60


@dataclass(frozen=True)
class Fate:
    """What happens to an intent, by its key alone, so that every process agrees."""

    number: int

    @classmethod
    def of(cls, key: str) -> Fate:
        return cls(crc32(key.encode()) % 100)

    @property
    def loses_the_reply(self) -> bool:
        return self.number < 8

    @property
    def fails(self) -> bool:
        return 8 <= self.number < 12

    @property
    def kills(self) -> bool:
        return self.number == 12

    @property
    def is_not_dispatched_at_first(self) -> bool:
        return 13 <= self.number < 20


def recipients(client: Client, *, lethal: bool) -> list[Recipient]:
    """Make one recipient for each policy."""
    contract = Contract(
        name="keyed",
        policy="at-least-once-keyed",
        idempotency={"header": "Idempotency-Key", "horizon_s": 600.0, "concurrent": True},
        resends=RESENDS,
    )

    def send(ctx: Any, key: str) -> str:
        fate = Fate.of(key)
        if fate.is_not_dispatched_at_first and ctx.attempt == 1:
            raise Rejected(Evidence("connect-failed", phase="not-dispatched"))
        if fate.fails:
            raise Failed(Evidence("status", status=422))
        item = client.make(ctx.key, land_s=LANDS_S)
        if fate.kills and lethal:
            os.kill(os.getpid(), signal.SIGKILL)
        if fate.loses_the_reply:
            raise ConnectionResetError
        return item

    def find(ctx: Any, key: str) -> str | None:
        return client.find(ctx.key)

    made = []
    for name in POLICIES:
        recipient = Recipient(name, contract=contract if name == "keyed" else None)
        operation: Any = recipient.operation(reconcile=UNASKABLE if name == "dumb" else None)(send)
        if name != "dumb":
            operation.reconcile(find)
        made.append(recipient)
    return made


def at(place: Site, engine: str) -> str:
    """Return the ledger's address, for one library where there are two."""
    return place.url if isinstance(place, PostgresSite) else place.opened_with(engine)


def dispatches(connection: Connection, place: Site, engine: str) -> None:
    """Dispatch until it is told to stop."""
    dispatcher = Dispatcher(at(place, engine), recipients(place.client, lethal=True), terms=TERMS, concurrency=8)
    connection.send("ready")
    with dispatcher:
        while not connection.poll(0):
            dispatcher.run_until_idle(timeout_s=0.2)
            connection.poll(0.02)


def stages(connection: Connection, place: Site, engine: str, seed: int) -> None:
    """Run transactions of the application until it is told to stop; it may be killed anywhere."""
    chance = random.Random(seed)
    outbox = Outbox(at(place, engine))
    outbox.migrate()
    known = recipients(place.client, lethal=False)
    numbers = count(1)
    while not connection.poll(0):
        # A COMMIT that nobody answers ends the connection, and the application goes on.
        with suppress(psycopg.OperationalError), application(place, engine) as database:
            while not connection.poll(0):
                # One that is killed mid-way goes on under another seed.
                _one(database, f"{seed}-{next(numbers)}", outbox, (chance, known))


def _one(database: Any, key: str, outbox: Outbox, drawn: tuple[random.Random, list[Recipient]]) -> None:
    """Run one transaction of the application."""
    chance, known = drawn
    on_a_server = isinstance(database, psycopg.Connection)
    database.execute("BEGIN" if on_a_server else "BEGIN IMMEDIATE")
    lane = f"lane{chance.randrange(LANES)}" if chance.random() < 0.3 else None
    recipient = chance.choice(known)

    def order(key: str) -> None:
        database.execute(f"INSERT INTO orders (id) VALUES ('{key}')")
        outbox.stage(database, recipient.operations["send"](key=key), key=key, lane=lane)

    order(key)
    if chance.random() < 0.2:
        database.execute("SAVEPOINT inside")
        order(f"{key}-inside")
        if chance.random() < 0.5:
            database.execute("ROLLBACK TO SAVEPOINT inside")
    end = chance.random()
    if end < 0.1:
        database.execute("ROLLBACK")
        return
    if end < 0.11:
        os.kill(os.getpid(), signal.SIGKILL)
    if end < 0.12 and on_a_server:
        database.pgconn.send_query(b"COMMIT")
        database.pgconn.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    database.execute("COMMIT")
    if end < 0.13:
        os.kill(os.getpid(), signal.SIGKILL)


class Breaks:
    """A rule of the proxy: one COMMIT in so many is lost, or its reply is, or it is held up until the next."""

    def __init__(self, chance: random.Random, *, one_in: int) -> None:
        self._chance = chance
        self._one_in = one_in
        self.lost = 0

    def __call__(self, piece: Piece) -> Act:
        if not piece.request or b"COMMIT" not in piece.data or self._chance.randrange(self._one_in):
            return Act.PASS
        self.lost += 1
        return self._chance.choice((Act.CUT, Act.LOSE_REPLY, Act.LOSE_END, Act.PASS_THEN_CUT))


@contextmanager
def application(place: Site, engine: str) -> Iterator[Any]:
    """Open the application's own connection."""
    if isinstance(place, PostgresSite):
        with psycopg.connect(place.address.partition("?")[0], autocommit=True) as connection:
            yield connection
    else:
        with connected(place.database, engine) as database:
            yield database


def campaign(arena: Arena, *, dispatchers: int = 6, engines: tuple[str, ...] = ("apsw", "sqlite3")) -> None:
    """Run one site for each engine."""
    for engine in engines:
        with Crew() as crew:
            place = site(arena, crew, engine)
            Market(arena, crew, place, dispatchers=dispatchers).run(arena.seconds / len(engines))


def postgres_campaign(arena: Arena, *, dispatchers: int = 6) -> None:
    """Run one site on PostgreSQL; its owners are found gone by their hearts."""
    with cluster_of(arena, durable=False) as cluster, Crew() as crew:
        place = postgres_site(arena, crew, cluster, options="?beat=0.2&timeout=20&pool=3")
        with Proxy(cluster.port, keep=False) as proxy:
            proxy.rule = breaks = Breaks(arena.random, one_in=LOST_ONE_IN)
            Market(arena, crew, place, dispatchers=dispatchers, wire=proxy.port).run(arena.seconds)
            arena.say(f"{breaks.lost} COMMITs or their replies were lost")


class Market:
    """The processes of one site, and the blows that they get."""

    def __init__(self, arena: Arena, crew: Crew, place: Site, *, dispatchers: int, wire: int | None = None) -> None:
        self._arena = arena
        self._crew = crew
        self._place = place
        # What the processes are told; the judge has a wire of its own, which does not break.
        self._told = place
        if isinstance(place, PostgresSite) and wire is not None:
            parts = urlsplit(place.address)
            netloc = f"{parts.username}@127.0.0.1:{wire}"
            self._told = place.at(parts._replace(netloc=netloc).geturl())
        self._seed = arena.seed * 1000
        self._stopped: dict[Worker, float] = {}
        self._ready: set[Worker] = set()
        with application(place, place.engine) as database:
            database.execute("CREATE TABLE orders (id TEXT PRIMARY KEY)")
        with Outbox(place.url):
            pass
        self._dispatchers = [self._dispatcher() for _ in range(dispatchers)]
        self._stager = self._new_stager()

    def run(self, seconds: float) -> None:
        # The time counts from when there is somebody to be killed.
        give_up = time.monotonic() + PATIENCE_S
        while not any(self._is_ready(worker) for worker in self._dispatchers) and time.monotonic() < give_up:
            time.sleep(0.01)
        end = time.monotonic() + seconds
        # It is too short for nobody to be killed, and for nothing to be staged.
        while time.monotonic() < end or not (self._arena.counts.kills and self._staged()):
            self._blow()
            time.sleep(self._arena.random.expovariate(1 / 0.1))
            self._arena.progress(f"{self._arena.counts.kills} kills")
        for worker in self._stopped:
            worker.signal(signal.SIGCONT)
        self._crew.kill(self._stager)
        for worker in self._dispatchers:
            self._crew.kill(worker)
        self._settle()
        self._judge()

    def _staged(self) -> bool:
        with application(self._place, self._place.engine) as database:
            return database.execute("SELECT 1 FROM orders LIMIT 1").fetchone() is not None

    def _blow(self) -> None:
        arena, now = self._arena, time.monotonic()
        for worker, until in list(self._stopped.items()):
            if now >= until:
                worker.signal(signal.SIGCONT)
                del self._stopped[worker]
        kind = arena.random.random()
        at = arena.random.randrange(len(self._dispatchers))
        worker = self._dispatchers[at]
        if not worker.alive:
            # Its own handler has killed it.
            self._over(worker)
            self._stopped.pop(worker, None)
            self._dispatchers[at] = self._dispatcher()
        elif not self._stager.alive:
            self._over(self._stager)
            self._stager = self._new_stager()
        elif not self._is_ready(worker):
            return
        elif kind < 0.4:
            self._stopped.pop(worker, None)
            self._crew.kill(worker)
            arena.counts.kills += 1
            self._dispatchers[at] = self._dispatcher()
        elif kind < 0.7:
            worker.signal(signal.SIGSTOP)
            self._stopped[worker] = now + arena.random.choice((0.02, 0.1, 0.5))
        elif kind < 0.8:
            self._crew.kill(self._stager)
            arena.counts.kills += 1
            self._stager = self._new_stager()

    def _is_ready(self, worker: Worker) -> bool:
        if worker not in self._ready and worker.receive(0) == "ready":
            self._ready.add(worker)
        return worker in self._ready

    def _over(self, worker: Worker) -> None:
        while (said := worker.receive(0)) is not None:
            if said != "ready":
                self._problem(f"a worker broke: {said[1]}")
        self._crew.dismiss(worker)

    def _dispatcher(self) -> Worker:
        return self._crew.start(dispatches, self._told, self._engine())

    def _new_stager(self) -> Worker:
        self._seed += 1
        return self._crew.start(stages, self._told, self._engine(), self._seed)

    def _engine(self) -> str:
        # Between processes either library may be used.
        return self._arena.random.choice(("apsw", self._place.engine))

    def _settle(self) -> None:
        """Let everything come to its end."""
        known = recipients(self._place.client, lethal=False)
        with Outbox(self._place.url) as outbox:
            with Dispatcher(self._place.url, known, terms=TERMS, concurrency=32) as dispatcher:
                if not self._idle(dispatcher, outbox):
                    self._arena.problem("it does not come to an end")
            # A head that nobody knows about holds its lane: a person decides, and the rest goes on.
            for _ in range(200):
                stuck = [r for r in self._heads(outbox) if r.state in ("needs-operator", "quarantined", "uncertain")]
                if not stuck:
                    break
                for receipt in stuck:
                    outbox.decide(
                        receipt.key, did_not_happen=True, reason="judged", by="me", expect_version=receipt.version
                    )
                with Dispatcher(self._place.url, known, terms=TERMS, concurrency=32) as dispatcher:
                    self._idle(dispatcher, outbox)

    @staticmethod
    def _idle(dispatcher: Dispatcher, outbox: Outbox) -> bool:
        give_up = time.monotonic() + PATIENCE_S
        while dispatcher.run_until_idle(timeout_s=PATIENCE_S):
            # What a killed one had in hand is nobody's until its silence has been noticed.
            if not any(state == "dispatching" for _, state, *_ in outbox.depth()):
                return True
            if time.monotonic() > give_up:
                break
            time.sleep(0.05)
        return False

    @staticmethod
    def _heads(outbox: Outbox) -> list[Receipt]:
        from counterfoil.outbox.receipts import receipt_of

        stories = [outbox.opened.view.story(head) for *_, head in outbox.lanes() if head is not None]
        return [receipt_of(story) for story in stories if story is not None]

    # --- judging

    def _judge(self) -> None:
        log = self._place.log()
        received = Counter(line["key"] for line in log if line["what"] == "received")
        created = {line["key"] for line in log if line["what"] == "created"}
        self._arena.counts.sends += received.total()
        places: dict[str, list[tuple[int, str]]] = defaultdict(list)
        with Outbox(self._place.url) as outbox, application(self._place, self._place.engine) as database:
            table = "counterfoil.intent" if isinstance(self._place, PostgresSite) else "counterfoil_intent"
            orders = {row[0] for row in database.execute("SELECT id FROM orders").fetchall()}
            rows = database.execute(
                f"SELECT key, recipient, effect_id, lane, place FROM {table} ORDER BY seq"
            ).fetchall()
            if orders != {row[0] for row in rows}:
                self._problem(f"rows without an intent or intents without a row: {orders ^ {row[0] for row in rows}}")
            for key, recipient, effect_id, lane, at in rows:
                receipt = outbox.receipt(key)
                assert receipt is not None
                self._one(receipt, recipient, sends=received[effect_id], made=effect_id in created)
                if lane is not None:
                    places[lane].append((at, effect_id))
        first: dict[str, int] = {}
        for number, line in enumerate(log):
            if line["what"] == "received":
                first.setdefault(line["key"], number)
        for lane, members in places.items():
            members.sort()
            if [at for at, _ in members] != list(range(1, len(members) + 1)):
                self._problem(f"{lane} has gaps")
            order = [first[effect_id] for _, effect_id in members if effect_id in first]
            if order != sorted(order):
                self._problem(f"{lane} was delivered out of order")

    def _one(self, receipt: Receipt, recipient: str, *, sends: int, made: bool) -> None:
        counts = self._arena.counts
        if sends > (1 + RESENDS if recipient == "keyed" else 1):
            counts.doubled += 1
            self._problem(f"{receipt.key} ({recipient}) was sent {sends} times")
        if receipt.state == "accepted":
            counts.acknowledged += 1
            if not made:
                self._problem(f"{receipt.key} is accepted, and the recipient does not have it")
        elif receipt.state in ("failed", "rejected"):
            if made:
                self._problem(f"{receipt.key} is {receipt.state}, and the recipient has it")
        elif receipt.state in ("uncertain", "needs-operator", "quarantined"):
            counts.uncertain += 1
            if not receipt.reason:
                self._problem(f"{receipt.key} is {receipt.state} and nothing says why")
            if receipt.state == "uncertain" and recipient == "asked" and receipt.decision is None:
                self._problem(f"{receipt.key} was not asked about")
        else:
            counts.lost += 1
            self._problem(f"{receipt.key} is {receipt.state} at the end: {receipt.reason}")

    def _problem(self, text: str) -> None:
        self._arena.problem(f"{self._place.folder}: {text}")
