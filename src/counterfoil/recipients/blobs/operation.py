"""One blob to be stored, as an effect: now, once, or as what an outbox keeps."""

from __future__ import annotations

import os
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from counterfoil.errors import RecipientError, UsageError
from counterfoil.outcomes import Accepted, Evidence, Failed, Outcome, Rejected
from counterfoil.ports.recipient import Permit
from counterfoil.recipients.blobs.lending import Line
from counterfoil.recipients.blobs.reference import Reference
from counterfoil.recipients.blobs.staged import accepted
from counterfoil.recipients.blobs.streams import PIECE_BYTES, Progress, dispatched, never_kept
from counterfoil.recipients.proving import proved

if TYPE_CHECKING:
    from counterfoil.recipients.blobs.recipient import Blobs

FORMAT: Final = 1
VERB: Final = "put"
# What an outbox takes as one operation is 1 MiB of JSON; bytes in it are half as much again.
INLINE_BYTES_MAX: Final = 524_288
# That a blob is not what was promised says of a put that its source is not.
_CHANGED: Final = frozenset({"wrong-size", "wrong-digest"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What holds for every put."""

    recipient: str
    operation: str = VERB
    visibility_s: float = 0.0
    retryable: bool = False
    keep_key: bool = False
    proof_type: Any = None


class Put:
    """One blob to be stored.

    Args:
        blobs: the recipient.
        source: its bytes, or the file that holds them.
        wanted: what they must turn out to be.
        progress: told how far it is.
    """

    def __init__(
        self, blobs: Blobs, source: bytes | Path, *, wanted: Reference, progress: Progress | None = None
    ) -> None:
        self._blobs = blobs
        self._source = source
        self._wanted = wanted
        self._progress = progress
        self.settings = Settings(recipient=blobs.name)

    def __repr__(self) -> str:
        return f"<{self._blobs.name}: put {self._wanted.digest} ({self._wanted.size} bytes)>"

    @property
    def reference(self) -> dict[str, Any]:
        """What it will be accepted with."""
        return self._wanted.as_json()

    @property
    def contract(self) -> Any:
        """The recipient's contract, None if it has none."""
        return self._blobs.contract

    @property
    def verify(self) -> None:
        """A reference says by itself whether the bytes are right."""
        return

    @property
    def request(self) -> Any:
        """The request as a JSON value, for its fingerprint: what the blob is, wherever it comes from."""
        return {"recipient": self._blobs.name, "operation": VERB, "arguments": self.reference}

    @property
    def target(self) -> str | None:
        """The URL that grants are compared with; None: a folder has none."""
        return self._blobs.store.target

    @property
    def bytes_out(self) -> int | None:
        """The size of the blob; None where requests are made, which have heads too."""
        return self._wanted.size if self.target is None else None

    # --- now

    def perform(self, context: Any, permit: Permit) -> Outcome[Any]:
        """Perform it under a permit, blocking; the gate is taken right before the blob can be seen.

        Raises:
            Rejected: the permit refused it, or the source is not what it was; nothing can be seen.
        """

        def allowed(count: int) -> None:
            if context.cancelled:
                raise _rejected("cancelled")
            if time.monotonic() >= permit.deadline:
                raise _rejected("deadline-before-dispatch")
            if self.target is None and not permit.offered(count):
                raise _rejected("refused-by-policy", reason="budget-bytes-out")

        if self.target is None:
            return self._stored(allowed, permit.dispatch)
        # Where requests are made, the first one takes the gate: after it nothing is `Rejected` any more.
        line = Line(permit)
        try:
            outcome = self._stored(allowed, None, line=line, cancelled=lambda: bool(context.cancelled))
        except Rejected as rejected:
            outcome = rejected
        late = line.dispatched and isinstance(outcome, Rejected)
        return Failed(dispatched(outcome.evidence)) if late else outcome

    # --- once

    def run(self, context: Any) -> Any:  # noqa: ARG002 - the port's
        """Perform it as an effect.

        Raises:
            Rejected, Failed: proved; see their evidence.
            Unproved: it may be there.
        """
        return proved(self._stored(_anything, None))

    def reconcile(self, context: Any) -> Accepted[Any] | None:  # noqa: ARG002 - the port's
        """Look whether the blob is sealed; None: not found, which proves nothing.

        Raises:
            BlobDamaged: there is something else in its place.
        """
        found = self._blobs.store.settle(self._wanted)
        return None if found is None else accepted(found, already=True)

    def _stored(self, allowed: Callable[[int], None], gate: Callable[[], None] | None, **asking: Any) -> Outcome[Any]:
        wanted = self._wanted
        try:
            writer = self._blobs.writing(wanted, progress=self._progress, gate=gate, **asking)
        except (OSError, RecipientError) as error:
            return never_kept(error, getattr(error, "attempts", 0))
        with writer:
            try:
                for piece in _pieces(self._source):
                    allowed(len(piece))
                    if writer.written + len(piece) > wanted.size:
                        return writer.unsealed("source-changed")
                    writer.write(piece)
            except OSError as error:
                return writer.unsealed("source-unreadable", error=type(error).__name__)
            except RecipientError:
                # It could not be written: sealing says what came of it.
                pass
            outcome = writer.seal()
            changed = isinstance(outcome, (Rejected, Failed)) and outcome.evidence.kind in _CHANGED
            return writer.unsealed("source-changed") if changed else outcome

    # --- after commit

    def serialised(self) -> dict[str, Any]:
        """Return what an outbox keeps: a JSON value that `Blobs.restore` of a recipient of the same name takes.

        A file is kept as its path: it must still be there, and the same, when the intent is dispatched.

        Raises:
            UsageError: the bytes are too many to be kept in a database.
        """
        arguments = self.reference
        if isinstance(self._source, Path):
            arguments["path"] = str(self._source)
        elif len(self._source) <= INLINE_BYTES_MAX:
            arguments["content"] = b64encode(self._source).decode()
        else:
            raise UsageError(
                f"{len(self._source)} bytes are too many for an outbox, which takes {INLINE_BYTES_MAX}",
                hint="stage a put of a file",
            )
        return {"recipient": self._blobs.name, "operation": VERB, "format": FORMAT, "arguments": arguments}


def _pieces(source: bytes | Path) -> Iterator[bytes | memoryview]:
    if isinstance(source, Path):
        with source.open("rb", buffering=0) as file:
            while piece := file.read(PIECE_BYTES):
                yield piece
        return
    view = memoryview(source)
    for at in range(0, len(view), PIECE_BYTES):
        yield view[at : at + PIECE_BYTES]


def _rejected(kind: str, **details: Any) -> Rejected:
    return Rejected(Evidence(kind, phase="not-dispatched", details={"attempts": 0, **details}))


def _anything(_count: int) -> None:
    return


def absolute(path: str | os.PathLike[str]) -> Path:
    """Return a path that means the same file whatever the current folder is."""
    return Path(path).absolute()
