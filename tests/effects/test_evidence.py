"""Evidence that comes by another way, or late."""

import asyncio
from typing import Any

import pytest

from counterfoil import UNASKABLE, Accepted, EffectUnresolved, Failed, Uncertain, UsageError
from counterfoil.protocol import codec, records, slots
from counterfoil.protocol.requests import Append, Call
from tests.support import PROVED, Fault, Gate, die_at, eventually, faulty, record_by


async def lose(run: Any, payee: Any, colour: Any, **more: Any) -> Any:
    """Send, and lose the answer; returns the key."""
    with pytest.raises(EffectUnresolved):
        await run.effect("pay", run=colour.handler(payee.pay_and_drop), reconcile=payee.never, **more)
    return payee.requests[-1]


@pytest.mark.rule("E18")
async def test_evidence_for_an_open_attempt_becomes_the_outcome(make, payee, colour):
    async with make() as life, life.run("r") as run:
        key = await lose(run, payee, colour)
        assert await run.settle("pay", {"id": 7}, key=key, source="webhook") is True
        outcome = await run.effect("pay", run=payee.never, reconcile=payee.never)
        assert outcome == Accepted({"id": 7}, "evidence")
    async with make() as life:
        assert (await life.effects())[0].outcome == outcome
        assert await life.run("r").effect("pay", run=payee.never, reconcile=payee.never) == outcome


@pytest.mark.rule("E18")
async def test_evidence_may_come_through_the_runtime_from_another_life(make, payee, colour):
    async with make() as life, life.run("r") as run:
        key = await lose(run, payee, colour)
        async with make() as other:
            assert await other.settle("r", "pay", "item-9", key=key, source="webhook") is True
        assert await run.effect("pay", run=payee.never, reconcile=payee.never) == Accepted("item-9", "evidence")


@pytest.mark.rule("E18")
@pytest.mark.parametrize("wrong", ["another key", "no effect", "no run"])
async def test_evidence_without_its_intent_raises_and_records_nothing(make, payee, colour, wrong):
    async with make() as life, life.run("r") as run:
        key = await lose(run, payee, colour)
        before = len(life.records())
        with pytest.raises(UsageError):
            await life.settle(
                "other" if wrong == "no run" else "r",
                "other" if wrong == "no effect" else "pay",
                "x",
                key="cf-wrong" if wrong == "another key" else key,
                source="webhook",
            )
        assert len(life.records()) == before
        assert life.records("other") == []


@pytest.mark.rule("E18", "E15")
async def test_evidence_after_an_outcome_is_late_and_says_so(make, payee, colour):
    async with make() as life, life.run("r") as run:
        key = await lose(run, payee, colour)
        outcome = await run.effect("pay", run=payee.never, reconcile=UNASKABLE)
        version = (await life.effects())[0].version
        assert await run.settle("pay", "item-1", key=key, source="webhook") is False
        # Bodies see only the outcome; operators see both.
        assert await run.effect("pay", run=payee.never, reconcile=payee.never) == outcome
        (view,) = await life.effects()
        assert (view.state, view.outcome, view.version) == ("uncertain", outcome, version + 1)
        (late,) = view.late_evidence
        assert (late.claims, late.via, late.proof, late.source) == ("accepted", "evidence", "item-1", "webhook")
        # The same again says nothing new.
        assert await run.settle("pay", "item-1", key=key, source="webhook") is False
        assert len((await life.effects())[0].late_evidence) == 1
        assert await run.settle("pay", "item-1", key=key, source="another") is False
        assert [late.source for late in (await life.effects())[0].late_evidence] == ["webhook", "another"]
    async with make() as life, life.run("r") as run:
        assert await run.effect("pay", run=payee.never, reconcile=payee.never) == outcome


@pytest.mark.rule("E18", "E15")
async def test_a_result_of_run_after_evidence_is_late_and_the_caller_gets_what_is_recorded(make, payee):
    gate, keys = Gate(), []

    async def pay(ctx: Any) -> str:
        keys.append(ctx.key)
        await gate.hold()
        return "from run"

    async with make() as life:
        run = life.run("r").beside
        task = asyncio.ensure_future(run.effect("pay", run=pay, reconcile=payee.never))
        await gate.arrival()
        assert await run.settle("pay", "from the webhook", key=keys[0], source="webhook") is True
        gate.open()
        assert await task == Accepted("from the webhook", "evidence")
        (view,) = await life.effects()
        assert [(late.claims, late.via, late.proof) for late in view.late_evidence] == [("accepted", "run", "from run")]


