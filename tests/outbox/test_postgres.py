"""The outbox on PostgreSQL when the wire breaks (L3, T4, X3, X4), behind a pooler (X14), on 16, and through Django."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import psycopg
import pytest

from counterfoil import LedgerUnavailable, Outbox, Runtime
from counterfoil.ledgers.postgres import outbox as postgres_outbox
from counterfoil.ledgers.postgres import outbox_staging, outbox_turn
from counterfoil.runtime import dispatching
from tests.ledgers.postgres_support import Doing, through, until
from tests.outbox.lives import Life
from tests.outbox.shop import ACT, BEAT_S, PostgresShop
from tests.servers.proxy import Act, Link, On, Piece, Proxy
from tests.support import PATIENCE_S

COMMIT = rb"COMMIT"
LOST = [Act.LOSE_REPLY, Act.LOSE_END, Act.CUT, Act.PASS_THEN_CUT]
lost = pytest.mark.parametrize("act", LOST, ids=lambda act: act.name.lower())

# What `dispatch` does where one intent is claimed, of what has been due since a moment, and nothing else.
CLAIM = (
    "SELECT * FROM :schema.dispatch(%s, NULL, %s::float8, '{}', '{}', '{}', '{}', '{}', '{}',"
    " '{send}', '{mail}', '{send}', ARRAY[%s::float8], '{1}', 1, '{}', '{}', '{}', '{}')"
)

_numbers = count(1)


class Script:
    """A rule: what becomes of the first requests that are a COMMIT, one after the other."""

    def __init__(self, *acts: Act) -> None:
        self.left = list(acts)
        self.links: list[Link] = []
        self._lock = threading.Lock()

    def __call__(self, piece: Piece) -> Act:
        if not piece.request or COMMIT not in piece.data:
            return Act.PASS
        with self._lock:
            if not self.left:
                return Act.PASS
            self.links.append(piece.link)
            return self.left.pop(0)


@pytest.fixture
def wired(server: PostgresShop, proxy: Proxy) -> Iterator[PostgresShop]:
    """A shop whose dispatchers reach the server through the proxy; the judge does not."""
    server.url = f"{through(proxy, server.database)}?schema=cf_{server.name}&beat={BEAT_S}&timeout=60&pool=1"
    yield server
    proxy.rule = None
    proxy.resume()


def claiming(shop: PostgresShop) -> bytes:
    return CLAIM.replace(":schema", f"cf_{shop.name}").encode()


def counted(shop: PostgresShop, what: str) -> int:
    with psycopg.connect(shop.database) as connection:
        found = connection.execute(f"SELECT count(*) FROM cf_{shop.name}.{what}".encode()).fetchone()
    assert found is not None
    return int(found[0])


# --- a dispatcher's COMMIT is lost


@lost
@pytest.mark.rule("L3", "X3", "X4")
def test_whichever_commit_of_a_dispatcher_is_lost_everything_is_sent_once_and_known(
    wired: PostgresShop, proxy: Proxy, act: Act
) -> None:
    number = 0
    while True:
        number += 1
        for letter in "ab":
            wired.order(f"{letter}{number}", lane="L")
        life = Life(wired, "mail")
        # Registering the life is the ledger's; what the outbox writes comes after it.
        _ = life.epoch
        proxy.rule = rule = On(COMMIT, act, times=1, skip=number - 1)
        give_up = time.monotonic() + PATIENCE_S
        while not wired.receipt(f"b{number}").settled and time.monotonic() < give_up:
            life.settle(pause_s=0.01)
        proxy.rule = None
        life.runtime.__exit__(None, None, None)
        for letter in "ab":
            receipt = wired.receipt(f"{letter}{number}")
            assert (receipt.state, receipt.attempts) == ("accepted", 1)
            assert wired.box.sends(f"{letter}{number}") == 1
        if not rule.links:
            break
    assert number > 4
    assert counted(wired, "sending WHERE kind = 'revocation'") == 0


@pytest.mark.rule("L3", "X4")
@pytest.mark.parametrize(
    ("acts", "stands"),
    [
        ([Act.CUT, Act.LOSE_REPLY], False),
        ([Act.CUT, Act.CUT, Act.LOSE_END], False),
        ([Act.LOSE_REPLY, Act.LOSE_REPLY, Act.CUT], True),
    ],
    ids=["never-came", "never-came-and-again", "came"],
)
def test_an_answer_about_a_lost_commit_that_is_lost_too_does_not_change(
    wired: PostgresShop, proxy: Proxy, acts: list[Act], stands: bool
) -> None:
    wired.order("o1")
    life = Life(wired, "mail")
    _ = life.epoch
    engine = life.engine
    engine.turn()
    claimed = counted(wired, "attempt")
    assert (engine.in_hand, claimed) == (1, 1)
    # The transaction that takes the send-right.
    proxy.rule = rule = Script(*acts)
    jobs, _ = engine.turn()
    assert not rule.left
    assert counted(wired, "sending") == stands
    # Nothing is called on the strength of a right that is not there.
    assert len(jobs) == stands
    proxy.rule = None
    life.jobs = jobs
    life.settle(pause_s=0.02)
    life.runtime.__exit__(None, None, None)
    assert (wired.receipt("o1").state, wired.box.sends("o1")) == ("accepted", 1)


@pytest.mark.rule("L3", "X4")
@pytest.mark.parametrize("lands", [True, False], ids=["lands", "vanishes"])
def test_a_right_whose_commit_is_still_on_its_way_is_waited_for(wired: PostgresShop, proxy: Proxy, lands: bool) -> None:
    wired.order("o1")
    life = Life(wired, "mail")
    life.engine.turn()
    proxy.rule = On(COMMIT, Act.HOLD, times=1)
    before = len(proxy.links)
    turn = Doing(life.engine.turn)
    # No look can see into the transaction that is still open: the slot alone answers, and not before it is decided.
    until(wired.held_up)
    assert not turn.done
    assert counted(wired, "sending") == 0
    if lands:
        proxy.resume()
    else:
        with psycopg.connect(wired.database, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'"
                " AND query LIKE 'SELECT %dispatch(%'"
            )
    jobs, _ = turn.result()
    proxy.rule = None
    proxy.resume()
    assert len(jobs) == lands
    assert counted(wired, "sending") == lands
    asked = b"".join(bytes(link.sent) for link in proxy.links[before:])
    assert b"ON CONFLICT (epoch, number) DO UPDATE" in asked
    assert b"FROM :schema.turn" not in asked
    life.jobs = jobs
    life.settle(pause_s=0.02)
    life.runtime.__exit__(None, None, None)
    assert (wired.receipt("o1").state, wired.box.sends("o1")) == ("accepted", 1)


@pytest.mark.rule("L3", "X5")
def test_a_life_that_never_learns_how_its_commit_ended_ends(
    wired: PostgresShop, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_outbox, "SETTLE_S", 0.3)
    wired.order("o1")
    life = Life(wired, "mail")
    life.engine.turn()
    proxy.rule = On(COMMIT, Act.LOSE_REPLY)
    with pytest.raises(LedgerUnavailable) as caught:
        life.engine.turn()
    assert caught.value.effect_ran == "unknown"
    assert wired.box.log == []
    proxy.rule = None
    life.crash()
    # The right was taken, and nobody can know that nothing was sent.
    wired.dispatch("mail")
    receipt = wired.receipt("o1")
    assert (receipt.state, wired.box.sends("o1"), wired.box.asked) == ("needs-operator", 0, ["o1"])


@lost
@pytest.mark.rule("L3", "X15")
def test_an_act_whose_commit_is_lost_is_done_once_and_said_so(wired: PostgresShop, proxy: Proxy, act: Act) -> None:
    wired.order("o1")
    with Outbox(wired.url) as outbox:
        outbox.pause(**ACT)
        proxy.rule = rule = On(COMMIT, act, times=1)
        told: list[str] = []
        try:
            outbox.resume(**ACT)
        except LedgerUnavailable as error:
            told.append(error.effect_ran)
            outbox.resume(**ACT)
        assert rule.links
    # It is never unknown, and what was said not to be done was not.
    assert told in ([], ["no"])
    assert (act is Act.CUT) <= (told == ["no"])
    assert (act in (Act.LOSE_REPLY, Act.LOSE_END)) <= (told == [])
    assert counted(wired, "act") == 2
    assert counted(wired, "pause") == 0


# --- the application's COMMIT is lost


@lost
@pytest.mark.rule("T1", "T2", "X1", "X2")
def test_row_and_intent_stand_together_when_the_applications_commit_is_lost(
    wired: PostgresShop, proxy: Proxy, act: Act
) -> None:
    with psycopg.connect(through(proxy, wired.database), options=f"-csearch_path={wired.name}") as connection:
        connection.execute("INSERT INTO orders (id) VALUES ('o1')")
        wired.outbox.stage(connection, wired.operation("o1"), key="o1", lane="L")
        proxy.rule = On(COMMIT, act, times=1)
        # Passed on before the cut, the server may even be quick enough to answer.
        answered = contextlib.suppress if act is Act.PASS_THEN_CUT else pytest.raises
        with answered(psycopg.OperationalError):
            connection.commit()
    proxy.rule = None
    until(lambda: counted(wired, "intent") == len(wired.orders()))
    assert (act is Act.CUT) <= (wired.orders() == set())
    assert (act in (Act.LOSE_REPLY, Act.LOSE_END)) <= (wired.orders() == {"o1"})
    # Whoever does not know stages again under the key; the place in the lane is not taken twice.
    with wired.transaction() as again:
        wired.outbox.stage(again, wired.operation("o1"), key="o1", lane="L")
        wired.outbox.stage(again, wired.operation("o2"), key="o2", lane="L")
    wired.dispatch("mail")
    assert [to for _, to in wired.box.log] == ["o1", "o2"]


@lost
@pytest.mark.rule("T1", "T4", "X2")
def test_a_transaction_of_a_run_stages_once_when_its_commit_is_lost(
    wired: PostgresShop, proxy: Proxy, act: Act
) -> None:
    staged: list[str] = []

    def body(connection: Any) -> None:
        connection.execute(f"INSERT INTO {wired.name}.orders (id) VALUES ('o1')")
        staged.append(wired.outbox.stage(connection, wired.operation("o1")).key)

    with Runtime(wired.url) as runtime, runtime.run("r") as run:
        run.step("before", lambda: 1)
        proxy.rule = rule = On(COMMIT, act, times=1)
        run.transaction("sell", body)
        assert rule.links
        proxy.rule = None
    assert len(set(staged)) == 1
    assert wired.orders() == {"o1"}
    assert counted(wired, "intent") == 1
    wired.dispatch("mail")
    assert wired.box.sends("o1") == 1


# --- lanes


@pytest.mark.rule("X11")
def test_two_transactions_that_begin_a_lane_at_once_take_turns(server: PostgresShop) -> None:
    with server.connected(autocommit=False) as first:
        server.outbox.stage(first, server.operation("a"), key="a", lane="new")
        second = Doing(lambda: server.order("b", lane="new"))
        until(server.held_up)
        first.commit()
        second.result()
    server.dispatch("mail")
    assert [to for _, to in server.box.log] == ["a", "b"]


@pytest.mark.rule("X11")
def test_every_transaction_holds_its_lane_until_its_end(server: PostgresShop) -> None:
    with server.connected(autocommit=False) as first, server.connected(autocommit=False) as second:
        server.outbox.stage(first, server.operation("a"), key="a", lane="new")
        staging = Doing(lambda: server.outbox.stage(second, server.operation("b"), key="b", lane="new"))
        until(server.held_up)
        first.commit()
        staging.result()
        third = Doing(lambda: server.order("c", lane="new"))
        until(server.held_up)
        second.commit()
        third.result()
    server.dispatch("mail")
    assert [to for _, to in server.box.log] == ["a", "b", "c"]


@pytest.mark.rule("X11")
def test_several_lanes_are_taken_in_sorted_order_whatever_order_they_are_staged_in(server: PostgresShop) -> None:
    def both(letter: str) -> None:
        with server.transaction() as connection:
            wanted = [(server.operation(letter + lane), {"key": letter + lane, "lane": lane}) for lane in "zma"]
            server.outbox.stage_many(connection, wanted)

    with server.connected(autocommit=False) as holder:
        server.outbox.stage(holder, server.operation("first"), key="first", lane="a")
        waiting = Doing(lambda: both("w"))
        until(server.held_up)
        # It waits for the first of its lanes, and has locked none of those that come after.
        server.order("free", lane="z")
        holder.commit()
        waiting.result()
    crossing = [Doing(lambda letter=letter: both(letter)) for letter in "cdefgh"]  # type: ignore[misc]
    for one in crossing:
        one.result()
    server.dispatch("mail")
    assert len(server.box.log) == 2 + 3 * 7


@pytest.mark.rule("X11", "X1")
def test_a_snapshot_that_is_older_than_its_lane_is_a_serialization_failure(server: PostgresShop) -> None:
    for begun in (False, True):
        if begun:
            server.order("a", lane="L")
        with server.connected() as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            connection.execute("SELECT 1")
            server.order(f"b{begun}", lane="L")
            with pytest.raises(psycopg.errors.SerializationFailure):
                server.outbox.stage(connection, server.operation("c"), key="c", lane="L")
            connection.execute("ROLLBACK")
    server.dispatch("mail")
    assert [to for _, to in server.box.log] == ["bFalse", "a", "bTrue"]


# --- one statement for a round


@pytest.mark.rule("L2", "X3")
@pytest.mark.parametrize("level", ["off", "local", "remote_write", "on", "remote_apply"])
def test_a_round_waits_for_the_disk_whatever_the_session_says(server: PostgresShop, level: str) -> None:
    life = Life(server, "mail")
    with psycopg.connect(server.database, autocommit=True) as connection:
        connection.execute(f"SET synchronous_commit = {level}".encode())
        connection.execute("BEGIN")
        connection.execute(claiming(server), (life.epoch, None, 0.0))
        said = connection.execute("SHOW synchronous_commit").fetchone()
        connection.execute("ROLLBACK")
    assert said == (level if level in ("on", "remote_apply") else "on",)


@pytest.mark.rule("X14", "X3")
def test_a_session_that_has_lost_its_statements_costs_a_round_and_no_intent(server: PostgresShop) -> None:
    life = Life(server, "mail")
    server.order("o1")
    life.settle()
    life.engine._opened.store.query("DEALLOCATE ALL")  # type: ignore[attr-defined]
    server.order("o2")
    life.settle(pause_s=0.01)
    assert [to for _, to in server.box.log] == ["o1", "o2"]
    assert server.receipt("o2").state == "accepted"


@pytest.mark.rule("X13")
def test_a_plan_that_was_made_for_an_empty_outbox_holds_for_a_large_one(server: PostgresShop) -> None:
    life = Life(server, "mail")
    server.order("first")
    with psycopg.connect(server.database, autocommit=True) as connection:

        def looked() -> int:
            connection.execute("BEGIN")
            now = life.engine._opened.store.now()
            explained = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + claiming(server)
            found: Any = connection.execute(explained, (life.epoch, now, 0.0)).fetchone()
            connection.execute("ROLLBACK")
            plan = found[0][0]["Plan"]
            return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])

        small = min(looked() for _ in range(3))
        cf = f"cf_{server.name}"
        connection.execute(
            f"WITH made AS (INSERT INTO {cf}.intent (effect_id, namespace, key, recipient, operation, format, body,"
            " fingerprint, on_stuck, generation, staged_at) SELECT effect_id || g, namespace, key || g, recipient,"
            " operation, format, body, fingerprint, on_stuck, generation, staged_at"
            f" FROM {cf}.intent, generate_series(1, 20000) g WHERE key = 'first' RETURNING seq)"
            f" INSERT INTO {cf}.ready (intent, kind, recipient, operation, format, due, not_before, state, since)"
            f" SELECT m.seq, kind, recipient, operation, format, due, not_before, state, since"
            f" FROM made m, {cf}.ready".encode()
        )
        assert looked() <= small + 10


# --- what is told to whom (X14)


@pytest.mark.rule("X14")
@pytest.mark.parametrize("lane", [None, "L"])
def test_nothing_is_notified_inside_the_applications_transaction(server: PostgresShop, lane: str | None) -> None:
    asked: list[str] = []

    class Watched(psycopg.Cursor[Any]):
        def execute(self, query: Any, *args: Any, **more: Any) -> Any:
            asked.append(query.decode() if isinstance(query, bytes) else str(query))
            return super().execute(query, *args, **more)

    with server.connected(autocommit=False, cursor_factory=Watched) as connection:
        server.outbox.stage(connection, server.operation("o1"), key="o1", lane=lane)
        found = connection.execute("SELECT pg_notification_queue_usage()").fetchone()
        assert found == (0.0,)
        assert len(asked) > 2
        assert "notify" not in "".join(asked).lower()
        triggers = "SELECT count(*) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid WHERE c.relname = 'intent'"
        assert connection.execute(triggers).fetchone() == (0,)


# --- a held snapshot (X13)


def pages(shop: PostgresShop, sql: str, parameters: Any) -> int:
    """How often a statement of the outbox looks at a page, by the indexes that it keeps to where tables are large."""
    with psycopg.connect(shop.database) as connection:
        connection.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
        statement = sql.replace(":schema", f"cf_{shop.name}")
        explained = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}".encode()
        # The first time it is planned, which looks at pages too.
        connection.execute(explained, parameters)
        found: Any = connection.execute(explained, parameters).fetchone()
        connection.rollback()
    plan = found[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


@pytest.mark.rule("X13")
def test_under_a_held_snapshot_nothing_is_looked_through_again_and_again(server: PostgresShop) -> None:
    def stage(letter: str, free: int, *, laned: int) -> None:
        for lane, many in ((None, free), ("L", laned)):
            wanted = [
                (server.operation(f"{letter}{lane}{n}"), {"key": f"{letter}{lane}{n}", "lane": lane})
                for n in range(many)
            ]
            with server.transaction() as connection:
                server.outbox.stage_many(connection, wanted)

    def costs(low: float) -> dict[str, int]:
        now = life.engine._opened.store.now()
        return {
            "claim": pages(server, CLAIM, (life.epoch, now, low)),
            "any due": pages(server, postgres_outbox._ANY_DUE, (["send"], ["mail"], [low], now)),
            "next due": pages(server, postgres_outbox._NEXT_DUE, ("send", "mail", low)),
            "head": pages(server, outbox_turn.HEAD, ("L",)),
            "advance": pages(server, outbox_turn._ADVANCE, (["L"], [at()], now)),
            "lock": pages(server, outbox_staging._LOCK, ("L", "L")),
            "place": pages(server, "SELECT coalesce(max(place), 0) + 1 FROM :schema.intent WHERE lane = %s", ("L",)),
        }

    def at() -> int:
        with psycopg.connect(server.database) as connection:
            found = connection.execute(outbox_turn.HEAD.replace(":schema", f"cf_{server.name}").encode(), ("L",))
            row = found.fetchone()
        return 1 if row is None else int(row[0])

    stage("a", 20, laned=20)
    life = Life(server, "mail", concurrency=200, batch=200)
    life.settle()
    with server.connected(autocommit=False) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM orders")
        low = life.engine._opened.store._low["send", "mail"]  # type: ignore[attr-defined]
        before = costs(low)
        for letter in "bcd":
            stage(letter, 200, laned=15)
            life.settle()
        # All of it is still there, dead: whoever looks from the start on has to pass it.
        low = life.engine._opened.store._low["send", "mail"]  # type: ignore[attr-defined]
        until(lambda: life.engine._opened.store.now() > low + 2.1 * outbox_turn.LOW_S)
        life.engine._sweep_at = 0.0
        life.engine.turn()
        assert life.engine._opened.store._low["send", "mail"] > low  # type: ignore[attr-defined]
        low = life.engine._opened.store._low["send", "mail"]  # type: ignore[attr-defined]
        after, everything = costs(low), costs(0.0)
    for what in ("claim", "any due", "next due"):
        assert everything[what] > after[what] + 10, (after, everything)
    for what, found in after.items():
        assert found <= before[what] + 4, (what, before, after)
    # Whoever holds its lane's row leaves nothing dead in it, and one row is left of the head.
    assert counted(server, "lane") == counted(server, "lane_head") == 1
    assert counted(server, "lane WHERE ctid <> '(0,1)'::tid") == 0


@pytest.mark.rule("X3", "X4", "X15")
@pytest.mark.parametrize("how", ["stopped", "paused", "crashed", "away"])
def test_what_is_claimed_in_advance_is_sent_once_whatever_becomes_of_its_dispatcher(
    server: PostgresShop, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    # However slow this machine is, its handlers count as quick.
    monkeypatch.setattr(dispatching, "QUICK_S", 3600.0)
    with server.transaction() as connection:
        wanted = [(server.operation(f"o{number}"), f"o{number}") for number in range(60)]
        server.outbox.stage_many(connection, wanted)
    life = Life(server, "mail", concurrency=10, batch=10)
    for _ in range(20):
        life.call()
        life.jobs += life.engine.turn()[0]
        if life.engine._fresh:
            break
    ahead = {claim.effect_id for claim in life.engine._fresh}
    assert ahead
    life.call()
    assert not ahead & {key for key, _ in server.box.log}
    if how == "crashed":
        life.crash()
    else:
        if how == "paused":
            server.outbox.pause(reason="r", by="me")
            life.engine._sweep_at = 0.0
        life.engine.stopping = how == "stopped"
        if how == "away":
            monkeypatch.setattr(life.engine._opened.store, "exchange", _away_once(life.engine._opened.store.exchange))
        life.settle()
    if how == "paused":
        server.outbox.resume(reason="r", by="me")
    assert (len(server.box.log) < 60) is (how != "away")
    server.dispatch()
    assert (len(server.box.log), server.box.twice()) == (60, [])


def _away_once(real: Any) -> Any:
    left = [1]

    def exchange(*given: Any, **more: Any) -> Any:
        if left:
            left.clear()
            raise LedgerUnavailable("the server is away", effect_ran="no")
        return real(*given, **more)

    return exchange
