"""What the records say about an effect, folded: attempts, outcomes, and what is evidence of acceptance."""

from typing import Any

import pytest

from counterfoil import UNASKABLE, EffectUnresolved
from counterfoil.protocol.history import History, look
from tests.support import BLOCKING, IN_MEMORY

pytestmark = [IN_MEMORY, BLOCKING, pytest.mark.rule("E14", "E16")]


def folded(life: Any, name: str) -> Any:
    history = History(life.session.namespace, "r")
    history.add(life.records())
    return look(history, name)


async def test_an_open_attempt_has_no_outcome_and_no_evidence(make, payee):
    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=payee.refuse, reconcile=payee.never)
        seen = folded(life, "pay")
        assert (seen.last.result, seen.outcome(), seen.accepted_evidence) == (None, None, None)
        assert folded(life, "never heard of").last is None


async def test_an_accepted_attempt_is_its_own_evidence(make, payee):
    async with make() as life, life.run("r") as run:
        await run.effect("pay", run=payee.pay, reconcile=UNASKABLE)
        assert folded(life, "pay").accepted_evidence.phase == "accepted"


async def test_late_evidence_counts_and_so_does_what_it_closed(make, payee):
    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=payee.refuse, reconcile=payee.never)
        await run.effect("pay", run=payee.never, reconcile=UNASKABLE)
        await life.decide("r", "pay", did_not_happen=True, reason="x", by="y", expect_version=2, new_name="again")
        await run.settle("pay", "item-1", key=payee.requests[0], source="webhook")
        assert folded(life, "pay").accepted_evidence.phase == "late"
        assert folded(life, "again").accepted_evidence.phase == "closed"
