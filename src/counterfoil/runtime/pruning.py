"""Pruning: what a finished run keeps when its space is given back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypedDict

from counterfoil.effects.lifetime import keepers
from counterfoil.errors import LedgerCorrupt, UsageError
from counterfoil.ports.ledger import Retention
from counterfoil.protocol import codec, keys, records, slots
from counterfoil.protocol.history import History
from counterfoil.protocol.records import Draft
from counterfoil.runtime import arguments
from counterfoil.runtime.session import Session
from counterfoil.runtime.views import history, rows

_DROPPED: Final = tuple(
    pair
    for pair in records.KINDS
    if pair[0] in (records.STEP, records.TRANSACTION, records.PARK, records.EVENT) or pair == (records.EFFECT, "intent")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport:
    """What pruning did, or would do: ids of the runs pruned, and of those kept with the reason."""

    pruned: tuple[str, ...]
    kept: dict[str, str]
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """What to prune.

    Args:
        older_than_s: only runs that finished at least this many seconds ago.
        deliveries_older_than_s: also runs that hold nothing but deliveries, the last of them at least this
            many seconds old: nobody has begun them. None: those stay.
        limit: runs to prune at most; None: all.
        dry_run: report only.
        page: records per transaction, at most.
        reason: why, for the record.
        by: who, for the record.
    """

    older_than_s: float = 0.0
    deliveries_older_than_s: float | None = None
    limit: int | None = None
    dry_run: bool = False
    page: int = 500
    reason: str = ""
    by: str = ""

    def __post_init__(self) -> None:
        keys.seconds(self.older_than_s, "older_than_s")
        if self.deliveries_older_than_s is not None:
            keys.seconds(self.deliveries_older_than_s, "deliveries_older_than_s")
        arguments.limit(self.limit, least=0)
        if type(self.page) is not int or self.page < 1:
            raise UsageError(f"page must be an int of 1 or more, not {self.page!r}")


class PruneArguments(TypedDict, total=False):
    """The arguments of `Runtime.prune`; they mean what they mean in `Pruning`."""

    older_than_s: float
    deliveries_older_than_s: float | None
    limit: int | None
    dry_run: bool
    page: int
    reason: str
    by: str


def prune(session: Session, what: Pruning) -> PruneReport:
    """Prune runs, oldest first, in bounded pages.

    What stays of a run is its tombstone: identities, fingerprints, outcomes, its result, and the notes. A run
    with an unresolved or uncertain effect is kept whole.
    """
    ledger = session.ledger
    if not isinstance(ledger, Retention):
        raise UsageError("this ledger cannot prune", code="no-retention")
    work = _Work(session, ledger, what)
    if not what.dry_run:
        for row in list(rows(session, finished=True, holding=_DROPPED)):
            if row.pruned:
                # A crash left it half done.
                work.bury(history(session, row.run))
    before = session.clock.time() - what.older_than_s
    for row in list(rows(session, finished=True)):
        if not row.pruned and row.finished is not None and row.finished <= before:
            work.consider(row.run, keepers)
    if what.deliveries_older_than_s is not None:
        delivered_before = session.clock.time() - what.deliveries_older_than_s
        for row in list(rows(session, finished=False, holding=[(records.EVENT, "delivered")])):
            work.consider(row.run, lambda found: _deliveries(found, delivered_before))
    return PruneReport(pruned=tuple(work.pruned), kept=work.kept, dry_run=what.dry_run)


def _deliveries(found: History, before: float) -> Any:
    if any(record.kind != records.EVENT or record.at > before for record in found):
        raise _NotMeant
    return [], [record.slot for record in found]


class _NotMeant(Exception):
    """This run is not what is to be pruned."""


class _Work:
    """One pruning under way."""

    def __init__(self, session: Session, ledger: Retention, what: Pruning) -> None:
        self._session = session
        self._ledger = ledger
        self._what = what
        self.pruned: list[str] = []
        self.kept: dict[str, str] = {}

    def consider(self, run: str, split: Callable[[History], tuple[list[Draft], list[str]]]) -> None:
        """Prune a run, or say why it is kept."""
        if self._what.limit is not None and len(self.pruned) >= self._what.limit:
            return
        found = history(self._session, run)
        try:
            kept, dropped = split(found)
        except _NotMeant:
            return
        except (UsageError, LedgerCorrupt) as error:
            self.kept[run] = str(error)
            return
        if not self._what.dry_run:
            self._bury(found, kept, dropped)
        self.pruned.append(run)

    def bury(self, found: History) -> None:
        """Finish what a crash left half done."""
        self._bury(found, *keepers(found))

    def _bury(self, found: History, kept: list[Draft], dropped: list[str]) -> None:
        session, page = self._session, self._what.page
        scope = session.scope(found.run, session.state(found.run))
        epoch = session.epoch()
        body = codec.body_of(codec.TombstoneBody(reason=self._what.reason, by=self._what.by))
        stone = Draft(slot=slots.TOMBSTONE, kind=records.RUN, phase="tombstone", body=body)
        tombstone = session.entry(scope, stone, epoch)
        by_attempt = {draft.slot.rsplit("/", 1)[0]: draft for draft in kept}
        for start in range(0, max(len(dropped), 1), page):
            drop = dropped[start : start + page]
            # An attempt's buried record is written in the same transaction that drops the first of its records.
            prefixes = dict.fromkeys(slot.rsplit("/", 1)[0] for slot in drop)
            owed = [by_attempt.pop(prefix) for prefix in prefixes if prefix in by_attempt]
            entries = [session.entry(scope, draft, epoch) for draft in owed]
            self._ledger.bury(found.namespace, found.run, tombstone=tombstone, kept=entries, drop=drop)
