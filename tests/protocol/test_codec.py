"""Lossless JSON, at its bounds."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from counterfoil import NotSerializable
from counterfoil.protocol import codec


def nested(depth: int, *, of: type = list) -> Any:
    """So many lists (or dicts) inside one another."""
    value: Any = of()
    for _ in range(depth - 1):
        value = [value] if of is list else {"a": value}
    return value


@pytest.mark.rule("L5")
@pytest.mark.parametrize("of", [list, dict])
def test_a_hundred_levels_are_kept_and_one_more_is_refused(of: type) -> None:
    assert codec.decode(codec.encode(nested(100, of=of), what="it")) == nested(100, of=of)
    with pytest.raises(NotSerializable, match="nested deeper than 100"):
        codec.encode(nested(101, of=of), what="it")


@pytest.mark.rule("L5")
def test_breadth_is_not_depth() -> None:
    broad = [[number] for number in range(500)]
    for depth in (99, 98):
        value = {"broad": broad, "deep": nested(depth)}
        assert codec.decode(codec.encode(value, what="it")) == value
    with pytest.raises(NotSerializable, match="nested deeper than 100"):
        codec.encode({"broad": broad, "deep": nested(100)}, what="it")


@pytest.mark.rule("L5")
@pytest.mark.parametrize("integer", [2**63 - 1, -(2**63), 10**18])
def test_the_longest_integers_are_kept_beside_anything_else(integer: int) -> None:
    value = {"n": integer, "text": "1" * 30, "nothing": None, "yes": True, "share": 0.25, "more": [integer, "x", {}]}
    assert codec.decode(codec.encode(value, what="it")) == value


@pytest.mark.rule("L5")
@pytest.mark.parametrize("integer", [2**63, -(2**63) - 1])
@pytest.mark.parametrize("wrapped", [lambda n: n, lambda n: [0, n], lambda n: {"a": {"b": n}}])
def test_a_longer_integer_is_refused_wherever_it_is(integer: int, wrapped: Any) -> None:
    with pytest.raises(NotSerializable, match="integer"):
        codec.encode(wrapped(integer), what="it")


@pytest.mark.rule("O6")
@pytest.mark.parametrize(
    ("details", "kept"),
    [
        (None, None),
        ({}, {}),
        ({"tried": (1, 2), "on": dt.date(2026, 1, 2)}, {"tried": [1, 2], "on": "2026-01-02"}),
        ([1, "a"], {"details": [1, "a"]}),
        ("text", {"details": "text"}),
        ({"n": 2**63}, {"unrecordable": "dict"}),
        (object(), {"unrecordable": "object"}),
        (nested(101), {"unrecordable": "list"}),
    ],
)
def test_details_of_evidence_are_kept_as_what_json_has_nearest_to_them(details: Any, kept: Any) -> None:
    assert codec.plain(details) == kept
