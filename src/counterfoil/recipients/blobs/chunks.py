"""Digests of a blob as it streams: of the whole, and of each chunk, so that a part can be verified without the rest."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from counterfoil.errors import BlobDamaged
from counterfoil.protocol import codec
from counterfoil.recipients.blobs.reference import Reference, reference

CHUNK_BYTES: Final = 1 << 20
DIGEST_BYTES: Final = 32
FORMAT: Final = 1
HEADER_BYTES_MAX: Final = 4096


class Chunks:
    """Digests the bytes that pass, chunk by chunk."""

    def __init__(self) -> None:
        self._table = bytearray()
        self._chunk = sha256()
        self._room = CHUNK_BYTES

    def add(self, data: memoryview) -> None:
        """Take in the next bytes."""
        while data:
            piece, data = data[: self._room], data[self._room :]
            self._chunk.update(piece)
            self._room -= len(piece)
            if not self._room:
                self._end_chunk()

    def finished(self) -> bytes:
        """Return the digests, one after the other; nothing may be added after it."""
        if self._room < CHUNK_BYTES:
            self._end_chunk()
        return bytes(self._table)

    def _end_chunk(self) -> None:
        self._table += self._chunk.digest()
        self._chunk = sha256()
        self._room = CHUNK_BYTES


@dataclass(frozen=True, slots=True)
class Record:
    """What is kept beside a blob's bytes.

    Args:
        reference: what it is called.
        table: the SHA-256 digests of its chunks, one after the other.
        chunk_bytes: bytes of every chunk but the last.
        more: where its bytes are, for stores that keep them under another name.
    """

    reference: Reference
    table: bytes
    chunk_bytes: int = CHUNK_BYTES
    more: dict[str, Any] | None = None

    def encoded(self) -> bytes:
        """Return a line of JSON, and the table after it."""
        header = {
            "format": FORMAT,
            "blob": self.reference.as_json(),
            "chunk_bytes": self.chunk_bytes,
            "table": sha256(self.table).hexdigest(),
            "more": self.more,
        }
        return codec.encode(header, what="the blob's record") + b"\n" + self.table

    @property
    def chunks(self) -> int:
        """How many chunks there are."""
        return len(self.table) // DIGEST_BYTES

    def span(self, number: int) -> tuple[int, int]:
        """Return where a chunk begins and ends."""
        start = number * self.chunk_bytes
        return start, min(start + self.chunk_bytes, self.reference.size)

    def verify(self, number: int, data: bytes) -> bytes:
        """Return a chunk's bytes if they are what was sealed.

        Raises:
            BlobDamaged: they are not.
        """
        start, end = self.span(number)
        if len(data) != end - start:
            raise damaged(self.reference, "truncated", f"it ends in chunk {number}")
        at = number * DIGEST_BYTES
        if sha256(data).digest() != self.table[at : at + DIGEST_BYTES]:
            raise damaged(self.reference, "wrong-digest", f"chunk {number} has another digest")
        return data


def record_bytes_max(wanted: Reference) -> int:
    """Say how long the record of a blob can be, so that no more of it is read."""
    return HEADER_BYTES_MAX + DIGEST_BYTES * (wanted.size // CHUNK_BYTES + 1)


def decoded(body: bytes, wanted: Reference) -> Record:
    """Understand a record, and check that it is of the blob that is wanted.

    Raises:
        BlobDamaged: it cannot be read, contradicts itself, or is another blob's.
    """
    line, _, table = body.partition(b"\n")
    try:
        header = codec.decode(line)
        form, found = header["format"], reference(header["blob"])
        chunk_bytes, sealed, more = header["chunk_bytes"], header["table"], header["more"]
    except (ValueError, TypeError, KeyError) as error:
        raise damaged(wanted, "bad-record", type(error).__name__) from None
    if form != FORMAT:
        raise damaged(wanted, "bad-record", f"it has format {form!r:.20}, this version knows {FORMAT}")
    if found != wanted:
        raise damaged(wanted, "swapped", f"this is {found.digest}, {found.size} bytes of {found.media_type}")
    good = type(chunk_bytes) is int and CHUNK_BYTES // 16 <= chunk_bytes <= CHUNK_BYTES * 64
    if not good or sha256(table).hexdigest() != sealed:
        raise damaged(wanted, "bad-record", "its table of digests was changed")
    if len(table) != DIGEST_BYTES * -(-found.size // chunk_bytes):
        raise damaged(wanted, "bad-record", "its table of digests has another length")
    return Record(found, table, chunk_bytes, more)


def damaged(wanted: Reference, fault: str, why: str) -> BlobDamaged:
    """Make the error of a blob that is not what it was."""
    return BlobDamaged(
        f"blob {wanted.digest} is damaged: {fault}: {why}",
        fault=fault,
        hint="it is never repaired in place: put a good copy into another store",
    )
