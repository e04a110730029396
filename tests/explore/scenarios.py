"""What is explored: a few processes over the real flows, and how much may go wrong."""

from __future__ import annotations

from collections.abc import Callable

from counterfoil.protocol.codec import RetryBody
from counterfoil.testing.explore import Report, explore, informant, sender
from counterfoil.testing.world import Faults, Options

TWICE = RetryBody(attempts=2)


def _late_to_show(faults: Faults) -> Report:
    processes = [sender("p1", visibility_s=1.0), sender("p2", visibility_s=1.0)]
    return explore(processes, faults=faults, options=Options(visibility=1))


def _another_attempt(faults: Faults) -> Report:
    return explore([sender("p1", retry=TWICE), sender("p2", retry=TWICE)], faults=faults)


def _asked(faults: Faults) -> Report:
    return explore([sender("p1"), sender("p2")], faults=faults)


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
    "late to show, and a crash": lambda: _late_to_show(Faults(crashes=1)),
    "late to show, and a lost, late or missing request": lambda: _late_to_show(Faults(replies=1)),
    "evidence from elsewhere": lambda: explore(
        [sender("p1"), informant("webhook")], faults=Faults(crashes=1, replies=1, commits=1)
    ),
    "evidence against the next attempt": lambda: explore(
        [sender("p1", retry=TWICE), informant("webhook")], faults=Faults(crashes=1, replies=1, refusals=1)
    ),
    "another attempt, and a crash": lambda: _another_attempt(Faults(crashes=1)),
    "another attempt after a refusal": lambda: _another_attempt(Faults(refusals=1)),
    "an owner taken for gone while it lives": lambda: explore(
        [sender("p1"), sender("p2")], faults=Faults(steals=1, replies=1)
    ),
    "keys closed at the recipient": lambda: explore(
        [sender("p1"), sender("p2")], faults=Faults(crashes=1, replies=1), options=Options(closing=True)
    ),
    "look-ups that raise, overrun or lie, and a crash": lambda: _asked(Faults(crashes=1, asks=1)),
    "look-ups that raise, overrun or lie about what was lost": lambda: _asked(Faults(replies=1, asks=1)),
    "three processes": lambda: explore(
        [sender("p1"), sender("p2"), sender("p3")], faults=Faults(replies=1), states_max=60_000
    ),
}

# Where both may happen to one pair, hundreds of thousands of states are reached: `make simulate` explores these first.
IN_FULL: dict[str, Callable[[], Report]] = {
    "late to show": lambda: _late_to_show(Faults(crashes=1, replies=1)),
    "another attempt": lambda: _another_attempt(Faults(crashes=1, refusals=1)),
    "look-ups that raise, overrun or lie": lambda: _asked(Faults(crashes=1, replies=1, asks=1)),
}
