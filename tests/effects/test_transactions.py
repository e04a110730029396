"""Transactions: the application's writes and the record of the result are committed together, or neither is."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from counterfoil import (
    UNASKABLE,
    LedgerCorrupt,
    LedgerUnavailable,
    NameConflict,
    NotSerializable,
    OwnerRetired,
    RunPruned,
    UsageError,
)
from counterfoil.effects import transaction as transactions
from counterfoil.errors import CommitUnknown
from counterfoil.ledgers.sqlite import forks
from counterfoil.ports import transacting
from counterfoil.protocol import codec, records, slots
from counterfoil.protocol.legality import RunCheck
from counterfoil.runtime import transactions as serving
from tests.ledgers.faulty_vfs import FaultyDisk
from tests.support import (
    ASYNCIO,
    BLOCKING,
    Clock,
    Fault,
    Gate,
    Life,
    Store,
    World,
    at_every_crash_point,
    eventually,
    faulty,
    record_by,
)

RULE_PARTS = ("T",)


@pytest.fixture(params=["sqlite", "sqlite3", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    database = request.getfixturevalue("shared_database") if request.param == "postgres" else ""
    return Store(request.param, tmp_path, database)


ONE = pytest.mark.parametrize("store", ["sqlite"], indirect=True)
SQLITE = pytest.mark.parametrize("store", ["sqlite", "sqlite3"], indirect=True)


class Shop:
    """The application: a table beside the ledger's, and how often its body was called."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.calls = 0
        self.table = "sale"
        if store.kind == "postgres":
            self.table = f"sale_{store.url.rpartition('schema=')[2].partition('&')[0]}"
        with self.connected() as connection:
            connection.execute(f"CREATE TABLE IF NOT EXISTS {self.table} (name TEXT)")

    def connected(self) -> Any:
        if self.store.kind == "postgres":
            return psycopg.connect(self.store.url.partition("?")[0])
        path = self.store.url.removeprefix("sqlite:///").partition("?")[0]
        return apsw.Connection(path) if self.store.kind == "sqlite" else sqlite3.connect(path)

    def sells(self, name: str, *, then: Callable[[Any], Any] | None = None) -> Callable[[Any], Any]:
        """A body that sells once, and does something else before it returns the number of sales."""

        def body(connection: Any) -> Any:
            self.calls += 1
            self.insert(connection, name)
            if then is not None:
                then(connection)
            counted = f"SELECT count(*) FROM {self.table} WHERE name = '{name}'"
            return connection.execute(counted).fetchone()[0]

        return body

    def insert(self, connection: Any, name: str) -> None:
        """Sell without asking."""
        connection.execute(f"INSERT INTO {self.table} (name) VALUES ('{name}')")

    @property
    def sold(self) -> list[str]:
        """What is in the table, as anybody else sees it."""
        connection = self.connected()
        try:
            return [name for (name,) in connection.execute(f"SELECT name FROM {self.table} ORDER BY name").fetchall()]
        finally:
            connection.close()


@pytest.fixture
def shop(store: Store, make: Callable[..., Life]) -> Shop:
    return Shop(store)


def fails(error: BaseException) -> Callable[[Any], Any]:
    def then(_connection: Any) -> None:
        raise error

    return then


def phases(life: Life, run: str = "r") -> list[tuple[str, str]]:
    return [(record.slot, record.phase) for record in life.records(run)]


# --- T1: together or not at all


@pytest.mark.rule("T1", "T3")
async def test_the_writes_and_the_record_are_committed_together_and_a_replay_returns_the_record(make, shop):
    async with make() as life, life.run("r") as run:
        assert await run.transaction("sell", shop.sells("mug")) == 1
        assert await run.transaction("sell", shop.sells("mug")) == 1
        assert phases(life) == [("transaction/sell/1", "committed")]
        (view,) = await life.show("r")
        # The receipt says what is durable, and not that anything is done.
        assert view.body == {"result": 1, "promise": "local-intent-durable"}
        assert view.name == "sell"
        assert RunCheck(life.session.namespace, "r", life.records()).findings == []
    async with make() as life, life.run("r") as run:
        assert await run.transaction("sell", shop.sells("mug")) == 1
    assert (shop.calls, shop.sold) == (1, ["mug"])


