"""Lossless JSON, at its bounds."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from counterfoil import Evidence, Failed, NotSerializable, Rejected, Uncertain
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


class Unlike(dict[str, int]):
    """A dictionary that equals nothing."""

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        return False


@pytest.mark.rule("L5")
@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({1}, "it is of type set"),
        ((1, 2), "it is of type tuple"),
        (object(), "it is of type object"),
        (float("nan"), "it is not a finite number"),
        ("\ud800", "it has a lone surrogate"),
        ({1: 2}, "it has a key of type int"),
        ({None: 2}, "it has a key of type NoneType"),
        ({"\ud800": 2}, "it has a key with a lone surrogate"),
        ([[], {}, {"k": [0, dt.date(2026, 1, 2)]}], "what is at /2/k/1 is of type date"),
        ({"a": {"b": 10**30, "c": None, "d": 0.5, "e": b"x"}, "z": ()}, "what is at /a/e is of type bytes"),
        ({"b": float("inf"), "a": ()}, "what is at /b is not a finite number"),
        ({"ada@example.org": {"home-1": {"x" * 41: b""}}}, "what is at /…/home-1/… is of type bytes"),
        (Failed(Evidence("no")), "it is Failed, which a handler raises and does not return"),
        (Rejected(Evidence("no")), "it is Rejected, which a handler raises and does not return"),
        (Uncertain(Evidence("no")), "it is Uncertain, which no handler returns"),
        (Unlike(), "decoding it would give another value"),
    ],
)
def test_the_error_says_where_a_value_has_no_equal_and_never_what_it_is(value: Any, says: str) -> None:
    with pytest.raises(NotSerializable) as caught:
        codec.encode(value, what="the proof")
    assert str(caught.value.args[0]).startswith(f"the proof is not a lossless JSON value: {says}")
    assert "ada" not in str(caught.value)
