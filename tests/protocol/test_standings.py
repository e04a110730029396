"""What the claims of an intent have come to, and what of them counts."""

import pytest

from counterfoil.protocol import standings
from counterfoil.protocol.pointers import MISSING
from counterfoil.protocol.standings import FRESH, LOOK, SEND


@pytest.mark.rule("X6")
@pytest.mark.parametrize("kind", [SEND, LOOK])
def test_a_drained_claim_does_not_count(kind):
    claimed = standings.claimed(FRESH, kind, now=7.0)
    given_back = standings.drained(claimed, kind)
    assert (claimed.claims + claimed.looks, given_back.claims + given_back.looks) == (1, 0)
    # When it was first claimed, or asked, is remembered all the same.
    assert (given_back.began, given_back.asked) == ((None, 7.0) if kind == LOOK else (7.0, None))


def test_a_pointer_that_leads_nowhere_has_a_name():
    assert repr(MISSING) == "MISSING"