@pytest.mark.rule("T1")
@pytest.mark.parametrize(
    ("then", "error"),
    [
        (fails(ValueError("the body's own")), ValueError),
        (fails(KeyboardInterrupt()), KeyboardInterrupt),
        (fails(LedgerUnavailable("somebody else's ledger")), LedgerUnavailable),
    ],
)
async def test_what_the_body_raises_passes_and_nothing_is_written(make, shop, then, error):
    async with make() as life, life.run("r") as run:
        with pytest.raises(error):
            await run.transaction("sell", shop.sells("mug", then=then))
        assert phases(life) == []
        assert shop.sold == []
        assert await run.transaction("sell", shop.sells("mug")) == 1
    assert (shop.calls, shop.sold) == (2, ["mug"])


@pytest.mark.rule("T1")
async def test_a_result_that_is_no_json_rolls_everything_back(make, shop):
    async with make() as life, life.run("r") as run:
        for result in ({1, 2}, float("nan"), b"bytes"):
            with pytest.raises(NotSerializable):
                await run.transaction("sell", lambda connection, given=result: shop.sells("mug")(connection) and given)
        assert phases(life) == []
    assert shop.sold == []


@pytest.mark.rule("T1")
async def test_of_many_callers_at_once_one_runs_the_body(make, shop, colour):
    async with make() as one, make() as two:
        # Two lives that share nothing but the database, and several callers in each.
        handles = [one.run("r"), two.run("r"), one.run("r"), two.run("r")]
        answers = await asyncio.gather(*(h.beside.transaction("sell", shop.sells("mug")) for h in handles))
        assert answers == [1] * 4
        assert phases(one) == [("transaction/sell/1", "committed")]
    assert shop.sold == ["mug"]
    assert shop.calls == 1


@pytest.mark.rule("T1", "S6")
async def test_other_inputs_under_one_name_are_refused_before_the_body_runs(make, shop):
    async with make() as life, life.run("r") as run:
        await run.transaction("sell", shop.sells("mug"), inputs={"sku": 1})
        with pytest.raises(NameConflict):
            await run.transaction("sell", shop.sells("mug"), inputs={"sku": 2})
        assert await run.transaction("sell", shop.sells("mug"), inputs={"sku": 1}) == 1
        assert await run.transaction("sell", shop.sells("mug")) == 1
    assert shop.calls == 1


@pytest.mark.rule("T1", "S5")
async def test_a_transaction_meets_no_step_and_no_effect_of_its_name(make, shop, payee, colour):
    async with make() as life, life.run("r") as run:
        assert await run.step("a/b", lambda: "step") == "step"
        await run.effect("a/b", run=colour.handler(payee.pay), reconcile=UNASKABLE)
        assert await run.transaction("a/b", lambda connection: None) is None
        assert await run.transaction("a/b", shop.sells("never")) is None
        assert phases(life)[-1] == ("transaction/a%2Fb/1", "committed")
    assert shop.calls == 0


@pytest.mark.rule("T1")
async def test_a_result_may_have_a_type(make, shop):
    import msgspec

    class Sale(msgspec.Struct):
        name: str

    async with make() as life, life.run("r") as run:
        for _ in range(2):
            sale = await run.transaction("sell", lambda connection: Sale("mug"), result_type=Sale)
            assert sale == Sale("mug")


# --- T1: what is refused inside


CALLS: dict[str, Callable[[Any], Any]] = {
    "step": lambda run: run.step("other", lambda: 1),
    "a recorded step": lambda run: run.step("before", lambda: 1),
    "effect": lambda run: run.effect("other", run=lambda: 1, reconcile=UNASKABLE),
    "transaction": lambda run: run.transaction("other", lambda connection: 1),
    "sleep": lambda run: run.sleep(0, name="other"),
    "wait_for": lambda run: run.wait_for("other", "1"),
    "deliver": lambda run: run.deliver("other", "1"),
    "finish": lambda run: run.finish(),
}


@ONE
@pytest.mark.rule("T1")
@pytest.mark.parametrize("what", CALLS)
async def test_calling_the_ledger_from_inside_is_refused(make, shop, colour, what):
    async with make() as life, life.run("r") as run:
        await run.step("before", lambda: 1)
        handle = run.inner

        def inside(_connection: Any) -> None:
            call = CALLS[what](handle)
            if not colour.blocking:
                asyncio.run(call)

        def in_a_thread(connection: Any) -> None:
            raised: list[BaseException] = []

            def work() -> None:
                try:
                    inside(connection)
                except BaseException as error:
                    raised.append(error)

            thread = threading.Thread(target=copy_context().run, args=(work,))
            thread.start()
            thread.join()
            raise raised[0]

        for then in (inside, in_a_thread):
            with pytest.raises(UsageError) as caught:
                await run.transaction("sell", shop.sells("mug", then=then))
            assert (caught.value.code, caught.value.effect_ran) == ("inside-transaction", "no")
        assert phases(life) == [("step/before", "result")]
    assert shop.sold == []


