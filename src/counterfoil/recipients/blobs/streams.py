"""Writing and reading one blob as a stream, in memory that does not grow with it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final, Self

from counterfoil.errors import RecipientError, UsageError
from counterfoil.outcomes import Evidence, Failed, Outcome, Rejected
from counterfoil.recipients.blobs.chunks import damaged
from counterfoil.recipients.blobs.reference import Reference, size
from counterfoil.recipients.blobs.store import NotKept, Sealed, Upload

Progress = Callable[[int, int | None], Any]
PIECE_BYTES: Final = 1 << 20


class Writer:
    """One blob on its way: `write` as often as you like, then `seal`.

    Nobody can see it before it is sealed. Leaving a `with` block without sealing gives it up. Its methods may be
    called from any thread, one at a time; in a forked child none works.

    Attributes:
        written: bytes so far.
    """

    def __init__(
        self,
        upload: Upload,
        *,
        size: int | None,
        digest: str | None = None,
        progress: Progress | None = None,
        gate: Callable[[], None] | None = None,
    ) -> None:
        self.written = 0
        self._upload = upload
        self._size = size
        self._digest = digest
        self._progress = progress
        self._gate = _open if gate is None else gate
        self._outcome: Outcome[Any] | None = None
        self._broken: str | None = None
        self._not_kept: OSError | None = None
        self._sealing = False
        self._turn = threading.RLock()
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.abandon()

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Take the next bytes, and return how many they were; they are not durable yet.

        Raises:
            UsageError: it was sealed or given up, or this is more than was announced.
            RecipientError: they could not be kept; the blob can no longer be sealed.
        """
        with self._turn:
            self._usable()
            if not isinstance(data, (bytes, bytearray, memoryview)):
                raise UsageError(f"write takes bytes, not {type(data).__name__}")
            view = memoryview(data).cast("B")
            self.written = size(self.written + len(view), "what was written")
            if self._size is not None and self.written > self._size:
                self._broken = "wrong-size"
                raise UsageError(f"{self._size} bytes were announced, and these are {self.written} already")
            try:
                self._upload.write(view)
            except OSError as error:
                self._broken, self._not_kept = "not-stored", error
                raise RecipientError(
                    f"the blob cannot be written: {error.strerror or type(error).__name__}",
                    code="blob-not-written",
                    hint="nothing of it is visible; give it up and try again when there is room",
                    effect_ran="no",
                ) from error
            if self._progress is not None:
                self._progress(self.written, self._size)
            return len(view)

    def seal(self) -> Outcome[Any]:
        """Make the blob durable, verify it and let it be seen; called again, it returns the same outcome.

        Where it is interrupted (Ctrl-C) nobody knows what came of it, and it is not done again: `check` says.

        Returns:
            Accepted: its proof is the reference, durable and readable on return. Rejected: it is not visible and
            never will be. Failed: the store refused it. Uncertain: it may be there; `check` its reference.
        """
        with self._turn:
            if self._outcome is None:
                self._usable(broken=False)
                self._sealing = True
                try:
                    self._outcome = self._sealed()
                except Rejected as rejected:
                    self._outcome = rejected if not self._upload.attempts else Failed(dispatched(rejected.evidence))
                finally:
                    self._upload.abandon()
            return self._outcome

    def abandon(self) -> None:
        """Give it up: what was written is removed. Does nothing to what was sealed."""
        with self._turn:
            if self._pid != os.getpid():
                return
            self._broken = self._broken or "abandoned"
            self._upload.abandon()

    def _sealed(self) -> Outcome[Any]:
        if self._not_kept is not None:
            return never_kept(self._not_kept, self._upload.attempts)
        if self._broken is not None:
            return self.unsealed(self._broken)
        return self._upload.seal(self._against, self._gate)

    def unsealed(self, kind: str, **details: Any) -> Outcome[Any]:
        """Say that it cannot be seen and never will: Rejected, or Failed where requests were made for it."""
        return never(kind, self._upload.attempts, **details)

    def _against(self, found: Reference) -> str | None:
        if self._size is not None and found.size != self._size:
            return "wrong-size"
        return "wrong-digest" if self._digest is not None and found.digest != self._digest else None

    def _usable(self, *, broken: bool = True) -> None:
        if self._pid != os.getpid():
            raise UsageError(
                "this writer was made before fork() and does not work in the child; the parent is unharmed",
                hint="make another one after the fork",
                code="forked-writer",
            )
        if self._outcome is not None:
            raise UsageError("this blob is sealed: it does not change any more", hint="make another writer")
        if self._sealing:
            raise UsageError(
                "sealing this blob was interrupted, and whether it can be seen is not known here",
                hint="`check` its reference, or write it again: the same bytes are the same blob",
                code="seal-interrupted",
                effect_ran="unknown",
            )
        if broken and self._broken is not None:
            raise UsageError(f"this writer is of no use any more: {self._broken}", hint="make another writer")


