"""Durable bodies: executed once to their result, recovered after a crash, mounted on any host and any ledger."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from counterfoil import (
    UNASKABLE,
    Accepted,
    Conflict,
    EffectUnresolved,
    LedgerUnavailable,
    NameConflict,
    NotSerializable,
    RunPruned,
    Runtime,
    Uncertain,
    UsageError,
)
from counterfoil.effects import carry, lifetime
from counterfoil.protocol import slots
from counterfoil.protocol.history import History
from counterfoil.protocol.requests import Append, Call
from tests.effects.typing_cases import mounted, mounted_async
from tests.support import IN_MEMORY, PATIENCE_S, Crash, Fault, Payee, TwoMethods, die_at, eventually, faulty, kill

PAYEE = Payee()
CALLS: list[Any] = []


@pytest.fixture(autouse=True)
def fresh_payee() -> None:
    PAYEE.__init__()  # type: ignore[misc]
    CALLS.clear()


def order(run: Any, item: str, amount: int) -> dict[str, Any]:
    CALLS.append(item)
    total = run.step("total", lambda: amount * 2)
    outcome = run.effect("pay", run=PAYEE.pay, reconcile=PAYEE.find, request={"total": total})
    return {"item": item, "proof": outcome.proof}


async def async_order(run: Any, item: str, amount: int) -> dict[str, Any]:
    CALLS.append(item)
    total = await run.step("total", lambda: amount * 2)
    outcome = await run.effect("pay", run=PAYEE.pay, reconcile=PAYEE.find, request={"total": total})
    return {"item": item, "proof": outcome.proof}


def other_order(run: Any, item: str, amount: int) -> None:
    raise AssertionError("this body must not be called")


async def async_other_order(run: Any, item: str, amount: int) -> None:
    raise AssertionError("this body must not be called")


def failing(run: Any) -> None:
    CALLS.append("failing")
    raise ValueError("the body's own")


async def async_failing(run: Any) -> None:
    failing(run)


def of(colour: Any, body: Any) -> Any:
    twins = {order: async_order, other_order: async_other_order, failing: async_failing}
    return body if colour.blocking else twins[body]


@pytest.mark.rule("E21", "S1")
async def test_a_body_is_executed_once_to_its_recorded_result(make, colour):
    async with make() as life:
        result = await life.execute("r", of(colour, order), "book", 3)
        assert result == {"item": "book", "proof": "item-1"}
        assert await life.execute("r", of(colour, order), "book", 3) == result
        (row,) = await life.runs()
        assert (row.run_id, row.state) == ("r", "finished")
    async with make() as life:
        assert await life.execute("r", of(colour, order), "book", 3) == result
    assert CALLS == ["book"]
    assert PAYEE.sends == 1


async def test_another_body_or_other_arguments_under_one_run_are_refused(make, colour):
    async with make() as life:
        await life.execute("r", of(colour, order), "book", 3)
        for body, args in ((other_order, ("book", 3)), (order, ("book", 4)), (order, ("book",))):
            with pytest.raises(NameConflict):
                await life.execute("r", of(colour, body), *args)
        with pytest.raises(NotSerializable):
            await life.execute("s", of(colour, order), {1, 2}, 3)
        assert life.records("s") == []
    assert CALLS == ["book"]


@IN_MEMORY
async def test_a_body_without_a_name_is_refused(make):
    async with make() as life:
        with pytest.raises(UsageError):
            await life.execute("r", __import__("functools").partial(order))
        assert life.records() == []


@pytest.mark.rule("S4")
async def test_a_bodys_exception_passes_and_the_run_stays_open(make, colour):
    async with make() as life:
        for _ in range(2):
            with pytest.raises(ValueError, match="own"):
                await life.execute("r", of(colour, failing))
        assert [row.state for row in await life.runs()] == ["open"]
    assert CALLS == ["failing"] * 2


@pytest.mark.rule("E2", "S1")
async def test_recovery_resumes_what_a_dead_life_left_and_nothing_else(make, colour):
    async with make() as life:
        await life.execute("done", of(colour, order), "pen", 1)
        async with life.run("by hand") as run:
            await run.step("sum", lambda: 1)
    life = await make().__aenter__()
    await die_at(life, life.execute("r", of(colour, order), "book", 3), moment="after", request=Call)
    life = await make().__aenter__()
    await die_at(
        life, life.execute("s", of(colour, order), "cup", 4), moment="before", request=Append, slot="pay/1/outcome"
    )
    CALLS.clear()
    async with make() as life:
        results = await life.recover([of(colour, order)])
        assert sorted(results) == ["r", "s"]
        assert results["s"] == {"item": "cup", "proof": "item-2"} or results["s"]["item"] == "cup"
        assert sorted(CALLS) == ["book", "cup"]
        assert await life.recover([of(colour, order)]) == {}
        assert {row.run_id: row.state for row in await life.runs()} == {
            "done": "finished",
            "by hand": "open",
            "r": "finished",
            "s": "finished",
        }
    assert len(set(PAYEE.requests)) == PAYEE.sends == 3


@pytest.mark.rule("E8")
async def test_recovery_leaves_alone_what_another_life_carries(make, colour):
    async with make() as one, make() as two:
        with pytest.raises(ValueError, match="own"):
            await one.execute("r", of(colour, failing))
        CALLS.clear()
        assert await two.recover([of(colour, failing)]) == {}
        assert CALLS == []
    async with make() as three:
        results = await three.recover([of(colour, failing)])
        assert isinstance(results["r"], ValueError)
        assert CALLS == ["failing"]


async def test_recovery_takes_bodies_by_the_names_that_are_on_record(make, colour):
    life = await make().__aenter__()
    await die_at(life, life.execute("r", of(colour, order), "book", 3), moment="before", request=Call)
    body = of(colour, order)
    async with make() as life:
        assert await life.recover([of(colour, other_order)]) == {}
        (result,) = (await life.recover({f"{body.__module__}:{body.__qualname__}": body})).values()
        assert result["item"] == "book"


async def test_one_bodys_exception_does_not_stop_the_others(make, colour):
    life = await make().__aenter__()
    with pytest.raises(ValueError, match="own"):
        await life.execute("a", of(colour, failing))
    await die_at(life, life.execute("b", of(colour, order), "book", 3), moment="before", request=Call)
    async with make() as life:
        results = await life.recover([of(colour, failing), of(colour, order)])
        assert isinstance(results["a"], ValueError)
        assert results["b"]["item"] == "book"


@pytest.mark.rule("E1")
async def test_a_finished_run_answers_recorded_names_and_takes_no_new_ones(make, colour, payee):
    async with make() as life, life.run("r") as run:
        outcome = await run.effect("pay", run=colour.handler(payee.pay), reconcile=UNASKABLE)
        await run.step("sum", lambda: 3)
        await run.finish({"ok": True})
        await run.finish({"ok": True})
        with pytest.raises(Conflict):
            await run.finish({"ok": False})
    async with make() as life, life.run("r") as run:
        assert await run.effect("pay", run=payee.never, reconcile=payee.never) == outcome
        assert await run.step("sum", payee.never) == 3
        for call in (
            run.effect("new", run=payee.never, reconcile=payee.never),
            run.step("new", payee.never),
            run.sleep(1, name="new"),
            run.wait_for("new", "1"),
        ):
            with pytest.raises(UsageError) as raised:
                await call
            assert raised.value.code == "run-finished"
            assert raised.value.effect_ran == "no"


async def test_a_run_that_was_finished_by_hand_is_not_executed(make, colour):
    async with make() as life:
        await life.run("r").finish("by hand")
        assert await life.execute("r", of(colour, other_order), "book", 3) == "by hand"


@IN_MEMORY
async def test_only_a_started_and_unfinished_run_is_taken_over(make):
    async with make() as life, life.run("r") as run:
        await run.step("sum", lambda: 1)
        claim = run.inner._drive(carry.claim)
        assert (claim if isinstance(claim, bool) else await claim) is False


def test_only_a_finished_run_is_pruned():
    with pytest.raises(UsageError):
        lifetime.keepers(History("n", "r"))


async def test_pruning_that_was_cut_short_is_taken_up_again(make, store, colour, payee):
    async with make() as life, life.run("r") as run:
        for name in ("a", "b"):
            await run.effect(name, run=colour.handler(payee.pay), reconcile=UNASKABLE)
        await run.finish()
    ledger = faulty(store.open(), Fault())
    bury = ledger.bury
    calls: list[int] = []

    def cut_short(*args: Any, **kwargs: Any) -> None:
        calls.append(1)
        if len(calls) > 1:
            raise LedgerUnavailable("no more")
        bury(*args, **kwargs)

    type(ledger).bury = staticmethod(cut_short)
    async with make(target=ledger) as life:
        with pytest.raises(LedgerUnavailable):
            await life.prune(page=1)
    async with make() as life:
        await life.prune(page=1)
        for name, proof in (("a", "item-1"), ("b", "item-2")):
            with pytest.raises(RunPruned) as raised:
                await life.run("r").effect(name, run=payee.never, reconcile=payee.never)
            assert raised.value.outcome == Accepted(proof, "run")


async def test_leaving_a_run_neither_finishes_nor_locks_it(make, colour):
    async with make() as one, make() as two:
        async with one.run("r") as run:
            await run.step("a", lambda: 1)
            async with two.run("r") as again:
                await again.step("b", lambda: 2)
        async with one.run("r") as run:
            assert await run.step("b", print) == 2
            assert await run.step("c", lambda: 3) == 3
        assert [row.state for row in await one.runs()] == ["open"]


# --- S7


@pytest.mark.rule("S7")
async def test_a_run_is_the_narrow_port_for_a_mounted_body(make, colour):
    async with make() as life, life.run("r") as run:
        if colour.blocking:
            assert mounted(run.inner) == mounted(run.inner) == 3
        else:
            assert await mounted_async(run.inner) == await mounted_async(run.inner) == 3


@pytest.mark.rule("S7")
def test_the_narrow_port_has_four_methods_and_a_host_may_implement_it():
    from counterfoil.ports import durability

    class Host:
        def __init__(self) -> None:
            self.delivered: dict[tuple[str, str], Any] = {}

        def step(self, name: str, body: Any, *, inputs: Any = None) -> Any:
            return body()

        def sleep(self, seconds: float, *, name: str) -> None: ...

        def wait_for(self, event: str, id: str, *, timeout: float | None = None) -> Any:
            return self.delivered[event, id]

        def deliver(self, event: str, id: str, payload: Any = None) -> bool:
            return self.delivered.setdefault((event, id), payload) is payload

    assert mounted(Host()) == 3
    for port in (durability.Durability, durability.AsyncDurability):
        methods = {name for name in vars(port) if not name.startswith("_")}
        assert methods == {"step", "sleep", "wait_for", "deliver"}


@pytest.mark.rule("S7", "E2")
async def test_a_third_partys_ledger_of_two_methods_is_enough(colour, payee):
    ledger = TwoMethods()
    async with colour.life(ledger) as life, life.run("r") as run:
        assert await run.step("sum", lambda: 3) == 3
        assert await run.effect("pay", run=colour.handler(payee.pay), reconcile=payee.never) == Accepted(
            "item-1", "run"
        )
        await run.sleep(0, name="rest")
        waiter = asyncio.ensure_future(run.beside.wait_for("paid", "1"))
        await eventually(lambda: slots.wait("paid", "1") in [r.slot for r in life.records()])
        assert await run.beside.deliver("paid", "1", "x") is True
        assert await asyncio.wait_for(waiter, PATIENCE_S) == "x"
        namespace = life.inner.namespace
    async with colour.life(ledger) as life, life.run("r") as run:
        assert life.inner.namespace == namespace
        assert await run.effect("pay", run=payee.never, reconcile=payee.never) == Accepted("item-1", "run")
        with pytest.raises(UsageError):
            await life.runs()
        with pytest.raises(UsageError):
            await life.prune()
        await run.finish("end")


@pytest.mark.rule("S7")
async def test_without_owners_an_intent_without_an_outcome_is_reconciled_at_once(colour, payee):
    ledger = TwoMethods()
    life = await colour.life(ledger).__aenter__()

    def dies(moment: str, run: str, request: Any) -> None:
        if moment == "after" and isinstance(request, Call):
            raise Crash

    life.watch(dies)
    with pytest.raises(Crash):
        await life.run("r").effect("pay", run=colour.handler(payee.pay), reconcile=payee.never)
    async with colour.life(ledger) as other, other.run("r") as run:
        outcome = await run.effect("pay", run=payee.never, reconcile=colour.handler(payee.find), wait=0)
        assert outcome == Accepted("item-1", "reconcile")
    life.watch(None)
    await life.__aexit__(None, None, None)


@pytest.mark.rule("S7")
@pytest.mark.parametrize("target", [3, None, object(), {}])
def test_what_is_no_ledger_is_refused(colour, target):
    with pytest.raises(UsageError):
        colour.life(target)


@IN_MEMORY
async def test_a_ledger_that_was_passed_in_is_not_closed(store, colour):
    async with colour.life(store.target) as life:
        await life.run("r").step("sum", lambda: 1)
    assert store.target.read(life.session.namespace, "r")


async def test_each_memory_url_is_a_new_ledger(colour):
    async with colour.life("memory:") as one, colour.life("memory:") as two:
        assert one.inner.namespace != two.inner.namespace
        await one.run("r").step("sum", lambda: 1)
        assert await two.runs() == []


# --- L14, the engine's side


@pytest.mark.rule("L14", "E2")
async def test_after_an_accepted_restore_a_name_without_a_record_asks_first(make, store, colour, payee):
    async with make() as life, life.run("r") as run:
        await run.step("began", lambda: 1)
    async with make() as life:
        life.session._accepted = 10**6
        async with life.run("r") as run:
            # The tail of this run may be lost, with the record of an effect that was sent.
            outcome = await run.effect("pay", run=payee.never, reconcile=colour.handler(payee.find))
            assert isinstance(outcome, Uncertain)
            found = await run.effect("found", run=payee.never, reconcile=lambda: "it was sent before")
            assert found == Accepted("it was sent before", "reconcile")
        async with life.run("new") as run:
            assert await run.effect("pay", run=colour.handler(payee.pay), reconcile=payee.never) == Accepted(
                "item-1", "run"
            )
    assert payee.sends == 1


@pytest.mark.rule("L14")
async def test_after_an_accepted_restore_a_look_up_that_cannot_be_made_leaves_it_open(make, colour, payee):
    def down() -> None:
        raise ConnectionError

    async with make() as life, life.run("r") as run:
        await run.step("began", lambda: 1)
    async with make() as life:
        life.session._accepted = 10**6
        async with life.run("r") as run:
            with pytest.raises(EffectUnresolved):
                await run.effect("pay", run=payee.never, reconcile=colour.handler(down))
    async with make() as life, life.run("r") as run:
        # The intent that was made says that run was never called, in any later life too.
        outcome = await run.effect("pay", run=payee.never, reconcile=lambda: "sent before")
        assert outcome == Accepted("sent before", "reconcile")


# --- types


@pytest.mark.rule("S7")
def test_type_checkers_follow_results_and_proofs():
    root = Path(__file__).resolve().parents[2]
    cases = Path(__file__).with_name("typing_cases.py")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", str(cases)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_typing_cases_run():
    from tests.effects import typing_cases

    with Runtime("memory:") as runtime, runtime.run("r") as run:
        assert typing_cases.mounted(run) == 3
        typing_cases.executed(runtime)


def test_kill_ends_a_life_without_a_word():
    """The harness itself: a killed life leaves its records and is found gone."""
    from counterfoil.ledgers.memory import MemoryLedger
    from tests.support import Colour

    async def scenario() -> None:
        ledger = MemoryLedger()
        life = await Colour("blocking").life(ledger).__aenter__()
        await life.run("r").step("sum", lambda: 1)
        epochs = set(life.session.own_epochs)
        kill(life)
        assert all(ledger.gone(epoch) for epoch in epochs)

    asyncio.run(scenario())
