"""Commits in PostgreSQL whose end is not known: each is settled by appending again, and never by looking."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import psycopg
import pytest

from counterfoil import Accepted, AsyncRuntime
from counterfoil.errors import CommitUnknown, LedgerUnavailable
from tests.ledgers.postgres_support import Doing, answer, opened, through, until
from tests.ledgers.support import entry, intent
from tests.servers.proxy import Act, On, Proxy
from tests.support import PATIENCE_S, eventually, tries

BOTH = pytest.mark.parametrize("postgres_major", [16, 18], indirect=True)
# The commit is the server's own, at the end of the question that fills the slot, so the question is what is met.
UNKNOWN = [Act.LOSE_REPLY, Act.LOSE_END, Act.CUT, Act.PASS_THEN_CUT]
APPENDS = 60
CANCEL_REQUEST = b"\x04\xd2\x16\x2e"

Open = Callable[..., Any]


@pytest.fixture
def open_ledger(database: str, proxy: Proxy) -> Iterator[Open]:
    """Opens ledgers in one database and closes them afterwards, while the proxy still stands."""
    made: list[Any] = []

    def open_one(url: str = database) -> Any:
        made.append(opened(url))
        return made[-1]

    yield open_one
    proxy.rule = None
    for ledger in made:
        ledger.close()


def recorded(ledger: Any) -> list[str]:
    return [record.slot for record in ledger.read("n", "run")]


def questions(sent: bytes) -> set[bytes]:
    """The first words of what was asked."""
    return {word for word in (b"SELECT", b"INSERT", b"UPDATE", b"DELETE", b"WITH") if word in sent.upper()}


@pytest.mark.rule("L3")
@pytest.mark.parametrize("act", UNKNOWN, ids=lambda act: act.name.lower())
@BOTH
def test_a_commit_or_its_reply_is_lost_and_the_append_is_settled(
    open_ledger: Open, database: str, proxy: Proxy, act: Act
) -> None:
    ledger, other = open_ledger(through(proxy, database)), open_ledger()
    epoch = ledger.register("x")
    ledger.append(entry("before", epoch))
    for number in range(5):
        mine = intent(f"lost-{number}", epoch)
        proxy.rule = rule = On(rb"lost-", act, times=1)
        record, _ = answer(ledger, mine)
        assert rule.links, "the rule met nothing"
        assert (record.epoch, record.append_id, record.slot) == (epoch, mine.append_id, f"lost-{number}")
    assert recorded(other) == ["before", *[f"lost-{number}" for number in range(5)]]


@pytest.mark.rule("L3")
@pytest.mark.parametrize("act", [Act.LOSE_REPLY, Act.CUT], ids=lambda act: act.name.lower())
def test_somebody_elses_record_wins_while_the_answer_is_lost(
    open_ledger: Open, database: str, proxy: Proxy, act: Act
) -> None:
    ledger, other = open_ledger(through(proxy, database)), open_ledger()
    epoch = ledger.register("x")
    theirs = other.append(intent("lost", other.register("y")))
    proxy.rule = rule = On(rb"lost", act, times=1)
    record, _ = answer(ledger, intent("lost", epoch))
    assert rule.links
    assert record == theirs


@pytest.mark.rule("L3")
@BOTH
@pytest.mark.parametrize("lands", [True, False], ids=["lands", "vanishes"])
def test_settling_waits_for_a_transaction_that_nobody_can_see(
    open_ledger: Open, database: str, proxy: Proxy, lands: bool
) -> None:
    # The client has gone, its transaction holds the slot's key, and whether it will commit is open.
    ledger = open_ledger(through(proxy, database))
    epoch = ledger.register("x")
    ledger.append(entry("before", epoch))
    mine = intent("lost", epoch)
    with psycopg.connect(database) as blocker:
        with blocker.cursor() as cursor:
            lock = "SELECT FROM counterfoil.run WHERE run = 'run' FOR UPDATE"
            cursor.execute(lock)
            proxy.rule = On(rb"lost", Act.PASS_THEN_CUT, times=1)
            appending = Doing(lambda: answer(ledger, mine))
            assert appending.lasts(0.5)
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            with psycopg.connect(database, autocommit=True) as seer:
                until(lambda: (seer.execute(waiting).fetchone() or (0,))[0] >= 1)
            if not lands:
                with psycopg.connect(database, autocommit=True) as killer:
                    killer.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
                    )
        blocker.rollback()
    record, _ = appending.result()
    assert (record.epoch, record.append_id) == (epoch, mine.append_id)
    assert recorded(ledger).count("lost") == 1


@pytest.mark.rule("L3")
def test_what_is_unknown_is_settled_by_a_question_that_writes_and_never_by_looking(
    open_ledger: Open, database: str, proxy: Proxy
) -> None:
    ledger = open_ledger(through(proxy, database))
    epoch = ledger.register("x")
    ledger.append(entry("before", epoch))
    with psycopg.connect(database, autocommit=True) as seer:
        xact = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
        proxy.rule = On(rb"lost", Act.LOSE_REPLY, times=1)
        links = len(proxy.links)
        with pytest.raises(CommitUnknown):
            ledger.append(intent("lost", epoch, append_id=77))
        (before,) = seer.execute(xact).fetchone() or (0,)
        record = ledger.append(intent("lost", epoch, append_id=77), settle=True)
        (after,) = seer.execute(xact).fetchone() or (0,)
    assert record.append_id == 77
    # A transaction that writes takes an id; the settling one is the only one there was.
    assert after > before
    settling = b"".join(bytes(link.sent) for link in proxy.links[links:])
    assert b"lost" in settling
    assert b".record" not in settling


@pytest.mark.rule("L3", "L2")
@BOTH
def test_a_backend_that_is_terminated_while_it_appends_leaves_nothing_unsettled(
    open_ledger: Open, database: str
) -> None:
    ledger, other = open_ledger(), open_ledger()
    epoch = ledger.register("x")
    stopped = threading.Event()
    kills = [0]

    def kill_at_random() -> None:
        with psycopg.connect(database, autocommit=True) as killer:
            while not stopped.is_set():
                found = killer.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                    " AND pid <> pg_backend_pid() AND query LIKE '%append%' ORDER BY random() LIMIT 1"
                ).fetchall()
                kills[0] += len(found)
                time.sleep(0.01)

    killing = Doing(kill_at_random)
    answers: list[tuple[str, bool]] = []
    give_up = time.monotonic() + PATIENCE_S
    while len(answers) < APPENDS or (not kills[0] and time.monotonic() < give_up):
        mine = intent(f"slot-{len(answers)}", epoch)
        record, _ = answer(ledger, mine)
        answers.append((record.slot, record.append_id == mine.append_id))
    stopped.set()
    killing.result()
    assert kills[0] > 0
    slots = [f"slot-{number}" for number in range(len(answers))]
    assert answers == [(slot, True) for slot in slots]
    assert recorded(other) == slots


@pytest.mark.rule("L3")
def test_a_server_that_does_not_answer_leaves_it_unknown_and_never_hangs(
    open_ledger: Open, database: str, proxy: Proxy
) -> None:
    ledger = open_ledger(through(proxy, database))
    epoch = ledger.register("x")
    proxy.rule = rule = On(rb"lost", Act.SWALLOW_REPLY, times=1)
    mine = intent("lost", epoch)
    for time_s in tries(lambda: rule.links, (1.0, 5.0, 20.0)):
        ledger._pool.timeout_s = time_s
        with pytest.raises(LedgerUnavailable) as unknown:
            ledger.append(mine)
        assert unknown.value.effect_ran == ("unknown" if rule.links else "no")
        assert isinstance(unknown.value, CommitUnknown) == bool(rule.links)
    ledger._pool.timeout_s = PATIENCE_S
    record, _ = answer(ledger, mine)
    assert record.append_id == mine.append_id


@pytest.mark.rule("L3", "E10")
async def test_a_cancelled_caller_never_cuts_a_commit(database: str, proxy: Proxy) -> None:
    sent: list[str] = []

    def send(ctx: Any) -> str:
        sent.append(ctx.key)
        return "item-1"

    async with AsyncRuntime(through(proxy, database)) as runtime:
        async with runtime.run("first") as run:
            await run.step("warm", lambda: 1)
        links = len(proxy.links)
        proxy.rule = On(rb"effect/charge", Act.STALL, times=1)
        async with runtime.run("r") as run:
            caller = asyncio.create_task(run.effect("charge", run=send, reconcile=lambda: None))
            await eventually(lambda: proxy.stalled)
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            assert sent == []
            proxy.resume()
        # Leaving the run waited for the effect that had begun.
        assert len(sent) == 1
        async with runtime.run("r") as run:
            outcome = await run.effect("charge", run=send, reconcile=lambda: None)
        assert isinstance(outcome, Accepted)
    assert outcome.via == "run"
    assert len(sent) == 1
    assert CANCEL_REQUEST not in proxy.sent
    assert not any(link.cut for link in proxy.links[:links])


@pytest.mark.rule("L3", "L9")
def test_every_append_of_a_lost_batch_is_settled_in_order(open_ledger: Open, database: str, proxy: Proxy) -> None:
    ledger = open_ledger(through(proxy, database))
    epoch = ledger.register("x")
    ledger.append(entry("before", epoch))
    told: SimpleQueue[list[tuple[object, Any]]] = SimpleQueue()
    proxy.rule = rule = On(rb"batch-", Act.LOSE_REPLY, times=2)
    waiting = {n: intent(f"batch-{n}", epoch) for n in range(60)}
    for n, each in waiting.items():
        ledger.submit(each, settle=False, token=n, deliver=told.put)
    records: dict[int, Any] = {}
    give_up = time.monotonic() + PATIENCE_S
    while len(records) < 60 and time.monotonic() < give_up:
        for token, reply in told.get(timeout=PATIENCE_S):
            assert isinstance(token, int)
            if isinstance(reply, CommitUnknown):
                ledger.submit(waiting[token], settle=True, token=token, deliver=told.put)
            else:
                records[token] = reply
    assert rule.links
    assert {n: record.append_id for n, record in records.items()} == {n: e.append_id for n, e in waiting.items()}
    positions = [records[n].position for n in range(60)]
    assert sorted(positions) == sorted(set(positions))


@pytest.mark.rule("E20")
def test_a_read_whose_connection_is_lost_is_done_once_more(open_ledger: Open, database: str, proxy: Proxy) -> None:
    ledger = open_ledger(through(proxy, database))
    ledger.append(entry("before"))
    for times in (1, 2):
        proxy.rule = rule = On(rb"\.record", Act.CUT, times=times)
        if times == 1:
            assert recorded(ledger) == ["before"]
        else:
            with pytest.raises(LedgerUnavailable) as lost:
                recorded(ledger)
            # What callers see has a public name.
            assert type(lost.value) is LedgerUnavailable
        assert len(rule.links) == times
