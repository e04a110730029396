"""Where a value is no lossless JSON."""

from __future__ import annotations

import pytest

from counterfoil.protocol.unfit import unfit


@pytest.mark.rule("L5")
@pytest.mark.parametrize("index", range(4))
def test_what_is_unfit_is_found_wherever_in_a_list_it_is(index: int) -> None:
    found = unfit([{1} if each == index else each for each in range(4)])
    assert found is not None
    assert f"/{index}" in found
    assert "is of type set" in found
