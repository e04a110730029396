"""The intent before, the outcome after: what one effect leaves behind, and what a later call does with it."""

import asyncio
import copy
import pickle
import threading
from contextlib import suppress
from typing import Any

import pytest

from counterfoil import (
    UNASKABLE,
    Accepted,
    EffectUnresolved,
    Evidence,
    Failed,
    LedgerCorrupt,
    NameConflict,
    Rejected,
    RunCancelled,
    Uncertain,
    UsageError,
)
from counterfoil.protocol import codec, records, slots
from counterfoil.protocol.requests import Append, Call
from tests.support import ASYNCIO, BLOCKING, EVIDENCE, IN_MEMORY, PROVED, die_at, record_by

# Steps, effects, parks and outcomes: each rule of these parts has its test in this folder.
RULE_PARTS = ("O", "S", "E", "P")


@pytest.mark.rule("E1", "O1")
async def test_the_intent_is_durable_before_run_and_the_proof_after_it(make, store, payee, colour):
    seen: list[list[str]] = []
    reader = store.open()

    async with make() as life, life.run("r") as run:

        def pay(ctx: Any) -> Any:
            found = reader.read(life.inner.namespace, "r")
            seen.append([record.phase for record in found])
            return payee.pay(ctx)

        outcome = await run.effect("pay", run=colour.handler(pay), reconcile=UNASKABLE)
        assert outcome == Accepted("item-1", "run")
        assert seen == [["intent"]]
        assert [record.phase for record in life.records()] == ["intent", "accepted"]
    if store.kind != "memory":
        reader.close()


@pytest.mark.rule("E1", "E21")
async def test_a_body_goes_on_only_when_the_outcome_is_in_the_ledger(make, store, payee, colour):
    reader = store.open()
    async with make() as life, life.run("r") as run:
        for number in range(3):
            await run.effect(f"pay-{number}", run=colour.handler(payee.pay), reconcile=UNASKABLE)
            assert len(reader.read(life.inner.namespace, "r")) == 2 * (number + 1)
    if store.kind != "memory":
        reader.close()


@pytest.mark.rule("E1", "E6")
async def test_a_recorded_outcome_is_returned_by_later_calls_and_lives_without_calling_anything(make, payee, colour):
    async with make() as life, life.run("r") as run:
        first = await run.effect("pay", run=colour.handler(payee.pay), reconcile=colour.handler(payee.find))
        assert await run.effect("pay", run=payee.never, reconcile=payee.never) == first
    async with make() as life, life.run("r") as run:
        assert await run.effect("pay", run=payee.never, reconcile=payee.never) == first
    assert (payee.sends, payee.asked) == (1, [])


@pytest.mark.rule("E2")
@pytest.mark.parametrize(
    ("moment", "request_", "slot", "outcome", "sends"),
    [
        ("before", Append, "intent", Accepted("item-1", "run"), 1),
        ("after", Append, "intent", Uncertain(Evidence("not-found", phase="dispatched")), 0),
        ("before", Call, "", Uncertain(Evidence("not-found", phase="dispatched")), 0),
        ("after", Call, "", Accepted("item-1", "reconcile"), 1),
        ("before", Append, "outcome", Accepted("item-1", "reconcile"), 1),
        ("after", Append, "outcome", Accepted("item-1", "run"), 1),
    ],
)
async def test_what_a_dead_life_leaves_is_settled_by_asking(
    make, payee, colour, moment, request_, slot, outcome, sends
):
    handlers = {"run": colour.handler(payee.pay), "reconcile": colour.handler(payee.find)}
    life = await make().__aenter__()
    await die_at(life, life.run("r").effect("pay", **handlers), moment=moment, request=request_, slot=slot)
    async with make() as life, life.run("r") as run:
        assert await run.effect("pay", **handlers) == outcome
        assert await run.effect("pay", run=payee.never, reconcile=payee.never) == outcome
    assert payee.sends == sends
    assert len(payee.asked) <= 1


@pytest.mark.rule("E2", "O4")
async def test_not_found_is_uncertain_for_good_and_is_never_asked_or_sent_again(make, payee, colour):
    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(payee.refuse), reconcile=colour.handler(payee.find))
        outcome = await run.effect("pay", run=payee.never, reconcile=colour.handler(payee.find))
        assert outcome == Uncertain(Evidence("not-found", phase="dispatched"))
        payee.pay(type("Context", (), {"key": payee.requests[0]}))
        assert await run.effect("pay", run=payee.never, reconcile=payee.never) == outcome
    assert len(payee.asked) == 1


