"""Handlers that return what the recipient's acknowledgement rests on, beside its name for the effect."""

import pytest

from counterfoil import UNASKABLE, Accepted, EffectUnresolved, Evidence, Uncertain

SEEN = Evidence(
    "status",
    phase="acknowledged",
    bytes_offered=120,
    status=202,
    contract="payments-1",
    promises=("completion-not-established",),
    details={"attempts": 1, "peer": "192.0.2.1:443"},
)


def accepted(proof):
    return lambda: Accepted(proof, evidence=SEEN)


@pytest.mark.rule("O6", "E1")
async def test_evidence_that_run_returns_is_recorded_and_replayed(make, payee, colour):
    async with make() as life, life.run("r") as run:
        outcome = await run.effect("pay", run=colour.handler(accepted({"id": 7})), reconcile=payee.never)
        assert outcome == Accepted({"id": 7}, "run", SEEN)
        assert await run.effect("pay", run=payee.never, reconcile=payee.never) == outcome
        assert [record.phase for record in life.records("r")] == ["intent", "accepted"]
    async with make() as life:
        assert (await life.effects())[0].outcome == outcome
        assert await life.run("r").effect("pay", run=payee.never, reconcile=payee.never) == outcome


@pytest.mark.rule("O6", "E2")
async def test_evidence_that_reconcile_returns_is_recorded_and_replayed(make, payee, colour):
    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(payee.pay_and_drop), reconcile=payee.never)
        outcome = await run.effect("pay", run=payee.never, reconcile=colour.handler(accepted("item-1")))
        assert outcome == Accepted("item-1", "reconcile", SEEN)
    async with make() as life:
        assert await life.run("r").effect("pay", run=payee.never, reconcile=payee.never) == outcome


@pytest.mark.rule("E5", "E19")
async def test_a_proof_inside_an_acknowledgement_is_checked_like_any_other(make, payee, colour):
    async with make() as life, life.run("r") as run:
        for name, proof, verify in (
            ("large", "x" * 70_000, None),
            ("refused", "item-1", lambda proof: proof != "item-1"),
        ):
            with pytest.raises(EffectUnresolved) as caught:
                await run.effect(name, run=colour.handler(accepted(proof)), reconcile=UNASKABLE, verify=verify)
            assert caught.value.reason == "proof-rejected"


@pytest.mark.rule("O6")
async def test_an_acknowledgement_decodes_into_the_type_that_the_call_names(make, payee, colour):
    async with make() as life, life.run("r") as run:
        outcome = await run.effect(
            "pay", run=colour.handler(accepted([1, 2])), reconcile=payee.never, proof_type=tuple[int, int]
        )
        assert outcome.proof == (1, 2)
        assert outcome.evidence == SEEN


class Lost(Exception):
    """What an adapter raises that knows how far it got."""

    def __init__(self) -> None:
        super().__init__()
        self.evidence = Evidence(
            "reset", phase="dispatched", bytes_offered=80, status=504, details={"peer": "192.0.2.1"}
        )


@pytest.mark.rule("O6", "E3")
@pytest.mark.parametrize("askable", [True, False])
async def test_what_run_knew_is_in_the_uncertain_outcome(make, payee, colour, askable):
    def lose():
        raise Lost

    reconcile = colour.handler(lambda: None) if askable else UNASKABLE
    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(lose), reconcile=payee.never)
        outcome = await run.effect("pay", run=payee.never, reconcile=reconcile)
        assert isinstance(outcome, Uncertain)
        evidence = outcome.evidence
        assert (evidence.kind, evidence.phase) == ("not-found" if askable else "unaskable", "dispatched")
        assert (evidence.bytes_offered, evidence.status) == (80, 504)
        assert evidence.details == {"run": "reset", "peer": "192.0.2.1"}
    async with make() as life:
        assert await life.run("r").effect("pay", run=payee.never, reconcile=payee.never) == outcome


@pytest.mark.rule("O2")
async def test_what_an_exception_carries_proves_nothing_by_itself(make, payee, colour):
    def lose():
        error = ConnectionError()
        error.evidence = {"kind": "failed"}  # type: ignore[attr-defined]
        raise error

    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(lose), reconcile=payee.never)
        outcome = await run.effect("pay", run=payee.never, reconcile=UNASKABLE)
        assert outcome == Uncertain(Evidence("unaskable", phase="dispatched"))
