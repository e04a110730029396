"""A ledger that fails: what is unknown is settled, what is held is recorded later, what is fenced decides nothing."""

import asyncio
import pickle
from typing import Any

import pytest

from counterfoil import (
    UNASKABLE,
    Accepted,
    EffectUnresolved,
    Failed,
    LedgerReadOnly,
    LedgerUnavailable,
    OwnerRetired,
    Rejected,
    Uncertain,
)
from counterfoil.effects.record import record
from counterfoil.errors import CommitUnknown
from counterfoil.protocol.records import Draft
from counterfoil.protocol.requests import Append
from tests.support import EVIDENCE, PROVED, Fault, Gate, eventually, faulty, kill

FULL = "the disk is full"


@pytest.fixture
def fault() -> Fault:
    return Fault()


@pytest.fixture
def broken(make, store, fault):
    """Makes lives on the test's ledger with the fault before it."""

    def made(**options: Any) -> Any:
        return make(target=faulty(store.open(), fault), **options)

    return made


def unavailable() -> LedgerUnavailable:
    return LedgerUnavailable(FULL)


def unknown() -> CommitUnknown:
    return CommitUnknown("the connection dropped after COMMIT")


# --- before the intent


@pytest.mark.rule("E17", "E20", "L3")
@pytest.mark.parametrize("error", [unavailable, lambda: LedgerReadOnly("read-only")])
async def test_an_intent_that_cannot_be_recorded_sends_nothing(broken, payee, colour, fault, error):
    async with broken() as life, life.run("r") as run:
        fault.refuse("intent", error=error)
        with pytest.raises(LedgerUnavailable) as raised:
            await run.effect("pay", run=payee.never, reconcile=payee.never)
        assert raised.value.effect_ran == "no"
        assert type(raised.value) is type(error())
        fault.heal()
        outcome = await run.effect("pay", run=colour.handler(payee.pay), reconcile=payee.never)
        assert outcome == Accepted("item-1", "run")


@pytest.mark.rule("E20")
async def test_a_failed_read_where_somebody_elses_intent_stands_says_that_it_may_have_been_sent(
    broken, make, payee, colour, fault
):
    async with broken() as life, make() as other, life.run("r") as run, other.run("r") as theirs:
        await run.step("opened", lambda: 1)
        with pytest.raises(EffectUnresolved):
            await theirs.effect("pay", run=colour.handler(payee.pay_and_drop), reconcile=payee.never)
        fault.unreadable = unavailable
        with pytest.raises(LedgerUnavailable) as raised:
            await run.effect("pay", run=payee.never, reconcile=payee.never)
        assert raised.value.effect_ran == "unknown"
        fault.heal()
        outcome = await run.effect("pay", run=payee.never, reconcile=colour.handler(payee.find))
        assert outcome == Accepted("item-1", "reconcile")


# --- L3


@pytest.mark.rule("L3", "E2")
@pytest.mark.parametrize("commits", [True, False])
async def test_an_intent_whose_commit_is_unknown_is_settled_by_its_own_append_id(
    broken, payee, colour, fault, clock, commits
):
    async with broken(clock=clock) as life, life.run("r") as run:
        life.skip_pauses(clock)
        fault.refuse("intent", error=unknown, commits=commits, times=2)
        outcome = await run.effect("pay", run=colour.handler(payee.pay), reconcile=payee.never)
        assert outcome == Accepted("item-1", "run")
    tries = [(settle, append_id) for slot, settle, append_id in fault.seen if slot.endswith("intent")]
    assert [settle for settle, _ in tries] == [False, True, True]
    assert len({append_id for _, append_id in tries}) == 1


