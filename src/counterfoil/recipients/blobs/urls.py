"""Where blobs are kept, as a URL says it."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote, urlsplit

from counterfoil.errors import UsageError

_HINT: Final = "write file:///absolute/folder"


def folder_of(url: str) -> str:
    """Return the folder that a URL names.

    Raises:
        UsageError: it names none.
    """
    if not isinstance(url, str):
        raise UsageError(f"Blobs takes a URL, not {type(url).__name__}", hint=_HINT)
    try:
        parts = urlsplit(url)
    except ValueError:
        raise UsageError(f"{url!r} is no URL", hint=_HINT) from None
    if parts.scheme != "file":
        raise UsageError(f"blobs are kept at file:///folder or s3://bucket, not at {url!r}", hint=_HINT)
    if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/") or parts.path.strip("/") == "":
        raise UsageError(f"{url!r} names no absolute folder of this machine", hint=_HINT)
    if parts.query or parts.fragment:
        raise UsageError(f"{url!r} has options, and a folder has none", hint="a ? or # in a path is written %3F or %23")
    path = unquote(parts.path)
    if "\0" in path:
        raise UsageError(f"{url!r} has a NUL character in its path", hint=_HINT)
    return path
