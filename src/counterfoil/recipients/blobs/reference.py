"""What a sealed blob is called: its digest, size and media type, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from counterfoil.errors import UsageError

SIZE_MAX: Final = 1 << 40
DEFAULT_MEDIA_TYPE: Final = "application/octet-stream"
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
# As RFC 6838 spells them, with parameters; printable ASCII, so that one fits into a header.
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9][\w!#$&^.+-]{0,126}/[A-Za-z0-9][\w!#$&^.+-]{0,126}( *;[ -~]*)?", re.ASCII)
_MEDIA_TYPE_BYTES_MAX: Final = 255
_KEYS: Final = {"digest", "size", "media_type"}


@dataclass(frozen=True, slots=True)
class Reference:
    """A blob's address.

    Args:
        digest: `sha256:` and 64 hexadecimal digits, of all its bytes.
        size: in bytes.
        media_type: what the bytes are said to be.
    """

    digest: str
    size: int
    media_type: str

    @property
    def name(self) -> str:
        """The same in one word that any store takes as a name."""
        media = blake2b(self.media_type.encode(), digest_size=8).hexdigest()
        return f"{self.digest.removeprefix('sha256:')}.{self.size}.{media}"

    def as_json(self) -> dict[str, Any]:
        """Return it as callers get it and give it."""
        return {"digest": self.digest, "size": self.size, "media_type": self.media_type}


def reference(given: Any) -> Reference:
    """Understand a reference.

    Raises:
        UsageError: it is none.
    """
    if isinstance(given, Reference):
        return given
    if not isinstance(given, Mapping) or set(given) != _KEYS:
        raise UsageError(
            f"a blob's reference has digest, size and media_type, not {given!r:.200}",
            hint="give what seal() or a put was accepted with: its proof",
        )
    return Reference(digest(given["digest"]), size(given["size"]), media_type(given["media_type"]))


def digest(given: Any) -> str:
    """Check a digest."""
    if not isinstance(given, str) or not _DIGEST.fullmatch(given):
        raise UsageError(f"a digest is sha256: and 64 hexadecimal digits in lower case, not {given!r:.100}")
    return given


def size(given: Any, what: str = "size") -> int:
    """Check a number of bytes."""
    if type(given) is not int or not 0 <= given <= SIZE_MAX:
        raise UsageError(f"{what} is an int from 0 to {SIZE_MAX} bytes, not {given!r:.100}")
    return given


def media_type(given: Any) -> str:
    """Check a media type."""
    if not isinstance(given, str) or len(given) > _MEDIA_TYPE_BYTES_MAX or not _MEDIA_TYPE.fullmatch(given):
        raise UsageError(f"media_type is one like image/png, not {given!r:.100}")
    return given