@pytest.mark.rule("E2")
@pytest.mark.parametrize("unaskable", ["given", "returned"])
async def test_a_recipient_that_cannot_be_asked_leaves_it_uncertain(make, payee, colour, unaskable):
    reconcile = UNASKABLE if unaskable == "given" else colour.handler(lambda: UNASKABLE)
    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(payee.pay_and_drop), reconcile=reconcile)
        outcome = await run.effect("pay", run=payee.never, reconcile=reconcile)
        assert isinstance(outcome, Uncertain)
        assert outcome.evidence.kind == ("unaskable" if unaskable == "given" else "not-found")
    assert payee.sends == 1


@pytest.mark.rule("E3", "E20")
async def test_a_run_that_raises_leaves_the_intent_and_the_next_call_asks(make, payee, colour):
    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("pay", run=colour.handler(payee.pay_and_drop), reconcile=payee.never)
        assert raised.value.reason == "run-failed"
        assert raised.value.effect_ran == "unknown"
        assert isinstance(raised.value.__cause__, ConnectionError)
        assert [record.phase for record in life.records()] == ["intent", "released"]
        (view,) = await life.effects()
        assert (view.state, view.outcome) == ("unresolved", None)

        outcome = await run.effect("pay", run=payee.never, reconcile=colour.handler(payee.find))
        assert outcome == Accepted("item-1", "reconcile")
    assert payee.sends == 1


@pytest.mark.rule("E3")
async def test_after_a_release_another_life_asks_at_once(make, payee, colour):
    async with make() as first, make() as second, first.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(payee.pay_and_drop), reconcile=payee.never)
        outcome = await second.run("r").effect("pay", run=payee.never, reconcile=colour.handler(payee.find), wait=0.0)
        assert outcome == Accepted("item-1", "reconcile")


@pytest.mark.rule("E13", "O2", "O6")
@pytest.mark.parametrize("proof", [Rejected(EVIDENCE), Failed(PROVED), Failed(PROVED, retryable=True)])
async def test_run_may_prove_that_nothing_happened(make, payee, colour, proof):
    def refuse() -> None:
        raise proof

    async with make() as life, life.run("r") as run:
        outcome = await run.effect("pay", run=colour.handler(refuse), reconcile=payee.never)
        assert outcome == proof
        assert outcome.evidence == proof.evidence
        assert [record.phase for record in life.records()] == ["intent", type(proof).__name__.lower()]
    async with make() as life, life.run("r") as run:
        assert await run.effect("pay", run=payee.never, reconcile=payee.never) == proof


@pytest.mark.rule("E13", "O4")
async def test_reconcile_may_prove_failure_by_closing_the_key_at_the_recipient(make, payee, colour):
    def close_key() -> None:
        raise Failed(PROVED)

    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(payee.refuse), reconcile=payee.never)
        outcome = await run.effect("pay", run=payee.never, reconcile=colour.handler(close_key))
        assert outcome == Failed(PROVED)
        assert await run.effect("pay", run=payee.never, reconcile=payee.never) == Failed(PROVED)
    assert payee.sends == 1


@pytest.mark.rule("E13", "O4", "E20")
async def test_reconcile_cannot_prove_rejection(make, payee, colour):
    def absent() -> None:
        raise Rejected(EVIDENCE)

    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(payee.refuse), reconcile=payee.never)
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("pay", run=payee.never, reconcile=colour.handler(absent))
        assert (raised.value.reason, raised.value.effect_ran) == ("reconcile-failed", "unknown")
        assert [record.phase for record in life.records()] == ["intent", "released"]


@pytest.mark.rule("O2")
@pytest.mark.parametrize(
    "error", [TimeoutError("422 failed"), ConnectionResetError(), RuntimeError("Rejected: status=422")]
)
async def test_no_exception_is_evidence_and_no_text_is_read(make, payee, colour, error):
    def fail() -> None:
        raise error

    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("pay", run=colour.handler(fail), reconcile=UNASKABLE)
        assert raised.value.__cause__ is error
        assert isinstance(await run.effect("pay", run=payee.never, reconcile=UNASKABLE), Uncertain)


@pytest.mark.rule("O5")
@pytest.mark.parametrize("acknowledgement", [b"\xff\xfe", object(), float("nan"), {1: "x"}])
async def test_an_acknowledgement_that_cannot_be_parsed_ends_as_uncertain(make, payee, colour, acknowledgement):
    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("pay", run=colour.handler(lambda: acknowledgement), reconcile=UNASKABLE)
        assert raised.value.reason == "proof-rejected"
        assert isinstance(await run.effect("pay", run=payee.never, reconcile=UNASKABLE), Uncertain)


