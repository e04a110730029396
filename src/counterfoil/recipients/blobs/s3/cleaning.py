"""Removing what killed uploads left in a bucket, by this machine's journal.

An abort's 204 does not prove that parts on their way are gone (rule K4): an upload is aborted, looked at again at least
`settle_s` later, and forgotten only when nothing of it is there then. An object whose record may still arrive is not
removed at all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from counterfoil.errors import RecipientError
from counterfoil.outcomes import Rejected
from counterfoil.recipients.blobs import locks
from counterfoil.recipients.blobs.store import Cleaned

if TYPE_CHECKING:
    from counterfoil.recipients.blobs.s3.bucket import Bucket
    from counterfoil.recipients.blobs.s3.journal import Log


@dataclass
class _Counts:
    removed: int = 0
    in_flight: int = 0
    left: int = 0


def clean(bucket: Bucket, *, limit: int, within_s: float) -> Cleaned:
    """Clean within bounds; see the port."""
    until = time.monotonic() + within_s
    turn = locks.lock_folder(bucket.journal.uploads, wait=False)
    if turn is None:
        return Cleaned(busy=bucket.journal.uploads.is_dir())
    counts = _Counts()
    try:
        for _, log in bucket.journal.left():
            if log is None:
                counts.in_flight += 1
            elif counts.removed >= limit or time.monotonic() >= until:
                counts.left += 1
                log.close()
            else:
                _one(bucket, log, counts)
    finally:
        os.close(turn)
    return Cleaned(removed=counts.removed, in_flight=counts.in_flight, left=counts.left)


def _one(bucket: Bucket, log: Log, counts: _Counts) -> None:
    try:
        gone = _settled(bucket, log)
    except (RecipientError, Rejected, OSError):
        gone = "left"
    if gone == "removed":
        counts.removed += 1
        log.remove()
        return
    counts.in_flight += gone == "in-flight"
    counts.left += gone == "left"
    log.close()


def _settled(bucket: Bucket, log: Log) -> str:
    created = log.first("create")
    if created is None:
        return "removed"
    quiet = log.last("found") or log.first("cleaning")
    rest_s = 0.0 if quiet is None else float(quiet["at"]) + bucket.settle_s - time.time()
    if rest_s > 0:
        # Looking now would prove nothing, and take the time of others.
        return "in-flight"
    key, whole = str(created["key"]), log.first("probe") is not None
    record = log.last("record")
    if record is not None and log.last("refused") is None:
        holder = bucket.holder(str(record["key"]))
        if holder == key:
            return "removed"
        if holder is None:
            # Its record may still arrive, and would then lead to bytes that are gone.
            return "left"
    log.write("cleaning")
    uploads = _uploads(bucket, log, key)
    for at, upload in uploads:
        bucket.client.ask("DELETE", at, params={"uploadId": upload})
    objects = bucket.keys(key) if whole else [key]
    there = [at for at in objects if _removed(bucket, at)]
    if uploads or there:
        # What was found now may have company on its way: from here on the time counts anew.
        log.write("found")
        return "in-flight"
    return "in-flight" if quiet is None else "removed"


def _removed(bucket: Bucket, key: str) -> bool:
    """Ask for the removal of an object of a dead upload; False if it is not there."""
    there = bucket.client.ask("HEAD", key)
    if there.absent:
        return False
    if there.status != 200:
        raise RecipientError("an object cannot be looked at", code="blob-unreadable")
    version = there.headers.get("x-amz-version-id")
    bucket.client.ask("DELETE", key, params={"versionId": version} if version else None)
    return True


def _listed(bucket: Bucket, key: str) -> Iterator[tuple[str, str]]:
    """Go through the uploads that the endpoint lists, with the key of each; it may list more than those below a key."""
    params = {"uploads": "", "prefix": key}
    while True:
        answer = bucket.client.ask("GET", "", params=params)
        if answer.root_name != "ListMultipartUploadsResult":
            raise RecipientError("the uploads cannot be listed", code="blob-unreadable")
        yield from zip(answer.texts("Upload", "Key"), answer.texts("Upload", "UploadId"), strict=True)
        after = {"key-marker": answer.text("NextKeyMarker"), "upload-id-marker": answer.text("NextUploadIdMarker")}
        further = params | {name: text for name, text in after.items() if text}
        if answer.text("IsTruncated") != "true" or further == params:
            return
        params = further


def _uploads(bucket: Bucket, log: Log, key: str) -> list[tuple[str, str]]:
    """Return the uploads below a key that the endpoint still knows, with the key of each."""
    found = [each for each in _listed(bucket, key) if each[0].startswith(key)]
    created = log.last("created")
    if created is not None and all(created["upload"] != upload for _, upload in found):
        # Not every endpoint lists what it has.
        parts = bucket.client.ask("GET", key, params={"uploadId": str(created["upload"])})
        if parts.status != 404:
            found.append((key, str(created["upload"])))
    return found
