"""What PostgreSQL says when it cannot: time-outs, deadlocks, serialization, no connections left, no writes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

import psycopg
import pytest

from counterfoil import Accepted, Runtime
from counterfoil.errors import LedgerReadOnly, LedgerUnavailable
from tests.ledgers.postgres_support import PATIENCE_S, Doing, answer, opened, until
from tests.ledgers.support import entry, intent
from tests.servers.postgres import Cluster
from tests.servers.proxy import Proxy
from tests.support import tries

BOTH = pytest.mark.parametrize("postgres_major", [16, 18], indirect=True)

Open = Callable[..., Any]


@pytest.fixture
def open_ledger(database: str, proxy: Proxy) -> Iterator[Open]:
    """Opens ledgers in one database and closes them afterwards, while the proxy still stands."""
    made: list[Any] = []

    def open_one(url: str = database) -> Any:
        made.append(opened(url))
        return made[-1]

    yield open_one
    for ledger in made:
        ledger.close()


def settings(url: str, **values: str) -> None:
    """Set defaults of every new session in a database, as an operator may have done."""
    name = url.rpartition("/")[2]
    with psycopg.connect(url, autocommit=True) as connection:
        for setting, value in values.items():
            connection.execute(f"ALTER DATABASE {name} SET {setting} = '{value}'".encode())


@pytest.mark.rule("L2")
@pytest.mark.parametrize("level", ["off", "local", "remote_write"])
def test_a_database_whose_commits_are_not_durable_is_made_durable(open_ledger: Open, database: str, level: str) -> None:
    open_ledger().append(entry("first"))
    settings(database, synchronous_commit=level)
    with psycopg.connect(database, autocommit=True) as seer:
        assert seer.execute("SHOW synchronous_commit").fetchone() == (level,)
        # What is in force when the commit comes, as the server itself sees it.
        seer.execute("CREATE TABLE seen (level text)")
        seer.execute(
            "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN INSERT INTO public.seen VALUES (current_setting(''synchronous_commit'')); RETURN NULL; END'"
        )
        seer.execute(
            "CREATE CONSTRAINT TRIGGER see AFTER INSERT ON counterfoil.record"
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION see()"
        )
        ledger = open_ledger()
        epoch = ledger.register("x")
        for number in range(3):
            ledger.append(intent(f"slot-{number}", epoch))
        assert seer.execute("SELECT level FROM seen").fetchall() == [("on",)] * 3


@pytest.mark.rule("L1", "L3")
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@BOTH
def test_a_stricter_default_isolation_changes_no_answer(open_ledger: Open, database: str, level: str) -> None:
    open_ledger().append(entry("first"))
    settings(database, default_transaction_isolation=level)
    ledgers = [open_ledger() for _ in range(4)]
    epochs = [ledger.register(f"life {n}") for n, ledger in enumerate(ledgers)]

    together = threading.Barrier(4)

    def contest(n: int) -> dict[int, tuple[str, int]]:
        found = {}
        for number in random.Random(n).sample(range(60), 60):
            found[number] = answer(ledgers[n], intent(f"slot-{number}", epochs[n]))[0]
            if len(found) == 1:
                # The first of each is a slot of its own: everybody has won one, however slow he is.
                together.wait(PATIENCE_S)
        return {number: (record.epoch, record.append_id) for number, record in found.items()}

    doing = [Doing(partial(contest, n)) for n in range(4)]
    results = [each.result() for each in doing]
    assert all(result == results[0] for result in results)
    assert {epoch for epoch, _ in results[0].values()} == set(epochs)


@pytest.mark.rule("L3")
def test_a_lock_that_is_not_given_in_time_is_a_definite_no(open_ledger: Open, database: str) -> None:
    ledger = open_ledger()
    epoch = ledger.register("x")
    ledger.append(entry("before", epoch))
    with psycopg.connect(database) as holder:
        holder.execute("SELECT FROM counterfoil.run FOR UPDATE")
        ledger._pool.timeout_s, ledger._writer._lock_s = 1.0, 0.7
        with pytest.raises(LedgerUnavailable) as refused:
            ledger.append(intent("slot", epoch))
        holder.rollback()
    ledger._pool.timeout_s = PATIENCE_S
    if refused.value.effect_ran == "no":
        assert refused.value.hint
        time.sleep(0.5)
        assert [record.slot for record in ledger.read("n", "run")] == ["before"]
    record, _ = answer(ledger, intent("slot", epoch))
    assert record.slot == "slot"


@pytest.mark.rule("L3")
@pytest.mark.parametrize("setting", ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"])
def test_time_outs_of_the_database_end_in_a_definite_answer(open_ledger: Open, database: str, setting: str) -> None:
    ledger = open_ledger()
    epoch = ledger.register("x")
    ledger.append(entry("before", epoch))
    lives: list[tuple[Any, str]] = []
    # What is cut short by it while the ledger is opened is a definite no as well, and not what is looked for here.
    for time_ms in tries(lambda: lives, (300, 1200, 5000, 20_000)):
        settings(database, **{setting: f"{time_ms}ms"})
        with suppress(LedgerUnavailable):
            ledger = open_ledger()
            lives.append((ledger, ledger.register("y")))
    ((ledger, epoch),) = lives
    mine = intent("slot", epoch)
    with psycopg.connect(database, options=f"-c {setting}=0") as holder:
        holder.execute("SELECT FROM counterfoil.run FOR UPDATE")
        appending = Doing(lambda: answer(ledger, mine))
        refused = None
        if not appending.lasts(0.8):
            with pytest.raises(LedgerUnavailable) as refused:
                appending.result()
            assert refused.value.effect_ran == "no"
            assert refused.value.hint
        holder.rollback()
    settings(database, **{setting: "0"})
    record = answer(open_ledger(), mine)[0] if refused else appending.result()[0]
    assert (record.epoch, record.append_id) == (epoch, mine.append_id)


@pytest.mark.rule("L1", "L9")
@BOTH
def test_batches_that_cross_each_other_deadlock_nobody(open_ledger: Open, postgres: Cluster) -> None:
    ledgers = [open_ledger() for _ in range(3)]
    epochs = [ledger.register(f"life {n}") for n, ledger in enumerate(ledgers)]
    told: SimpleQueue[list[tuple[object, Any]]] = SimpleQueue()
    runs = [f"run-{n}" for n in range(40)]
    for n, ledger in enumerate(ledgers):
        order = runs if n == 0 else runs[::-1] if n == 1 else runs[20:] + runs[:20]
        for run in order:
            ledger.submit(intent("slot", epochs[n], run=run), settle=False, token=(n, run), deliver=told.put)
    answers: dict[Any, list[Any]] = {run: [] for run in runs}
    count = 0
    while count < len(ledgers) * len(runs):
        for token, reply in told.get(timeout=PATIENCE_S):
            assert isinstance(token, tuple)
            if getattr(reply, "code", None) == "ledger-busy":
                # Who held it stood still for long: a definite no, and no deadlock.
                n, run = token
                ledgers[n].submit(intent("slot", epochs[n], run=run), settle=False, token=token, deliver=told.put)
                continue
            assert not isinstance(reply, BaseException), reply
            answers[token[1]].append((reply.epoch, reply.append_id))
            count += 1
    assert all(len(set(found)) == 1 for found in answers.values())


@pytest.mark.rule("L1")
def test_a_deadlock_with_somebody_elses_transaction_is_tried_again(open_ledger: Open, database: str) -> None:
    ledger = open_ledger()
    epoch = ledger.register("x")
    for run in ("a", "b"):
        ledger.append(entry("before", epoch, run=run))
    told: SimpleQueue[list[tuple[object, Any]]] = SimpleQueue()
    settings(database, deadlock_timeout="100ms")
    ledger = open_ledger()
    ledger._writer._lock_s = PATIENCE_S
    with psycopg.connect(database) as other, psycopg.connect(database, autocommit=True) as seer:
        other.execute("SELECT FROM counterfoil.run WHERE run = 'b' FOR UPDATE")
        # One commit locks a, then waits for b.
        for run in ("a", "b"):
            ledger.submit(intent("slot", epoch, run=run), settle=False, token=run, deliver=told.put)
        until(lambda: seer.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall())
        crossing = Doing(lambda: other.execute("SELECT FROM counterfoil.run WHERE run = 'a' FOR UPDATE"))
        try:
            crossing.result()
        except psycopg.errors.DeadlockDetected:
            other.rollback()
        other.rollback()
    replies: dict[object, Any] = {}
    while len(replies) < 2:
        replies.update(told.get(timeout=PATIENCE_S))
    for where, reply in replies.items():
        assert not isinstance(reply, BaseException), (where, reply)


@pytest.mark.rule("L3", "E20")
def test_a_server_without_a_free_connection_says_so_in_time_and_nothing_is_sent(
    postgres: Cluster, database: str
) -> None:
    name = database.rpartition("/")[2]
    user = f"few_{name}"
    postgres.execute(f"CREATE ROLE {user} LOGIN CONNECTION LIMIT 2", f"ALTER DATABASE {name} OWNER TO {user}")
    url = postgres.url(name, user=user)
    sent: list[str] = []
    try:
        with Runtime(url) as runtime, runtime.run("r") as run:
            run.step("a", lambda: 1)
        with ExitStack() as held:
            # The sessions of the life before end in their own time.
            sessions = f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{user}'"
            until(lambda: postgres.execute(sessions) == [(0,)])
            for _ in range(2):
                held.enter_context(psycopg.connect(url))
            began = time.monotonic()
            with pytest.raises(LedgerUnavailable) as refused, Runtime(url) as runtime, runtime.run("r") as run:
                run.effect("b", run=lambda: sent.append("sent"), reconcile=lambda: None)
            assert time.monotonic() - began < PATIENCE_S
            assert refused.value.effect_ran == "no"
            assert not sent
        until(lambda: postgres.execute(sessions) == [(0,)])
        with Runtime(url) as runtime, runtime.run("r") as run:
            assert isinstance(run.effect("b", run=lambda: "sent", reconcile=lambda: None), Accepted)
    finally:
        postgres.execute(f"ALTER DATABASE {name} OWNER TO postgres", f"ALTER ROLE {user} CONNECTION LIMIT -1")


@pytest.mark.rule("L3", "E20")
@BOTH
def test_a_database_that_takes_no_writes_is_read_only_and_nothing_is_sent(database: str, postgres_major: int) -> None:
    with Runtime(database) as runtime, runtime.run("r") as run:
        run.step("a", lambda: 1)
    settings(database, default_transaction_read_only="on")
    with Runtime(database) as runtime, runtime.run("r") as run:
        assert run.step("a", lambda: 2) == 1
        with pytest.raises(LedgerReadOnly) as refused:
            run.effect("b", run=lambda: "sent", reconcile=lambda: None)
    assert refused.value.effect_ran == "no"
    assert refused.value.hint
