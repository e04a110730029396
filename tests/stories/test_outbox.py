"""Stories of intents that are staged with the application's own rows: each on SQLite and on PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from counterfoil import Accepted, Dispatcher, Events, Receipt, Uncertain, UsageError
from counterfoil.outbox.terms import Terms
from tests.events.support import Stream
from tests.outbox.shop import ACT, SHORT_BEAT_S, FileShop, PostgresShop, Shop
from tests.servers.nats import NatsCluster
from tests.stories.posting import recipients
from tests.support import Clock

ROOT = Path(__file__).resolve().parent.parent.parent
_numbers = count(1)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Opens a shop; with a clock of the story's, time stands still until it is moved."""
    opened: list[Shop] = []

    def shop(clock: Clock | None = None) -> Shop:
        if request.param == "postgres":
            database = request.getfixturevalue("shared_database")
            opened.append(PostgresShop(database, f"story{next(_numbers)}", clock=clock))
        else:
            opened.append(FileShop(tmp_path / "shop.db", "apsw", clock=clock))
        return opened[-1]

    yield shop
    for each in opened:
        each.close()


def sends(log: Path) -> Counter[str]:
    return Counter(log.read_text().splitlines() if log.exists() else ())


@pytest.mark.rule("X3", "X4", "P1")
def test_s49_what_is_due_in_six_hours_is_sent_once_whatever_restarts_meanwhile(place):
    """celery/celery#2599: a task with a long countdown is delivered again with each restart of a worker."""
    clock = Clock()
    shop = place(clock)
    shop.order("o1", not_before=clock.time() + 6 * 3600)
    for _ in range(10):
        clock.advance(6 * 3600 / 11)
        for _ in range(3):
            assert shop.dispatch("mail")
    assert shop.box.log == []
    clock.advance(6 * 3600 / 11 + 1)
    dispatchers = [threading.Thread(target=shop.dispatch, args=("mail",)) for _ in range(3)]
    for thread in dispatchers:
        thread.start()
    for thread in dispatchers:
        thread.join()
    assert shop.box.sends("o1") == 1
    assert (shop.receipt("o1").state, shop.receipt("o1").attempts) == ("accepted", 1)