@pytest.mark.rule("O5")
async def test_an_acknowledgement_from_somebody_else_ends_as_uncertain(make, payee, colour):
    async with make() as life, life.run("r") as run:
        handlers = {"reconcile": UNASKABLE, "verify": lambda proof: proof["for"] == "us"}
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(lambda: {"for": "somebody else"}), **handlers)
        assert isinstance(await run.effect("pay", run=payee.never, **handlers), Uncertain)


@pytest.mark.rule("O6")
async def test_every_outcome_carries_its_evidence_through_the_ledger(make, colour):
    full = Evidence(
        "status",
        phase="acknowledged",
        bytes_offered=512,
        status=422,
        contract="payee/1",
        promises=("completion-not-established",),
        details={"attempts": 1, "peer": "192.0.2.1"},
    )

    def fail() -> None:
        raise Failed(full)

    async with make() as life, life.run("r") as run:
        await run.effect("fails", run=colour.handler(fail), reconcile=UNASKABLE)
        await run.effect("works", run=colour.handler(lambda: 1), reconcile=UNASKABLE)
    async with make() as life, life.run("r") as run:
        failed = await run.effect("fails", run=fail, reconcile=UNASKABLE)
        assert failed.evidence == full
        accepted = await run.effect("works", run=fail, reconcile=UNASKABLE)
        assert accepted.evidence == Evidence("acknowledged", phase="acknowledged")


@pytest.mark.rule("O6")
async def test_details_that_are_no_json_do_not_lose_the_outcome(make, colour):
    def fail() -> None:
        raise Failed(Evidence("status", details={"body": b"raw"}))

    async with make() as life, life.run("r") as run:
        outcome = await run.effect("pay", run=colour.handler(fail), reconcile=UNASKABLE)
        # What JSON has no word for becomes the nearest thing that it has.
        assert outcome == Failed(Evidence("status", details={"body": "cmF3"}))


@IN_MEMORY
@pytest.mark.rule("L4", "E1")
async def test_an_accepted_record_that_waits_for_another_attempt_must_not_be(make, payee):
    async with make() as life, life.run("r") as run:
        record_by(life, slots.intent("pay", 1), kind=records.EFFECT, phase="intent", body=codec.IntentBody())
        wrong = codec.OutcomeBody(due=1.0)
        record_by(life, slots.outcome("pay", 1), kind=records.EFFECT, phase="accepted", body=wrong)
        with pytest.raises(LedgerCorrupt):
            await run.effect("pay", run=payee.never, reconcile=payee.never)


@IN_MEMORY
@pytest.mark.rule("O6")
async def test_an_acknowledgement_says_what_it_promises(make, payee):
    """As a recipient's contract will have it: HTTP 202 leaves completion open."""
    promises = ("completion-not-established",)
    async with make() as life, life.run("r") as run:
        record_by(life, slots.intent("pay", 1), kind=records.EFFECT, phase="intent", body=codec.IntentBody())
        evidence = codec.EvidenceBody(kind="status", phase="acknowledged", status=202, promises=promises)
        body = codec.OutcomeBody(evidence=evidence)
        record_by(life, slots.outcome("pay", 1), kind=records.EFFECT, phase="accepted", body=body)
        outcome = await run.effect("pay", run=payee.never, reconcile=payee.never)
        assert outcome.evidence == Evidence("status", phase="acknowledged", status=202, promises=promises)


@IN_MEMORY
@pytest.mark.rule("O6")
async def test_details_that_nothing_can_be_made_of_are_named_by_their_type(make, colour):
    def fail() -> None:
        raise Failed(Evidence("status", details={"body": object()}))

    async with make() as life, life.run("r") as run:
        outcome = await run.effect("pay", run=colour.handler(fail), reconcile=UNASKABLE)
        assert outcome == Failed(Evidence("status", details={"unrecordable": "dict"}))


@pytest.mark.rule("E6")
async def test_arguments_are_checked_before_a_recorded_outcome_is_returned(make, payee, colour):
    async with make() as life, life.run("r") as run:
        await run.effect("pay", run=colour.handler(payee.pay), reconcile=UNASKABLE)
        for bad in (
            {"reconcile_timeout": 0},
            {"reconcile_timeout": float("inf")},
            {"wait": -1},
            {"visibility": float("nan")},
            {"reconcile": None},
            {"run": None},
            {"verify": 3},
            {"retry": 3},
        ):
            with pytest.raises(UsageError):
                await run.effect("pay", **{"run": payee.never, "reconcile": UNASKABLE, **bad})


