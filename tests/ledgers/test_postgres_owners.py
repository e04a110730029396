"""Owners in PostgreSQL: who beats lives, who falls silent is retired, and no clock of any machine matters."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import psycopg
import pytest

from counterfoil import Accepted, AsyncRuntime, Runtime
from counterfoil.errors import LedgerUnavailable, OwnerRetired
from counterfoil.ledgers.watch import BEATS, Watch
from tests.ledgers.postgres_support import Doing, opened, through, until
from tests.ledgers.support import end, entry, intent, line, outcome, python
from tests.servers.proxy import Proxy, lose_reply
from tests.support import tries

BEAT_S = 0.2
# For who must not miss three of them.
SLOWER_S = (0.2, 0.8, 3.0)
_schemas = count(1)

Open = Callable[..., Any]


@pytest.fixture
def url(shared_database: str) -> str:
    """A ledger of its own, whose owners beat fast."""
    return f"{shared_database}?schema=owners_{next(_schemas)}&beat={BEAT_S}"


@pytest.fixture
def open_ledger(url: str, proxy: Proxy) -> Iterator[Open]:
    """Opens ledgers and closes them afterwards, while the proxy still stands."""
    made: list[Any] = []

    def open_one(where: str = url) -> Any:
        made.append(opened(where))
        return made[-1]

    yield open_one
    proxy.rule = None
    for ledger in made:
        ledger.close()


def silence(ledger: Any) -> None:
    """Stop an owner's heart, as if its process hung."""
    ledger._lives._heart.stop()


def seconds_until_gone(observer: Any, epoch: str) -> float:
    """How long it took to find a life gone, from the first look at it."""
    began = time.monotonic()
    until(lambda: observer.gone(epoch))
    return time.monotonic() - began


