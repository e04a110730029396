"""Parameters and answers of the hot functions in PostgreSQL's binary format, without the price of adapting them."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final

BOOL: Final = 16
BYTEA: Final = 17
INT8: Final = 20
INT2: Final = 21
INT4: Final = 23
TEXT: Final = 25
FLOAT8: Final = 701
ARRAY_OF: Final = {BOOL: 1000, BYTEA: 1001, INT8: 1016, INT2: 1005, INT4: 1007, TEXT: 1009, FLOAT8: 1022}

_HEAD: Final = Struct(">iiIii").pack
_EMPTY: Final = Struct(">iiI").pack
_LENGTH: Final = Struct(">i").pack
_ITEM: Final = {
    INT2: Struct(">ih").pack,
    INT4: Struct(">ii").pack,
    INT8: Struct(">iq").pack,
    FLOAT8: Struct(">id").pack,
    BOOL: Struct(">i?").pack,
}
_SIZE: Final = {INT2: 2, INT4: 4, INT8: 8, FLOAT8: 8, BOOL: 1}
_FLOAT: Final = Struct(">d").unpack

small: Final = Struct(">h").pack
integer: Final = Struct(">i").pack
big: Final = Struct(">q").pack
double: Final = Struct(">d").pack


def boolean(value: bool) -> bytes:  # noqa: FBT001 - it is what is encoded
    """Encode one truth value."""
    return b"\x01" if value else b"\x00"


def array(kind: int, values: list[int] | list[float] | list[bool]) -> bytes:
    """Encode an array of numbers or truth values.

    Raises:
        struct.error: a value does not fit.
    """
    pack, size = _ITEM[kind], _SIZE[kind]
    return _head(kind, len(values)) + b"".join([pack(size, value) for value in values])


def strings(kind: int, values: list[bytes]) -> bytes:
    """Encode an array of texts (as UTF-8) or of bytes."""
    return _head(kind, len(values)) + b"".join(_with_lengths(values))


def whole(value: bytes | None) -> int:
    """Decode an integer of any size."""
    return int.from_bytes(value or b"\0", "big", signed=True)


def real(value: bytes | None) -> float:
    """Decode a double."""
    return float(_FLOAT(value or bytes(8))[0])


def _head(kind: int, count: int) -> bytes:
    return _HEAD(1, 0, kind, count, 1) if count else _EMPTY(0, 0, kind)


def _with_lengths(values: list[bytes]) -> Iterable[bytes]:
    for value in values:
        yield _LENGTH(len(value))
        yield value