@pytest.mark.rule("E4", "E6")
@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e12, True, "3", None])
async def test_a_timeout_out_of_range_is_refused_before_anything_is_recorded(make, payee, seconds):
    async with make() as life, life.run("r") as run:
        with pytest.raises(UsageError):
            await run.effect("pay", run=payee.never, reconcile=payee.never, reconcile_timeout=seconds)
        assert life.records() == []


@pytest.mark.rule("E6")
async def test_a_cancelled_call_returns_what_is_recorded_and_starts_nothing_else(make, payee, colour):
    async with make() as life:
        run = life.run("r")
        outcome = await run.effect("pay", run=colour.handler(payee.pay), reconcile=UNASKABLE)
        with pytest.raises(EffectUnresolved):
            await run.effect("lost", run=colour.handler(payee.pay_and_drop), reconcile=payee.never)
        before = len(life.records())
        run.cancel()
        assert await run.effect("pay", run=payee.never, reconcile=payee.never) == outcome
        cancelled = RunCancelled if colour.blocking else asyncio.CancelledError
        for name in ("lost", "new"):
            with pytest.raises(cancelled):
                await run.effect(name, run=payee.never, reconcile=payee.never)
        assert len(life.records()) == before


@pytest.mark.rule("E6")
async def test_a_cancelled_call_returns_what_another_life_has_recorded_meanwhile(make, payee, colour):
    async with make() as first, make() as second:
        run = first.run("r")
        await run.effect("first", run=colour.handler(payee.pay), reconcile=UNASKABLE)
        outcome = await second.run("r").effect("second", run=colour.handler(payee.pay), reconcile=UNASKABLE)
        run.cancel()
        assert await run.effect("second", run=payee.never, reconcile=payee.never) == outcome


@pytest.mark.rule("E11")
async def test_the_key_is_the_same_in_every_life_and_differs_where_anything_differs(make, colour, store):
    keys: list[str] = []

    def keep(ctx: Any) -> str:
        keys.append(ctx.key)
        return "x"

    async with make() as life:
        await life.run("r").effect("a", run=colour.handler(keep), reconcile=UNASKABLE)
        await life.run("r").effect("b", run=colour.handler(keep), reconcile=UNASKABLE)
        await life.run("s").effect("a", run=colour.handler(keep), reconcile=UNASKABLE)
    async with make(namespace="other") as life:
        await life.run("r").effect("a", run=colour.handler(keep), reconcile=UNASKABLE)
    assert len(set(keys)) == 4
    assert all(key.isascii() and 0 < len(key) <= 64 for key in keys)
    async with make() as life, life.run("lost") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("a", run=colour.handler(lambda ctx: keep(ctx) and 1 / 0), reconcile=UNASKABLE)
    async with make() as life, life.run("lost") as run:
        await run.effect("a", run=keep, reconcile=colour.handler(keep))
        assert keys[-1] == keys[-2]
        assert (await life.effects(run_id="lost"))[0].effect_key == keys[-1]


@pytest.mark.rule("E12", "O2")
@pytest.mark.parametrize("ending", ["accepted", "failed", "uncertain", "unresolved"])
async def test_another_request_under_a_recorded_name_is_refused_whatever_became_of_it(make, payee, colour, ending):
    def refuse() -> None:
        raise Failed(PROVED)

    runs = {"accepted": payee.pay, "failed": refuse, "uncertain": payee.refuse, "unresolved": payee.refuse}
    handlers = {"run": colour.handler(runs[ending]), "reconcile": UNASKABLE}
    async with make() as life, life.run("r") as run:
        for _ in range(1 if ending in ("accepted", "failed", "unresolved") else 2):
            with suppress(EffectUnresolved):
                await run.effect("pay", request={"amount": 1}, **handlers)
        with pytest.raises(NameConflict) as raised:
            await run.effect("pay", run=payee.never, reconcile=payee.never, request={"amount": 2})
        assert raised.value.effect_ran == "no"
    async with make() as life, life.run("r") as run:
        with pytest.raises(NameConflict):
            await run.effect("pay", run=payee.never, reconcile=payee.never, request={"amount": 2})
        run.cancel()
        with pytest.raises(NameConflict):
            await run.effect("pay", run=payee.never, reconcile=payee.never, request={"amount": 2})