@pytest.mark.rule("L3", "E2", "E20")
@pytest.mark.parametrize("commits", [True, False])
async def test_without_an_answer_run_is_not_called_and_a_later_call_of_the_life_goes_on(
    broken, payee, colour, fault, clock, commits
):
    async with broken(clock=clock) as life, life.run("r") as run:
        waits = life.skip_pauses(clock)
        fault.refuse("intent", error=unknown, commits=commits)
        for _ in range(2):
            with pytest.raises(LedgerUnavailable) as raised:
                await run.effect("pay", run=payee.never, reconcile=payee.never)
            assert raised.value.effect_ran == "no"
            assert not isinstance(raised.value, CommitUnknown)
        # A store that is down for long is not kept down by those who wait for it.
        assert waits[:6] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
        assert max(waits) == 1.0
        fault.heal()
        outcome = await run.effect("pay", run=colour.handler(payee.pay), reconcile=payee.never)
        assert outcome == Accepted("item-1", "run")
        assert len({append_id for slot, _, append_id in fault.seen if slot.endswith("intent")}) == 1
    assert payee.sends == 1


@pytest.mark.rule("L3")
@pytest.mark.parametrize("commits", [True, False])
async def test_a_refusal_while_settling_says_nothing_about_the_first_append(
    broken, payee, colour, fault, clock, commits
):
    def then_refused() -> CommitUnknown:
        fault.refuse("intent", error=unavailable, times=3)
        return unknown()

    async with broken(clock=clock) as life, life.run("r") as run:
        life.skip_pauses(clock)
        fault.refuse("intent", error=then_refused, commits=commits, times=1)
        outcome = await run.effect("pay", run=colour.handler(payee.pay), reconcile=payee.never)
        assert outcome == Accepted("item-1", "run")
        assert len({append_id for slot, _, append_id in fault.seen if slot.endswith("intent")}) == 1


@pytest.mark.rule("L3", "L8")
async def test_a_life_that_was_retired_while_it_did_not_know_begins_afresh(broken, payee, colour, fault, clock):
    async with broken(clock=clock) as life:
        life.skip_pauses(clock)
        run = life.run("r")
        await run.step("register", lambda: 1)
        fault.refuse("intent", error=unknown)
        with pytest.raises(LedgerUnavailable):
            await run.effect("pay", run=payee.never, reconcile=payee.never)
        fault.heal()
        (epoch,) = life.session.own_epochs
        life.session.ledger.retire(epoch)
        with pytest.raises(OwnerRetired):
            await run.effect("pay", run=payee.never, reconcile=payee.never)
        # A retired epoch fills no intent any more, so the lost append did not and never will.
        outcome = await life.run("r").effect("pay", run=colour.handler(payee.pay), reconcile=payee.never)
        assert outcome == Accepted("item-1", "run")


@pytest.mark.rule("L3", "E2")
async def test_a_later_handle_of_the_same_life_goes_on_too(broken, payee, colour, fault, clock):
    async with broken(clock=clock) as life:
        life.skip_pauses(clock)
        async with life.run("r") as run:
            fault.refuse("intent", error=unknown, commits=True)
            with pytest.raises(LedgerUnavailable):
                await run.effect("pay", run=payee.never, reconcile=payee.never)
        del run
        fault.heal()
        async with life.run("r") as run:
            outcome = await run.effect("pay", run=colour.handler(payee.pay), reconcile=payee.never)
            assert outcome == Accepted("item-1", "run")


@pytest.mark.rule("L3", "E2")
@pytest.mark.parametrize("commits", [True, False])
async def test_without_an_answer_the_next_life_asks_or_begins(broken, make, payee, colour, fault, clock, commits):
    life = await broken(clock=clock).__aenter__()
    life.skip_pauses(clock)
    fault.refuse("intent", error=unknown, commits=commits)
    with pytest.raises(LedgerUnavailable):
        await life.run("r").effect("pay", run=payee.never, reconcile=payee.never)
    kill(life)
    async with make() as life, life.run("r") as run:
        outcome = await run.effect("pay", run=colour.handler(payee.pay), reconcile=colour.handler(payee.find))
        assert isinstance(outcome, Uncertain if commits else Accepted)
    assert payee.sends == (0 if commits else 1)


