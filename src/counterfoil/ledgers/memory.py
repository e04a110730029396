"""A ledger that lives in this process and dies with it: for tests, and for what may be lost."""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import RLock

import msgspec

from counterfoil.errors import CounterfoilError, OwnerRetired, RunPruned, UsageError
from counterfoil.ledgers.rows import OwnerRow, RunRow, closed, forked, outlives_pruning
from counterfoil.ledgers.submissions import Submission, Submissions
from counterfoil.ports.ledger import Deliver
from counterfoil.protocol.records import EVENT, RUN, Entry, Record, record_of


@dataclass
class _Run:
    row: RunRow
    slots: dict[str, Record] = field(default_factory=dict)
    log: list[Record] = field(default_factory=list)

    def delivered_only(self) -> bool:
        return all(record.kind == EVENT for record in self.log)


class MemoryLedger:
    """A ledger in memory: thread-safe, shared by any number of runtimes of one process.

    What `append` returns is as durable as the process. A child after `fork()` is refused with
    `ForkedLedger`, since it has a copy that the parent does not see.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._pid = os.getpid()
        self._closed = False
        self._position = 0
        self._runs: dict[tuple[str, str], _Run] = {}
        self._changed: dict[tuple[str, str], int] = {}
        self._owners: dict[str, OwnerRow] = {}
        self._submissions = Submissions(self, MemoryLedger._serve)

    def append(self, entry: Entry, *, settle: bool = False) -> Record:  # noqa: ARG002
        """Fill a slot, or learn who filled it. See `counterfoil.ports.ledger.Ledger.append`."""
        self._usable()
        with self._lock:
            return self._append(entry)

    def read(self, namespace: str, run: str, after: int = 0) -> Sequence[Record]:
        """Return the records of a run with a position above `after`, in order of position."""
        self._usable()
        with self._lock:
            found = self._runs.get((namespace, run))
            if found is None:
                return []
            return found.log[bisect_right(found.log, after, key=lambda record: record.position) :]

    def submit(self, entry: Entry, *, settle: bool, token: object, deliver: Deliver) -> None:
        """Append without waiting; `deliver` is called from the ledger's thread."""
        self._usable()
        self._submissions.put(self, Submission(entry, settle=settle, token=token, deliver=deliver))

    def register(self, label: str) -> str:
        """Register a life and return its fresh epoch."""
        self._usable()
        with self._lock:
            epoch = f"{len(self._owners) + 1}.{os.urandom(4).hex()}"
            self._owners[epoch] = OwnerRow(epoch=epoch, label=label, since=time.time(), alive=True)
            return epoch

    def retire(self, epoch: str) -> None:
        """End a life: it fills no intent again."""
        self._usable()
        with self._lock:
            row = self._owners.get(epoch)
            if row is not None:
                self._owners[epoch] = msgspec.structs.replace(row, alive=False)

    def gone(self, epoch: str) -> bool:
        """Return whether a life is over: here, lives end by `retire` only.

        An epoch that was never registered here is not proved to be over; `""` is no life.
        """
        self._usable()
        with self._lock:
            row = self._owners.get(epoch)
            return epoch == "" if row is None else not row.alive

    def live(self, epoch: str) -> bool:
        """Return whether a life may still decide."""
        self._usable()
        with self._lock:
            row = self._owners.get(epoch)
            return row is not None and row.alive

    def owners(self) -> Sequence[OwnerRow]:
        """Return the lives that are not over, oldest first."""
        self._usable()
        with self._lock:
            return [row for row in self._owners.values() if row.alive]

    def changes(self, after: int) -> tuple[set[tuple[str, str]], int]:
        """Return the runs with records since `after`, and the new value for `after`."""
        self._usable()
        with self._lock:
            found: set[tuple[str, str]] = set()
            if 0 <= after < self._position:
                for key in reversed(self._changed):
                    if self._changed[key] <= after:
                        break
                    found.add(key)
            return found, self._position

    def runs(
        self,
        namespace: str,
        *,
        after: int = 0,
        limit: int = 1000,
        finished: bool | None = None,
        holding: Sequence[tuple[str, str]] = (),
    ) -> Sequence[RunRow]:
        """Return a page of runs, oldest first. See `counterfoil.ports.ledger.Catalogue.runs`."""
        self._usable()
        wanted = set(holding)
        page: list[RunRow] = []
        with self._lock:
            for (scope, _), run in self._runs.items():
                row = run.row
                if scope != namespace or row.position <= after:
                    continue
                if finished is not None and finished != (row.finished is not None or row.pruned):
                    continue
                if wanted and not any((one.kind, one.phase) in wanted for one in run.log):
                    continue
                if len(page) == limit:
                    break
                page.append(row)
        return page

    def bury(
        self,
        namespace: str,
        run: str,
        *,
        tombstone: Entry,
        kept: Sequence[Entry],
        drop: Sequence[str],
    ) -> None:
        """Prune one page of a finished run. See `counterfoil.ports.ledger.Retention.bury`."""
        self._usable()
        with self._lock:
            found = self._runs.get((namespace, run))
            if found is None or not (found.row.finished is not None or found.row.pruned or found.delivered_only()):
                raise UsageError(f"run {run!r} is not finished", hint="only finished runs are pruned")
            for entry in (tombstone, *kept):
                self._fill(entry)
            doomed = set(drop) - {tombstone.slot}
            found.log = [record for record in found.log if record.slot not in doomed]
            found.slots = {record.slot: record for record in found.log}

    def close(self) -> None:
        """Forget everything; further use raises `LedgerUnavailable`."""
        if self._pid == os.getpid() and not self._closed:
            self._closed = True
            self._submissions.stop()

    def _usable(self) -> None:
        if self._pid != os.getpid():
            raise forked()
        if self._closed:
            raise closed()

    def _append(self, entry: Entry) -> Record:
        found = self._runs.get((entry.namespace, entry.run))
        if found is not None:
            if found.row.pruned and not outlives_pruning(entry):
                raise RunPruned(f"run {entry.run!r} was pruned")
            record = found.slots.get(entry.slot)
            if record is not None:
                return record
        if entry.decision and entry.epoch:
            owner = self._owners.get(entry.epoch)
            if owner is None or not owner.alive:
                raise OwnerRetired(f"owner {entry.epoch} is retired")
        return self._fill(entry)

    def _fill(self, entry: Entry) -> Record:
        key = (entry.namespace, entry.run)
        found = self._runs.get(key)
        if found is None:
            row = RunRow(
                run=entry.run,
                began=entry.at,
                finished=None,
                pruned=False,
                position=len(self._runs) + 1,
            )
            found = self._runs[key] = _Run(row)
        if entry.slot in found.slots:
            return found.slots[entry.slot]
        self._position += 1
        record = record_of(entry, self._position)
        found.slots[entry.slot] = record
        found.log.append(record)
        self._changed.pop(key, None)
        self._changed[key] = self._position
        if entry.kind == RUN and entry.phase == "finished":
            found.row = msgspec.structs.replace(found.row, finished=entry.at)
        elif entry.kind == RUN and entry.phase == "tombstone":
            found.row = msgspec.structs.replace(found.row, pruned=True)
        return record

    def _serve(self, batch: list[Submission]) -> None:
        with self._lock:
            for item in batch:
                try:
                    item.reply = self._append(item.entry)
                except CounterfoilError as error:
                    item.reply = error