@pytest.mark.rule("E12")
async def test_requests_are_compared_when_both_the_record_and_the_call_have_one(make, payee, colour):
    handlers = {"run": colour.handler(payee.pay), "reconcile": UNASKABLE}
    async with make() as life, life.run("r") as run:
        await run.effect("with", request={"b": 1, "a": [1]}, **handlers)
        await run.effect("with", request={"a": [1], "b": 1}, **handlers)
        await run.effect("with", **handlers)
        await run.effect("without", **handlers)
        await run.effect("without", request={"anything": 1}, **handlers)
    assert payee.sends == 2


@pytest.mark.rule("E12")
async def test_the_same_name_twice_in_one_body_with_other_requests_is_an_error(make, payee, colour):
    async with make() as life, life.run("r") as run:
        await run.effect("notify", request={"round": 1}, run=colour.handler(payee.pay), reconcile=UNASKABLE)
        with pytest.raises(NameConflict):
            await run.effect("notify", request={"round": 2}, run=colour.handler(payee.pay), reconcile=UNASKABLE)
    assert payee.sends == 1


@pytest.mark.rule("E20")
def test_the_word_failed_is_not_used_for_what_is_unknown():
    for reason in ("run-failed", "reconcile-failed", "in-flight"):
        text = str(EffectUnresolved(reason=reason, name="pay")).replace(reason, "")
        assert "fail" not in text


@pytest.mark.rule("E3", "E20")
async def test_an_unresolved_error_does_not_say_that_the_effect_failed(make, payee, colour):
    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("pay", run=colour.handler(payee.pay_and_drop), reconcile=payee.never)
        assert "fail" not in str(raised.value)


@pytest.mark.rule("E3")
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
async def test_an_interrupt_inside_run_passes_unchanged_and_leaves_the_intent(make, payee, error):
    def interrupted(ctx: Any) -> str:
        payee.pay(ctx)
        raise error

    async with make() as life, life.run("r") as run:
        with pytest.raises(error):
            # A plain function in both colours: on a loop it runs in a worker thread.
            await run.effect("pay", run=interrupted, reconcile=payee.never)
        assert life.records()[0].phase == "intent"
        assert not any(record.phase in ("accepted", "uncertain", "failed") for record in life.records())
        assert await run.effect("pay", run=payee.never, reconcile=payee.find) == Accepted("item-1", "reconcile")
    assert payee.sends == 1


@BLOCKING
async def test_a_blocking_run_is_called_in_the_callers_thread(make):
    threads: list[Any] = []
    async with make() as life, life.run("r") as run:
        await run.effect("pay", run=lambda: threads.append(threading.current_thread()), reconcile=UNASKABLE)
    assert threads == [threading.current_thread()]


@ASYNCIO
async def test_sync_handlers_on_a_loop_run_in_worker_threads(make):
    threads: list[Any] = []
    async with make() as life, life.run("r") as run:
        await run.effect("pay", run=lambda: threads.append(threading.current_thread()), reconcile=UNASKABLE)
    assert threads != [threading.current_thread()]


@pytest.mark.rule("O2", "E10", "E3")
@pytest.mark.parametrize("where", ["run", "reconcile", "verify"])
async def test_a_cancellation_that_a_handler_raises_itself_is_not_the_callers(make, payee, colour, where):
    def cancelled(*given: Any) -> None:
        raise asyncio.CancelledError

    handlers = {"run": colour.handler(payee.pay), "reconcile": colour.handler(payee.find)}
    if where == "reconcile":
        handlers["run"] = colour.handler(payee.pay_and_drop)
    async with make() as life, life.run("r") as run:
        if where == "reconcile":
            with pytest.raises(EffectUnresolved):
                await run.effect("pay", **handlers)
        broken = (lambda proof: cancelled()) if where == "verify" else colour.handler(lambda: cancelled())  # noqa: PLW0108
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("pay", **{**handlers, where: broken})
        assert raised.value.reason == {"run": "run-failed"}.get(where, "reconcile-failed")
        assert isinstance(raised.value.__cause__, asyncio.CancelledError)
        assert not any(r.phase in ("accepted", "uncertain", "failed", "rejected") for r in life.records())


def test_unaskable_stays_one_object():
    assert repr(UNASKABLE) == "UNASKABLE"
    assert pickle.loads(pickle.dumps(UNASKABLE)) is UNASKABLE
    assert copy.deepcopy(UNASKABLE) is UNASKABLE
