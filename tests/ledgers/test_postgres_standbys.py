"""Replicas of a PostgreSQL ledger: refused, waited for, and noticed when one that lost the tail was promoted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from counterfoil import Accepted, Runtime, Uncertain
from counterfoil.errors import LedgerReadOnly
from tests.ledgers.postgres_support import Doing, answer, opened, until
from tests.ledgers.support import entry, intent
from tests.servers.postgres import Cluster

BOTH = pytest.mark.parametrize("postgres_major", [16, 18], indirect=True)

CANCEL = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"

Replicated = tuple[Cluster, Cluster]
Open = Callable[[str], Any]


@pytest.fixture
def open_ledger() -> Iterator[Open]:
    """Opens ledgers and closes them afterwards."""
    made: list[Any] = []

    def open_one(url: str) -> Any:
        made.append(opened(url))
        return made[-1]

    yield open_one
    for ledger in made:
        ledger.close()


def waits_for_the_standby(primary: Cluster) -> Callable[[], Any]:
    return lambda: primary.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'")


@pytest.mark.rule("L3", "L2")
@BOTH
def test_a_commit_that_was_told_not_to_wait_is_unknown_and_settled_when_the_standby_has_it(
    replicated_postgres: Replicated, open_ledger: Open
) -> None:
    primary, standby = replicated_postgres
    ledger = open_ledger(primary.url())
    epoch = ledger.register("x")
    ledger.append(entry("before", epoch))
    primary.wait_for(standby)
    mine = intent("lost", epoch)
    appending = Doing(lambda: answer(ledger, mine))
    until(waits_for_the_standby(primary))
    primary.execute(CANCEL)
    # It is on the primary's disk, everybody sees it there, and it may still be lost: so there is no answer.
    until(lambda: [r for r in ledger.read("n", "run") if r.slot == "lost"])
    assert appending.lasts(0.5)
    standby.freeze(frozen=False)
    record, _ = appending.result()
    assert record.append_id == mine.append_id


@pytest.mark.rule("L3")
def test_a_loser_waits_until_the_record_that_won_is_safe(replicated_postgres: Replicated, open_ledger: Open) -> None:
    primary, standby = replicated_postgres
    winner, loser = open_ledger(primary.url()), open_ledger(primary.url())
    winners, losers = winner.register("winner"), loser.register("loser")
    winner.append(entry("before", winners))
    loser.append(entry("before too", losers))
    primary.wait_for(standby)
    winning = Doing(lambda: answer(winner, intent("slot", winners)))
    until(waits_for_the_standby(primary))
    primary.execute(CANCEL)
    until(lambda: [r for r in loser.read("n", "run") if r.slot == "slot"])
    losing = Doing(lambda: answer(loser, intent("slot", losers)))
    assert losing.lasts(0.5)
    assert not winning.done
    standby.freeze(frozen=False)
    assert losing.result()[0] == winning.result()[0]
    assert losing.result()[0].epoch == winners


@pytest.mark.rule("L3")
def test_what_was_terminated_while_it_waited_for_the_standby_is_settled(
    replicated_postgres: Replicated, open_ledger: Open
) -> None:
    primary, standby = replicated_postgres
    ledger = open_ledger(primary.url())
    epoch = ledger.register("x")
    ledger.append(entry("before", epoch))
    primary.wait_for(standby)
    mine = intent("lost", epoch)
    appending = Doing(lambda: answer(ledger, mine))
    until(waits_for_the_standby(primary))
    primary.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
    assert appending.lasts(0.3)
    standby.freeze(frozen=False)
    record, unknown = appending.result()
    assert record.append_id == mine.append_id
    assert unknown >= 1


@pytest.mark.rule("L14")
def test_a_replica_is_refused_and_read_only(replicated_postgres: Replicated) -> None:
    primary, standby = replicated_postgres
    with Runtime(primary.url()) as runtime, runtime.run("r") as run:
        run.step("a", lambda: 1)
    primary.catch_up(standby)
    with pytest.raises(LedgerReadOnly) as refused, Runtime(standby.url()) as runtime, runtime.run("r") as run:
        run.effect("b", run=lambda: "sent", reconcile=lambda: None)
    assert refused.value.effect_ran == "no"
    assert refused.value.hint


@pytest.mark.rule("L14")
@BOTH
def test_a_promoted_standby_that_lost_the_tail_refuses_new_effects_until_a_person_accepts_it(
    replicated_postgres: Replicated,
) -> None:
    primary, standby = replicated_postgres
    sent: list[str] = []

    def send(ctx: Any) -> str:
        sent.append(ctx.key)
        return f"item-{len(sent)}"

    def find(ctx: Any) -> str | None:
        return None

    with Runtime(primary.url()) as runtime, runtime.run("r") as run:
        run.step("begin", lambda: 1)
        primary.catch_up(standby)
        standby.stop()
        run.effect("lost", run=send, reconcile=find)
    primary.stop("kill")
    standby.start()
    standby.promote()
    with Runtime(standby.url()) as runtime:
        assert [view.slot for view in runtime.show("r")] == ["step/begin"]
        with runtime.run("r") as run:
            with pytest.raises(LedgerReadOnly) as refused:
                run.effect("lost", run=send, reconcile=find)
            with pytest.raises(LedgerReadOnly):
                run.effect("new", run=send, reconcile=find)
    assert refused.value.effect_ran == "no"
    assert "accept-restore" in refused.value.hint
    assert len(sent) == 1
    ledger = opened(standby.url())
    assert ledger.restored()
    ledger.accept_restore(by="kim", reason="failed over")
    ledger.close()
    with Runtime(standby.url()) as runtime:
        with runtime.run("r") as run:
            # Begun in an earlier generation: a name without a record may have been sent, so the recipient is asked.
            outcome = run.effect("lost", run=send, reconcile=find)
        with runtime.run("another") as run:
            new = run.effect("new", run=send, reconcile=find)
    assert isinstance(outcome, Uncertain)
    assert isinstance(new, Accepted)
    assert len(sent) == 2


@pytest.mark.rule("L14")
def test_a_writer_that_outlives_a_failover_writes_nothing_into_the_promoted_standby(
    replicated_postgres: Replicated,
) -> None:
    """The address stays, the server behind it changes: no connection may go on as if nothing had happened."""
    from tests.servers.proxy import Proxy

    primary, standby = replicated_postgres
    sent: list[str] = []

    def send(ctx: Any) -> str:
        sent.append(ctx.key)
        return f"item-{len(sent)}"

    with Proxy(primary.port) as proxy:
        address = primary.url(port=proxy.port)
        with Runtime(address) as runtime, runtime.run("r") as run:
            run.effect("before", run=send, reconcile=lambda: None)
            primary.catch_up(standby)
            standby.stop()
            run.effect("lost", run=send, reconcile=lambda: None)
            primary.stop("kill")
            standby.start()
            standby.promote()
            proxy.target = standby.port
            proxy.cut()
            runtime.show("r")
            with pytest.raises(LedgerReadOnly) as refused:
                run.effect("new", run=send, reconcile=lambda: None)
            assert refused.value.effect_ran == "no"
    assert len(sent) == 2
    ledger = opened(standby.url())
    namespaces = standby.execute("SELECT DISTINCT namespace FROM counterfoil.run WHERE run = 'r'")
    slots = [record.slot for record in ledger.read(namespaces[0][0], "r")]
    ledger.close()
    assert not [slot for slot in slots if "new" in slot or "lost" in slot]


@pytest.mark.rule("L14")
def test_a_restored_dump_is_noticed_refused_and_accepted(postgres: Cluster, database: str) -> None:
    name = database.rpartition("/")[2]
    with Runtime(database) as runtime, runtime.run("r") as run:
        run.step("begin", lambda: 1)
    dump = postgres.dump(name)
    copy = postgres.restore(dump, database=f"{name}_copy")
    with Runtime(copy) as runtime, runtime.run("r") as run:
        assert run.step("begin", lambda: 2) == 1
        with pytest.raises(LedgerReadOnly):
            run.effect("new", run=lambda: "sent", reconcile=lambda: None)
    ledger = opened(copy)
    assert ledger.restored()
    ledger.accept_restore(by="kim", reason="a copy for us")
    ledger.close()
    with Runtime(copy) as runtime, runtime.run("another") as run:
        assert isinstance(run.effect("new", run=lambda: "sent", reconcile=lambda: None), Accepted)
    # The one that it was copied from goes on.
    with Runtime(database) as runtime, runtime.run("r") as run:
        assert isinstance(run.effect("new", run=lambda: "sent", reconcile=lambda: None), Accepted)
    postgres.drop(f"{name}_copy")