def keeps(statement: str) -> Callable[[Any], Any]:
    return lambda connection: connection.execute(statement)


ENDINGS = {
    "commit": keeps("COMMIT"),
    "end": keeps("END"),
    "rollback": keeps("ROLLBACK"),
    "begin": keeps("BEGIN"),
    "the method": lambda connection: getattr(connection, "commit", lambda: connection.execute("COMMIT"))(),
    "a script": lambda connection: getattr(connection, "executescript", connection.execute)("COMMIT; BEGIN"),
    "swallowed": lambda connection: swallowed(lambda: connection.execute("COMMIT")),
}


def swallowed(work: Callable[[], Any]) -> None:
    try:
        work()
    except Exception:
        return
    raise AssertionError("it was let through")


@pytest.mark.rule("T1", "T2")
@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_body_that_ends_the_transaction_by_itself_is_refused(make, shop, ending):
    async with make() as life, life.run("r") as run:
        with pytest.raises(UsageError) as caught:
            await run.transaction("sell", shop.sells("mug", then=ENDINGS[ending]))
        assert (caught.value.code, caught.value.effect_ran) == ("transaction-ended", "no")
        assert phases(life) == []
        assert shop.sold == []
        assert await run.transaction("sell", shop.sells("mug")) == 1


@pytest.mark.rule("T1")
async def test_a_body_that_circumvents_this_is_found_out(make, shop, store):
    def forces(connection: Any) -> None:
        if store.kind == "sqlite":
            connection.authorizer = None
        elif store.kind == "sqlite3":
            connection.set_authorizer(None)
        first = "SELECT 1; " if store.kind == "postgres" else ""
        connection.execute(f"{first}COMMIT")
        connection.execute(f"{first}BEGIN")

    async with make() as life, life.run("r") as run:
        with pytest.raises(UsageError) as caught:
            await run.transaction("sell", shop.sells("mug", then=forces))
        # It did commit something: nobody may say that nothing was written.
        assert (caught.value.code, caught.value.effect_ran) == ("transaction-ended", "unknown")
        with pytest.raises(UsageError):
            await run.transaction("close", lambda connection: connection.close())
        assert phases(life) == []
    assert shop.sold == ["mug"]


@SQLITE
@pytest.mark.rule("T1")
async def test_another_database_cannot_be_attached(make, shop, tmp_path):
    async with make() as life, life.run("r") as run:
        with pytest.raises(UsageError) as caught:
            await run.transaction("sell", shop.sells("mug", then=keeps(f"ATTACH '{tmp_path}/other.db' AS other")))
        assert caught.value.code == "attached"
    assert shop.sold == []


@pytest.mark.rule("T1", "T2")
async def test_savepoints_are_the_bodys_own_affair(make, shop):
    def in_savepoints(connection: Any) -> None:
        for name, end in (("kept", "RELEASE s"), ("dropped", "ROLLBACK TO s")):
            connection.execute("SAVEPOINT s")
            shop.insert(connection, name)
            connection.execute(end)

    async with make() as life, life.run("r") as run:
        await run.transaction("sell", shop.sells("mug", then=in_savepoints))
    assert shop.sold == ["kept", "mug"]


@pytest.mark.rule("T1")
async def test_what_a_body_sets_on_its_connection_goes_with_it(make, shop, store):
    def sets(connection: Any) -> None:
        if store.kind == "postgres":
            connection.row_factory = psycopg.rows.dict_row
        elif store.kind == "sqlite":
            connection.row_trace = lambda cursor, row: (1, 2, 3)
        else:
            connection.row_factory = sqlite3.Row
            connection.text_factory = bytes

    async with make() as life, life.run("r") as run:
        assert await run.transaction("a", sets) is None
        assert await run.transaction("b", shop.sells("mug")) == 1