@pytest.mark.rule("E18", "E15")
async def test_a_proved_failure_after_evidence_is_late_too(make, payee):
    gate, keys = Gate(), []

    async def pay(ctx: Any) -> str:
        keys.append(ctx.key)
        await gate.hold()
        raise Failed(PROVED)

    async with make() as life:
        run = life.run("r").beside
        task = asyncio.ensure_future(run.effect("pay", run=pay, reconcile=payee.never))
        await gate.arrival()
        assert await run.settle("pay", "from the webhook", key=keys[0], source="webhook") is True
        gate.open()
        assert await task == Accepted("from the webhook", "evidence")
        (late,) = (await life.effects())[0].late_evidence
        assert (late.claims, late.via) == ("failed", "run")


@pytest.mark.rule("E18", "E3")
async def test_a_run_that_raises_after_evidence_gives_its_caller_what_is_recorded(make, payee):
    gate, keys = Gate(), []

    async def pay(ctx: Any) -> str:
        keys.append(ctx.key)
        await gate.hold()
        raise ConnectionError

    async with make() as life:
        run = life.run("r").beside
        task = asyncio.ensure_future(run.effect("pay", run=pay, reconcile=payee.never))
        await gate.arrival()
        assert await run.settle("pay", "from the webhook", key=keys[0], source="webhook") is True
        gate.open()
        assert await task == Accepted("from the webhook", "evidence")


@pytest.mark.rule("E15", "E18")
async def test_of_two_notes_at_once_both_are_kept(make, store, payee, colour):
    fault = Fault()
    async with make(target=faulty(store.open(), fault)) as life, life.run("r") as run, make() as other:
        key = await lose(run, payee, colour)
        await run.effect("pay", run=payee.never, reconcile=UNASKABLE)
        late = codec.LateBody(attempt=1, claims="accepted", via="evidence", source="another")
        fault.before(
            "note/1", lambda: record_by(other, slots.note("pay", 1), kind=records.NOTE, phase="late", body=late)
        )
        assert await run.settle("pay", "item-1", key=key, source="webhook") is False
        (view,) = await life.effects()
        assert [late.source for late in view.late_evidence] == ["another", "webhook"]


@pytest.mark.rule("E9", "E8")
async def test_of_two_lives_that_find_an_owner_gone_one_says_when(make, store, payee, colour, clock):
    fault = Fault()
    life = await make(clock=clock).__aenter__()
    call = life.run("r").effect("pay", run=colour.handler(payee.refuse), reconcile=payee.never)
    await die_at(life, call, moment="after", request=Call)
    async with make(target=faulty(store.open(), fault), clock=clock) as one, make(clock=clock) as two:
        body = codec.ReleasedBody(why="owner-gone")
        fault.before(
            "released",
            lambda: record_by(two, slots.released("pay", 1), kind=records.EFFECT, phase="released", body=body),
        )
        with pytest.raises(EffectUnresolved) as raised:
            await one.run("r").effect("pay", run=payee.never, reconcile=lambda: None, visibility=10)
        assert raised.value.reason == "too-early"
        assert [r.phase for r in one.records()] == ["intent", "released"]


@pytest.mark.rule("E15", "L8")
async def test_a_proof_that_arrives_after_another_life_had_recorded_uncertain_is_late_evidence(make, payee, colour):
    """The sender was taken for gone, and comes back: it may state facts, but the outcome stays."""
    gate = Gate()

    async def pay(ctx: Any) -> Any:
        await gate.hold()
        return payee.pay(ctx)

    async with make() as one, make() as two:
        task = asyncio.ensure_future(one.run("r").beside.effect("pay", run=pay, reconcile=payee.never))
        await gate.arrival()
        (epoch,) = one.session.own_epochs
        one.session.ledger.retire(epoch)
        outcome = await two.run("r").effect("pay", run=payee.never, reconcile=colour.handler(payee.find))
        assert isinstance(outcome, Uncertain)
        gate.open()
        assert await task == outcome
        (late,) = (await two.effects())[0].late_evidence
        assert (late.claims, late.proof) == ("accepted", "item-1")
    assert payee.sends == 1


@pytest.mark.rule("E15")
async def test_finding_what_is_on_record_already_is_no_late_evidence(make, payee, colour):
    """Two lives ask at once and find the same."""
    life = await make().__aenter__()
    await die_at(
        life,
        life.run("r").effect("pay", run=colour.handler(payee.pay), reconcile=payee.never),
        moment="after",
        request=Call,
    )
    gate = Gate()

    async def find(ctx: Any) -> Any:
        await gate.hold()
        return payee.find(ctx)

    async with make() as one, make() as two:
        tasks = [
            asyncio.ensure_future(life.run("r").beside.effect("pay", run=payee.never, reconcile=find))
            for life in (one, two)
        ]
        await gate.arrival()
        gate.open()
        assert [await task for task in tasks] == [Accepted("item-1", "reconcile")] * 2
        assert (await one.effects())[0].late_evidence == ()


# --- verify


