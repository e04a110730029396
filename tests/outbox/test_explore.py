"""Every interleaving of two dispatchers, a crash, a wrong suspicion and a recipient that loses replies (X4 to X9)."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.outbox import reconcile
from counterfoil.outbox.endings import RETRY, body_of
from counterfoil.outbox.terms import AT_MOST_ONCE, KEYED, OPERATOR_ONLY, RECONCILE_FIRST, Terms
from counterfoil.outcomes import Evidence
from counterfoil.ports.outbox_store import Claim, Ending, Requeue
from counterfoil.protocol.standings import SEND, Standing
from tests.outbox.model import Life, World, Wrong, explore

QUICK: dict[str, Any] = {"attempts": 2, "looks": 1, "kills": 2, "revoked": 2, "resends": 1}
ASKED = Terms(policy=RECONCILE_FIRST, **QUICK)
DUMB = Terms(policy=AT_MOST_ONCE, askable=False, **QUICK)
BANK = Terms(policy=KEYED, horizon_s=1e6, concurrent=True, **QUICK)
POST = Terms(policy=KEYED, horizon_s=1e6, concurrent=True, askable=False, **QUICK)


@pytest.mark.rule("X4", "X5", "X7", "X9")
@pytest.mark.parametrize(
    ("terms", "claims"), [(ASKED, 4), (DUMB, 4), (BANK, 3), (POST, 3)], ids=["askable", "dumb", "keyed", "keyed-dumb"]
)
def test_no_interleaving_sends_twice_or_claims_what_is_not_so(terms: Terms, claims: int) -> None:
    assert explore(terms, claims=claims) > 400


@pytest.mark.rule("X7")
@pytest.mark.parametrize("policy", [OPERATOR_ONLY, AT_MOST_ONCE, RECONCILE_FIRST])
def test_a_narrowed_policy_never_sends_twice_whatever_the_contract_allows(policy: str) -> None:
    assert explore(BANK, policy=policy, claims=3) > 100


class GrantsWithoutTheSlot(World):
    """Asks in a snapshot whether its owner is alive, instead of filling the slot."""

    def _grant(self, life: Life) -> float | None:
        return self.now

    def _recover(self) -> None:
        for number, (_, _, standing) in enumerate(self.attempts):
            if self._open(number) and self._is_gone(number):
                self.ends[number] = ("released", False)
                self.ready = (SEND, "pending", standing)


class TakesGrantedForUnsent(World):
    """Requeues whatever has no receipt."""

    def _recover(self) -> None:
        for number, (_, _, standing) in enumerate(self.attempts):
            if self._open(number) and self._is_gone(number):
                self.rights.setdefault(number, "revocation")
                self.ends[number] = ("released", False)
                self.ready = (SEND, "pending", standing)


class EndsWithoutTheSlot(World):
    """Records what a fenced owner says as if it still had the claim."""

    def _finish(self, life: Life, ending: Ending) -> bool:
        self._record(ending.claim.attempt, ending)
        return True


@pytest.mark.rule("X4", "X5")
@pytest.mark.parametrize("broken", [GrantsWithoutTheSlot, TakesGrantedForUnsent, EndsWithoutTheSlot])
def test_a_broken_store_is_found(broken: type[World]) -> None:
    with pytest.raises(Wrong):
        explore(ASKED, world=broken)


class LeavesTheRightOpen(World):
    """Records a fact as the end of somebody else's claim, and lets him send all the same."""

    def close(self, number: int) -> None:
        pass


@pytest.mark.rule("X9")
def test_sending_again_after_the_outcome_was_recorded_is_found() -> None:
    with pytest.raises(Wrong, match="sent after its outcome"):
        explore(BANK, world=LeavesTheRightOpen, claims=3)


@pytest.mark.rule("X7", "O4")
def test_sending_again_what_was_not_found_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def again(claim: Claim, terms: Terms, *, now: float, reason: str) -> Ending:
        requeue = Requeue(kind=SEND, state=RETRY, standing=Standing())
        return Ending(claim=claim, phase="looked", requeue=requeue)

    monkeypatch.setattr(reconcile, "_once_more", again)
    with pytest.raises(Wrong, match="sent 2 times"):
        explore(ASKED)


@pytest.mark.rule("O2", "O4")
def test_taking_not_found_for_failed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(claim: Claim, terms: Terms, *, now: float, reason: str) -> Ending:
        return Ending(claim=claim, phase="failed", body=body_of(Evidence("not-found")))

    monkeypatch.setattr(reconcile, "_once_more", failed)
    with pytest.raises(Wrong, match="failed, and the recipient has it"):
        explore(ASKED)
