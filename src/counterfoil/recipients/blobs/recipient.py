"""`Blobs`: a recipient that keeps immutable blobs."""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from counterfoil.errors import BlobDamaged, BlobMissing, UsageError
from counterfoil.protocol import keys
from counterfoil.recipients.blobs import reference as references
from counterfoil.recipients.blobs.folder import Folder
from counterfoil.recipients.blobs.operation import FORMAT, VERB, Put, absolute
from counterfoil.recipients.blobs.reference import DEFAULT_MEDIA_TYPE, Reference
from counterfoil.recipients.blobs.store import Cleaned, Store, Unnamed
from counterfoil.recipients.blobs.streams import PIECE_BYTES, Progress, Reader, Writer
from counterfoil.recipients.blobs.urls import folder_of
from counterfoil.recipients.secret import Secret

# An upload holds three of them, and stays below 64 MiB with all that a process is.
PART_BYTES: Final = 5 << 20
CLEAN_LIMIT: Final = 1000
CLEAN_WITHIN_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check found.

    Attributes:
        reference: what was checked.
        fault: None: it is there, and every byte is what was sealed. Else `missing`, `truncated`, `wrong-digest`,
            `swapped` or `bad-record` (its media type is None then, where nothing else tells it).
    """

    reference: dict[str, Any]
    fault: str | None = None

    @property
    def sound(self) -> bool:
        """Whether it is there, and what it was."""
        return self.fault is None


class Blobs:
    """A recipient that keeps immutable blobs, each addressed by its digest, size and media type.

    Its operations serve both colours; streams here are blocking, those of `AsyncBlobs` are awaited.

    Args:
        url: `file:///folder`, which is made when the first blob is written; or
            `s3://bucket/prefix?endpoint=https://…&region=…`, a bucket that is there.
        name: what people call it; grants, records and the outbox know it by this.
        contract: what its answers prove (`counterfoil.Contract`), or None.
        credentials: of a bucket: the access key, and `Secret(…)` of the secret key.
        journal: for a bucket: a folder of this machine in which is written down what is about to be changed there.
        weak: for a bucket: what to do where the endpoint's conditional requests cannot be relied on. `refuse`, or
            `verify`: take keys of one's own and read back what was written.
        part_bytes: of a bucket: bytes of a part, 5 MiB to 64 MiB; a blob has 10,000 parts at most.
        timeout_s: of a bucket: seconds for one request.
        settle_s: of a bucket: seconds after which what was aborted is no longer on its way.
        allow_addresses: of a bucket: special addresses that are open outside an activation; see `HTTP`.

    Raises:
        UsageError: an argument is wrong.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "blobs",
        contract: Any = None,
        credentials: tuple[str | Secret, Secret] | None = None,
        journal: str | os.PathLike[str] | None = None,
        weak: str = "refuse",
        part_bytes: int = PART_BYTES,
        timeout_s: float = 60.0,
        settle_s: float = 3600.0,
        allow_addresses: Iterable[str] = (),
    ) -> None:
        self.name = keys.name(name, "the recipient's name")
        self.contract = contract
        # What a dispatcher can find here.
        self.operations = (VERB,)
        self.url = url
        self.store: Store
        if str(url).startswith("s3://"):
            from counterfoil.recipients.blobs.s3.made import bucket_at

            self.store = bucket_at(
                url,
                name=self.name,
                credentials=credentials,
                journal=journal,
                weak=weak,
                part_bytes=part_bytes,
                timeout_s=keys.seconds(timeout_s, "timeout_s", positive=True),
                settle_s=keys.seconds(settle_s, "settle_s"),
                allow=allow_addresses,
            )
        else:
            self.store = Folder(folder_of(url))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, name={self.name!r})"

    # --- writing

    def put(
        self,
        source: bytes | bytearray | memoryview | str | os.PathLike[str],
        *,
        media_type: str = DEFAULT_MEDIA_TYPE,
        digest: str | None = None,
        progress: Progress | None = None,
    ) -> Put:
        """Make an operation that stores a blob; nothing is stored.

        Args:
            source: its bytes, or the path of a file. A file is read once now, to know what it is, and again when it is
                stored; if it changed meanwhile, nothing is.
            media_type: what the bytes are said to be.
            digest: `sha256:…` of the source, if it is known: a file is then not read now.
            progress: called with the bytes stored so far and their number, in the thread that stores them.

        Raises:
            UsageError: the source cannot be read, or an argument is wrong.
        """
        media_type = references.media_type(media_type)
        if isinstance(source, (str, os.PathLike)):
            path = absolute(source)
            return Put(self, path, wanted=_told(path, media_type, digest), progress=progress)
        if not isinstance(source, (bytes, bytearray, memoryview)):
            raise UsageError(f"put takes bytes or a path, not {type(source).__name__}")
        content = bytes(source)
        found = f"sha256:{sha256(content).hexdigest()}"
        if digest is not None and references.digest(digest) != found:
            raise UsageError(f"these bytes have the digest {found}, not {digest}")
        return Put(self, content, wanted=Reference(found, len(content), media_type), progress=progress)

    def restore(self, serialised: Mapping[str, Any]) -> Put:
        """Make an operation of what `Put.serialised` returned, perhaps in another process.

        Raises:
            UsageError: it belongs to another recipient, was made by a newer version, or is damaged.
        """
        try:
            name, verb, form, arguments = (serialised[key] for key in ("recipient", "operation", "format", "arguments"))
            if form != FORMAT:
                raise UsageError(
                    f"the operation has format {form!r}, this version knows {FORMAT}",
                    hint="upgrade counterfoil; it was not sent",
                    code="operation-too-new",
                )
            if (name, verb) != (self.name, VERB):
                raise UsageError(f"the operation is {verb!r} of recipient {name!r}, this is {self.name!r}")
            told = dict(arguments)
            path, content = told.pop("path", None), told.pop("content", None)
            source = b64decode(content, validate=True) if path is None else Path(path)
            return Put(self, source, wanted=references.reference(told))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"this is no serialised operation: {type(error).__name__}", code="bad-operation") from None

    def writer(
        self,
        *,
        size: int | None = None,
        media_type: str = DEFAULT_MEDIA_TYPE,
        digest: str | None = None,
        progress: Progress | None = None,
    ) -> Writer:
        """Reserve a place for a blob and return what writes it.

        Args:
            size: bytes that will be written; what has another size is not sealed. None: not known.
            media_type: what the bytes are said to be.
            digest: likewise `sha256:…`, where it is known.
            progress: called with the bytes written so far and their number, None where that is not known.

        Raises:
            UsageError: an argument is wrong.
            OSError: no place can be reserved.
        """
        return Writer(
            self.store.begin(references.media_type(media_type)),
            size=None if size is None else references.size(size),
            digest=None if digest is None else references.digest(digest),
            progress=progress,
        )

    def writing(
        self, wanted: Reference, *, progress: Progress | None, gate: Callable[[], None] | None, **asking: Any
    ) -> Writer:
        """Reserve a place for a blob that is known, and return what writes it."""
        upload = self.store.begin(wanted.media_type, **asking)
        return Writer(upload, size=wanted.size, digest=wanted.digest, progress=progress, gate=gate)

    # --- reading

    def reader(
        self, reference: Any, *, start: int = 0, length: int | None = None, progress: Progress | None = None
    ) -> Reader:
        """Open a part of a sealed blob.

        Args:
            reference: what it was accepted with.
            start: the first byte.
            length: how many; None: to the end. What is beyond the end is left out.
            progress: called with the bytes read so far and the number of those asked for.

        Raises:
            UsageError: the reference is none, or the part begins after the end.
            BlobMissing: there is no such blob.
            BlobDamaged: there is something else.
        """
        wanted = references.reference(reference)
        start = references.size(start, "start")
        if start > wanted.size:
            raise UsageError(f"the blob has {wanted.size} bytes, and the part begins at {start}")
        end = wanted.size if length is None else min(wanted.size, start + references.size(length, "length"))
        sealed = self.store.open(wanted)
        try:
            return Reader(sealed, start=start, end=end, progress=progress)
        except BaseException:
            sealed.close()
            raise

    def check(self, reference: Any, *, progress: Progress | None = None) -> Checked:
        """Read a whole blob and compare it with its reference.

        Raises:
            UsageError: the reference is none.
            RecipientError: it cannot be read now, which says nothing about it.
        """
        wanted = references.reference(reference)
        try:
            with self.reader(wanted, progress=progress) as reader:
                for _ in reader:
                    pass
        except BlobMissing:
            return Checked(wanted.as_json(), "missing")
        except BlobDamaged as damaged:
            return Checked(wanted.as_json(), damaged.fault)
        return Checked(wanted.as_json())

    def check_all(self, prefix: str = "", *, progress: Progress | None = None) -> Iterator[Checked]:
        """Check the sealed blobs one by one, in the order of their digests.

        Args:
            prefix: the first characters of the digests that are wanted: `sha256:ab12`.
            progress: called with the bytes of the present blob that were read, and their number.
        """
        for found in self.store.references(_digits(prefix)):
            if isinstance(found, Unnamed):
                yield Checked({"digest": found.digest, "size": found.size, "media_type": None}, "bad-record")
            else:
                yield self.check(found, progress=progress)

    def references(self, prefix: str = "") -> Iterator[dict[str, Any]]:
        """Go through the sealed blobs, in the order of their digests; those whose record is damaged are left out.

        Args:
            prefix: the first characters of the digests that are wanted: `sha256:ab12`.
        """
        found = self.store.references(_digits(prefix))
        return (one.as_json() for one in found if isinstance(one, Reference))

    def capabilities(self) -> dict[str, Any]:
        """Say what the place can do; a bucket is tried for that, once, and what was found is kept in the journal.

        Raises:
            RecipientError: it cannot be tried now.
        """
        return self.store.told()

    def clean(self, *, limit: int = CLEAN_LIMIT, within_s: float = CLEAN_WITHIN_S) -> Cleaned:
        """Remove what was left behind by processes that are gone; never what may still be on its way.

        Args:
            limit: leftovers that are removed, at most.
            within_s: seconds that it takes, about, at most.
        """
        if type(limit) is not int or limit < 1:
            raise UsageError(f"limit is an int of 1 or more, not {limit!r}")
        return self.store.clean(limit=limit, within_s=keys.seconds(within_s, "within_s", positive=True))


def _digits(prefix: Any) -> str:
    if not isinstance(prefix, str):
        raise UsageError(f"a prefix is the beginning of a digest, not {type(prefix).__name__}")
    return prefix.removeprefix("sha256:")


def _told(path: Path, media_type: str, digest: str | None) -> Reference:
    """Say what a file is."""
    try:
        with path.open("rb", buffering=0) as file:
            if digest is not None:
                return Reference(references.digest(digest), os.fstat(file.fileno()).st_size, media_type)
            whole, size = sha256(), 0
            while piece := file.read(PIECE_BYTES):
                whole.update(piece)
                size += len(piece)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or type(error).__name__}") from error
    return Reference(f"sha256:{whole.hexdigest()}", references.size(size), media_type)
