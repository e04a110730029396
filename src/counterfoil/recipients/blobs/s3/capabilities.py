"""What an endpoint can do, found out by trying, with a race, and kept on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from counterfoil.errors import RecipientError
from counterfoil.protocol import codec
from counterfoil.recipients.blobs.beside import all_of
from counterfoil.recipients.blobs.s3.answers import Answer
from counterfoil.recipients.blobs.s3.client import Client
from counterfoil.recipients.blobs.s3.journal import Journal
from counterfoil.recipients.blobs.syncing import sync_data, sync_folder

RACERS: Final = 8
ROUNDS: Final = 3
ATOMIC, NOT_ATOMIC, IGNORED, REFUSED = "atomic", "not-atomic", "ignored", "refused"
_FILE: Final = "capabilities.json"
_ONCE: Final = {"If-None-Match": "*"}
# What somebody is told who came second, and what an endpoint says that does not know conditions.
_LOST: Final = frozenset({409, 412})
_UNKNOWN: Final = frozenset({400, 405, 501})

Step = Callable[[], Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What was found.

    Attributes:
        create: whether a conditional create is `atomic`, `not-atomic` (two writers at once both won), `ignored`, or
            `refused` as something unknown.
        complete: the same of a conditional complete.
        versions: whether the bucket keeps versions.
        checksums: whether a wrong checksum is refused.
    """

    create: str
    complete: str
    versions: bool
    checksums: bool

    @property
    def strong(self) -> bool:
        """Whether first come is first served."""
        return self.create == ATOMIC and self.complete == ATOMIC

    def condition(self, what: str) -> dict[str, str]:
        """Return the header of a conditional `create` or `complete`: none where the endpoint refuses it."""
        return {} if getattr(self, what) == REFUSED else dict(_ONCE)


def capabilities_of(client: Client, journal: Journal) -> Capabilities:
    """Return what is known of an endpoint, after trying it where nothing is."""
    path = journal.path / _FILE
    about = asdict(client.place)
    if path.is_file():
        try:
            kept: Any = codec.decode(path.read_bytes())
            if kept["place"] == about:
                return Capabilities(**kept["capabilities"])
        except (ValueError, TypeError, KeyError):
            pass
    found = probe(client, journal)
    part = path.with_name(f"{_FILE}.{os.urandom(8).hex()}")
    with part.open("wb") as file:
        file.write(codec.encode({"place": about, "capabilities": asdict(found)}, what="capabilities"))
        file.flush()
        sync_data(file.fileno())
    part.rename(path)
    sync_folder(path.parent)
    return found


def probe(client: Client, journal: Journal) -> Capabilities:
    """Try an endpoint; everything that is made is removed again, or by `clean` later.

    Raises:
        Rejected: a permit refused a request.
        RecipientError: it does not answer so that one could tell.
    """
    unique = os.urandom(16).hex()
    log = journal.begin(unique)
    try:
        key = f"{client.place.prefix}probe/{unique}"
        log.write("probe")
        log.write("create", key=key)
        versions = client.ask("GET", "", params={"versioning": ""}).text("Status") == "Enabled"
        tried = _Trial(client, key)
        create, complete = tried.race(tried.creation), tried.race(tried.completion)
        wrong = {"x-amz-checksum-sha256": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}
        checked = client.ask("PUT", tried.new_key(), headers=wrong, body=b"x")
        if tried.remove():
            log.remove()
    finally:
        log.close()
    if NOT_ATOMIC in (create, complete):
        # Of an endpoint that lets two win in one race, no other race is believed: it was won by luck.
        create, complete = (NOT_ATOMIC if one == ATOMIC else one for one in (create, complete))
    return Capabilities(create=create, complete=complete, versions=versions, checksums=checked.refused)


class _Trial:
    """Races for new keys.

    Args:
        client: of the bucket.
        key: what all keys begin with.
    """

    def __init__(self, client: Client, key: str) -> None:
        self._client = client
        self._key = key
        self._made: list[str] = []
        self._tidy = True

    def new_key(self) -> str:
        """Return a key at which nothing is yet."""
        self._made.append(f"{self._key}-{len(self._made)}")
        return self._made[-1]

    def race(self, prepare: Callable[[str], Step]) -> str:
        """Have writers come at once, until the worst is found or the rounds are over.

        Args:
            prepare: does for one key what comes before, and returns the step that is conditional.
        """
        found = ATOMIC
        for _ in range(ROUNDS):
            found = self._round(prepare)
            if found != ATOMIC:
                break
        return found

    def _round(self, prepare: Callable[[str], Step]) -> str:
        key = self.new_key()
        steps = all_of([partial(prepare, key)] * RACERS)
        answers = all_of(steps)
        won = sum(answer.done for answer in answers)
        if all(answer.status in _UNKNOWN for answer in answers):
            return REFUSED
        if won > 1:
            return IGNORED if prepare(key)().done else NOT_ATOMIC
        late = prepare(key)()
        # Whoever was not answered may have won, too: nothing is concluded from it.
        if won and late.status in _LOST and all(answer.done or answer.status in _LOST for answer in answers):
            return ATOMIC
        if won and late.done:
            return IGNORED
        statuses = sorted({str(answer.status) for answer in (*answers, late)})
        raise RecipientError(
            f"the endpoint cannot be tried now: its answers were {', '.join(statuses)}",
            code="endpoint-untried",
            effect_ran="no",
            hint="look whether the bucket is there and the credentials may write, and try again",
        )

    def creation(self, key: str) -> Step:
        """Prepare a conditional create."""
        return partial(self._client.ask, "PUT", key, headers=_ONCE, body=os.urandom(16))

    def completion(self, key: str) -> Step:
        """Prepare a conditional complete, of an upload with one part."""
        client = self._client
        upload = client.ask("POST", key, params={"uploads": ""}).text("UploadId") or ""
        part = client.ask("PUT", key, params={"partNumber": "1", "uploadId": upload}, body=os.urandom(16))
        tag = part.headers.get("etag", "")
        listed = f"<Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part>"
        body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()

        def complete() -> Answer:
            answer = client.ask("POST", key, params={"uploadId": upload}, headers=_ONCE, body=body)
            if not answer.done:
                gone = client.ask("DELETE", key, params={"uploadId": upload})
                self._tidy = self._tidy and (gone.done or gone.absent)
            return answer

        return complete

    def remove(self) -> bool:
        """Remove all that was made; False: the endpoint has not said of all of it that it is gone."""
        for key in self._made:
            there = self._client.ask("HEAD", key)
            version = there.headers.get("x-amz-version-id")
            gone = self._client.ask("DELETE", key, params={"versionId": version} if version else None)
            self._tidy = self._tidy and (gone.done or gone.absent)
        return self._tidy