def killed(shop: Shop, log: Path, point: str) -> None:
    """Dispatch in a process that is killed there; whoever comes after it is alone."""
    if isinstance(shop, PostgresShop):
        shop.url = shop.beating(SHORT_BEAT_S)
    command = [sys.executable, "-m", "tests.stories.posting", shop.url, str(log), point]
    ran = subprocess.run(command, cwd=ROOT, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert ran.returncode == -signal.SIGKILL


def survived(shop: Shop, log: Path, key: str) -> Receipt:
    """Dispatch until an intent has ended or waits for a person."""
    with Dispatcher(shop.url, recipients(log)) as dispatcher:
        running = threading.Thread(target=dispatcher.run)
        running.start()
        try:
            return shop.outbox.wait(key, timeout_s=60)
        finally:
            dispatcher.stop()
            running.join()


def staged(shop: Shop, log: Path, key: str, *, door: bool) -> None:
    unlock, send = (one.operations[name] for one, name in zip(recipients(log), ("unlock", "send"), strict=True))
    with shop.transaction() as connection:
        shop.outbox.stage(connection, unlock(number=7) if door else send(to="ada"), key=key)


@pytest.mark.rule("X4", "X7", "X15")
def test_s52_a_channel_that_cannot_be_asked_gets_nothing_twice_unless_a_person_says_so(place, tmp_path):
    """MervinPraison/PraisonAI#2328: a message is sent, the process dies before it is marked, and it is sent again."""
    shop, log = place(), tmp_path / "log"
    staged(shop, log, "o1", door=True)
    killed(shop, log, "sent")
    receipt = survived(shop, log, "o1")
    assert survived(shop, log, "o1") == receipt
    assert (sends(log).total(), type(receipt.outcome)) == (1, Uncertain)
    with pytest.raises(UsageError, match="cannot be redriven"):
        shop.outbox.redrive("o1", expect_version=receipt.version, **ACT)
    # What a person wants sent again is a new intent, under a name that says so.
    said = {"did_not_happen": True, "new_key": "o1-again", "expect_version": receipt.version}
    shop.outbox.decide("o1", **said, **ACT)
    staged(shop, log, "o1-again", door=True)
    assert survived(shop, log, "o1-again").outcome == Accepted("door-7", "run")
    decision = shop.receipt("o1").decision
    assert decision is not None
    assert decision.new_name == "o1-again"
    assert sorted(sends(log).values()) == [1, 1]


@pytest.mark.rule("X4", "X7")
@pytest.mark.parametrize(
    ("point", "door", "state", "attempts"),
    [
        ("claimed", True, "accepted", 2),
        ("granted", True, "uncertain", 1),
        ("granted", False, "needs-operator", 1),
        ("sent", True, "uncertain", 1),
        ("sent", False, "accepted", 1),
    ],
)
def test_s53_a_process_is_killed_around_the_marker_of_its_send(place, tmp_path, point, door, state, attempts):
    """remoteclaw/remoteclaw#2934: what was marked as sending and never sent is lost, or is sent twice."""
    shop, log = place(), tmp_path / "log"
    staged(shop, log, "o1", door=door)
    killed(shop, log, point)
    receipt = survived(shop, log, "o1")
    assert (receipt.state, receipt.attempts) == (state, attempts)
    assert sends(log).total() == (0 if point == "granted" else 1)


ORDERING = """
import os, signal, sys, threading
from tests.outbox.shop import FileShop, PostgresShop
kind, place, name, how = sys.argv[1:]
shop = object.__new__(FileShop if kind == "file" else PostgresShop)
if kind == "file":
    shop.path, shop.engine, shop.url = place, "apsw", f"sqlite:///{place}?engine=apsw"
else:
    shop.database, shop.name, shop.url = place, name, f"{place}?schema=cf_{name}"
from counterfoil import Outbox
from tests.outbox.shop import Mailbox, recipients
shop.outbox, shop.recipients = Outbox(shop.url), recipients(Mailbox())
if how == "at":
    print("ready", flush=True)
for number in range(3_000):
    key = f"{how}-{number}"
    with shop.transaction() as connection:
        connection.execute(f"INSERT INTO orders (id) VALUES ('{key}')")
        shop.outbox.stage(connection, shop.operation("bo"), key=key)
        if how == "before":
            os.kill(os.getpid(), signal.SIGKILL)
    if how == "after":
        os.kill(os.getpid(), signal.SIGKILL)
signal.pause()
"""


@pytest.mark.rule("X1", "T2", "T3")
def test_s54_an_intent_is_there_exactly_where_its_row_is(place, tmp_path):
    """mohamedboukari/bunmail#184: a row is saved and its mail is lost, or the other way round."""
    shop = place()
    file = isinstance(shop, FileShop)
    where = ["file", str(shop.path), ""] if file else ["server", shop.database, shop.name]
    for how in ("before", "after", "at"):
        with subprocess.Popen(
            [sys.executable, "-c", ORDERING, *where, how],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
        ) as application:
            if how == "at":
                assert application.stdout is not None
                assert application.stdout.readline()
                with pytest.raises(subprocess.TimeoutExpired):
                    application.wait(0.3)
                application.kill()
            assert application.wait(60) == -signal.SIGKILL
    with suppress(ZeroDivisionError), shop.transaction() as connection:
        connection.execute("INSERT INTO orders (id) VALUES ('rolled-back')")
        shop.outbox.stage(connection, shop.operation("bo"), key="rolled-back")
        raise ZeroDivisionError
    orders = shop.orders()
    assert {"before-0", "rolled-back"} & orders == set()
    assert "after-0" in orders
    assert {receipt.key for receipt in shop.outbox.list(limit=10_000)} == orders


@pytest.mark.rule("X1", "T3")
def test_s57_nothing_is_accepted_while_the_ledger_cannot_keep_it(place):
    """PostHog/posthog#101508: events are answered with success and lost, since the queue was down."""
    shop = place()

    def accept(key: str, down: Any = None) -> int:
        try:
            with shop.transaction() as connection:
                shop.outbox.stage(connection, shop.operation("bo"), key=key)
                if down is not None:
                    down(connection)
        except Exception:
            return 503
        return 202

    def lost(connection: Any) -> None:
        # The ledger goes away before the COMMIT: the server ends the session, the file loses its transaction.
        if isinstance(shop, PostgresShop):
            pid = connection.info.backend_pid
            with shop.connected() as other:
                other.execute("SELECT pg_terminate_backend(%s)", (pid,))
        else:
            connection.interrupt()
            connection.close(True)

    assert accept("o1", lost) == 503
    assert shop.outbox.receipt("o1") is None
    assert accept("o1") == 202
    assert shop.receipt("o1").state == "pending"
    assert shop.dispatch()
    assert shop.box.sends("bo") == 1


@pytest.mark.rule("X3", "X10", "V1", "V2")
async def test_s59_the_stream_is_down_while_orders_are_committed(place, own_nats: NatsCluster):
    """openedx/openedx-events#292: events of committed rows are lost while the broker is away."""
    shop, stream = place(), await Stream.make(own_nats.url)
    terms = Terms(backoff_s=0.05, backoff_max_s=0.2, attempts=1000)
    with Events(own_nats.url, stream=stream.name) as events:
        own_nats.nodes[0].stop(signal.SIGKILL)
        for number in range(30):
            with shop.transaction() as connection:
                shop.outbox.stage(connection, events.publish(stream.subject(), {"order": number}), key=f"o{number}")
        with Dispatcher(shop.url, [events], terms=terms) as dispatcher:
            assert not dispatcher.run_until_idle(timeout_s=0.5)
        assert {shop.receipt(f"o{number}").state for number in range(30)} <= {"pending", "retry-scheduled"}
        own_nats.nodes[0].start()
        with Dispatcher(shop.url, [events], terms=terms) as dispatcher:
            assert dispatcher.run_until_idle(timeout_s=60)
        assert {shop.receipt(f"o{number}").state for number in range(30)} == {"accepted"}
    assert sorted(message.data for message in await stream.messages()) == sorted(
        b'{"order":%d}' % number for number in range(30)
    )


@pytest.mark.rule("X3", "N1")
def test_s63_a_backlog_is_sent_whole_and_what_is_left_is_said_truthfully(place):
    """dograh-hq/dograh#478: a sweep takes its first thousand and calls it done."""
    shop = place()
    with shop.transaction() as connection:
        shop.outbox.stage_many(connection, [(shop.operation(f"m{n}"), f"o{n}") for n in range(1050)])
    assert shop.outbox.snapshot().waiting == {"mail": {"pending": 1050}}
    with shop.dispatcher("mail", batch=10, concurrency=10) as dispatcher:
        assert not dispatcher.run_until_idle(timeout_s=0.02)
    left = shop.outbox.snapshot().waiting.get("mail", {})
    assert 0 < sum(left.values()) == 1050 - len(shop.box.log)
    assert shop.dispatch("mail", timeout_s=60)
    assert (len(shop.box.log), shop.box.twice(), shop.outbox.depth()) == (1050, [], [])
