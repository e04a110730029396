"""The port between `Blobs` and the places where blobs are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from counterfoil.outcomes import Outcome
from counterfoil.recipients.blobs.chunks import Record
from counterfoil.recipients.blobs.lending import Line
from counterfoil.recipients.blobs.reference import Reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """What a cleaning did.

    Attributes:
        removed: leftovers that are gone now.
        bytes_removed: what they held.
        in_flight: what is being written right now, and was left alone.
        left: leftovers that are still there: the bounds came first, or they hold something that is not ours.
        busy: somebody else is cleaning; nothing was done.
    """

    removed: int = 0
    bytes_removed: int = 0
    in_flight: int = 0
    left: int = 0
    busy: bool = False


@dataclass(frozen=True, slots=True)
class Unnamed:
    """A sealed blob whose record cannot be read, or is of another blob: nothing tells its media type."""

    digest: str
    size: int


class NotKept(OSError):
    """Bytes could not be kept, so their blob can never be sealed.

    Attributes:
        kind: of the evidence.
        status: of an answer that said so.
        facts: further details of the evidence.
    """

    def __init__(self, kind: str, *, status: int | None = None, **facts: Any) -> None:
        super().__init__(kind)
        self.kind = kind
        self.status = status
        self.facts = facts


class Upload(Protocol):
    """A blob on its way: nobody sees it before `seal` has accepted it.

    Attributes:
        attempts: requests that may have changed something; none where none are made.
    """

    attempts: int

    def write(self, data: memoryview) -> None:
        """Take the next bytes.

        Raises:
            OSError: they could not be kept; the upload is of no use any more.
        """
        ...

    def seal(self, expected: Callable[[Reference], str | None], gate: Callable[[], None]) -> Outcome[Any]:
        """Make it durable, verify it, and let it be seen.

        Args:
            expected: says what speaks against what was written (a kind of evidence), None if nothing does.
            gate: called last before anything can be seen; raises `Rejected` to prevent it.

        Returns:
            Accepted with the reference: it is durable and can be read. Rejected: it never becomes visible. Failed:
            the store refused it. Uncertain: it may be there.
        """
        ...

    def abandon(self) -> None:
        """Let go of it and of what was written; does nothing to what was sealed."""
        ...


class Sealed(Protocol):
    """A sealed blob that is open for reading."""

    @property
    def record(self) -> Record:
        """What is kept beside it."""
        ...

    def chunk(self, number: int) -> bytes:
        """Return a chunk's bytes, verified.

        Raises:
            BlobDamaged: they are not what was sealed.
        """
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Store(Protocol):
    """A place for blobs."""

    @property
    def target(self) -> str | None:
        """The URL below which all requests go; None: it is on this machine, and no request is made."""
        ...

    def begin(
        self, media_type: str, *, line: Line | None = None, cancelled: Callable[[], bool] = lambda: False
    ) -> Upload:
        """Reserve a place for a blob.

        Args:
            media_type: of its bytes.
            line: a broker's permit, for stores that make requests: they take its gate themselves.
            cancelled: says whether nobody waits any more.
        """
        ...

    def open(self, wanted: Reference) -> Sealed:
        """Open a sealed blob.

        Raises:
            BlobMissing: there is none.
            BlobDamaged: there is something else.
        """
        ...

    def settle(self, wanted: Reference) -> Reference | None:
        """Look whether a blob is sealed, and make sure that it stays so; None: not found, which proves nothing.

        Raises:
            BlobDamaged: there is something else.
        """
        ...

    def references(self, prefix: str) -> Iterator[Reference | Unnamed]:
        """Go through the sealed blobs whose digest's digits begin so, in the order of their digests."""
        ...

    def told(self) -> dict[str, Any]:
        """Say what the place can do, by stable names."""
        ...

    def clean(self, *, limit: int, within_s: float) -> Cleaned:
        """Remove what was left behind by those that are gone, within bounds."""
        ...
