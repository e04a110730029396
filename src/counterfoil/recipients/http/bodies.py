"""Bodies, decompressed within bounds: a bomb is cut at its bound, not when the memory is full (rule H7)."""

from __future__ import annotations

import zlib
from typing import Any, Final

# What we say that we read; anything else comes only from recipients that do not listen, and stays as it is.
ENCODINGS: Final = "gzip, deflate"
_LAYERS_MAX: Final = 3


def decompressed(raw: bytes, encoding: str, bytes_max: int) -> tuple[bytes, bool]:
    """Undo a Content-Encoding.

    Args:
        raw: the body as it came.
        encoding: the header's value.
        bytes_max: what is kept at most of each layer.

    Returns:
        The body as far as it could be read, and whether that is all of it.
    """
    layers = [layer for part in encoding.lower().split(",") if (layer := part.strip()) not in {"", "identity"}]
    if len(layers) > _LAYERS_MAX:
        return b"", False
    whole = True
    for layer in reversed(layers):
        if layer in {"gzip", "x-gzip"}:
            raw, complete = _gzip(raw, bytes_max)
        elif layer == "deflate":
            raw, complete = _deflate(raw, bytes_max)
        else:
            return raw, False
        whole = whole and complete
    return raw, whole


def _gzip(raw: bytes, bytes_max: int) -> tuple[bytes, bool]:
    """Undo gzip, which may be several members one after another."""
    if not raw:
        return b"", True
    parts: list[bytes] = []
    room = bytes_max
    while raw:
        engine = zlib.decompressobj(16 + zlib.MAX_WBITS)
        part, complete = _inflated(engine, raw, room)
        parts.append(part)
        room -= len(part)
        if not complete:
            return b"".join(parts), False
        # Some servers pad the end with zeros.
        raw = engine.unused_data.lstrip(b"\0")
    return b"".join(parts), True


def _deflate(raw: bytes, bytes_max: int) -> tuple[bytes, bool]:
    """Undo deflate, which is zlib's format by the standard and a bare stream in some servers."""
    if not raw:
        return b"", True
    content, complete = _inflated(zlib.decompressobj(), raw, bytes_max)
    return (
        (content, complete) if content or complete else _inflated(zlib.decompressobj(-zlib.MAX_WBITS), raw, bytes_max)
    )


def _inflated(engine: Any, raw: bytes, bytes_max: int) -> tuple[bytes, bool]:
    try:
        # One byte more shows whether the bound was met; 0 would mean no bound.
        content = engine.decompress(raw, bytes_max + 1)
    except zlib.error:
        return b"", False
    return content[:bytes_max], engine.eof and len(content) <= bytes_max