@pytest.mark.rule("L3", "E8")
async def test_an_unknown_intent_that_lost_its_slot_is_not_ours(broken, make, payee, colour, fault):
    async with broken() as one, make() as two:
        run = one.run("r")
        await run.step("load", lambda: 1)

        def lost() -> CommitUnknown:
            taken.append(True)
            return unknown()

        taken: list[bool] = []
        gate = Gate()

        async def hold(ctx: Any) -> Any:
            await gate.hold()
            return payee.pay(ctx)

        fault.refuse("intent", error=lost, times=1)
        theirs = asyncio.ensure_future(two.run("r").beside.effect("pay", run=hold, reconcile=payee.never))
        await gate.arrival()
        ours = asyncio.ensure_future(run.beside.effect("pay", run=payee.never, reconcile=payee.never))
        await eventually(lambda: taken)
        gate.open()
        assert await ours == await theirs == Accepted("item-1", "run")
    assert payee.sends == 1


@pytest.mark.rule("L3")
@pytest.mark.parametrize("commits", [True, False])
async def test_every_record_with_an_unknown_commit_is_settled(broken, payee, colour, fault, clock, commits):
    """Steps, parks, deliveries, outcomes, releases, decisions, the end: the same holds for each."""
    async with broken(clock=clock) as life, life.run("r") as run:
        life.skip_pauses(clock)

        def each() -> None:
            fault.refuse("", error=unknown, commits=commits, times=1)

        each()
        assert await run.step("sum", lambda: 3) == 3
        each()
        await run.sleep(5, name="rest")
        each()
        assert await run.deliver("event", "1", "x") is True
        each()
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(payee.refuse), reconcile=payee.never)
        each()
        outcome = await run.effect("pay", run=payee.never, reconcile=UNASKABLE)
        assert isinstance(outcome, Uncertain)
        each()
        await life.decide("r", "pay", did_not_happen=True, reason="x", by="ada", expect_version=2)
        each()
        await run.finish("done")
        slots = [record.slot for record in life.records()]
        assert len(slots) == len(set(slots)) == 9


# --- E17


@pytest.mark.rule("E17", "E20", "E21")
@pytest.mark.parametrize("error", [unavailable, unknown])
@pytest.mark.parametrize("commits", [False, True])
async def test_an_outcome_that_cannot_be_recorded_carries_its_proof_and_is_recorded_later_by_itself(
    broken, make, payee, colour, fault, clock, error, commits
):
    if commits and error is unavailable:
        return  # what is refused for good is not committed
    async with broken(clock=clock) as life, make(clock=clock) as other:
        life.skip_pauses(clock)
        async with life.run("r") as run:
            fault.refuse("outcome", error=error, commits=commits)
            with pytest.raises(LedgerUnavailable) as raised:
                await run.effect("pay", run=colour.handler(payee.pay), reconcile=payee.never)
            assert (raised.value.effect_ran, raised.value.proof) == ("yes", "item-1")
            assert not isinstance(raised.value, CommitUnknown)
            again = pickle.loads(pickle.dumps(raised.value))
            assert (again.effect_ran, again.proof, str(again)) == ("yes", "item-1", str(raised.value))
            # This life holds a proof: it appends, and never asks.
            with pytest.raises(LedgerUnavailable) as raised:
                await run.effect("pay", run=payee.never, reconcile=payee.never)
            assert (raised.value.effect_ran, raised.value.proof) == ("yes", "item-1")
            if not commits:
                with pytest.raises(EffectUnresolved) as waiting:
                    await other.run("r").effect("pay", run=payee.never, reconcile=payee.never, wait=0)
                assert waiting.value.reason == "in-flight"
        del run
        fault.heal()
        await eventually(lambda: any(r.phase == "accepted" for r in life.records()))
        outcome = await life.run("r").effect("pay", run=payee.never, reconcile=payee.never)
        assert outcome == Accepted("item-1", "run")
    assert payee.sends == 1


@pytest.mark.rule("E17")
async def test_a_later_call_records_what_this_life_holds(broken, payee, colour, fault):
    async with broken() as life, life.run("r") as run:
        fault.refuse("outcome", error=unavailable)
        with pytest.raises(LedgerUnavailable):
            await run.effect("pay", run=colour.handler(payee.pay), reconcile=payee.never)
        fault.heal()
        assert await run.effect("pay", run=payee.never, reconcile=payee.never) == Accepted("item-1", "run")