class Reader:
    """A part of a sealed blob, verified before it is returned; iterate over it, or `read`.

    Nothing is returned that differs from what was sealed: of each chunk of 1 MiB the digest is compared first, and
    where the whole blob is read its own digest too, before the last piece.

    Attributes:
        size: bytes of the part.
    """

    def __init__(self, sealed: Sealed, *, start: int, end: int, progress: Progress | None = None) -> None:
        self.size = end - start
        self._sealed = sealed
        self._at = start
        self._end = end
        self._rest = memoryview(b"")
        self._progress = progress
        self._done = 0
        whole = start == 0 and end == sealed.record.reference.size
        self._whole = sha256() if whole else None
        if whole and not end:
            self._complete()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        while piece := self.read(PIECE_BYTES):
            yield piece

    def read(self, count: int = -1) -> bytes:
        """Return the next bytes: at most `count`, b"" at the end; all that are left if it is negative.

        Raises:
            BlobDamaged: they are not what was sealed. What was returned before was.
            RecipientError: they cannot be read now.
        """
        parts: list[memoryview] = []
        wanted = self.size if count < 0 else count
        while wanted > 0 and (self._rest or self._at < self._end):
            if not self._rest:
                # Not two chunks at once: what is left of a view keeps all that it is of.
                self._rest = memoryview(b"")
                self._rest = self._next()
            part, self._rest = self._rest[:wanted], self._rest[wanted:]
            parts.append(part)
            wanted -= len(part)
        found = b"".join(parts)
        self._done += len(found)
        if self._progress is not None and found:
            self._progress(self._done, self.size)
        return found

    def close(self) -> None:
        """Let go of the blob."""
        self._at = self._end
        self._rest = memoryview(b"")
        self._sealed.close()

    def _next(self) -> memoryview:
        record = self._sealed.record
        number = self._at // record.chunk_bytes
        data = self._sealed.chunk(number)
        start, end = record.span(number)
        if self._whole is not None:
            self._whole.update(data)
            if end == self._end:
                self._complete()
        part = memoryview(data)[self._at - start : self._end - start]
        self._at += len(part)
        return part

    def _complete(self) -> None:
        """Compare the digest of the whole."""
        assert self._whole is not None
        wanted = self._sealed.record.reference
        if f"sha256:{self._whole.hexdigest()}" != wanted.digest:
            raise damaged(wanted, "wrong-digest", "its chunks are as its record says, and together another blob")


def never(kind: str, attempts: int, /, *, status: int | None = None, **details: Any) -> Outcome[Any]:
    """Say of a blob that it cannot be seen and never will."""
    facts = {"attempts": attempts, **details}
    if not attempts:
        return Rejected(Evidence(kind, phase="not-dispatched", status=status, details=facts))
    return Failed(Evidence(kind, phase="dispatched", status=status, details=facts))


def never_kept(error: OSError | RecipientError, attempts: int) -> Outcome[Any]:
    """Say the same of one that an error kept from being written."""
    if isinstance(error, NotKept):
        return never(error.kind, attempts, status=error.status, **error.facts)
    return never("not-stored", attempts, error=getattr(error, "code", type(error).__name__))


def dispatched(evidence: Evidence) -> Evidence:
    """Return the evidence of a refusal that came when requests had been made."""
    details = {name: fact for name, fact in (evidence.details or {}).items() if name != "attempts"}
    return replace(evidence, phase="dispatched", details=details)


def _open() -> None:
    """The gate of a writer that nobody holds back."""
