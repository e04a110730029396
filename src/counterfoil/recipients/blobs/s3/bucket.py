"""Blobs in a bucket.

    <prefix>data/<unique>               the bytes, under a key that nobody else has
    <prefix>sealed/<name>/record        which of them is the blob of this name; where the endpoint's conditional create
                   /<unique>            cannot be relied on, a key of its own for each writer instead

A blob is sealed once a record of it is there: one request makes it visible.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final, Self

from counterfoil.errors import BlobDamaged, BlobMissing, RecipientError
from counterfoil.protocol import codec
from counterfoil.recipients.blobs.chunks import Record, damaged, decoded
from counterfoil.recipients.blobs.lending import Line
from counterfoil.recipients.blobs.reference import Reference, reference
from counterfoil.recipients.blobs.s3 import cleaning
from counterfoil.recipients.blobs.s3.answers import Answer
from counterfoil.recipients.blobs.s3.capabilities import Capabilities, capabilities_of
from counterfoil.recipients.blobs.s3.client import Client
from counterfoil.recipients.blobs.s3.journal import Journal
from counterfoil.recipients.blobs.s3.upload import MARK, Multipart
from counterfoil.recipients.blobs.store import Cleaned, Sealed, Store, Unnamed, Upload

FETCH_BYTES: Final = 8 << 20
CANDIDATES_MAX: Final = 16
_NAME: Final = re.compile(r"([0-9a-f]{64})\.(\d{1,15})\.[0-9a-f]{16}")


class Bucket(Store):
    """A store in a bucket.

    Args:
        client: speaks to the endpoint.
        journal: what this machine changes there.
        weak: what to do where the endpoint's conditions cannot be relied on: `refuse`, or `verify`.
        part_bytes: of each part but the last.
        settle_s: seconds after which what was aborted is no longer on its way.
    """

    def __init__(self, client: Client, journal: Journal, *, weak: str, part_bytes: int, settle_s: float) -> None:
        self.client = client
        self.journal = journal
        self.weak = weak
        self.part_bytes = part_bytes
        self.settle_s = settle_s
        self._capabilities: Capabilities | None = None

    @property
    def target(self) -> str:
        """The URL below which all requests go."""
        return f"{self.client.url(self.client.place.prefix)}" if self.client.place.prefix else f"{self.client.url('')}/"

    @property
    def capabilities(self) -> Capabilities:
        """What the endpoint can do: probed once, and kept in the journal's folder."""
        if self._capabilities is None:
            self._capabilities = capabilities_of(self.client, self.journal)
        return self._capabilities

    def _key(self, *parts: str) -> str:
        return self.client.place.prefix + "/".join(parts)

    def data_key(self, unique: str) -> str:
        """Return the key of a blob's bytes."""
        return self._key("data", unique)

    def record_key(self, wanted: Reference, unique: str) -> str:
        """Return the key of a blob's record."""
        return self._key("sealed", wanted.name, "record" if self.capabilities.strong else unique)

    # --- writing

    def under(self, line: Line | None, cancelled: Callable[[], bool]) -> Self:
        """Return the same bucket for one blob: all that is asked there goes under one permit."""
        if line is not None:
            # What is listed of the bucket is what lies below the prefix.
            line.show(self.client.url(""), self.target)
        other = copy.copy(self)
        other.client = self.client.under(line, cancelled)
        return other

    def begin(
        self, media_type: str, *, line: Line | None = None, cancelled: Callable[[], bool] = lambda: False
    ) -> Upload:
        """Reserve a place for a blob.

        Raises:
            Rejected: the permit refused a request.
            RecipientError: the endpoint's conditions cannot be relied on, and that is to be refused; or it cannot be
                found out whether they can.
        """
        bucket = self.under(line, cancelled)
        self._capabilities = bucket.capabilities
        if not self.capabilities.strong and self.weak == "refuse":
            raise RecipientError(
                f"this endpoint's conditional requests cannot be relied on: {self.capabilities}",
                code="endpoint-too-weak",
                effect_ran="no",
                hint='weak="verify" takes keys of one\'s own and reads back what was written',
            )
        return Multipart(bucket, media_type, cleaner=self.client)

    # --- reading

    def look(self, wanted: Reference, more: dict[str, Any]) -> str | None:
        """Look at the object that an upload was to make: its version, "" without versions; None: it is not there.

        Args:
            wanted: the blob.
            more: the object's key, what the upload called itself, and the version, where one is pinned.

        Raises:
            BlobDamaged: it is not what was made.
            RecipientError: it cannot be looked at.
        """
        answer = self.client.ask("HEAD", str(more.get("key")), params=pinned(more))
        if answer.absent:
            return None
        if not answer.done:
            raise unreadable(answer)
        headers, unique = answer.headers, more.get("unique")
        # Not every endpoint keeps what an upload says of itself.
        if headers.get(MARK, unique) != unique:
            raise damaged(wanted, "swapped", "another upload's bytes are in its place")
        if (length := headers.get("content-length", "")) != str(wanted.size):
            shorter = length.isdecimal() and int(length) < wanted.size
            raise damaged(wanted, "truncated" if shorter else "wrong-digest", f"there are {length:.20} bytes")
        return headers.get("x-amz-version-id", "")

    def with_bytes(self, found: Record) -> Record:
        """Return a record whose bytes are there.

        Raises:
            BlobDamaged: they are not.
        """
        if self.look(found.reference, found.more or {}) is None:
            raise damaged(found.reference, "truncated", "its bytes are gone")
        return found

    def read_back(self, record: Record) -> None:
        """Read an object whole and compare it with what was digested on its way."""
        sealed = SealedObject(self.client, record)
        for number in range(record.chunks):
            sealed.chunk(number)

    def record_at(self, key: str, wanted: Reference) -> Record | None:
        """Read the record at a key; None: it is not there."""
        answer = self.client.ask("GET", key)
        if answer.absent:
            return None
        if not answer.done:
            raise unreadable(answer)
        return decoded(answer.content, wanted)

    def holder(self, key: str) -> str | None:
        """Return the key of the bytes that the record at a key leads to, whatever blob it is of; None: no record."""
        answer = self.client.ask("GET", key)
        if answer.absent:
            return None
        if not answer.done:
            raise unreadable(answer)
        try:
            return str(codec.decode(answer.content.partition(b"\n")[0])["more"]["key"])
        except (ValueError, TypeError, KeyError):
            raise RecipientError("the record cannot be read", code="blob-unreadable") from None

    def sealed(self, wanted: Reference, *, everywhere: bool = True) -> Record | None:
        """Find a blob's record whose bytes are there: where each writer has a key of its own, one good one is enough.

        Args:
            wanted: the blob.
            everywhere: look also where writers have keys of their own.

        Raises:
            BlobDamaged: there are records, and none of them is good.
        """
        fault: BlobDamaged | None = None
        for key in self._records(wanted) if everywhere else (self._key("sealed", wanted.name, "record"),):
            try:
                if (found := self.record_at(key, wanted)) is not None:
                    return self.with_bytes(found)
            except BlobDamaged as error:
                fault = fault or error
        if fault is not None:
            raise fault
        return None

    def _records(self, wanted: Reference) -> Iterator[str]:
        """Go through the keys at which a blob's record may be."""
        yield (first := self._key("sealed", wanted.name, "record"))
        keys = self.keys(self._key("sealed", wanted.name, ""), most=CANDIDATES_MAX)
        yield from (key for key in keys if key != first)

    def open(self, wanted: Reference) -> Sealed:
        """Open a sealed blob."""
        found = self.sealed(wanted)
        if found is None:
            raise BlobMissing(f"there is no blob {wanted.digest} of {wanted.size} bytes, {wanted.media_type}")
        return SealedObject(self.client, found)

    def settle(self, wanted: Reference) -> Reference | None:
        """Look whether a blob is sealed."""
        return None if self.sealed(wanted) is None else wanted

    def references(self, prefix: str) -> Iterator[Reference | Unnamed]:
        """Go through the sealed blobs whose digest's digits begin so."""
        seen = ""
        start = self._key("sealed", "")
        for key in self.keys(start + prefix):
            name = key.removeprefix(start).partition("/")[0]
            parts = _NAME.fullmatch(name)
            if parts is None or name == seen:
                continue
            seen = name
            answer = self.client.ask("GET", key)
            if answer.absent:
                continue
            if not answer.done:
                raise unreadable(answer)
            try:
                found = reference(codec.decode(answer.content.partition(b"\n")[0])["blob"])
            except (ValueError, TypeError, KeyError):
                found = None
            yield found if found is not None and found.name == name else Unnamed(f"sha256:{parts[1]}", int(parts[2]))

    def keys(self, prefix: str, most: int | None = None) -> Iterator[str]:
        """List keys that begin so."""
        params = {"list-type": "2", "prefix": prefix} | ({} if most is None else {"max-keys": str(most)})
        while True:
            answer = self.client.ask("GET", "", params=params)
            if not answer.done or answer.root is None:
                raise unreadable(answer)
            yield from answer.texts("Contents", "Key")
            more = answer.text("NextContinuationToken")
            if most is not None or answer.text("IsTruncated") != "true" or not more:
                return
            params = {**params, "continuation-token": more}

    def told(self) -> dict[str, Any]:
        """Say what the place can do: as it was found out."""
        return {"kind": "bucket", **asdict(self.capabilities)}

    # --- cleaning

    def clean(self, *, limit: int, within_s: float) -> Cleaned:
        """Remove what was left behind by those that are gone, within bounds."""
        return cleaning.clean(self, limit=limit, within_s=within_s)