@SQLITE
@pytest.mark.rule("T1")
async def test_a_statement_that_is_still_in_progress_is_named(make, shop, store):
    kept: list[Any] = []

    def leaves_open(connection: Any) -> None:
        kept.append(connection.execute("INSERT INTO sale (name) VALUES ('a'), ('b') RETURNING name"))
        kept[-1].fetchone()

    async with make() as life, life.run("r") as run:
        with pytest.raises(UsageError) as caught:
            await run.transaction("sell", leaves_open)
        assert (caught.value.code, caught.value.effect_ran) == ("statement-open", "no")
        # The cursor that is still known holds nothing up.
        assert await run.transaction("sell", shop.sells("mug")) == 1
    assert shop.sold == ["mug"]


@pytest.mark.rule("T1")
async def test_a_deferred_constraint_that_fails_at_the_commit_is_the_bodys_own_error(make, shop):
    table = shop.table
    schema = (
        f"CREATE TABLE {table}_customer (id INTEGER PRIMARY KEY)",
        f"CREATE TABLE {table}_debt (id INTEGER REFERENCES {table}_customer (id) DEFERRABLE INITIALLY DEFERRED)",
    )
    async with make() as life, life.run("r") as run:
        await run.transaction("schema", lambda connection: [connection.execute(line) and None for line in schema])
        with pytest.raises((sqlite3.IntegrityError, apsw.ConstraintError, psycopg.errors.ForeignKeyViolation)):
            await run.transaction("debt", shop.sells("mug", then=keeps(f"INSERT INTO {table}_debt VALUES (1)")))
        assert phases(life) == [("transaction/schema/1", "committed")]
        # It was no failed sync: the life goes on.
        assert await run.transaction("debt", shop.sells("mug")) == 1


@BLOCKING
@pytest.mark.rule("T1", "L12")
async def test_a_child_forked_by_a_body_is_refused_and_the_parent_commits(make, shop, monkeypatch):
    import os

    monkeypatch.setattr(forks, "_PATIENCE_S", 0.05)
    children: list[int] = []

    def forks_here(_connection: Any) -> None:
        children.append(os.fork())

    async with make() as life, life.run("r") as run:
        code = 1
        try:
            assert await run.transaction("sell", shop.sells("mug", then=forks_here)) == 1
        except BaseException as error:
            code = 0 if type(error).__name__ == "ForkedLedger" else 2
        if children == [0]:
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0  # noqa: ASYNC222
        assert await run.transaction("more", shop.sells("pen")) == 1
    assert shop.sold == ["mug", "pen"]


# --- what may not begin


@pytest.mark.rule("T1")
@pytest.mark.parametrize("kind", ["memory", "two methods"])
async def test_a_ledger_that_is_in_no_database_is_refused(colour, kind):
    from tests.support import TwoMethods

    async with colour.life("memory:" if kind == "memory" else TwoMethods()) as life, life.run("r") as run:
        with pytest.raises(UsageError) as caught:
            await run.transaction("sell", lambda connection: 1)
        assert caught.value.code == "no-transactions"
        assert life.records() == []


@ONE
@pytest.mark.rule("T1")
@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "\x00"},
        {"body": 3},
        {"body": lambda: 1, "refused": TypeError},
        {"body": lambda connection, more: 1},
        {"body": lambda connection, *, more: 1},
        {"inputs": {1, 2}},
        {"connection": "django"},
        {"result_type": 3},
    ],
)
async def test_wrong_arguments_are_refused_before_anything_runs(make, shop, wrong):
    error = wrong.get("refused", UsageError)
    given = {"name": "sell", "body": shop.sells("mug"), **{k: v for k, v in wrong.items() if k != "refused"}}
    name, body = given.pop("name"), given.pop("body")
    async with make() as life, life.run("r") as run:
        with pytest.raises(error):
            await run.transaction(name, body, **given)
        assert life.records() == []
    assert shop.sold == []


@pytest.mark.rule("T1")
async def test_a_body_that_is_a_coroutine_is_refused(make, shop):
    async def later(connection: Any) -> int:
        return 1

    def disguised(connection: Any) -> Any:
        return later(connection)

    async with make() as life, life.run("r") as run:
        for body in (later, disguised):
            with pytest.raises(UsageError):
                await run.transaction("sell", body)
        assert life.records() == []


