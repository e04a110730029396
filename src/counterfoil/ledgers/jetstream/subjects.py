"""Which subject a record, a run or an owner has: names are hashed, since a subject takes few characters."""

from __future__ import annotations

import re
from binascii import b2a_base64
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from counterfoil.errors import UsageError

_STREAM: Final = re.compile("[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
# 144 bits, and 24 characters.
_DIGEST_BYTES: Final = 18
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")


def checked(stream: str) -> str:
    """Return the name of a stream.

    Raises:
        UsageError: no stream can have it.
    """
    if not _STREAM.fullmatch(stream):
        raise UsageError(
            f"{stream!r} cannot name the ledger's stream", hint="use 1 to 64 letters, digits, '_' and '-', no '-' first"
        )
    return stream


class Subjects:
    """The subjects of one ledger; all begin with the stream's name.

    Args:
        stream: the stream's name.
    """

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.all = f"{stream}.>"
        self.generation = f"{stream}.generation"
        self.records = f"{stream}.record.*.*"
        self.owners = f"{stream}.owner.*"

    def record(self, namespace: str, run: str, slot: str) -> str:
        """Return the subject of one slot: there is at most one valid message on it."""
        return f"{self.stream}.record.{_run_token(namespace, run)}.{_token(slot)}"

    def records_of(self, namespace: str, run: str) -> str:
        """Return the filter for all slots of a run."""
        return f"{self.stream}.record.{_token(namespace, run)}.*"

    def run(self, namespace: str, run: str) -> str:
        """Return the subject that a run is listed under."""
        return f"{self.stream}.run.{_token(namespace)}.{_token(run)}"

    def runs_of(self, namespace: str) -> str:
        """Return the filter for all runs of a namespace."""
        return f"{self.stream}.run.{_token(namespace)}.*"

    def owner(self, epoch: str) -> str:
        """Return the subject of one life: its beats, and at last its retirement."""
        return f"{self.stream}.owner.{_token(epoch)}"


@lru_cache(maxsize=1024)
def _run_token(namespace: str, run: str) -> str:
    return _token(namespace, run)


def _token(*names: str) -> str:
    # Each name with its length: no two lists of names are the same bytes.
    said = b"".join([len(encoded).to_bytes(4, "big") + encoded for encoded in map(str.encode, names)])
    return b2a_base64(blake2b(said, digest_size=_DIGEST_BYTES).digest(), newline=False).translate(_URL_SAFE).decode()
