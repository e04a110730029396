"""Decisions: what a person recorded about an effect that nobody else can settle."""

import asyncio
from typing import Any

import msgspec
import pytest

from counterfoil import (
    UNASKABLE,
    Accepted,
    Conflict,
    EffectUnresolved,
    Evidence,
    Failed,
    Rejected,
    Uncertain,
    UsageError,
)
from counterfoil.protocol import codec, records, slots
from tests.support import EVIDENCE, IN_MEMORY, PROVED, Fault, Gate, faulty, record_by

HOW = {"reason": "looked at the statement", "by": "ada"}


async def uncertain(run: Any, payee: Any, colour: Any, name: str = "pay") -> Any:
    """Make an uncertain effect; returns its key."""
    with pytest.raises(EffectUnresolved):
        await run.effect(name, run=colour.handler(payee.refuse), reconcile=payee.never)
    assert isinstance(await run.effect(name, run=payee.never, reconcile=UNASKABLE), Uncertain)
    return payee.requests[-1]


async def version(life: Any, name: str = "pay") -> Any:
    return next(view.version for view in await life.effects() if view.name == name)


@pytest.mark.rule("E16")
async def test_a_decision_is_recorded_with_who_when_why_and_what_was_seen(make, payee, colour, clock):
    async with make(clock=clock) as life, life.run("r") as run:
        await uncertain(run, payee, colour)
        seen = await version(life)
        clock.advance(60)
        made = await life.decide("r", "pay", happened={"id": 7}, expect_version=seen, **HOW)
        assert (made.happened, made.proof, made.by, made.reason) == (True, {"id": 7}, "ada", HOW["reason"])
        assert (made.at, made.seen_version, made.new_name) == (clock.time(), seen, None)
    async with make() as life, life.run("r") as run:
        (view,) = await life.effects()
        assert view.decision == made
        assert view.version == seen + 1
        # The outcome does not change, and a body sees only the outcome.
        assert view.state == "uncertain"
        assert isinstance(await run.effect("pay", run=payee.never, reconcile=payee.never), Uncertain)
        assert await run.decision("pay") == made


@pytest.mark.rule("E16")
async def test_a_body_awaits_a_decision_and_a_replay_takes_the_same_branch(make, payee, colour):
    async with make() as life:
        run = life.run("r")
        await uncertain(run, payee, colour)
        waiting = asyncio.ensure_future(run.beside.decision("pay"))
        async with make() as other:
            made = await other.decide("r", "pay", did_not_happen=True, expect_version=await version(other), **HOW)
        assert await waiting == made
        assert made.happened is False
        assert await run.decision("pay") == made


@pytest.mark.rule("E16")
async def test_waiting_for_a_decision_ends_with_its_timeout(make, payee, colour, clock):
    async with make(clock=clock) as life, life.run("r") as run:
        await uncertain(run, payee, colour)
        life.skip_pauses(clock)
        before = len(life.records())
        with pytest.raises(TimeoutError):
            await run.decision("pay", timeout=90)
        assert len(life.records()) == before
        with pytest.raises(UsageError):
            await run.decision("other", timeout=1)


@pytest.mark.rule("E16", "N2")
async def test_a_stale_version_is_refused(make, payee, colour):
    async with make() as life, life.run("r") as run:
        key = await uncertain(run, payee, colour)
        seen = await version(life)
        # The version counts late evidence: what the person saw has changed.
        await run.settle("pay", "item-1", key=key, source="webhook")
        before = len(life.records())
        for stale in (seen, seen - 1, seen + 5):
            with pytest.raises(Conflict) as raised:
                await life.decide("r", "pay", did_not_happen=True, expect_version=stale, **HOW)
            assert raised.value.code == "stale-version"
        assert len(life.records()) == before
        made = await life.decide("r", "pay", happened="item-1", expect_version=seen + 1, **HOW)
        assert made.seen_version == seen + 1