@pytest.mark.rule("T1", "L8")
async def test_a_retired_owner_begins_no_transaction(make, store, shop):
    async with make() as life, life.run("r") as run:
        await run.step("began", lambda: 1)
        ledger = store.open()
        (epoch,) = life.session.own_epochs
        life.session.ledger.retire(epoch)
        with pytest.raises(OwnerRetired) as caught:
            await run.transaction("sell", shop.sells("mug"))
        assert caught.value.effect_ran == "no"
        # A handle of its own gets a fresh epoch, and goes on.
        assert await life.run("r").transaction("sell", shop.sells("mug")) == 1
        ledger.close()
    assert shop.calls == 1


@pytest.mark.rule("T1", "L10")
async def test_a_finished_and_a_pruned_run_answer_what_they_know(make, shop):
    async with make() as life, life.run("r") as run:
        await run.transaction("sell", shop.sells("mug"))
        await run.finish()
    async with make() as life, life.run("r") as run:
        assert await run.transaction("sell", shop.sells("mug")) == 1
        with pytest.raises(UsageError) as caught:
            await run.transaction("new", shop.sells("mug"))
        assert caught.value.code == "run-finished"
    async with make() as other, make() as life, life.run("r") as knows:
        await knows.transaction("sell", shop.sells("mug"))
        await other.prune()
        for run in (life.run("r"), other.run("r")):
            with pytest.raises(RunPruned):
                await run.transaction("new", shop.sells("mug"))
    assert shop.calls == 1


@pytest.mark.rule("T1", "L10")
async def test_a_run_that_was_pruned_meanwhile_runs_no_body(make, shop):
    async with make() as other, make() as life, life.run("r") as run:
        await run.step("began", lambda: 1)
        await other.run("r").finish()
        await other.prune()
        with pytest.raises(RunPruned):
            await run.transaction("sell", shop.sells("mug"))
    assert shop.calls == 0


@pytest.mark.rule("T1", "L4")
async def test_a_record_that_must_not_be_there_runs_no_body(make, shop):
    async with make() as life:
        wrong = codec.StepBody()
        record_by(life, slots.transaction("sell", 1), kind=records.STEP, phase="result", body=wrong)
        with pytest.raises(LedgerCorrupt):
            await life.run("r").transaction("sell", shop.sells("mug"))
        assert [finding.rule for finding in RunCheck(life.session.namespace, "r", life.records()).findings] == ["L1"]
    assert shop.calls == 0


@BLOCKING
@pytest.mark.rule("T1", "T4")
async def test_the_checker_knows_what_may_follow_what(make):
    receipt = codec.TransactionBody(promise=transactions.PROMISE)
    async with make() as life:
        for number, phase in ((1, "committed"), (2, "committed"), (4, "aborted")):
            body: Any = receipt if phase == "committed" else codec.EmptyBody()
            record_by(life, slots.transaction("sell", number), kind=records.TRANSACTION, phase=phase, body=body)
        record_by(life, slots.transaction("buy", 1), kind=records.TRANSACTION, phase="committed", body=receipt)
        record_by(life, slots.transaction("buy", 2), kind=records.TRANSACTION, phase="aborted", body=codec.EmptyBody())
        found = RunCheck(life.session.namespace, "r", life.records()).findings
        assert sorted((f.rule, f.code, f.name) for f in found) == [
            ("T1", "transition", "buy"),
            ("T4", "gap", "sell"),
        ]


# --- T4: a COMMIT whose reply is lost


class Lost:
    """Loses the reply to COMMITs, `times` of them; each had happened, or had not."""

    def __init__(self, ledger: Any, *, committed: bool, times: int = 1) -> None:
        self.behind = ledger
        self.times = times
        self.committed = committed
        self._transact = ledger.transact

    def transact(self, entry: Any, work: Callable[[Any], bytes]) -> Any:
        if self.times <= 0:
            return self._transact(entry, work)
        self.times -= 1
        if self.committed:
            self._transact(entry, work)
            raise CommitUnknown("no reply")

        def breaks(connection: Any) -> bytes:
            work(connection)
            raise RuntimeError("the connection broke before the COMMIT arrived")

        try:
            return self._transact(entry, breaks)
        except RuntimeError:
            raise CommitUnknown("no reply") from None


def losing(store: Store, fault: Fault, **how: Any) -> Any:
    """The ledger behind a fault of its appends, and lost replies to its COMMITs."""
    ledger = faulty(store.open(), fault)
    type(ledger).transact = staticmethod(Lost(ledger, **how).transact)
    return ledger


