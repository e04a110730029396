"""Reads of a recipient whose contract has a look-up: they need none, and have no body to take anything out of."""

from __future__ import annotations

import pytest

from counterfoil import HTTP, UNASKABLE
from tests.contracts.files import contract


@pytest.mark.rule("H8")
@pytest.mark.parametrize("name", ["slack", "postmark", "github"])
def test_a_read_is_not_looked_up(name: str) -> None:
    http = HTTP(name, base_url="https://api.example.com/", contract=contract(name))
    for operation in (http.get("things", params={"tag": "x"}), http.head("things")):
        assert operation.reconcile is UNASKABLE
        assert operation.reconcile_async is UNASKABLE