class SealedObject(Sealed):
    """A sealed blob that is read in ranges."""

    def __init__(self, client: Client, record: Record) -> None:
        self._client = client
        self._record = record
        self._first = -1
        self._fetched = b""

    @property
    def record(self) -> Record:
        """What is kept beside it."""
        return self._record

    def chunk(self, number: int) -> bytes:
        """Return a chunk's bytes, verified."""
        record = self._record
        count = max(1, FETCH_BYTES // record.chunk_bytes)
        first = number - number % count
        base = first * record.chunk_bytes
        if first != self._first:
            # Not two at once.
            self.close()
            self._fetched = self._range(base, min(base + count * record.chunk_bytes, record.reference.size))
            self._first = first
        start, end = record.span(number)
        return record.verify(number, self._fetched[start - base : end - base])

    def _range(self, start: int, end: int) -> bytes:
        more = self._record.more or {}
        answer = self._client.ask(
            "GET", str(more.get("key")), params=pinned(more), headers={"Range": f"bytes={start}-{end - 1}"}
        )
        if answer.cut:
            raise unreadable(answer)
        if answer.absent or answer.status == 416:
            raise damaged(self._record.reference, "truncated", "its bytes are gone")
        if answer.status == 200:
            return answer.content[start:end]
        if answer.status != 206:
            raise unreadable(answer)
        return answer.content

    def close(self) -> None:
        """Let go of it."""
        self._first, self._fetched = -1, b""


def pinned(more: dict[str, Any]) -> dict[str, str] | None:
    """Return the query that asks for the version that was sealed, where the bucket has versions."""
    return {"versionId": str(more["version"])} if more.get("version") else None


def unreadable(answer: Answer) -> RecipientError:
    """Make the error of what cannot be learnt now, which says nothing about the blob."""
    evidence = answer.outcome.evidence
    return RecipientError(
        f"the endpoint does not say: {evidence.kind} {evidence.status or ''}".rstrip(),
        code="blob-unreadable",
        effect_ran="no",
    )