@pytest.mark.rule("E17")
async def test_leaving_the_runtime_tries_once_more(broken, make, payee, colour, fault):
    async with broken() as life:
        fault.refuse("outcome", error=unavailable)
        with pytest.raises(LedgerUnavailable):
            await life.run("r").effect("pay", run=colour.handler(payee.pay), reconcile=payee.never)
        fault.heal()
    async with make() as life:
        assert [record.phase for record in life.records()] == ["intent", "accepted"]


@pytest.mark.rule("E17", "E2")
async def test_the_next_process_asks(broken, make, payee, colour, fault):
    life = await broken().__aenter__()
    fault.refuse("outcome", error=unavailable)
    with pytest.raises(LedgerUnavailable):
        await life.run("r").effect("pay", run=colour.handler(payee.pay), reconcile=payee.never)
    kill(life)
    async with make() as life, life.run("r") as run:
        outcome = await run.effect("pay", run=payee.never, reconcile=colour.handler(payee.find))
        assert outcome == Accepted("item-1", "reconcile")


@pytest.mark.rule("E17", "E15")
async def test_what_is_held_and_comes_second_is_late_evidence(broken, make, payee, colour, fault):
    async with broken() as life, make() as other, life.run("r") as run:
        fault.refuse("outcome", error=unavailable)
        with pytest.raises(LedgerUnavailable):
            await run.effect("pay", run=colour.handler(payee.pay), reconcile=payee.never)
        assert await other.settle("r", "pay", "from the webhook", key=payee.requests[0], source="webhook") is True
        fault.heal()
        outcome = await run.effect("pay", run=payee.never, reconcile=payee.never)
        assert outcome == Accepted("from the webhook", "evidence")
        (late,) = (await life.effects())[0].late_evidence
        assert (late.claims, late.proof) == ("accepted", "item-1")


@pytest.mark.rule("E17", "E20")
@pytest.mark.parametrize(("proof", "ran"), [(Rejected(EVIDENCE), "no"), (Failed(PROVED), "yes")])
async def test_proved_failures_that_cannot_be_recorded_are_held_too(broken, payee, colour, fault, proof, ran):
    def fail() -> None:
        raise proof

    async with broken() as life, life.run("r") as run:
        fault.refuse("outcome", error=unavailable)
        for handler in (colour.handler(fail), payee.never):
            with pytest.raises(LedgerUnavailable) as raised:
                await run.effect("pay", run=handler, reconcile=payee.never)
            assert raised.value.effect_ran == ran
        fault.heal()
        assert await run.effect("pay", run=payee.never, reconcile=payee.never) == proof


@pytest.mark.rule("E17", "E20", "L8")
async def test_what_a_look_up_did_not_find_is_not_held(broken, payee, colour, fault):
    """It is a decision, not a fact: the next call asks again."""
    async with broken() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(payee.pay_and_drop), reconcile=payee.never)
        fault.refuse("outcome", error=unavailable)
        with pytest.raises(LedgerUnavailable) as raised:
            await run.effect("pay", run=payee.never, reconcile=lambda: None)
        assert raised.value.effect_ran == "unknown"
        fault.heal()
        outcome = await run.effect("pay", run=payee.never, reconcile=colour.handler(payee.find))
        assert outcome == Accepted("item-1", "reconcile")


@pytest.mark.rule("E3", "E17")
async def test_a_release_that_cannot_be_recorded_does_not_hide_why_run_ended(broken, make, payee, colour, fault):
    async with broken() as life, make() as other, life.run("r") as run:
        fault.refuse("released", error=unavailable)
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("pay", run=colour.handler(payee.pay_and_drop), reconcile=payee.never)
        assert raised.value.reason == "run-failed"
        # Others see an owner that lives and has not released; this life knows that run is over.
        with pytest.raises(EffectUnresolved) as raised:
            await other.run("r").effect("pay", run=payee.never, reconcile=payee.never, wait=0)
        assert raised.value.reason == "in-flight"
        outcome = await run.effect("pay", run=payee.never, reconcile=colour.handler(payee.find))
        assert outcome == Accepted("item-1", "reconcile")