def lives_on(observer: Any, epoch: str, *, seconds: float) -> bool:
    """Whether a life is not found gone for so long, and leaves its heart time to beat in between."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        if observer.gone(epoch):
            return False
        time.sleep(0.02)
    return True


LIFE = """
import sys
from counterfoil.ledgers.urls import parse
ledger = parse(sys.argv[1]).open()
print(ledger.register("victim"))
sys.stdin.read()
"""


@pytest.mark.rule("L7")
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGSTOP])
def test_a_life_that_falls_silent_is_gone_after_three_beats_and_not_before(open_ledger, url, ending):
    process = python(LIFE, url)
    epoch = line(process)
    observer = open_ledger()
    process.send_signal(ending)
    assert seconds_until_gone(observer, epoch) >= (BEATS - 1) * BEAT_S
    with pytest.raises(OwnerRetired):
        observer.append(intent("slot", epoch))
    assert epoch not in [owner.epoch for owner in observer.owners()]
    end(process)


@pytest.mark.rule("L7")
def test_a_life_that_beats_is_never_taken_for_gone(open_ledger, url):
    observer = open_ledger()
    lived: list[bool] = []
    # Where its heart stands still for three beats it is not what this test is about.
    for beat_s in tries(lambda: lived[-1], SLOWER_S):
        living = open_ledger(url.replace(f"beat={BEAT_S}", f"beat={beat_s}"))
        epoch = living.register("living")
        lived.append(lives_on(observer, epoch, seconds=2 * BEATS * beat_s))
        if lived[-1]:
            assert [owner.label for owner in observer.owners()] == ["living"]
            assert living.live(epoch)


@pytest.mark.rule("L7")
def test_a_life_that_is_closed_is_gone_at_once(open_ledger):
    closed, observer = open_ledger(), open_ledger()
    epoch = closed.register("closed")
    assert not observer.gone(epoch)
    closed.close()
    assert observer.gone(epoch)


@pytest.mark.rule("L7")
def test_who_asks_once_in_a_while_is_told_what_the_heart_has_watched(open_ledger):
    silent, observer = open_ledger(), open_ledger()
    epoch = silent.register("silent")
    silence(silent)
    assert not observer.gone(epoch)
    until(lambda: observer._lives._watch.silent_s(epoch) >= BEATS * BEAT_S)
    assert observer.gone(epoch)


@pytest.mark.rule("L7", "L8")
def test_a_retired_life_keeps_facts_only(open_ledger):
    silent, observer = open_ledger(), open_ledger()
    epoch = silent.register("silent")
    silence(silent)
    seconds_until_gone(observer, epoch)
    assert not silent.live(epoch)
    with pytest.raises(OwnerRetired):
        silent.append(intent("decision", epoch))
    assert silent.append(entry("fact", epoch)).epoch == epoch
    assert [record.slot for record in observer.read("n", "run")] == ["fact"]


@pytest.mark.rule("L7")
def test_the_clocks_of_machines_do_not_matter(open_ledger, url, monkeypatch):
    living, silent, observer = open_ledger(url.replace(f"beat={BEAT_S}", "beat=60")), open_ledger(), open_ledger()
    lives, dies = living.register("living"), silent.register("silent")
    silence(silent)
    ten_years_s = 10 * 366 * 86_400
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + ten_years_s)
    assert not observer.gone(lives)
    seconds_until_gone(observer, dies)
    assert not observer.gone(lives)
    monkeypatch.setattr(time, "time", lambda: real() - ten_years_s)
    assert not observer.gone(lives)


@pytest.mark.rule("L7")
def test_time_in_which_the_observer_could_not_look_does_not_count(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch = Watch()
    for at, count_, gone in ((0, 7, False), (3600, 7, False), (3605, 7, False), (3610, 7, True), (3611, 8, False)):
        now[0] = float(at)
        assert watch.look("epoch", count_, 5.0) is gone
    watch.keep_only(set())
    now[0] += 5
    assert not watch.look("epoch", 8, 5.0)


@pytest.mark.rule("L7")
def test_an_intent_that_came_first_is_committed_before_its_owner_is_retired(open_ledger, url, shared_database):
    silent, observer = open_ledger(), open_ledger()
    epoch = silent.register("silent")
    silence(silent)
    with psycopg.connect(shared_database) as connection:
        # What an intent does to its owner's row, in a transaction that takes its time.
        schema = url.partition("schema=")[2].partition("&")[0]
        locked = connection.execute(
            f"SELECT retired FROM {schema}.owner WHERE epoch = %s FOR SHARE".encode(), (epoch,)
        ).fetchall()
        assert locked == [(0,)]
        retiring = Doing(lambda: seconds_until_gone(observer, epoch))
        assert retiring.lasts((BEATS + 3) * BEAT_S)
    retiring.result()


@pytest.mark.rule("L7")
def test_an_intent_that_comes_while_its_owner_is_being_retired_is_refused(open_ledger, url, shared_database):
    ledger = open_ledger()
    epoch = ledger.register("retired meanwhile")
    schema = url.partition("schema=")[2].partition("&")[0]
    with psycopg.connect(shared_database) as connection:
        connection.execute(f"SELECT {schema}.retire(%s, NULL)".encode(), (epoch,))
        appending = Doing(lambda: ledger.append(intent("slot", epoch)))
        assert appending.lasts(0.3)
    with pytest.raises(OwnerRetired):
        appending.result()
    assert ledger.read("n", "run") == []


@pytest.mark.rule("L7")
def test_a_life_whose_beat_came_at_the_last_moment_is_not_retired(open_ledger, url, shared_database):
    ledger = open_ledger()
    epoch = ledger.register("slow")
    schema = url.partition("schema=")[2].partition("&")[0]
    with psycopg.connect(shared_database, autocommit=True) as connection:
        (beats,) = connection.execute(f"SELECT count FROM {schema}.beat".encode()).fetchone() or (0,)
        until(lambda: connection.execute(f"SELECT count > {beats} FROM {schema}.beat".encode()).fetchone() == (True,))
        retired = connection.execute(f"SELECT {schema}.retire(%s, %s)".encode(), (epoch, beats)).fetchone()
    assert retired == (False,)
    assert ledger.live(epoch)


@pytest.mark.rule("L7")
def test_a_process_that_finds_itself_retired_registers_afresh_and_goes_on(open_ledger, url):
    observer = open_ledger()
    sent: list[str] = []

    def send(ctx: Any) -> str:
        sent.append(ctx.key)
        return "sent"

    with Runtime(url) as runtime:
        run = runtime.run("r").__enter__()
        run.effect("first", run=send, reconcile=lambda: None)
        (epoch,) = runtime._session.own_epochs
        silence(runtime.ledger)
        seconds_until_gone(observer, epoch)
        with pytest.raises(OwnerRetired):
            run.effect("second", run=send, reconcile=lambda: None)
        with runtime.run("r") as again:
            assert isinstance(again.effect("second", run=send, reconcile=lambda: None), Accepted)
        assert len(runtime._session.own_epochs) == 2
    assert len(sent) == 2


@pytest.mark.rule("L7")
async def test_so_does_one_on_a_loop(open_ledger, url):
    observer = open_ledger()

    async def send() -> str:
        return "sent"

    async with AsyncRuntime(url) as runtime:
        async with runtime.run("r") as run:
            await run.effect("first", run=send, reconcile=send)
        (epoch,) = runtime._session.own_epochs
        silence(runtime.ledger)
        seconds_until_gone(observer, epoch)
        async with runtime.run("r") as again:
            with pytest.raises(OwnerRetired):
                await again.effect("second", run=send, reconcile=send)
        async with runtime.run("r") as again:
            assert isinstance(await again.effect("second", run=send, reconcile=send), Accepted)


@pytest.mark.rule("L7")
def test_a_heart_goes_on_when_its_connection_was_cut(open_ledger, url, proxy):
    observer = open_ledger()
    lived: list[bool] = []
    for beat_s in tries(lambda: lived[-1], SLOWER_S):
        living = open_ledger(through(proxy, url.replace(f"beat={BEAT_S}", f"beat={beat_s}")))
        epoch = living.register("living")
        for _ in range(3):
            time.sleep(beat_s)
            proxy.cut()
        lived.append(lives_on(observer, epoch, seconds=2 * BEATS * beat_s))


@pytest.mark.rule("L7")
def test_a_registration_whose_answer_was_lost_is_made_once(open_ledger, url, proxy):
    ledger = open_ledger(through(proxy, url))
    proxy.rule = lose_reply(rb"\.register\(", times=1)
    epoch = ledger.register("once")
    assert [owner.epoch for owner in open_ledger().owners()] == [epoch]


@pytest.mark.rule("L7")
def test_an_owner_that_cannot_be_retired_now_counts_as_alive(open_ledger, url, proxy):
    silent, observer = open_ledger(), open_ledger(through(proxy, url) + "&pool=1")
    epoch = silent.register("silent")
    silence(silent)
    proxy.rule = lose_reply(rb"\.retire\(")
    with pytest.raises(LedgerUnavailable) as refused:
        until(lambda: observer.gone(epoch))
    assert refused.value.effect_ran == "no"
    proxy.rule = None
    until(lambda: observer.gone(epoch))


@pytest.mark.rule("L12")
def test_a_forked_child_is_refused_and_its_parent_is_unharmed(url):
    script = """
