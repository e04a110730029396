"""One blob on its way into a bucket: create, parts, conditional complete, and then the record that makes it visible."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from xml.sax.saxutils import escape

from counterfoil.errors import BlobDamaged, RecipientError
from counterfoil.outcomes import Accepted, Evidence, Failed, Outcome, Rejected, Uncertain
from counterfoil.recipients.blobs.chunks import Record, Tally
from counterfoil.recipients.blobs.reference import Reference
from counterfoil.recipients.blobs.s3.client import overdue
from counterfoil.recipients.blobs.store import Upload

if TYPE_CHECKING:
    from counterfoil.ports.recipient import Permit
    from counterfoil.recipients.blobs.s3.answers import Answer
    from counterfoil.recipients.blobs.s3.bucket import Bucket

MARK: Final = "x-amz-meta-counterfoil"
PARTS_MAX: Final = 10_000
ONCE: Final = {"If-None-Match": "*"}


class Broken(OSError):
    """The upload is of no use any more: nothing of it is visible."""

    def __init__(self, kind: str, answer: Answer | None = None) -> None:
        super().__init__(kind)
        self.kind = kind
        self.answer = answer


class Multipart(Upload):
    """A blob that nobody sees before its record is there.

    Args:
        bucket: where it goes.
        media_type: of its bytes.
        permit: of a broker, or None.
        cancelled: says whether nobody waits any more.
    """

    def __init__(
        self, bucket: Bucket, media_type: str, *, permit: Permit | None, cancelled: Callable[[], bool]
    ) -> None:
        self._bucket = bucket
        self._media_type = media_type
        self._permit = permit
        self._cancelled = cancelled
        self._tally = Tally()
        self._part = bytearray()
        self._tags: list[str] = []
        self.attempts = 0
        self._unique = os.urandom(16).hex()
        self._key = bucket.data_key(self._unique)
        self._upload: str | None = None
        self._over = False
        self._log = bucket.journal.begin(self._unique)
        try:
            self._create()
        except BaseException:
            self.abandon()
            raise

    def _ask(self, method: str, key: str, **what: Any) -> Answer:
        if overdue(self._permit) and self.attempts:
            raise Broken("deadline")
        answer = self._bucket.client.ask(method, key, permit=self._permit, cancelled=self._cancelled, **what)
        self.attempts += int((answer.outcome.evidence.details or {}).get("attempts", 0))
        return answer

    def _create(self) -> None:
        self._log.write("create", key=self._key)
        headers = {MARK: self._unique, "Content-Type": self._media_type}
        answer = self._ask("POST", self._key, params={"uploads": ""}, headers=headers)
        self._upload = answer.text("UploadId") if answer.done else None
        if not self._upload:
            raise Broken("not-created", answer)
        self._log.write("created", upload=self._upload)

    def write(self, data: memoryview) -> None:
        """Take the next bytes; full parts are sent."""
        self._tally.add(data)
        rest, size = data, self._bucket.part_bytes
        while rest:
            room = size - len(self._part)
            self._part += rest[:room]
            rest = rest[room:]
            if len(self._part) == size:
                self._send_part()

    def _send_part(self) -> None:
        number = len(self._tags) + 1
        if number > PARTS_MAX:
            raise Broken("too-large")
        self._log.write("part", number=number)
        params = {"partNumber": str(number), "uploadId": str(self._upload)}
        answer = self._ask("PUT", self._key, params=params, body=bytes(self._part))
        tag = answer.headers.get("etag")
        if not answer.done or not tag:
            raise Broken("part-not-stored", answer)
        self._tags.append(tag)
        self._part.clear()

    # --- sealing

    def seal(self, expected: Callable[[Reference], str | None], gate: Callable[[], None]) -> Outcome[Any]:
        """Complete the object, verify it, and put its record; see the port."""
        record = self._tally.record(self._media_type)
        if (against := expected(record.reference)) is not None:
            return self._failed(against)
        gate()
        try:
            if self._bucket.sealed(record.reference) is not None:
                return self._accepted(record.reference, already=True)
            if self._part or not self._tags:
                self._send_part()
            version = self._complete(record)
        except BlobDamaged as damaged:
            return self._failed("damaged", fault=damaged.fault)
        except Broken as broken:
            return self._failed(broken.kind, answer=broken.answer)
        except (OSError, RecipientError) as error:
            return self._failed("not-stored", error=getattr(error, "code", type(error).__name__))
        return self._publish(record, version)

    def _complete(self, record: Record) -> str | None:
        """Make the object of its parts; returns its version. What is lost is looked at, never repeated (rule K4)."""
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(tag)}</ETag></Part>"
            for number, tag in enumerate(self._tags, 1)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        self._log.write("complete")
        answer = self._ask("POST", self._key, params={"uploadId": str(self._upload)}, headers=ONCE, body=body)
        told = answer.done and answer.root_name == "CompleteMultipartUploadResult"
        if answer.refused:
            raise Broken("not-completed", answer)
        # A 200 may hold an error, and a lost answer may have been a good one: the object itself says which.
        found = self._bucket.look(self._key, self._unique, record.reference.size)
        if found is None:
            raise Broken("not-completed", answer)
        # What was not told, or not made under a condition that holds, is read back whole.
        if not told or not self._bucket.capabilities.strong:
            self._bucket.read_back(record, self._key, found)
        return found

    def _publish(self, record: Record, version: str | None) -> Outcome[Any]:
        """Put the record: from then on the blob can be seen. What is lost is looked at, and never repeated."""
        wanted = record.reference
        more = {"key": self._key, "version": version, "unique": self._unique}
        whole = Record(wanted, record.table, record.chunk_bytes, more)
        key = self._bucket.record_key(wanted, self._unique)
        try:
            self._log.write("record", key=key)
            answer = self._ask("PUT", key, headers=ONCE, body=whole.encoded())
        except (Broken, Rejected) as error:
            # It was not sent: the journal says more than there is, and its bytes stay where they are.
            return self._failed("deadline" if isinstance(error, Broken) else error.evidence.kind)
        except OSError as error:
            return self._failed("not-stored", error=type(error).__name__)
        if answer.done:
            return self._ours(wanted)
        try:
            found = self._bucket.record_at(key, wanted)
        except BlobDamaged as damaged:
            return self._failed("damaged", fault=damaged.fault)
        except RecipientError as error:
            return self._uncertain(answer, error=error.code)
        if found is not None:
            ours = (found.more or {}).get("unique") == self._unique
            return self._ours(wanted) if ours else self._accepted(wanted, already=True)
        if not answer.refused:
            return self._uncertain(answer)
        with suppress(OSError):
            self._log.write("refused")
        return self._failed("refused", answer=answer)

    def _ours(self, wanted: Reference) -> Accepted[Any]:
        self._over = True
        self._log.remove()
        return self._accepted(wanted, already=False)

    # --- ends

    def _details(self, answer: Answer | None, facts: dict[str, Any]) -> dict[str, Any]:
        details: dict[str, Any] = {"attempts": self.attempts, **facts}
        if answer is not None:
            details["kind"] = answer.outcome.evidence.kind
        return details

    def _failed(self, kind: str, answer: Answer | None = None, **facts: Any) -> Failed:
        status = None if answer is None else answer.status
        return Failed(Evidence(kind, phase="dispatched", status=status, details=self._details(answer, facts)))

    def _uncertain(self, answer: Answer, **facts: Any) -> Uncertain:
        details = self._details(answer, facts)
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
        if self._upload is not None and self._log.last("record") is None:
            with suppress(OSError, RecipientError, Rejected):
                self._log.write("abort")
                self._bucket.client.ask("DELETE", self._key, params={"uploadId": self._upload})
        self._log.close()
