"""One blob on its way into a bucket: create, parts, conditional complete, and then the record that makes it visible."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from xml.sax.saxutils import escape

from counterfoil.errors import BlobDamaged, RecipientError
from counterfoil.outcomes import Accepted, Evidence, Outcome, Rejected, Uncertain
from counterfoil.recipients.blobs.chunks import Record
from counterfoil.recipients.blobs.pieces import Pieces
from counterfoil.recipients.blobs.reference import Reference
from counterfoil.recipients.blobs.s3.parts import Parts
from counterfoil.recipients.blobs.store import NotKept, Upload
from counterfoil.recipients.blobs.streams import never, never_kept

if TYPE_CHECKING:
    from counterfoil.recipients.blobs.s3.answers import Answer
    from counterfoil.recipients.blobs.s3.bucket import Bucket
    from counterfoil.recipients.blobs.s3.client import Client

MARK: Final = "x-amz-meta-counterfoil"
PARTS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Part:
    """A part that the endpoint has.

    Args:
        tag: what it calls it.
        digest: its SHA-256; b"" if it is empty.
    """

    tag: str
    digest: bytes


class Broken(NotKept):
    """The upload is of no use any more: nothing of it is visible."""

    def __init__(self, kind: str, answer: Answer | None = None) -> None:
        super().__init__(kind, status=None if answer is None else answer.status)
        self.facts = {} if answer is None else {"kind": answer.outcome.evidence.kind}
        self.attempts = 0


class Multipart(Upload):
    """A blob that nobody sees before its record is there.

    Args:
        bucket: where it goes.
        media_type: of its bytes.
        cleaner: asks for what was begun to be forgotten, whatever became of the permit.
    """

    def __init__(self, bucket: Bucket, media_type: str, *, cleaner: Client) -> None:
        self._bucket = bucket
        self._media_type = media_type
        self._cleaner = cleaner
        self._whole = sha256()
        self._size = 0
        self._part = Pieces()
        self._parts = Parts(self._send_part)
        self._counting = threading.Lock()
        self.attempts = 0
        self._unique = os.urandom(16).hex()
        self._key = bucket.data_key(self._unique)
        self._upload: str | None = None
        self._over = False
        self._log = bucket.journal.begin(self._unique)
        try:
            self._create()
        except BaseException as error:
            if isinstance(error, Broken):
                error.attempts = self.attempts
            self.abandon()
            raise

    def _ask(self, method: str, key: str, **what: Any) -> Answer:
        if self._bucket.client.overdue and self.attempts:
            raise Broken("deadline")
        answer = self._bucket.client.ask(method, key, **what)
        with self._counting:
            self.attempts += int((answer.outcome.evidence.details or {}).get("attempts", 0))
        return answer

    def _create(self) -> None:
        self._log.write("create", key=self._key)
        headers = {MARK: self._unique, "Content-Type": self._media_type}
        answer = self._ask("POST", self._key, params={"uploads": ""}, headers=headers)
        self._upload = answer.text("UploadId") if answer.done else None
        if not self._upload:
            raise Broken("not-created", answer)
        # What it is called can be learnt from the endpoint, too: it may wait for the next entry.
        self._log.write("created", durable=False, upload=self._upload)

    def write(self, data: memoryview) -> None:
        """Take the next bytes; full parts are sent."""
        self._whole.update(data)
        self._size += len(data)
        rest, size = data, self._bucket.part_bytes
        while rest:
            room = size - self._part.size
            self._part.add(rest[:room])
            rest = rest[room:]
            if self._part.size == size:
                self._add_part()

    def _add_part(self) -> None:
        if self._parts.count == PARTS_MAX:
            raise Broken("too-large")
        self._parts.add(self._part.take())

    def _send_part(self, number: int, body: bytes) -> Part:
        digest = sha256(body)
        self._log.write("part", number=number)
        params = {"partNumber": str(number), "uploadId": str(self._upload)}
        answer = self._ask("PUT", self._key, params=params, body=body, digest=digest.hexdigest())
        tag = answer.headers.get("etag")
        if not answer.done or not tag:
            raise Broken("part-not-stored", answer)
        return Part(tag, digest.digest() if body else b"")

    # --- sealing

    def seal(self, expected: Callable[[Reference], str | None], gate: Callable[[], None]) -> Outcome[Any]:
        """Complete the object, verify it, and put its record; see the port."""
        wanted = Reference(f"sha256:{self._whole.hexdigest()}", self._size, self._media_type)
        if (against := expected(wanted)) is not None:
            return never(against, self.attempts, written=wanted.digest, size=wanted.size)
        gate()
        try:
            if self._bucket.sealed(wanted, everywhere=not self._bucket.capabilities.strong) is not None:
                return self._accepted(wanted, already=True)
            if self._part.size or not self._parts.count:
                self._add_part()
            record = self._complete(wanted)
        except BlobDamaged as damaged:
            return never("damaged", self.attempts, fault=damaged.fault)
        except (OSError, RecipientError) as error:
            return never_kept(error, self.attempts)
        return self._publish(record)

    def _complete(self, wanted: Reference) -> Record:
        """Make the object of its parts. What is lost is looked at, and never repeated (rule K4)."""
        parts = self._parts.all()
        listed = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(part.tag)}</ETag></Part>"
            for number, part in enumerate(parts, 1)
        )
        body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
        self._log.write("complete")
        params, once = {"uploadId": str(self._upload)}, self._bucket.capabilities.condition("complete")
        answer = self._ask("POST", self._key, params=params, headers=once, body=body)
        told = answer.done and answer.root_name == "CompleteMultipartUploadResult"
        if answer.refused:
            raise Broken("not-completed", answer)
        # A 200 may hold an error, and a lost answer may have been a good one: the object itself says which.
        more = {"key": self._key, "version": "", "unique": self._unique}
        version = self._bucket.look(wanted, more)
        if version is None:
            raise Broken("not-completed", answer)
        more["version"] = version
        # A part is a chunk: its digest is that which its request was signed with.
        record = Record(wanted, b"".join(part.digest for part in parts), self._bucket.part_bytes, more)
        # What was not told, or not made under a condition that holds, is read back whole.
        if not told or not self._bucket.capabilities.strong:
            self._bucket.read_back(record)
        return record

    def _publish(self, record: Record) -> Outcome[Any]:
        """Put the record: from then on the blob can be seen. What is lost is looked at, and never repeated."""
        wanted = record.reference
        key = self._bucket.record_key(wanted, self._unique)
        try:
            self._log.write("record", key=key)
        except OSError as error:
            # It is not sent: the journal may say more than there is, and its bytes stay where they are.
            return never_kept(error, self.attempts)
        try:
            once = self._bucket.capabilities.condition("create")
            answer = self._ask("PUT", key, headers=once, body=record.encoded())
        except (Broken, Rejected) as error:
            # It was not sent, and never will be.
            self._note_refused()
            if isinstance(error, Rejected):
                raise
            return never_kept(error, self.attempts)
        if answer.done:
            return self._ours(wanted)
        try:
            found = self._bucket.record_at(key, wanted)
            ours = found is not None and (found.more or {}).get("unique") == self._unique
            if found is not None and not ours:
                self._bucket.with_bytes(found)
        except BlobDamaged as damaged:
            return never("damaged", self.attempts, fault=damaged.fault)
        except RecipientError as error:
            return self._uncertain(answer, error=error.code)
        except Rejected as refused:
            return self._uncertain(answer, error=refused.evidence.kind)
        if found is not None:
            return self._ours(wanted) if ours else self._accepted(wanted, already=True)
        if not answer.refused:
            return self._uncertain(answer)
        self._note_refused()
        return never_kept(Broken("refused", answer), self.attempts)

    def _note_refused(self) -> None:
        """Note that no record of ours is there or on its way, so that whoever cleans up removes the bytes."""
        with suppress(OSError):
            self._log.write("refused")

    def _ours(self, wanted: Reference) -> Accepted[Any]:
        self._over = True
        self._log.remove()
        return self._accepted(wanted, already=False)

    # --- ends

    def _uncertain(self, answer: Answer, **facts: Any) -> Uncertain:
        details = {"attempts": self.attempts, "kind": answer.outcome.evidence.kind, **facts}
        return Uncertain(Evidence("not-known-to-be-sealed", phase="dispatched", status=answer.status, details=details))

    def _accepted(self, wanted: Reference, *, already: bool) -> Accepted[Any]:
        details = {"attempts": self.attempts, "already": already}
        evidence = Evidence("sealed", phase="acknowledged", promises=("durable", "immutable"), details=details)
        return Accepted(wanted.as_json(), evidence=evidence)

    def abandon(self) -> None:
        """Ask the endpoint to forget the parts; the journal stays until it is known that they are gone."""
        if self._over:
            return
        self._over = True
        # Their connections are owned by whoever holds the permit, and an abort does not overtake them.
        self._parts.wait()
        if self._upload is not None and self._log.last("record") is None:
            with suppress(OSError, RecipientError, Rejected):
                self._log.write("abort")
                self._cleaner.ask("DELETE", self._key, params={"uploadId": self._upload})
        self._log.close()