@pytest.mark.rule("E5", "E17")
async def test_a_note_that_cannot_be_recorded_changes_nothing_else(broken, payee, colour, fault):
    async with broken() as life, life.run("r") as run:
        fault.refuse("note/1", error=unavailable)
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("pay", run=colour.handler(lambda: {1}), reconcile=payee.never)
        assert raised.value.reason == "proof-rejected"
        assert [r.phase for r in life.records()] == ["intent", "released"]


@pytest.mark.rule("S4", "P1", "E17")
async def test_steps_and_parks_pass_the_ledgers_error_on(broken, fault):
    calls: list[int] = []
    async with broken() as life, life.run("r") as run:
        fault.refuse("", error=unavailable)
        with pytest.raises(LedgerUnavailable):
            await run.step("sum", lambda: calls.append(1))
        with pytest.raises(LedgerUnavailable):
            await run.sleep(0, name="rest")
        with pytest.raises(LedgerUnavailable):
            await run.deliver("event", "1")
        fault.heal()
        assert await run.step("sum", lambda: calls.append(1)) is None
    assert calls == [1, 1]


# --- L8: fences


@pytest.mark.rule("L8", "E20")
async def test_a_retired_owner_begins_nothing(make, payee, colour):
    async with make() as life:
        run = life.run("r")
        await run.effect("first", run=colour.handler(payee.pay), reconcile=payee.never)
        (epoch,) = life.session.own_epochs
        life.session.ledger.retire(epoch)
        with pytest.raises(OwnerRetired) as raised:
            await run.effect("pay", run=payee.never, reconcile=payee.never)
        assert raised.value.effect_ran == "no"
        # A process that finds itself retired registers a fresh epoch: open the run again to go on.
        outcome = await life.run("r").effect("pay", run=colour.handler(payee.pay), reconcile=payee.never)
        assert outcome == Accepted("item-2", "run")
        assert len(life.session.own_epochs) == 2


@pytest.mark.rule("L8")
async def test_a_retired_owner_draws_nothing_from_a_look_up_that_found_nothing(make, payee, colour):
    async with make() as life:
        run = life.run("r")
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(payee.pay_and_drop), reconcile=payee.never)

        def found_nothing() -> None:
            (epoch,) = life.session.own_epochs
            life.session.ledger.retire(epoch)

        with pytest.raises(OwnerRetired):
            await run.effect("pay", run=payee.never, reconcile=colour.handler(found_nothing))
        assert not any(r.phase == "uncertain" for r in life.records())
        outcome = await life.run("r").effect("pay", run=payee.never, reconcile=colour.handler(payee.find))
        assert outcome == Accepted("item-1", "reconcile")


@pytest.mark.rule("L8", "L3")
async def test_an_owner_retired_before_it_called_run_records_that_as_the_fact_rejected(broken, payee, fault, clock):
    async with broken(clock=clock) as life, life.run("r") as run:
        await run.step("register", lambda: 1)
        (epoch,) = life.session.own_epochs

        def retired_meanwhile() -> CommitUnknown:
            life.session.ledger.retire(epoch)
            return unknown()

        fault.refuse("intent", error=retired_meanwhile, commits=True, times=1)
        outcome = await run.effect("pay", run=payee.never, reconcile=payee.never)
        assert isinstance(outcome, Rejected)
        assert (outcome.evidence.kind, outcome.evidence.phase) == ("fenced", "not-dispatched")


@pytest.mark.rule("L8", "E8")
async def test_an_owner_retired_while_it_sends_still_records_its_proof(make, payee):
    gate = Gate()

    async def pay(ctx: Any) -> Any:
        await gate.hold()
        return payee.pay(ctx)

    async with make() as life:
        task = asyncio.ensure_future(life.run("r").beside.effect("pay", run=pay, reconcile=payee.never))
        await gate.arrival()
        (epoch,) = life.session.own_epochs
        life.session.ledger.retire(epoch)
        gate.open()
        assert await task == Accepted("item-1", "run")


@pytest.mark.rule("L3")
def test_a_driver_that_does_not_say_which_append_is_unknown_is_told():
    draft = Draft(slot="step/x", kind="durability/step", phase="result", body=b"{}")
    flow = record(draft)
    assert isinstance(flow.send(None), Append)
    with pytest.raises(TypeError):
        flow.throw(CommitUnknown("?"))
