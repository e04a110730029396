"""What a ledger stores: entries that fill slots, and the records that they become.

Kinds are words of the protocol; within `durability/effect` the phase says which transition a record is.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

import msgspec

FORMAT: Final = 1

STEP: Final = "durability/step"
TRANSACTION: Final = "durability/transaction"
PARK: Final = "durability/park"
EVENT: Final = "durability/event"
EFFECT: Final = "durability/effect"
NOTE: Final = "durability/note"
RUN: Final = "durability/run"
LEDGER: Final = "durability/ledger"

# Every (kind, phase) of format 1. Stores may keep the index instead of the words, so the order never changes:
# new pairs go to the end.
KINDS: Final[tuple[tuple[str, str], ...]] = (
    (STEP, "result"),
    (STEP, "failed"),
    (PARK, "armed"),
    (PARK, "woken"),
    (EVENT, "delivered"),
    (EFFECT, "intent"),
    (EFFECT, "accepted"),
    (EFFECT, "uncertain"),
    (EFFECT, "rejected"),
    (EFFECT, "failed"),
    (EFFECT, "released"),
    (EFFECT, "closed"),
    (EFFECT, "buried"),
    (NOTE, "late"),
    (NOTE, "decision"),
    (RUN, "started"),
    (RUN, "claimed"),
    (RUN, "finished"),
    (RUN, "tombstone"),
    (LEDGER, "birth"),
    (LEDGER, "accepted-restore"),
    (TRANSACTION, "committed"),
    (TRANSACTION, "aborted"),
    (RUN, "released"),
    (RUN, "quarantined"),
    (RUN, "lifted"),
)


# `gc=False`: they hold only strings, bytes and numbers, so the collector need not look at them; a long run has many.


class Draft(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a flow wants recorded; the driver makes an `Entry` of it.

    Args:
        decision: True for what a retired owner may not record (intents, and whatever is drawn from a look-up
            that found nothing); False for facts (rule L8).
    """

    slot: str
    kind: str
    phase: str
    body: bytes
    decision: bool = False


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One attempt to fill a slot.

    Args:
        namespace: scope of names; "" is the ledger's own.
        run: the run's id.
        slot: unique within (namespace, run).
        kind: one of the words above.
        phase: which transition of its kind.
        body: canonical JSON.
        epoch: the owner's epoch.
        append_id: unique within the epoch; appending the same id again settles an unknown commit.
        at: seconds since 1970 on the ledger's clock.
        decision: refused with `OwnerRetired` when the epoch is retired (a slot that is filled answers first).
        check: checksum over all that identifies the record; a mismatch is `LedgerCorrupt`.
        format: version of the record's format.
    """

    namespace: str
    run: str
    slot: str
    kind: str
    phase: str
    body: bytes
    epoch: str
    append_id: int
    at: float
    decision: bool = False
    check: int = 0
    format: int = FORMAT


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What fills a slot. `position` grows in commit order within a run; the other fields are the entry's."""

    position: int
    slot: str
    kind: str
    phase: str
    body: bytes
    epoch: str
    append_id: int
    at: float
    check: int
    format: int = FORMAT


def checksum(
    namespace: str, run: str, slot: str, *, kind: str, phase: str, body: bytes, epoch: str, append_id: int
) -> int:
    """Compute an entry's checksum: it finds damage, it is no protection against forgery."""
    head = "\x00".join((namespace, run, slot, kind, phase, epoch, str(append_id), ""))
    return crc32(body, crc32(head.encode()))


def entry_of(draft: Draft, namespace: str, run: str, *, epoch: str, append_id: int, at: float) -> Entry:
    """Make an entry of a draft, with its checksum."""
    return Entry(
        namespace=namespace,
        run=run,
        slot=draft.slot,
        kind=draft.kind,
        phase=draft.phase,
        body=draft.body,
        epoch=epoch,
        append_id=append_id,
        at=at,
        decision=draft.decision,
        check=checksum(
            namespace,
            run,
            draft.slot,
            kind=draft.kind,
            phase=draft.phase,
            body=draft.body,
            epoch=epoch,
            append_id=append_id,
        ),
    )


def with_body(entry: Entry, body: bytes) -> Entry:
    """Complete an entry whose body was not known before, with its checksum."""
    check = checksum(
        entry.namespace,
        entry.run,
        entry.slot,
        kind=entry.kind,
        phase=entry.phase,
        body=body,
        epoch=entry.epoch,
        append_id=entry.append_id,
    )
    return msgspec.structs.replace(entry, body=body, check=check)


def record_of(entry: Entry, position: int) -> Record:
    """Make the record that an entry becomes at a position."""
    return Record(
        position=position,
        slot=entry.slot,
        kind=entry.kind,
        phase=entry.phase,
        body=entry.body,
        epoch=entry.epoch,
        append_id=entry.append_id,
        at=entry.at,
        check=entry.check,
        format=entry.format,
    )


def generation_of(epoch: str) -> int:
    """Read the ledger's generation out of an epoch (`"<generation>.<random>"`)."""
    return int(epoch.partition(".")[0] or 0)
