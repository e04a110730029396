"""The judge of the campaigns finds what must not be."""

from pathlib import Path
from typing import Any

import pytest

from counterfoil import UNASKABLE, Runtime
from tests.torture.judge import Counts, judge


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def key(url: str) -> str:
    """Has one effect accepted, and returns its key."""
    with Runtime(url) as runtime:
        with runtime.run("r") as run:
            run.effect("charge", run=lambda: "item-1", reconcile=UNASKABLE)
            run.step("total", lambda: 7)
        (view,) = runtime.effects()
        return view.effect_key


RECEIVED, CREATED = {"what": "received"}, {"what": "created", "item": "item-1"}
TOLD: list[dict[str, Any]] = [
    {"run": "r", "name": "charge", "phase": "accepted", "proof": "item-1"},
    {"run": "r", "slot": "step/total", "value": 7},
]


def judged(url: str, key: str, *log: dict[str, Any], told: list[dict[str, Any]] = TOLD) -> Counts:
    return judge(url, log=[{**line, "key": key} for line in log], told=told)


def test_what_agrees_is_sound(url: str, key: str) -> None:
    counts = judged(url, key, RECEIVED, CREATED)
    assert (counts.problems, counts.sends, counts.acknowledged) == ([], 1, 1)


def test_a_second_request_is_doubled_even_if_nothing_came_of_it(url: str, key: str) -> None:
    assert judged(url, key, RECEIVED, CREATED, RECEIVED).doubled == 1


def test_an_accepted_effect_that_the_recipient_does_not_have_is_found(url: str, key: str) -> None:
    assert "phantom" in str(judged(url, key, RECEIVED).problems)


@pytest.mark.parametrize(
    "told",
    [
        {"run": "r", "name": "charge", "phase": "uncertain", "proof": None},
        {"run": "r", "name": "mail", "phase": "accepted", "proof": "item-2"},
        {"run": "s", "name": "charge", "phase": "accepted", "proof": "item-1"},
        {"run": "r", "slot": "step/total", "value": 8},
        {"run": "r", "slot": "step/other", "value": 7},
    ],
)
def test_what_a_caller_was_told_and_is_not_on_record_is_lost(url: str, key: str, told: dict[str, Any]) -> None:
    assert judged(url, key, RECEIVED, CREATED, told=[*TOLD, told]).lost == 1


def test_a_caller_that_was_told_another_proof_is_found(url: str, key: str) -> None:
    told = [{"run": "r", "name": "charge", "phase": "accepted", "proof": "item-2"}]
    assert "lost" in str(judged(url, key, RECEIVED, CREATED, told=told).problems)


def test_what_the_recipient_made_without_any_record_is_found(url: str, key: str) -> None:
    assert judged(url, "cf-unknown", RECEIVED, CREATED).problems
