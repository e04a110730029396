"""What the ledgers of this package answer with: owners, rows of listings, records, errors."""

from __future__ import annotations

import msgspec

from counterfoil.errors import ForkedLedger, LedgerUnavailable
from counterfoil.protocol.records import NOTE, RUN, Entry


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


def outlives_pruning(entry: Entry) -> bool:
    """Return whether an append is taken by a pruned run too: notes and the tombstone itself."""
    return entry.kind == NOTE or (entry.kind == RUN and entry.phase == "tombstone")


def forked() -> ForkedLedger:
    """Make the error for a child that uses its parent's ledger."""
    return ForkedLedger("this ledger was opened before fork()", hint="open a runtime after the fork")


def closed() -> LedgerUnavailable:
    """Make the error for a ledger that was closed."""
    return LedgerUnavailable("this ledger is closed", code="ledger-closed", effect_ran="no")
