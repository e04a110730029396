"""What the ledger's messages say: records, runs, owners, generations; and which of them are void.

The sequence of a message is its place in one order that all readers see alike. A message is void, for every reader and
for ever, when what it may not come after has a lower sequence: the tombstone of its run, or the retirement of the life
that decided. So a zombie's late intent needs nobody to keep it out.
"""

from __future__ import annotations

from typing import Final

import msgspec

from counterfoil.errors import LedgerCorrupt
from counterfoil.protocol.records import FORMAT, Entry, Record

LIVE: Final = "live"
RETIRED: Final = "retired"
# In place of a time of creation, in the generation of a stream that had lost its first one.
PURGED: Final = "purged"


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message of the stream.

    Args:
        subject: where it was published.
        sequence: its place in the stream; never given out twice.
        data: its payload.
    """

    subject: str
    sequence: int
    data: bytes


class Recorded(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A record as it is stored, with the names that its subject only hashes.

    Args:
        kept: written by pruning, behind the tombstone.
    """

    entry: Entry
    kept: bool = False


class RunListed(msgspec.Struct, frozen=True, kw_only=True):
    """A run, listed before its first record."""

    namespace: str
    run: str
    began: float


class OwnerState(msgspec.Struct, frozen=True, kw_only=True):
    """A beat of a life, or its retirement."""

    epoch: str
    label: str
    since: float
    beat_s: float
    state: str = LIVE


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """Which stream this is: another creation time means that it was restored.

    Args:
        created: the stream's own time of creation, as the server says it.
        accepted: 0, or the generation if a person accepted it.
    """

    generation: int
    created: str
    accepted: int = 0
    by: str = ""
    reason: str = ""


_encoder: Final = msgspec.msgpack.Encoder()
_recorded: Final = msgspec.msgpack.Decoder(Recorded)


def encode(value: msgspec.Struct) -> bytes:
    """Encode what a message says."""
    return _encoder.encode(value)


def recorded(message: Message) -> Recorded:
    """Decode a record.

    Raises:
        LedgerCorrupt: it is none, or a newer version wrote it.
    """
    try:
        return _recorded.decode(message.data)
    except msgspec.MsgspecError as error:
        raise LedgerCorrupt(
            f"message {message.sequence} of the ledger's stream is no record: {error}",
            hint=f"format {FORMAT} is read here; see who else may publish under {message.subject}",
        ) from error


def owner_state(message: Message) -> OwnerState:
    """Decode the last word of a life."""
    try:
        return msgspec.msgpack.decode(message.data, type=OwnerState)
    except msgspec.MsgspecError as error:
        raise LedgerCorrupt(f"message {message.sequence} of the ledger's stream is no owner: {error}") from error


def generation_of(message: Message) -> Generation:
    """Decode the ledger's generation."""
    try:
        return msgspec.msgpack.decode(message.data, type=Generation)
    except msgspec.MsgspecError as error:
        raise LedgerCorrupt(f"message {message.sequence} of the ledger's stream is no generation: {error}") from error


def run_listed(message: Message) -> RunListed:
    """Decode an entry of the list of runs."""
    try:
        return msgspec.msgpack.decode(message.data, type=RunListed)
    except msgspec.MsgspecError as error:
        raise LedgerCorrupt(f"message {message.sequence} of the ledger's stream lists no run: {error}") from error


def record_at(entry: Entry, sequence: int) -> Record:
    """Make the record that an entry is at its place in the stream."""
    from counterfoil.protocol.records import record_of

    return record_of(entry, sequence)
