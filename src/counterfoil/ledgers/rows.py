"""What the ledgers of this package answer with: owners, rows of listings, records, errors."""

from __future__ import annotations

import msgspec

from counterfoil.errors import ForkedLedger, LedgerUnavailable
from counterfoil.protocol.records import NOTE, RUN, Entry, Record


class OwnerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One life of one process against a ledger."""

    epoch: str
    label: str
    since: float
    alive: bool


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a listing says of a run."""

    run: str
    began: float
    finished: float | None
    pruned: bool
    position: int


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


def outlives_pruning(entry: Entry) -> bool:
    """Return whether an append is taken by a pruned run too: notes and the tombstone itself."""
    return entry.kind == NOTE or (entry.kind == RUN and entry.phase == "tombstone")


def forked() -> ForkedLedger:
    """Make the error for a child that uses its parent's ledger."""
    return ForkedLedger("this ledger was opened before fork()", hint="open a runtime after the fork")


def closed() -> LedgerUnavailable:
    """Make the error for a ledger that was closed."""
    return LedgerUnavailable("this ledger is closed", code="ledger-closed", effect_ran="no")
