"""Where a bucket is, as a URL says it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from counterfoil.errors import UsageError

_HINT: Final = "write s3://bucket/prefix?endpoint=https://s3.example.com&region=eu-central-1"
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_OPTIONS: Final = {"endpoint", "region"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A bucket, and the prefix of all keys of ours in it.

    Args:
        endpoint: an origin.
        bucket: its name; it is put into the path.
        prefix: "" or ends in a slash.
        region: for signing.
    """

    endpoint: str
    bucket: str
    prefix: str
    region: str


def place_of(url: str) -> Place:
    """Understand a URL.

    Raises:
        UsageError: it names no bucket.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise UsageError("an s3:// URL holds no credentials", hint='give them apart: credentials=("AKIA…", Secret(…))')
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := set(options) - _OPTIONS:
        raise UsageError(f"{url!r} has options that mean nothing: {', '.join(sorted(unknown))}", hint=_HINT)
    if not parts.netloc or parts.fragment:
        raise UsageError(f"{url!r} names no bucket", hint=_HINT)
    if not _BUCKET.fullmatch(parts.netloc):
        raise UsageError(
            f"{parts.netloc!r:.100} cannot be a bucket: names have 3 to 63 characters, which are lower-case letters,"
            " digits, dots and hyphens, with a letter or digit first and last",
            hint=_HINT,
        )
    region = options.get("region", "us-east-1")
    endpoint = options.get("endpoint", f"https://s3.{region}.amazonaws.com").rstrip("/")
    origin = urlsplit(endpoint)
    if origin.scheme not in ("http", "https") or not origin.netloc or origin.path or "@" in origin.netloc:
        raise UsageError(f"endpoint is an origin like https://s3.example.com, not {endpoint!r}", hint=_HINT)
    prefix = unquote(parts.path).strip("/")
    return Place(endpoint=endpoint, bucket=parts.netloc, prefix=f"{prefix}/" if prefix else "", region=region)