@pytest.mark.rule("T4")
@pytest.mark.parametrize("committed", [True, False])
async def test_a_lost_commit_is_settled_by_the_receipts_own_slot(make, store, shop, committed):
    async with make(target=losing(store, Fault(), committed=committed)) as life, life.run("r") as run:
        assert await run.transaction("sell", shop.sells("mug")) == 1
        if committed:
            assert phases(life) == [("transaction/sell/1", "committed")]
        else:
            assert phases(life) == [("transaction/sell/1", "aborted"), ("transaction/sell/2", "committed")]
        assert RunCheck(life.session.namespace, "r", life.records()).findings == []
    assert shop.sold == ["mug"]
    assert shop.calls == (1 if committed else 2)
    async with make() as life:
        assert await life.run("r").transaction("sell", shop.sells("mug")) == 1


@pytest.mark.rule("T4", "L3")
@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("again", [True, False])
async def test_settling_goes_on_while_the_ledger_gives_no_answer(make, store, shop, committed, again):
    clock, fault = Clock(), Fault()
    # The append of `aborted` is refused, or loses its own reply and is recorded all the same.
    fault.refuse("sell/1", error=lambda: LedgerUnavailable("down"), times=3)
    if again:
        fault.refuse("sell/1", error=lambda: CommitUnknown("no reply"), commits=True, times=3)
    ledger = losing(store, fault, committed=committed)
    async with make(target=ledger, clock=clock) as life, life.run("r") as run:
        life.skip_pauses(clock)
        assert await run.transaction("sell", shop.sells("mug")) == 1
    assert shop.sold == ["mug"]


@pytest.mark.rule("T4", "E20")
@pytest.mark.parametrize("committed", [True, False])
async def test_no_answer_means_unknown_and_the_next_call_settles_it(make, store, shop, committed):
    clock, fault = Clock(), Fault()
    fault.refuse("sell/1", error=lambda: LedgerUnavailable("down"))
    ledger = losing(store, fault, committed=committed)
    async with make(target=ledger, clock=clock) as life, life.run("r") as run:
        life.skip_pauses(clock)
        with pytest.raises(LedgerUnavailable) as caught:
            await run.transaction("sell", shop.sells("mug"))
        assert caught.value.effect_ran == "unknown"
        assert "call again" in caught.value.hint
        fault.heal()
        assert await run.transaction("sell", shop.sells("mug")) == 1
    assert shop.sold == ["mug"]


@pytest.mark.rule("T4")
async def test_any_other_refusal_of_the_settling_leaves_it_unknown_too(make, store, shop):
    fault = Fault()
    fault.refuse("sell/1", error=lambda: RunPruned("pruned meanwhile"))
    ledger = losing(store, fault, committed=True)
    async with make(target=ledger) as life, life.run("r") as run:
        with pytest.raises(LedgerUnavailable) as caught:
            await run.transaction("sell", shop.sells("mug"))
        assert caught.value.effect_ran == "unknown"
        assert isinstance(caught.value.__cause__, RunPruned)


@pytest.mark.rule("T4")
async def test_commits_that_are_lost_again_and_again_end_with_nothing_written(make, store, shop):
    ledger = losing(store, Fault(), committed=False, times=transactions.ATTEMPTS_MAX)
    async with make(target=ledger) as life, life.run("r") as run:
        with pytest.raises(LedgerUnavailable) as caught:
            await run.transaction("sell", shop.sells("mug"))
        assert (caught.value.code, caught.value.effect_ran) == ("commit-lost", "no")
        assert shop.sold == []
        assert await run.transaction("sell", shop.sells("mug")) == 1
        assert len(phases(life)) == transactions.ATTEMPTS_MAX + 1
    assert shop.sold == ["mug"]


@pytest.mark.rule("T4")
async def test_a_second_life_that_meets_an_aborted_receipt_takes_the_next_slot(make, store, shop):
    async with make() as one, make() as two:
        knows_nothing = two.run("r")
        assert await knows_nothing.step("before", lambda: 1) == 1
        body = codec.EmptyBody()
        record_by(one, slots.transaction("sell", 1), kind=records.TRANSACTION, phase="aborted", body=body)
        assert await knows_nothing.transaction("sell", shop.sells("mug")) == 1
        assert phases(two)[-1] == ("transaction/sell/2", "committed")
    assert shop.calls == 1


