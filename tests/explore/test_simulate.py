"""Seeded simulation: long lives, everything going wrong, then healing; a seed alone replays a failure."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.testing.simulate import simulate
from tests.explore.zoo import ZOO

# To count its branches makes an exploration seven times as slow, and other tests take all of them.
pytestmark = pytest.mark.no_cover

SEEDS = 200


@pytest.mark.rule("E2", "E8", "E14", "E15", "E16", "E18", "E21", "L3", "L8", "P1", "P2")
@pytest.mark.parametrize("tenth", range(10))
def test_nothing_unsafe_happens_and_every_body_ends(tenth: int) -> None:
    for seed in range(tenth * SEEDS // 10, (tenth + 1) * SEEDS // 10):
        result = simulate(seed)
        assert result.violation is None, str(result)


def test_faults_do_happen_in_it() -> None:
    results = [simulate(seed) for seed in range(60)]
    assert sum(result.crashes for result in results) > 50
    assert sum(result.uncertain for result in results) > 10
    assert any("taken for gone" in line or "takes" in line for result in results for line in result.timeline)


def test_a_seed_alone_replays_what_happened() -> None:
    assert simulate(17).timeline == simulate(17).timeline
    assert simulate(17).timeline != simulate(18).timeline


@pytest.mark.parametrize("variant", ZOO)
def test_a_wrong_variant_is_caught_by_some_seed(variant: str) -> None:
    mistake: Any = ZOO[variant]
    with mistake():
        caught = next((result for seed in range(300) if (result := simulate(seed)).violation), None)
    assert caught is not None
    assert caught.timeline
