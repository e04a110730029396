"""Names and bodies that break stores which take them for something else."""

from __future__ import annotations

from typing import Final

# Names that people really use, and names that break stores which take them for something else.
HOSTILE_NAMES: Final = (
    "a",
    "order/42",
    "100%",
    "%2F",
    "it's",
    'say "hi"',
    "drop table; --",
    "back\\slash",
    "*",
    ">",
    "a.b.c",
    " leading and trailing ",
    "Größe",
    "大きい",
    "👩‍👩‍👧",
    "\u202eright to left",
    "zero\u200bwidth",
    "x" * 255,
)

HOSTILE_BODIES: Final = (
    b"null",
    b'"a\\u0000b"',
    '"\U0001f9fe ü"'.encode(),
    b"[9223372036854775807,-9223372036854775808]",
    b'{"a":[1,2.5,true,false,null,{"b":""}]}',
    b'"' + b"x" * 100_000 + b'"',
)

# Names that are one and the same to a store that compares as people or as its collation do.
ALIKE_NAMES: Final = (
    "order",
    "Order",
    "ORDER",
    "order ",
    "order  ",
    " order",
    "orde\u0301r",
    "ord\u00e9r",
    "ord\u00c9r",
    "stra\u00dfe",
    "strasse",
    "4",
    "04",
    "4.0",
)