@pytest.mark.rule("E16")
async def test_a_second_decision_is_told_who_was_first(make, payee, colour):
    async with make() as life, life.run("r") as run:
        await uncertain(run, payee, colour)
        seen = await version(life)
        first = await life.decide("r", "pay", did_not_happen=True, expect_version=seen, **HOW)
        for expect in (seen, seen + 1):
            with pytest.raises(Conflict) as raised:
                await life.decide("r", "pay", happened="x", expect_version=expect, reason="no", by="bob")
            assert (raised.value.by, raised.value.at) == ("ada", first.at)


@pytest.mark.rule("E16")
async def test_of_two_people_who_decide_at_once_one_is_recorded(make, payee, colour):
    async with make() as one, make() as two:
        await uncertain(one.run("r"), payee, colour)
        seen = await version(one)
        results = await asyncio.gather(
            one.beside.decide("r", "pay", did_not_happen=True, expect_version=seen, reason="no", by="ada"),
            two.beside.decide("r", "pay", happened="x", expect_version=seen, reason="yes", by="bob"),
            return_exceptions=True,
        )
        (error,) = [result for result in results if isinstance(result, Conflict)]
        (made,) = [result for result in results if not isinstance(result, BaseException)]
        assert error.by == made.by
        assert (await one.effects())[0].decision == made


@IN_MEMORY
@pytest.mark.rule("E16", "N2")
@pytest.mark.parametrize(
    "bad",
    [
        {"happened": None},
        {"happened": "x", "did_not_happen": True},
        {"reason": ""},
        {"reason": "  "},
        {"by": ""},
        {"by": None},
        {"expect_version": None},
        {"expect_version": "2"},
        {"new_name": ""},
        {"happened": {1, 2}, "did_not_happen": False},
    ],
)
async def test_a_decision_needs_a_verdict_a_reason_a_person_and_a_version(make, payee, colour, bad):
    async with make() as life, life.run("r") as run:
        await uncertain(run, payee, colour)
        given = {"did_not_happen": bad.get("happened") is None and "happened" not in bad, "expect_version": 2, **HOW}
        before = len(life.records())
        with pytest.raises(UsageError):
            await life.decide("r", "pay", **{**given, **bad})
        assert len(life.records()) == before


@pytest.mark.rule("E16")
@pytest.mark.parametrize("ending", ["accepted", "failed", "rejected", "absent"])
async def test_only_an_uncertain_effect_takes_a_decision(make, payee, colour, ending):
    def fail() -> None:
        raise Failed(PROVED)

    def refuse() -> None:
        raise Rejected(EVIDENCE)

    runs = {"accepted": payee.pay, "failed": fail, "rejected": refuse}
    async with make() as life, life.run("r") as run:
        if ending != "absent":
            await run.effect("pay", run=colour.handler(runs[ending]), reconcile=payee.never)
        with pytest.raises(UsageError):
            await life.decide("r", "pay", did_not_happen=True, expect_version=2 if ending != "absent" else 0, **HOW)


# --- a new name


@pytest.mark.rule("E16", "O3")
async def test_a_retry_is_a_new_name_which_the_decision_names(make, payee, colour):
    async with make() as life, life.run("r") as run:
        await uncertain(run, payee, colour)
        made = await life.decide(
            "r", "pay", did_not_happen=True, expect_version=await version(life), new_name="pay-again", **HOW
        )
        assert made.new_name == "pay-again"
        assert (await run.decision("pay")).new_name == "pay-again"
        outcome = await run.effect("pay-again", run=colour.handler(payee.pay), reconcile=payee.never)
        assert outcome == Accepted("item-1", "run")
        assert payee.requests[0] != payee.requests[1]


@pytest.mark.rule("E16", "E19")
async def test_what_verify_refused_does_not_bar_the_new_name(make, payee, colour):
    async with make() as life, life.run("r") as run:
        call = {"reconcile": UNASKABLE, "verify": lambda proof: proof == "item-1"}
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(lambda: "somebody else's"), **call)
        assert isinstance(await run.effect("pay", run=payee.never, **call), Uncertain)
        await life.decide("r", "pay", did_not_happen=True, expect_version=await version(life), new_name="again", **HOW)
        assert await run.effect("again", run=colour.handler(payee.pay), **call) == Accepted("item-1", "run")