@BLOCKING
@pytest.mark.rule("T4", "L3")
@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_a_sync_that_fails_at_the_commit_is_settled_and_ends_what_this_life_begins(make, shop, store):
    with FaultyDisk() as disk:
        async with make() as life, life.run("r") as run:
            await run.step("before", lambda: 1)
            append = life.session.ledger.append

            def heals(entry: Any, *, settle: bool = False) -> Any:
                disk.failing = False
                return append(entry, settle=settle)

            life.session.ledger.append = heals

            def fails_now(connection: Any) -> None:
                disk.failing = True

            with pytest.raises(LedgerUnavailable) as caught:
                await run.transaction("sell", shop.sells("mug", then=fails_now))
            # `aborted` won, so nothing was written; and after a failed sync this life begins nothing more.
            assert (caught.value.code, caught.value.effect_ran) == ("sync-failed", "no")
            assert phases(life)[-1] == ("transaction/sell/1", "aborted")
        assert shop.sold == []
    async with make() as life:
        assert await life.run("r").transaction("sell", shop.sells("mug")) == 1
    assert shop.sold == ["mug"]


# --- crashes


@pytest.mark.rule("T1", "T4")
async def test_at_every_crash_point_the_sale_and_its_receipt_are_both_there_or_neither(colour, tmp_path, store):
    """A life dies before and after each request; the body, and the lost COMMIT, are inside of one."""
    made: list[Shop] = []

    def world() -> World:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        own = Store(store.kind, folder, store.url.partition("?")[0])
        made.append(Shop(own))
        return World(colour, own.target)

    async def sells(life: Life, world: World) -> Any:
        run = life.run("r")
        first = await run.transaction("sell", made[-1].sells("mug"))
        await run.step("between", lambda: 1)
        return first, await run.transaction("more", made[-1].sells("pen"))

    async def judge(life: Life, world: World) -> None:
        assert made[-1].sold == ["mug", "pen"]
        assert world.result == (1, 1)
        assert RunCheck(life.session.namespace, "r", life.records()).findings == []

    events = await at_every_crash_point(world, sells, judge)
    assert events == 8


# --- asyncio


@ASYNCIO
@pytest.mark.rule("T1")
async def test_the_loop_goes_on_while_a_body_runs_and_a_cancelled_caller_cuts_nothing(make, shop):
    gate = Gate()
    async with make() as life, life.run("r") as run:
        caller = asyncio.ensure_future(run.transaction("sell", shop.sells("mug", then=lambda connection: gate.stop())))
        await gate.arrival()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        gate.open()
        await eventually(lambda: phases(life) == [("transaction/sell/1", "committed")])
    assert shop.sold == ["mug"]


@ASYNCIO
@pytest.mark.rule("T1", "E10")
async def test_a_runtime_that_is_left_waits_for_a_body_only_so_long(make, shop):
    gate = Gate()
    async with make(drain_timeout=0.05) as life:
        caller = asyncio.ensure_future(
            life.run("r").transaction("sell", shop.sells("mug", then=lambda connection: gate.stop()))
        )
        await gate.arrival()
    with pytest.raises(LedgerUnavailable):
        await caller
    gate.open()
    async with make() as life:
        assert await life.run("r").transaction("sell", shop.sells("mug")) == 1
    # Whichever came first, it was sold once.
    assert shop.sold == ["mug"]


@ASYNCIO
@pytest.mark.rule("S3")
async def test_a_cancelled_call_begins_no_transaction(make, shop):
    async with make() as life, life.run("r") as run:
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run.transaction("sell", shop.sells("mug"))
    assert shop.calls == 0


@pytest.mark.rule("T1")
async def test_context_variables_of_the_caller_are_the_bodys(make, shop):
    from contextvars import ContextVar

    who: ContextVar[str] = ContextVar("who")
    who.set("ann")
    async with make() as life, life.run("r") as run:
        assert await run.transaction("who", lambda connection: who.get()) == "ann"


# --- what is staged


@pytest.mark.rule("T1", "X2")
async def test_whoever_holds_the_connection_learns_run_name_and_ordinal(make, shop):
    seen: list[Any] = []

    def stages(connection: Any) -> None:
        found = transacting.of(connection)
        assert found is not None
        seen.append((found.run, found.name, found.next_ordinal(), found.next_ordinal()))
        assert transacting.of(object()) is None

    def raises_after(connection: Any) -> None:
        stages(connection)
        raise ValueError("no")

    async with make() as life, life.run("r") as run:
        assert await run.transaction("sell", shop.sells("mug", then=stages)) == 1
        (view,) = await life.show("r")
        assert view.body["staged"] == 2
        assert transacting.under_way.get() is None
        # The numbers begin anew with each execution of a body.
        with pytest.raises(ValueError, match="no"):
            await run.transaction("more", raises_after)
        await run.transaction("more", stages)
    assert seen == [("r", "sell", 1, 2), ("r", "more", 1, 2), ("r", "more", 1, 2)]