import os, sys
from counterfoil.errors import ForkedLedger
from counterfoil.ledgers.urls import parse
from tests.ledgers.support import entry
ledger = parse(sys.argv[1]).open()
epoch = ledger.register("parent")
ledger.append(entry("before", epoch))
ledger.changes(-1)
def sessions():
    return [connection.pgconn.backend_pid for connection in ledger._pool._free if connection is not None]
before = sessions()
for round in range(3):
    child = os.fork()
    if child == 0:
        uses = [lambda: ledger.append(entry("child", epoch)), lambda: ledger.read("n", "run"),
                lambda: ledger.gone("1.0"), lambda: ledger.register("child"),
                lambda: ledger.changes(-1), lambda: ledger.live(epoch)]
        refused = 0
        for use in uses:
            try:
                use()
            except ForkedLedger:
                refused += 1
        ledger.close()
        sys.exit(0 if refused == len(uses) else 1)  # an orderly end: whatever is collected is collected
    assert os.waitpid(child, 0)[1] == 0
    ledger.append(entry(f"after {round}", epoch))
assert ledger.live(epoch)
assert sessions() == before, "a child has said goodbye for its parent"
print([record.slot for record in ledger.read("n", "run")])
"""
    said = outcome(python(script, url))
    assert said.strip() == "['before', 'after 0', 'after 1', 'after 2']"


@pytest.mark.rule("L7")
def test_a_ledger_that_nobody_closed_beats_no_longer_than_it_lives(open_ledger, url):
    observer = open_ledger()
    script = """
import gc, sys, threading
from counterfoil.ledgers.urls import parse
ledger = parse(sys.argv[1]).open()
epoch = ledger.register("forgotten")
del ledger
gc.collect()
print(epoch, any("heart" in thread.name and not thread.daemon for thread in threading.enumerate()))
sys.stdin.read()
"""
    process = python(script, url)
    epoch, _, left = line(process).partition(" ")
    assert left == "False"
    seconds_until_gone(observer, epoch)
    end(process)