@pytest.mark.rule("E16")
async def test_an_intent_under_the_new_name_is_refused_while_there_is_acceptance_evidence(make, payee, colour):
    async with make() as life, life.run("r") as run:
        key = await uncertain(run, payee, colour)
        await life.decide("r", "pay", did_not_happen=True, expect_version=await version(life), new_name="again", **HOW)
        assert await run.settle("pay", "item-9", key=key, source="webhook") is False
        # Both names count as one effect, and one of its attempts was accepted: that is how it ended (O3).
        outcome = await run.effect("again", run=payee.never, reconcile=payee.never)
        assert outcome == Accepted("item-9", "evidence")
        assert await run.effect("again", run=payee.never, reconcile=payee.never) == outcome
        assert not any(r.phase == "intent" and "again" in r.slot for r in life.records())
        closed = next(view for view in await life.effects() if view.name == "again")
        assert (closed.state, closed.outcome) == ("accepted", outcome)
    async with make() as life, life.run("r") as run:
        assert await run.effect("again", run=payee.never, reconcile=payee.never) == outcome
        # The old name keeps its outcome.
        assert isinstance(await run.effect("pay", run=payee.never, reconcile=payee.never), Uncertain)
    assert payee.sends == 1


@pytest.mark.rule("E16")
async def test_evidence_before_the_decision_refuses_the_new_name_too(make, payee, colour):
    async with make() as life, life.run("r") as run:
        key = await uncertain(run, payee, colour)
        assert await run.settle("pay", "item-9", key=key, source="webhook") is False
        await life.decide("r", "pay", did_not_happen=True, expect_version=await version(life), new_name="again", **HOW)
        outcome = await run.effect("again", run=payee.never, reconcile=payee.never)
        assert outcome == Accepted("item-9", "evidence")
    assert payee.sends == 1


@pytest.mark.rule("E16")
async def test_evidence_that_races_the_new_name_is_decided_by_the_slot(make, payee, colour):
    """A life that had read the run before the evidence came is refused by the append."""
    async with make() as one, make() as two:
        run = one.run("r")
        key = await uncertain(run, payee, colour)
        await one.decide("r", "pay", did_not_happen=True, expect_version=await version(one), new_name="again", **HOW)
        await run.decision("pay")
        assert await two.settle("r", "pay", "item-9", key=key, source="webhook") is False
        outcome = await run.effect("again", run=payee.never, reconcile=payee.never)
        assert outcome == Accepted("item-9", "evidence")
    assert payee.sends == 1


@pytest.mark.rule("O3", "E16")
@pytest.mark.parametrize("proof", [Failed(PROVED), Rejected(EVIDENCE)])
async def test_a_failure_under_the_new_name_does_not_settle_the_old_attempt(make, payee, colour, proof):
    """Attempts linked by a decision count as one effect, and the first one is still uncertain."""

    def fail() -> None:
        raise proof

    async with make() as life, life.run("r") as run:
        await uncertain(run, payee, colour)
        await life.decide("r", "pay", did_not_happen=True, expect_version=await version(life), new_name="again", **HOW)
        outcome = await run.effect("again", run=colour.handler(fail), reconcile=payee.never)
        assert isinstance(outcome, Uncertain)
        assert outcome.evidence.kind == "earlier-attempt-uncertain"
        assert (outcome.evidence.details or {})["this_attempt"]["outcome"] == type(proof).__name__.lower()
    async with make() as life, life.run("r") as run:
        assert await run.effect("again", run=payee.never, reconcile=payee.never) == outcome


@pytest.mark.rule("O3", "E16", "O4")
async def test_a_key_closed_under_the_new_name_does_not_settle_the_old_attempt_either(make, payee, colour):
    def close_key() -> None:
        raise Failed(PROVED)

    async with make() as life, life.run("r") as run:
        await uncertain(run, payee, colour)
        await life.decide("r", "pay", did_not_happen=True, expect_version=await version(life), new_name="again", **HOW)
        with pytest.raises(EffectUnresolved):
            await run.effect("again", run=colour.handler(payee.refuse), reconcile=payee.never)
        outcome = await run.effect("again", run=payee.never, reconcile=colour.handler(close_key))
        assert isinstance(outcome, Uncertain)