# --- SQLAlchemy


@pytest.mark.rule("T1")
@pytest.mark.parametrize("store", ["sqlite3", "postgres"], indirect=True)
async def test_a_body_may_have_an_sqlalchemy_connection(make, shop):
    import sqlalchemy
    from sqlalchemy.orm import Session

    def inserts(name: str) -> Any:
        return sqlalchemy.text(f"INSERT INTO {shop.table} (name) VALUES ('{name}')")

    def sells(connection: sqlalchemy.Connection) -> int:
        shop.calls += 1
        connection.execute(inserts("mug"))
        with connection.begin_nested() as inner:
            connection.execute(inserts("dropped"))
            inner.rollback()
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            session.execute(inserts("pen"))
            session.commit()
        return int(connection.execute(sqlalchemy.text(f"SELECT count(*) FROM {shop.table}")).scalar_one())

    def commits(connection: sqlalchemy.Connection) -> None:
        connection.execute(inserts("lost"))
        connection.commit()

    def rolls_back(connection: sqlalchemy.Connection) -> None:
        connection.execute(inserts("lost"))
        connection.rollback()

    async with make() as life, life.run("r") as run:
        for _ in range(2):
            assert await run.transaction("sell", sells, connection="sqlalchemy") == 2
        for body in (commits, rolls_back):
            with pytest.raises(UsageError) as caught:
                await run.transaction("bad", body, connection="sqlalchemy")
            assert caught.value.code == "transaction-ended"
        with pytest.raises(ValueError, match="own"):
            await run.transaction("bad", fails(ValueError("the body's own")), connection="sqlalchemy")
    assert (shop.calls, shop.sold) == (1, ["mug", "pen"])


@pytest.mark.rule("T1")
@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_without_a_dialect_or_without_sqlalchemy_the_mend_is_said(make, shop, monkeypatch):
    async with make() as life, life.run("r") as run:
        with pytest.raises(UsageError, match="engine=sqlite3"):
            await run.transaction("sell", shop.sells("mug"), connection="sqlalchemy")
        monkeypatch.setattr(serving, "find_spec", lambda name: None)
        with pytest.raises(UsageError, match="pip install sqlalchemy"):
            await run.transaction("sell", shop.sells("mug"), connection="sqlalchemy")
        assert phases(life) == []
    assert shop.calls == 0


@BLOCKING
@SQLITE
@pytest.mark.rule("T2", "T3")
async def test_what_is_staged_is_there_with_the_commit_and_gone_with_a_rollback_also_to_a_savepoint(make, shop):
    from counterfoil import Dispatcher, Outbox, Recipient

    sent: list[str] = []
    mail = Recipient("mail")

    @mail.operation()
    def send(ctx: Any, to: str) -> str:
        sent.append(to)
        return f"message to {to}"

    @send.reconcile
    def find(ctx: Any, to: str) -> str | None:
        return None

    async with make() as life, life.run("r") as run:
        outbox = Outbox(life.inner)
        outbox.migrate()
        dispatcher = Dispatcher(life.inner, [mail])

        def stages(connection: Any) -> None:
            outbox.stage(connection, send(to="ann"), key="kept")
            connection.execute("SAVEPOINT s")
            outbox.stage(connection, send(to="ben"), key="dropped")
            connection.execute("ROLLBACK TO s")

        def raises_after(connection: Any) -> None:
            stages(connection)
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await run.transaction("sell", raises_after)
        assert [outbox.receipt(key) for key in ("kept", "dropped")] == [None, None]
        dispatcher.run_until_idle(timeout_s=60)
        assert sent == []
        await run.transaction("sell", shop.sells("mug", then=stages))
        # The receipt of the commit is one thing, that of the dispatch another.
        pending = outbox.receipt("kept")
        assert pending is not None
        assert (pending.state, pending.outcome) == ("pending", None)
        dispatcher.run_until_idle(timeout_s=60)
        assert outbox.receipt("dropped") is None
        assert sent == ["ann"]
    assert shop.sold == ["mug"]
