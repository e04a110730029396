"""The application of these tests: orders in a table, mails staged with them, and the mailbox that is the judge."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from counterfoil import UNASKABLE, Contract, Dispatcher, Outbox, Receipt, Recipient
from counterfoil.outbox.terms import Terms
from tests.outbox.application import connected
from tests.support import PATIENCE_S, Clock

ACT: dict[str, Any] = {"reason": "a test", "by": "me"}
# How long one send may take. What a contract says is longer.
SEND_S = 120.0
# Lives that go on together must not take each other for gone; one that ends here says so.
BEAT_S = 30.0
# Of lives that are killed, and found gone while nobody else lives.
SHORT_BEAT_S = 0.2


class Mailbox:
    """Receives mails, and does with them what a test says. Its log is the judge, not ours."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.log: list[tuple[str, str]] = []
        self.kept: dict[str, str] = {}
        self.asked: list[str] = []
        # What happens when a mail arrives, by address; it may raise, block or kill.
        self.does: dict[str, Callable[[Any], Any]] = {}
        # What a look-up says, by address.
        self.says: dict[str, Callable[[Any], Any]] = {}

    def receive(self, ctx: Any, to: str) -> Any:
        with self.lock:
            self.log.append((ctx.key, to))
        if to in self.does:
            return self.does[to](ctx)
        with self.lock:
            return self.kept.setdefault(ctx.key, f"mail-{to}")

    def find(self, ctx: Any, to: str) -> Any:
        with self.lock:
            self.asked.append(to)
        if to in self.says:
            return self.says[to](ctx)
        return self.kept.get(ctx.key)

    def sends(self, to: str) -> int:
        return sum(address == to for _, address in self.log)

    def twice(self) -> list[str]:
        return [to for to, count in Counter(to for _, to in self.log).items() if count > 1]


def keyed(*, horizon_s: float = 600.0, resends: int = 2, concurrent: bool = True) -> Any:
    """A contract of a recipient that tells repeats by a key."""
    return Contract(
        name="keyed",
        policy="at-least-once-keyed",
        idempotency={"header": "Idempotency-Key", "horizon_s": horizon_s, "concurrent": concurrent},
        resends=resends,
    )


def recipients(box: Mailbox) -> dict[str, Recipient]:
    """One recipient for each policy."""
    made = {}
    for name, ask, contract in (
        ("mail", True, None),
        ("door", False, None),
        ("bank", True, keyed()),
        ("post", False, keyed()),
        ("person", True, Contract(name="person", policy="operator-only")),
    ):
        recipient = Recipient(name, contract=contract)

        def send(ctx: Any, to: str) -> Any:
            return box.receive(ctx, to)

        def find(ctx: Any, to: str) -> Any:
            return box.find(ctx, to)

        operation: Any = recipient.operation(reconcile=None if ask else UNASKABLE)(send)
        if ask:
            operation.reconcile(find)
        made[name] = recipient
    return made


class Shop:
    """An application with its database, its outbox and its recipients."""

    begin = "BEGIN"
    url: str

    def __init__(self, *, clock: Clock | None = None) -> None:
        self.given_clock = clock
        self.box = Mailbox()
        self.recipients = recipients(self.box)
        self.outbox = Outbox(self.url, clock=clock)
        self.outbox.migrate()
        with self.connected() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY)")

    @property
    def clock(self) -> Clock:
        assert self.given_clock is not None
        return self.given_clock

    def close(self) -> None:
        self.outbox.close()

    def operation(self, to: str, *, recipient: str = "mail") -> Any:
        return self.recipients[recipient].operations["send"](to=to)

    def connected(self) -> AbstractContextManager[Any]:
        raise NotImplementedError

    def sql(self, text: str) -> None:
        """Change the outbox's tables by hand, as they are called in SQLite."""
        with self.transaction() as connection:
            connection.execute(text)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """An ordinary transaction of the application, rolled back if its block raises."""
        with self.connected() as connection:
            connection.execute(self.begin)
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def order(self, key: str, *, recipient: str = "mail", to: str | None = None, **more: Any) -> str:
        """Save an order and stage its mail; return the effect id."""
        with self.transaction() as connection:
            connection.execute(f"INSERT INTO orders (id) VALUES ('{key}')")
            operation = self.operation(to or key, recipient=recipient)
            return self.outbox.stage(connection, operation, key=key, **more).effect_id

    def orders(self) -> set[str]:
        with self.connected() as connection:
            return {row[0] for row in connection.execute("SELECT id FROM orders").fetchall()}

    def dispatcher(self, *names: str, **more: Any) -> Dispatcher:
        """A dispatcher of some recipients, by default of all."""
        chosen = [self.recipients[name] for name in names or self.recipients]
        more.setdefault("terms", quick())
        return Dispatcher(self.url, chosen, clock=self.given_clock, **more)

    def dispatch(self, *names: str, timeout_s: float = PATIENCE_S, **more: Any) -> bool:
        """Dispatch until idle."""
        with self.dispatcher(*names, **more) as dispatcher:
            return dispatcher.run_until_idle(timeout_s=timeout_s)

    def receipt(self, key: str) -> Receipt:
        found = self.outbox.receipt(key)
        assert found is not None
        return found


class FileShop(Shop):
    """A shop in a SQLite file."""

    begin = "BEGIN IMMEDIATE"

    def __init__(self, path: Path, engine: str, *, clock: Clock | None = None) -> None:
        self.path = path
        self.engine = engine
        self.url = f"sqlite:///{path}?engine={engine}"
        super().__init__(clock=clock)

    @contextmanager
    def connected(self) -> Iterator[Any]:
        with connected(self.path, self.engine) as connection:
            yield connection


class PostgresShop(Shop):
    """A shop in a schema of its own of a PostgreSQL database."""

    def __init__(self, database: str, name: str, *, clock: Clock | None = None) -> None:
        self.database = database
        self.name = name
        self.url = self.beating(BEAT_S)
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}".encode())
        super().__init__(clock=clock)

    @contextmanager
    def connected(self, **more: Any) -> Iterator[Any]:
        more.setdefault("autocommit", True)
        connection = psycopg.connect(self.database, options=f"-csearch_path={self.name}", **more)
        try:
            yield connection
        finally:
            connection.close()

    def beating(self, beat_s: float) -> str:
        """The outbox's address for lives that are found gone after three beats of so many seconds."""
        return f"{self.database}?schema=cf_{self.name}&beat={beat_s}&timeout=60"

    def held_up(self) -> bool:
        """Whether a session waits for what another one holds."""
        waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        with psycopg.connect(self.database) as connection:
            return connection.execute(waits).fetchone() is not None

    def sql(self, text: str) -> None:
        super().sql(text.replace("counterfoil_", f"cf_{self.name}."))

    def close(self) -> None:
        super().close()
        with psycopg.connect(self.database, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA {self.name}, cf_{self.name} CASCADE".encode())


def quick(**more: Any) -> Terms:
    """Bounds for tests that do not wait, and whose handlers are not overdue where the machine stands still."""
    bounds = {"timeout_s": SEND_S, "look_timeout_s": 600.0, "send_by_s": 600.0, "looks": 3, "attempts": 3}
    return Terms(**{**bounds, "backoff_s": 0.01, "backoff_max_s": 0.05, **more})
