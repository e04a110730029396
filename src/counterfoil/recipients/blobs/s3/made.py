"""Makes a store of a URL and what goes with it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

from counterfoil.errors import UsageError
from counterfoil.recipients.blobs.s3.bucket import Bucket
from counterfoil.recipients.blobs.s3.client import Client
from counterfoil.recipients.blobs.s3.journal import Journal
from counterfoil.recipients.blobs.s3.place import place_of
from counterfoil.recipients.secret import Secret

PART_BYTES_MIN: Final = 5 << 20
PART_BYTES_MAX: Final = 64 << 20
WEAK: Final = ("refuse", "verify")


def bucket_at(
    url: str,
    *,
    name: str,
    credentials: Any,
    journal: str | os.PathLike[str] | None,
    weak: str,
    part_bytes: int,
    timeout_s: float,
    settle_s: float,
    allow: Iterable[str],
) -> Bucket:
    """Make the store of a bucket; nothing is asked yet.

    Raises:
        UsageError: something is missing or wrong.
    """
    place = place_of(url)
    if journal is None:
        raise UsageError(
            "a bucket needs journal=, a folder of this machine", hint="what is begun there is written down in it"
        )
    pair = credentials if isinstance(credentials, tuple) and len(credentials) == 2 else (None, None)
    if not isinstance(pair[0], (str, Secret)) or not isinstance(pair[1], Secret):
        raise UsageError(
            "a bucket needs credentials=, the access key and a Secret",
            hint='credentials=("AKIA…", Secret("env:AWS_SECRET_ACCESS_KEY"))',
        )
    if weak not in WEAK:
        raise UsageError(f"weak is one of {', '.join(WEAK)}, not {weak!r}")
    if type(part_bytes) is not int or not PART_BYTES_MIN <= part_bytes <= PART_BYTES_MAX:
        raise UsageError(f"part_bytes is an int from {PART_BYTES_MIN} to {PART_BYTES_MAX}, not {part_bytes!r}")
    client = Client(place, name=name, credentials=(pair[0], pair[1]), timeout_s=timeout_s, allow=allow)
    return Bucket(client, Journal(os.fspath(journal)), weak=weak, part_bytes=part_bytes, settle_s=settle_s)