@pytest.mark.rule("E16")
async def test_a_new_name_that_is_in_use_is_refused(make, payee, colour):
    async with make() as life, life.run("r") as run:
        await uncertain(run, payee, colour)
        await run.effect("taken", run=colour.handler(payee.pay), reconcile=payee.never)
        for name in ("taken", "pay"):
            with pytest.raises(UsageError):
                await life.decide(
                    "r", "pay", did_not_happen=True, expect_version=await version(life), new_name=name, **HOW
                )


# --- ending what can never be settled


@pytest.mark.rule("E16")
@pytest.mark.parametrize("why", ["raises", "too large"])
async def test_a_person_may_end_an_effect_that_can_never_be_settled(make, payee, colour, why):
    def ask() -> str:
        if why == "raises":
            raise ConnectionError
        return "x" * 70_000

    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(payee.pay_and_drop), reconcile=payee.never)
        for _ in range(3):
            with pytest.raises(EffectUnresolved):
                await run.effect("pay", run=payee.never, reconcile=colour.handler(ask))
        made = await life.decide("r", "pay", happened="item-1", expect_version=await version(life), **HOW)
        outcome = await run.effect("pay", run=payee.never, reconcile=payee.never)
        assert outcome == Uncertain(Evidence("ended-by-person", phase="dispatched"))
        assert await run.decision("pay") == made


@pytest.mark.rule("E16")
async def test_nobody_ends_an_effect_whose_owner_is_performing_it(make, payee):
    gate = Gate()

    async def pay(ctx: Any) -> Any:
        await gate.hold()
        return payee.pay(ctx)

    async with make() as one, make() as two:
        task = asyncio.ensure_future(one.run("r").beside.effect("pay", run=pay, reconcile=payee.never))
        await gate.arrival()
        for life in (one, two):
            with pytest.raises(UsageError) as raised:
                await life.decide("r", "pay", did_not_happen=True, expect_version=1, **HOW)
            assert raised.value.code == "in-flight"
        gate.open()
        assert await task == Accepted("item-1", "run")


@pytest.mark.rule("E16")
async def test_an_effect_that_got_its_outcome_meanwhile_is_not_ended(make, payee, colour):
    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(payee.pay_and_drop), reconcile=payee.never)
        seen = await version(life)
        await run.settle("pay", "item-1", key=payee.requests[0], source="webhook")
        with pytest.raises(Conflict):
            await life.decide("r", "pay", did_not_happen=True, expect_version=seen, **HOW)
        assert (await life.effects())[0].state == "accepted"


@pytest.mark.rule("E16")
async def test_an_outcome_that_comes_first_to_the_slot_is_not_overruled(make, store, payee, colour):
    fault = Fault()
    async with make(target=faulty(store.open(), fault)) as life, life.run("r") as run, make() as other:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(payee.pay_and_drop), reconcile=payee.never)
        body = codec.OutcomeBody(via="evidence", proof=msgspec.Raw(b'"item-1"'), source="webhook")
        fault.before(
            "outcome",
            lambda: record_by(other, slots.outcome("pay", 1), kind=records.EFFECT, phase="accepted", body=body),
        )
        with pytest.raises(Conflict):
            await life.decide("r", "pay", did_not_happen=True, expect_version=await version(life), **HOW)
        assert await run.effect("pay", run=payee.never, reconcile=payee.never) == Accepted("item-1", "evidence")


@pytest.mark.rule("E16")
async def test_of_two_decisions_the_slot_takes_one(make, store, payee, colour):
    fault = Fault()
    async with make(target=faulty(store.open(), fault)) as life, life.run("r") as run, make() as other:
        await uncertain(run, payee, colour)
        seen = await version(life)
        body = codec.DecisionBody(happened=False, reason="x", by="bob", seen_version=seen)
        fault.before(
            "note/1", lambda: record_by(other, slots.note("pay", 1), kind=records.NOTE, phase="decision", body=body)
        )
        with pytest.raises(Conflict) as raised:
            await life.decide("r", "pay", happened="x", expect_version=seen, **HOW)
        assert raised.value.by == "bob"