@pytest.mark.rule("E18", "E19")
async def test_evidence_passes_the_verify_of_its_call(make, payee, colour):
    async with make() as life, life.run("r") as run:
        key = await lose(run, payee, colour, verify=lambda proof: proof == "item-1")
        with pytest.raises(EffectUnresolved) as raised:
            await run.settle("pay", "item-666", key=key, source="webhook")
        assert (raised.value.reason, raised.value.effect_ran) == ("proof-rejected", "unknown")
        (view,) = await life.effects()
        assert [(late.claims, late.proof) for late in view.late_evidence] == [("refused", None)]
        assert view.state == "unresolved"
        assert await run.settle("pay", "item-1", key=key, source="webhook") is True
        assert await run.effect("pay", run=payee.never, reconcile=payee.never) == Accepted("item-1", "evidence")


@pytest.mark.rule("E18", "E19", "E4")
async def test_a_verify_that_raises_settles_nothing(make, payee, colour):
    def broken(proof: Any) -> bool:
        raise ConnectionError

    async with make() as life, life.run("r") as run:
        key = await lose(run, payee, colour, verify=broken)
        before = len(life.records())
        with pytest.raises(EffectUnresolved) as raised:
            await run.settle("pay", "item-1", key=key, source="webhook")
        assert raised.value.reason == "reconcile-failed"
        assert len(life.records()) == before


@pytest.mark.rule("E18", "E19")
async def test_evidence_that_nobody_here_can_verify_waits_for_a_call_that_can(make, payee, colour):
    async with make() as life, life.run("r") as run:
        key = await lose(run, payee, colour, verify=lambda proof: True)
    async with make() as life, life.run("r") as run:
        # A webhook process: it has no verify.
        for proof in ("item-666", "item-1"):
            assert await run.settle("pay", proof, key=key, source="webhook") is False
        assert (await life.effects())[0].state == "unresolved"
    async with make() as life, life.run("r") as run:
        seen: list[Any] = []

        def check(proof: Any) -> Any:
            seen.append(proof)
            return proof == "item-1"

        outcome = await run.effect("pay", run=payee.never, reconcile=payee.never, verify=check)
        assert outcome == Accepted("item-1", "evidence")
        assert seen == ["item-666", "item-1"]


@pytest.mark.rule("E18", "E19")
async def test_pending_evidence_that_verify_refuses_leads_to_asking(make, payee, colour):
    async with make() as life, life.run("r") as run:
        key = await lose(run, payee, colour, verify=lambda proof: True)
    async with make() as life, life.run("r") as run:
        assert await run.settle("pay", "item-666", key=key, source="webhook") is False
    async with make() as life, life.run("r") as run:
        outcome = await run.effect(
            "pay", run=payee.never, reconcile=colour.handler(payee.find), verify=lambda proof: proof == "item-1"
        )
        assert outcome == Accepted("item-1", "reconcile")


@pytest.mark.rule("E18")
async def test_evidence_during_the_wait_of_a_loser_ends_its_wait(make, payee):
    gate, keys = Gate(), []

    async def pay(ctx: Any) -> str:
        keys.append(ctx.key)
        await gate.hold()
        return "from run"

    async with make() as one, make() as two:
        winner = asyncio.ensure_future(one.run("r").beside.effect("pay", run=pay, reconcile=payee.never))
        await gate.arrival()
        pauses = two.note_pauses()
        loser = asyncio.ensure_future(two.run("r").beside.effect("pay", run=payee.never, reconcile=payee.never))
        await eventually(lambda: pauses)
        assert await two.settle("r", "pay", "evidence", key=keys[0], source="webhook") is True
        assert await loser == Accepted("evidence", "evidence")
        gate.open()
        assert await winner == Accepted("evidence", "evidence")


@pytest.mark.rule("E18")
async def test_two_settlements_at_once_make_one_outcome(make, payee, colour):
    async with make() as life, life.run("r") as run, make() as other:
        key = await lose(run, payee, colour)
        results = await asyncio.gather(
            run.beside.settle("pay", "one", key=key, source="a"),
            other.beside.settle("r", "pay", "two", key=key, source="b"),
        )
        assert sorted(results) == [False, True]
        (view,) = await life.effects()
        assert {view.outcome.proof, view.late_evidence[0].proof} == {"one", "two"}


@pytest.mark.rule("E18")
async def test_a_life_that_dies_while_it_settles_leaves_all_or_nothing(make, payee, colour):
    async with make() as life, life.run("r") as run:
        key = await lose(run, payee, colour)
    life = await make().__aenter__()
    await die_at(
        life,
        life.run("r").settle("pay", "item-1", key=key, source="webhook"),
        moment="before",
        request=Append,
        slot="outcome",
    )
    async with make() as life, life.run("r") as run:
        assert await run.settle("pay", "item-1", key=key, source="webhook") is True
