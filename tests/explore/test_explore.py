"""Every interleaving of a few processes over the real flows, and the mistakes that it must catch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from counterfoil.protocol.codec import RetryBody
from counterfoil.testing.explore import Report, explore, informant, sender
from counterfoil.testing.world import Faults, Options
from tests.explore.zoo import ZOO

# To count its branches makes an exploration seven times as slow, and other tests take all of them.
pytestmark = pytest.mark.no_cover

TWICE = RetryBody(attempts=2)

SCENARIOS: dict[str, Callable[[], Report]] = {
    "one process, everything wrong twice": lambda: explore(
        [sender("p1")], faults=Faults(crashes=2, commits=1, replies=1, asks=1)
    ),
    "a crash and a lost, late or missing request": lambda: explore(
        [sender("p1"), sender("p2")], faults=Faults(crashes=1, replies=1)
    ),
    "a crash and an unknown commit": lambda: explore([sender("p1"), sender("p2")], faults=Faults(crashes=1, commits=1)),
    "waiting for the one that performs": lambda: explore(
        [sender("p1", wait_s=1.0), sender("p2", wait_s=1.0)], faults=Faults(crashes=1)
    ),
    "late to show": lambda: explore(
        [sender("p1", visibility_s=1.0), sender("p2", visibility_s=1.0)],
        faults=Faults(crashes=1, replies=1),
        options=Options(visibility=1),
    ),
    "evidence from elsewhere": lambda: explore(
        [sender("p1"), informant("webhook")], faults=Faults(crashes=1, replies=1, commits=1)
    ),
    "evidence against the next attempt": lambda: explore(
        [sender("p1", retry=TWICE), informant("webhook")], faults=Faults(crashes=1, replies=1, refusals=1)
    ),
    "another attempt": lambda: explore(
        [sender("p1", retry=TWICE), sender("p2", retry=TWICE)], faults=Faults(crashes=1, refusals=1)
    ),
    "an owner taken for gone while it lives": lambda: explore(
        [sender("p1"), sender("p2")], faults=Faults(steals=1, replies=1)
    ),
    "keys closed at the recipient": lambda: explore(
        [sender("p1"), sender("p2")], faults=Faults(crashes=1, replies=1), options=Options(closing=True)
    ),
    "look-ups that raise, overrun or lie": lambda: explore(
        [sender("p1"), sender("p2")], faults=Faults(crashes=1, replies=1, asks=1)
    ),
    "three processes": lambda: explore(
        [sender("p1"), sender("p2"), sender("p3")], faults=Faults(replies=1), states_max=60_000
    ),
}


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
    "uncertain inside the visibility time": "late to show",
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
