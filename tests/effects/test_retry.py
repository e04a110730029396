"""Retry policies: explicit, bounded, recorded with the first intent; and how several attempts end together."""

import asyncio
from itertools import pairwise, product
from typing import Any

import pytest

from counterfoil import (
    UNASKABLE,
    Accepted,
    EffectUnresolved,
    Evidence,
    Failed,
    Outcome,
    Recipient,
    Rejected,
    Retry,
    Uncertain,
    UsageError,
)
from counterfoil.effects.scope import Verifier
from counterfoil.outcomes import combine
from counterfoil.protocol import codec
from counterfoil.protocol.requests import Append, Call
from tests.support import EVIDENCE, PROVED, die_at, eventually

REJECTED = Rejected(EVIDENCE)
RETRYABLE = Failed(PROVED, retryable=True)
FAILED = Failed(PROVED)


class Script:
    """A handler that does one thing after the other: raises what is an exception, returns the rest."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.contexts: list[Any] = []

    def __call__(self, ctx: Any) -> Any:
        self.contexts.append(ctx)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @property
    def keys(self) -> list[str]:
        return [ctx.key for ctx in self.contexts]


def script(colour: Any, *answers: Any) -> tuple[Script, Any]:
    made = Script(*answers)
    return made, colour.handler(made.__call__)


# --- O3


@pytest.mark.rule("O3", "O1")
def test_uncertainty_is_sticky_whatever_the_order():
    outcomes: dict[str, Outcome[Any]] = {
        "accepted": Accepted("x"),
        "uncertain": Uncertain(Evidence("not-found")),
        "failed": FAILED,
        "rejected": REJECTED,
    }
    for length in (1, 2, 3):
        for words in product(outcomes, repeat=length):
            found = combine([outcomes[word] for word in words])
            first = next(word for word in outcomes if word in words)
            assert found == outcomes[first], words


@pytest.mark.rule("O3")
def test_of_several_that_rank_alike_the_latest_speaks():
    one, two = Failed(Evidence("status", status=422)), Failed(Evidence("status", status=404))
    assert combine([one, two]) == two
    assert combine([two, one]) == one


@pytest.mark.rule("O1")
def test_outcomes_are_told_apart_by_type_and_compare_by_value():
    assert Rejected(EVIDENCE) != Failed(EVIDENCE)
    assert Failed(EVIDENCE) != Failed(EVIDENCE, retryable=True)
    assert Failed(EVIDENCE) == Failed(EVIDENCE)
    assert len({Rejected(EVIDENCE), Rejected(EVIDENCE), Failed(EVIDENCE)}) == 2
    assert "refused-by-policy" in repr(Rejected(EVIDENCE))
    for kind in (Rejected, Failed):
        with pytest.raises(TypeError):
            kind("no evidence")  # type: ignore[arg-type]


# --- E14


@pytest.mark.rule("E14", "E13", "E11")
@pytest.mark.parametrize("first", [REJECTED, RETRYABLE])
async def test_a_policy_allows_further_attempts_each_with_an_intent_and_a_key(make, payee, colour, clock, first):
    made, run_it = script(colour, first, first, "item")
    async with make(clock=clock) as life, life.run("r") as run:
        life.skip_pauses(clock)
        outcome = await run.effect("pay", run=run_it, reconcile=payee.never, retry=Retry(3))
        assert outcome == Accepted("item", "run")
        assert [ctx.attempt for ctx in made.contexts] == [1, 2, 3]
        assert len(set(made.keys)) == 3
        phases = [r.phase for r in life.records()]
        word = type(first).__name__.lower()
        assert phases == ["intent", word, "intent", word, "intent", "accepted"]
        assert (await life.effects())[0].attempt == 3


@pytest.mark.rule("E14", "O3")
@pytest.mark.parametrize("first", [REJECTED, RETRYABLE])
async def test_a_policy_is_bounded_in_attempts(make, payee, colour, clock, first):
    made, run_it = script(colour, *[first] * 9)
    async with make(clock=clock) as life, life.run("r") as run:
        life.skip_pauses(clock)
        assert await run.effect("pay", run=run_it, reconcile=payee.never, retry=Retry(4)) == first
        assert len(made.contexts) == 4
        # After a final record no intent is accepted, whatever a later caller gives.
        assert await run.effect("pay", run=payee.never, reconcile=payee.never, retry=Retry(9)) == first


@pytest.mark.rule("E14")
async def test_a_policy_is_bounded_in_time(make, payee, colour, clock):
    made, run_it = script(colour, *[REJECTED] * 9)
    async with make(clock=clock) as life, life.run("r") as run:
        life.skip_pauses(clock)
        retry = Retry(9, backoff_s=10, backoff_max_s=10, within_s=25)
        assert await run.effect("pay", run=run_it, reconcile=payee.never, retry=retry) == REJECTED
        assert len(made.contexts) == 3


@pytest.mark.rule("E14")
async def test_backoff_doubles_up_to_its_bound(make, payee, colour, clock):
    made, _ = script(colour, *[REJECTED] * 6)
    times: list[float] = []
    async with make(clock=clock) as life, life.run("r") as run:
        life.skip_pauses(clock)

        def timed(ctx: Any) -> Any:
            times.append(clock.time())
            return made(ctx)

        retry = Retry(6, backoff_s=1, backoff_max_s=5)
        await run.effect("pay", run=colour.handler(timed), reconcile=payee.never, retry=retry)
    assert [after - before for before, after in pairwise(times)] == pytest.approx([1, 2, 4, 5, 5])


@pytest.mark.rule("E14")
@pytest.mark.parametrize("proof", [REJECTED, RETRYABLE, FAILED])
async def test_without_a_policy_nothing_is_sent_again(make, payee, colour, proof):
    _, run_it = script(colour, proof)
    async with make() as life, life.run("r") as run:
        assert await run.effect("pay", run=run_it, reconcile=payee.never) == proof
        assert await run.effect("pay", run=payee.never, reconcile=payee.never, retry=Retry(9)) == proof


@pytest.mark.rule("E14")
async def test_a_failure_that_the_contract_does_not_mark_retryable_is_final(make, payee, colour):
    _, run_it = script(colour, FAILED)
    async with make() as life, life.run("r") as run:
        assert await run.effect("pay", run=run_it, reconcile=payee.never, retry=Retry(9)) == FAILED


@pytest.mark.rule("E14", "E13")
async def test_an_operation_may_mark_its_failures_retryable_and_keep_its_key(make, payee, colour, clock):
    mail = Recipient("mail")
    made = Script(FAILED, FAILED, "item")

    def send(ctx: Any, to: str) -> Any:
        return made(ctx)

    operation = mail.operation(retryable=True, keep_key=True, reconcile=UNASKABLE)(send)
    async with make(clock=clock) as life, life.run("r") as run:
        life.skip_pauses(clock)
        outcome = await run.effect("mail", operation(to="a"), retry=Retry(3))
        assert outcome == Accepted("item", "run")
        assert len(set(made.keys)) == 1
        assert [ctx.attempt for ctx in made.contexts] == [1, 2, 3]
        assert (await life.effects())[0].effect_key == made.keys[0]


@pytest.mark.rule("E14")
async def test_what_a_later_caller_gives_does_not_change_the_recorded_policy(make, payee, colour, clock):
    made, run_it = script(colour, *[REJECTED] * 9)
    life = await make(clock=clock).__aenter__()
    call = life.run("r").effect("pay", run=run_it, reconcile=payee.never, retry=Retry(2, backoff_s=5))
    await die_at(life, call, moment="after", request=Append, slot="outcome")
    async with make(clock=clock) as life, life.run("r") as run:
        (view,) = await life.effects()
        assert (view.state, view.outcome) == ("retry-scheduled", None)
        life.skip_pauses(clock)
        outcome = await run.effect("pay", run=run_it, reconcile=payee.never, retry=Retry(9, backoff_s=0))
        assert outcome == REJECTED
        assert len(made.contexts) == 2
        assert clock.time() >= 1_000_005


@pytest.mark.rule("E14")
async def test_a_scheduled_attempt_is_made_by_a_later_call_without_a_policy(make, payee, colour, clock):
    _, run_it = script(colour, REJECTED, "item")
    life = await make(clock=clock).__aenter__()
    call = life.run("r").effect("pay", run=run_it, reconcile=payee.never, retry=Retry(2, backoff_s=5))
    await die_at(life, call, moment="after", request=Append, slot="outcome")
    async with make(clock=clock) as life, life.run("r") as run:
        life.skip_pauses(clock)
        assert await run.effect("pay", run=run_it, reconcile=payee.never) == Accepted("item", "run")


@pytest.mark.rule("E14", "O3", "E2")
async def test_an_uncertain_attempt_is_never_followed_by_another(make, payee, colour, clock):
    made, run_it = script(colour, REJECTED, ConnectionError())
    async with make(clock=clock) as life, life.run("r") as run:
        life.skip_pauses(clock)
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=run_it, reconcile=payee.never, retry=Retry(9))
        outcome = await run.effect("pay", run=payee.never, reconcile=UNASKABLE, retry=Retry(9))
        assert isinstance(outcome, Uncertain)
        assert await run.effect("pay", run=payee.never, reconcile=payee.never, retry=Retry(9)) == outcome
        assert len(made.contexts) == 2


@pytest.mark.rule("E14", "O3")
async def test_attempts_end_together_failed_when_one_failed_and_the_last_was_rejected(make, payee, colour, clock):
    _, run_it = script(colour, RETRYABLE, REJECTED)
    async with make(clock=clock) as life, life.run("r") as run:
        life.skip_pauses(clock)
        outcome = await run.effect("pay", run=run_it, reconcile=payee.never, retry=Retry(2))
        assert outcome == RETRYABLE
    async with make() as life, life.run("r") as run:
        assert await run.effect("pay", run=payee.never, reconcile=payee.never) == outcome


@pytest.mark.rule("E14", "E2")
async def test_a_life_that_dies_in_the_second_attempt_is_followed_by_asking_about_that_attempt(
    make, payee, colour, clock
):
    answers = Script(REJECTED)

    def pay(ctx: Any) -> Any:
        return answers(ctx) if answers.answers else payee.pay(ctx)

    life = await make(clock=clock).__aenter__()
    life.skip_pauses(clock)
    seen = 0

    def second_call(moment: str, run: str, request: Any) -> None:
        nonlocal seen
        seen += moment == "after" and isinstance(request, Call)
        if seen == 2:
            raise SystemExit

    life.watch(second_call)
    with pytest.raises(SystemExit):
        await life.run("r").effect("pay", run=colour.handler(pay), reconcile=payee.never, retry=Retry(3))
    life.watch(None)
    await life.__aexit__(None, None, None)
    async with make(clock=clock) as life, life.run("r") as run:
        outcome = await run.effect("pay", run=payee.never, reconcile=colour.handler(payee.find))
        assert outcome == Accepted("item-1", "reconcile")
    assert payee.asked == payee.requests
    assert payee.requests != answers.keys


@pytest.mark.rule("E13", "E14", "O4")
@pytest.mark.parametrize("keep_key", [False, True])
async def test_a_key_closed_at_the_recipient_allows_another_attempt_only_under_another_key(
    make, payee, colour, clock, keep_key
):
    mail = Recipient("mail")
    made = Script(ConnectionError(), "item")

    def close_key(ctx: Any) -> None:
        raise RETRYABLE

    operation = mail.operation(keep_key=keep_key)(made.__call__)
    operation.reconcile(close_key)
    async with make(clock=clock) as life, life.run("r") as run:
        life.skip_pauses(clock)
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", operation(), retry=Retry(3))
        outcome = await run.effect("pay", operation(), retry=Retry(3))
        if keep_key:
            assert outcome == RETRYABLE
            assert len(made.keys) == 1
        else:
            assert outcome == Accepted("item", "run")
            assert len(set(made.keys)) == 2


# --- evidence about an earlier attempt


@pytest.mark.rule("E14", "E15", "O3")
async def test_evidence_that_an_earlier_attempt_was_accepted_bars_the_next_one(make, payee, colour, clock):
    made, run_it = script(colour, RETRYABLE)
    life = await make(clock=clock).__aenter__()
    call = life.run("r").effect("pay", run=run_it, reconcile=payee.never, retry=Retry(3, backoff_s=60))
    await die_at(life, call, moment="after", request=Append, slot="outcome")
    async with make(clock=clock) as life, life.run("r") as run:
        assert await run.settle("pay", "item-0", key=made.keys[0], source="webhook") is False
        outcome = await run.effect("pay", run=payee.never, reconcile=payee.never)
        assert outcome == Accepted("item-0", "evidence")
    async with make(clock=clock) as life, life.run("r") as run:
        assert await run.effect("pay", run=payee.never, reconcile=payee.never) == outcome


@pytest.mark.rule("E14")
async def test_evidence_that_comes_during_the_wait_bars_the_next_attempt_too(make, payee, colour, clock):
    made, run_it = script(colour, RETRYABLE)
    async with make(clock=clock) as life, life.run("r") as run, make(clock=clock) as other:

        def watch(moment: str, run_id: str, request: Any) -> None:
            if moment == "before" and type(request).__name__ == "Pause":
                notes.append(request.seconds)

        notes: list[float] = []
        life.watch(watch)
        task = asyncio.ensure_future(
            run.beside.effect("pay", run=run_it, reconcile=payee.never, retry=Retry(3, backoff_s=60))
        )
        await eventually(lambda: notes)
        assert await other.settle("r", "pay", "item-0", key=made.keys[0], source="webhook") is False
        clock.advance(60)
        assert await task == Accepted("item-0", "evidence")
        assert len(made.contexts) == 1


@pytest.mark.rule("E14", "E18", "E19")
async def test_evidence_that_verify_refused_does_not_bar_the_next_attempt(make, payee, colour, clock):
    made, run_it = script(colour, RETRYABLE, "item")
    life = await make(clock=clock).__aenter__()
    call = {"run": run_it, "reconcile": payee.never, "verify": lambda proof: proof == "item"}
    await die_at(
        life,
        life.run("r").effect("pay", **call, retry=Retry(3, backoff_s=60)),
        moment="after",
        request=Append,
        slot="outcome",
    )
    async with make(clock=clock) as life, life.run("r") as run:
        life.session.state("r").memory.verifiers["pay"] = Verifier(lambda proof: False, codec.decode, 5.0)
        with pytest.raises(EffectUnresolved):
            await run.settle("pay", "item-666", key=made.keys[0], source="webhook")
        life.skip_pauses(clock)
        assert await run.effect("pay", **call) == Accepted("item", "run")


@pytest.mark.rule("E14", "E15")
async def test_evidence_about_the_first_attempt_during_the_second_is_shown_and_bars_a_third(make, payee, colour, clock):
    async with make(clock=clock) as life, life.run("r") as run, make(clock=clock) as other:
        life.skip_pauses(clock)
        keys: list[str] = []

        async def pay(ctx: Any) -> None:
            keys.append(ctx.key)
            if ctx.attempt == 2:
                assert await other.settle("r", "pay", "item-0", key=keys[0], source="webhook") is False
            raise Failed(PROVED, retryable=ctx.attempt < 2)

        await run.effect("pay", run=pay, reconcile=payee.never, retry=Retry(3))
        assert len(keys) == 2
        (view,) = await life.effects()
        assert [(late.attempt, late.claims, late.proof) for late in view.late_evidence] == [(1, "accepted", "item-0")]


@pytest.mark.rule("O3", "E14")
@pytest.mark.parametrize("ending", ["failed", "accepted", "closed at the recipient"])
async def test_evidence_that_came_during_an_attempt_counts_when_that_is_recorded(make, payee, colour, clock, ending):
    """Accepted if any attempt was acknowledged, as far as that is known when the last one is recorded."""
    async with make(clock=clock) as life, life.run("r") as run, make(clock=clock) as other:
        life.skip_pauses(clock)
        keys: list[str] = []

        async def pay(ctx: Any) -> str:
            keys.append(ctx.key)
            if ctx.attempt == 2:
                assert await other.settle("r", "pay", "item-0", key=keys[0], source="webhook") is False
                if ending == "accepted":
                    return "item-2"
                if ending != "failed":
                    raise TimeoutError
            raise Failed(PROVED, retryable=ctx.attempt < 2)

        def close() -> None:
            raise Failed(EVIDENCE)

        call = {"run": pay, "reconcile": close, "retry": Retry(3)}
        if ending == "closed at the recipient":
            with pytest.raises(EffectUnresolved):
                await run.effect("pay", **call)
        outcome = await run.effect("pay", **call)
        assert outcome == (Accepted("item-2") if ending == "accepted" else Accepted("item-0", "evidence"))
        assert await run.effect("pay", run=payee.never, reconcile=payee.never) == outcome
        assert len(keys) == 2
    async with make(clock=clock) as life, life.run("r") as run:
        assert await run.effect("pay", run=payee.never, reconcile=payee.never) == outcome


@pytest.mark.rule("E14", "E18", "E19")
@pytest.mark.parametrize("holds", [True, False])
async def test_pending_evidence_is_verified_before_the_next_attempt(make, payee, colour, clock, holds):
    made, run_it = script(colour, RETRYABLE)
    life = await make(clock=clock).__aenter__()
    call = life.run("r").effect(
        "pay", run=run_it, reconcile=payee.never, retry=Retry(3, backoff_s=60), verify=lambda proof: True
    )
    await die_at(life, call, moment="after", request=Append, slot="outcome")
    async with make(clock=clock) as life:
        # A webhook's process has no verify.
        assert await life.settle("r", "pay", "item-0", key=made.keys[0], source="webhook") is False
    async with make(clock=clock) as life, life.run("r") as run:
        life.skip_pauses(clock)
        outcome = await run.effect(
            "pay",
            run=payee.never if holds else colour.handler(payee.pay),
            reconcile=payee.never,
            verify=lambda proof: holds or proof != "item-0",
        )
        assert outcome == (Accepted("item-0", "evidence") if holds else Accepted("item-1", "run"))


@pytest.mark.rule("E14", "E18")
async def test_evidence_for_a_kept_key_settles_the_attempt_that_is_open(make, payee, colour, clock):
    mail = Recipient("mail")
    made = Script(RETRYABLE, ConnectionError())
    operation = mail.operation(keep_key=True, reconcile=UNASKABLE)(made.__call__)
    async with make(clock=clock) as life, life.run("r") as run:
        life.skip_pauses(clock)
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", operation(), retry=Retry(3))
        assert await run.settle("pay", "item-0", key=made.keys[0], source="webhook") is True
        assert await run.effect("pay", operation()) == Accepted("item-0", "evidence")


@pytest.mark.rule("E14")
@pytest.mark.parametrize(
    "bad",
    [
        {"attempts": 0},
        {"attempts": 1.5},
        {"attempts": True},
        {"attempts": 1001},
        {"attempts": 2, "within_s": 0},
        {"attempts": 2, "within_s": float("nan")},
        {"attempts": 2, "backoff_s": -1},
        {"attempts": 2, "backoff_max_s": float("inf")},
    ],
)
def test_a_policy_out_of_range_is_refused(bad):
    with pytest.raises(UsageError):
        Retry(**bad)


@pytest.mark.rule("E14")
async def test_a_wall_clock_that_is_set_back_does_not_lengthen_a_wait_for_the_next_attempt(make, payee, colour, clock):
    _, run_it = script(colour, REJECTED, "item")
    async with make(clock=clock) as life, life.run("r") as run:

        def watch(moment: str, run_id: str, request: Any) -> None:
            if moment == "before" and type(request).__name__ == "Pause":
                clock.set_wall(-3600)
                clock.skip(request.seconds)

        life.watch(watch)
        outcome = await run.effect("pay", run=run_it, reconcile=payee.never, retry=Retry(2, backoff_s=30))
        assert outcome == Accepted("item", "run")
        assert clock.monotonic() == pytest.approx(30)
