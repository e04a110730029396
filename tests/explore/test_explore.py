"""Every interleaving of a few processes over the real flows, and the mistakes that it must catch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.explore.scenarios import SCENARIOS
from tests.explore.zoo import ZOO

# To count its branches makes an exploration seven times as slow, and other tests take all of them.
pytestmark = pytest.mark.no_cover


@pytest.mark.rule("E1", "E2", "E3", "E4", "E8", "E9", "E14", "L3", "L8", "O1", "O4")
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_rule_holds_in_every_interleaving(name: str) -> None:
    report = SCENARIOS[name]()
    print(f"{name}: {report}")
    assert report.violation is None, str(report)
    assert report.states > 100


CAUGHT_BY = {
    "run again on not found": "a crash and a lost, late or missing request",
    "failed on not found": "a crash and a lost, late or missing request",
    "assume the commit worked": "a crash and an unknown commit",
    "settle a commit by reading": "a crash and an unknown commit",
    "claim outside the slot": "a crash and a lost, late or missing request",
    "reconcile while the owner lives": "a crash and a lost, late or missing request",
    "uncertain inside the visibility time": "late to show, and a crash",
}


@pytest.mark.parametrize("variant", ZOO)
def test_a_wrong_variant_is_caught_and_shown_as_a_timeline(variant: str) -> None:
    mistake: Any = ZOO[variant]
    with mistake():
        report = SCENARIOS[CAUGHT_BY[variant]]()
    print(f"{variant}: {report}")
    assert report.violation is not None
    # A rule of the protocol broke, not the variant's own code.
    assert report.violation[0] in "EOL"
    assert report.violation[1].isdigit()
    assert report.timeline
