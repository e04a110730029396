"""What an endpoint can do, found out by trying, with a race, and kept on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from counterfoil.protocol import codec
from counterfoil.recipients.blobs.beside import all_of
from counterfoil.recipients.blobs.s3.answers import Answer
from counterfoil.recipients.blobs.s3.client import Client
from counterfoil.recipients.blobs.s3.journal import Journal
from counterfoil.recipients.blobs.syncing import sync_data, sync_folder

RACERS: Final = 8
ROUNDS: Final = 3
_FILE: Final = "capabilities.json"
ONCE: Final = {"If-None-Match": "*"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What was found.

    Attributes:
        create: whether a conditional create is `atomic`, `not-atomic` (two writers at once both won) or `ignored`.
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
        return self.create == "atomic" and self.complete == "atomic"


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
    part = path.with_name(f"{_FILE}.{os.getpid()}")
    with part.open("wb") as file:
        file.write(codec.encode({"place": about, "capabilities": asdict(found)}, what="capabilities"))
        file.flush()
        sync_data(file.fileno())
    part.rename(path)
    sync_folder(path.parent)
    return found


def probe(client: Client, journal: Journal) -> Capabilities:
    """Try an endpoint; everything that is made is removed again, or by `clean` later."""
    unique = os.urandom(16).hex()
    key = f"{client.place.prefix}probe/{unique}"
    log = journal.begin(unique)
    made: list[str] = []
    log.write("probe")
    log.write("create", key=key)
    create = _worst(lambda: _race(_key(made, key), lambda at: client.ask("PUT", at, headers=ONCE, body=os.urandom(16))))
    complete = _worst(lambda: _race(_key(made, key), _completer(client)))
    versions = client.ask("GET", "", params={"versioning": ""}).text("Status") == "Enabled"
    wrong = {"x-amz-checksum-sha256": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}
    checked = client.ask("PUT", _key(made, key), headers=wrong, body=b"x")
    for one in made:
        there = client.ask("HEAD", one)
        version = there.headers.get("x-amz-version-id")
        client.ask("DELETE", one, params={"versionId": version} if version else None)
    log.remove()
    return Capabilities(create=create, complete=complete, versions=versions, checksums=checked.refused)


def _key(made: list[str], key: str) -> str:
    made.append(f"{key}-{len(made)}")
    return made[-1]


def _completer(client: Client) -> Callable[[str], Answer]:
    def complete(at: str) -> Answer:
        upload = client.ask("POST", at, params={"uploads": ""}).text("UploadId") or ""
        part = client.ask("PUT", at, params={"partNumber": "1", "uploadId": upload}, body=os.urandom(16))
        tag = part.headers.get("etag", "")
        listed = f"<Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part>"
        body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>"
        answer = client.ask("POST", at, params={"uploadId": upload}, headers=ONCE, body=body.encode())
        if not answer.done:
            client.ask("DELETE", at, params={"uploadId": upload})
        return answer

    return complete


def _race(key: str, one: Callable[[str], Answer]) -> str:
    answers = all_of([lambda: one(key)] * RACERS)
    won = sum(answer.done for answer in answers)
    after = one(key)
    if after.done or not won:
        return "ignored"
    return "atomic" if won == 1 else "not-atomic"


def _worst(race: Callable[[], str]) -> str:
    found = {race() for _ in range(ROUNDS)}
    return next(one for one in ("ignored", "not-atomic", "atomic") if one in found)
