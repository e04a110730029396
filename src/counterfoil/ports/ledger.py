"""The ledger port: `append` and `read` are all that a ledger must have; the rest is optional and found by type.

A ledger is safe to use from several threads. Its errors are those of `counterfoil.errors`:

- `CommitUnknown`: the store did not say how the commit ended. The caller settles it by appending the same
  entry again with `settle=True`.
- `LedgerUnavailable` (not `CommitUnknown`): definite, nothing was recorded.
- `LedgerReadOnly`, `OwnerRetired`, `RunPruned`, `LedgerCorrupt`, `ForkedLedger`: as their docstrings say, and
  nothing was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from counterfoil.protocol.records import Entry, Record

Reply = Record | BaseException
Deliver = Callable[[list[tuple[object, Reply]]], None]


@runtime_checkable
class Ledger(Protocol):
    """An append-only store of records, each of which fills a slot that can be filled once."""

    def append(self, entry: Entry, *, settle: bool = False) -> Record:
        """Fill a slot, or learn who filled it.

        Returns the record that now fills the slot, durable: ours if its (epoch, append_id) are the entry's,
        else the earlier one. With `settle` the answer itself is made durable by a commit of its own, also
        when the slot was filled already.
        """
        ...

    def read(self, namespace: str, run: str, after: int = 0) -> Sequence[Record]:
        """Return all records of a run with a position above `after`, in order of position.

        A record that commits late is never missed: positions are in commit order, or the read overlaps what
        may still be open (then known records come again and are ignored).
        """
        ...


@runtime_checkable
class Batching(Protocol):
    """A ledger that commits what concurrent callers append together."""

    def submit(self, entry: Entry, *, settle: bool, token: object, deliver: Deliver) -> None:
        """Append without waiting. Order of submission is the order of commit within a run.

        `deliver` is called from a thread of the ledger with the replies of one commit, each with its token.
        It must not block.
        """
        ...


@runtime_checkable
class Transactional(Protocol):
    """A ledger in a database that the application writes to as well."""

    def transact(self, entry: Entry, work: Callable[[Any], bytes]) -> Record:
        """Run `work` in a transaction and fill a slot in the same commit: both are durable on return, or neither.

        `work` gets the driver's own connection, in an open transaction, and returns the body of the record. It may be
        called again when the store asks for that (busy, serialization); what an earlier call wrote is then rolled
        back. It is not called where the slot is filled, the run is pruned or the owner is retired. What it raises
        passes unchanged, with all that it wrote rolled back. It may use savepoints; committing and rolling back are
        refused.

        Args:
            entry: what is recorded, but for the body and the checksum, which are empty.
            work: see above.

        Returns:
            The record that now fills the slot. If it is not ours, nothing was written.

        Raises:
            UsageError: `work` ended the transaction by itself (code `transaction-ended`), as far as the store let it:
                see `effect_ran`.
            CommitUnknown: the store did not say how the commit ended. The caller settles it by appending
                something else to the same slot.
        """
        ...


@runtime_checkable
class Owners(Protocol):
    """A ledger that knows the lives of processes."""

    def register(self, label: str) -> str:
        """Register a life, durably, and return its fresh epoch (`"<generation>.<random>"`, never reused)."""
        ...

    def retire(self, epoch: str) -> None:
        """End an own life: it fills no intent again, and others find it gone."""
        ...

    def gone(self, epoch: str) -> bool:
        """Return True only if that life is proved to be over; it is then retired durably before returning."""
        ...

    def live(self, epoch: str) -> bool:
        """Return whether an own life may still decide: not retired, and no sync has failed under it."""
        ...

    def owners(self) -> Sequence[Owner]:
        """Return the lives that are not known to be over, oldest first."""
        ...


class Owner(Protocol):
    """One life of one process against a ledger."""

    @property
    def epoch(self) -> str:
        """The epoch."""
        ...

    @property
    def label(self) -> str:
        """What its people call it."""
        ...

    @property
    def since(self) -> float:
        """When it registered, in seconds since 1970."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it is seen to live now."""
        ...


@runtime_checkable
class Notifier(Protocol):
    """A ledger that can tell cheaply which runs have new records."""

    def changes(self, after: int) -> tuple[set[tuple[str, str]], int]:
        """Return the (namespace, run) pairs with records since `after`, and the new value for `after`.

        `after=-1` returns an empty set and the present value.
        """
        ...


@runtime_checkable
class Restorable(Protocol):
    """A ledger that notices that it went back in time."""

    def restored(self) -> str | None:
        """Return why this ledger refuses new records until a person accepts it, or None."""
        ...

    def accept_restore(self, *, by: str, reason: str) -> int:
        """Record that a person accepted the ledger as it is; return the accepted generation."""
        ...

    def accepted_generation(self) -> int:
        """Return the latest accepted generation, 0 if there was none."""
        ...


@runtime_checkable
class Cautious(Protocol):
    """A ledger that may promise less than L2 asks for, because somebody allowed it."""

    @property
    def caution(self) -> str | None:
        """What it does not promise, in a sentence; None: it promises all."""
        ...


class RunRow(Protocol):
    """What a listing says of a run."""

    @property
    def run(self) -> str:
        """The run's id."""
        ...

    @property
    def began(self) -> float:
        """Time of its first record, in seconds since 1970."""
        ...

    @property
    def finished(self) -> float | None:
        """Time of its `finished` record, or None."""
        ...

    @property
    def pruned(self) -> bool:
        """Whether only its tombstone is left."""
        ...

    @property
    def position(self) -> int:
        """A handle that grows with the order of first records; pass it as `after` for the next page."""
        ...


@runtime_checkable
class Catalogue(Protocol):
    """A ledger that can list its runs."""

    def runs(
        self,
        namespace: str,
        *,
        after: int = 0,
        limit: int = 1000,
        finished: bool | None = None,
        holding: Sequence[tuple[str, str]] = (),
    ) -> Sequence[RunRow]:
        """Return a page of runs, oldest first.

        Args:
            namespace: the scope.
            after: the last row's `position` of the page before.
            limit: rows at most.
            finished: only finished (True) or only unfinished (False) runs; None: both. Pruned runs count as
                finished.
            holding: only runs with at least one record of one of these (kind, phase) pairs.
        """
        ...


@runtime_checkable
class Retention(Protocol):
    """A ledger that can give space back."""

    def bury(
        self,
        namespace: str,
        run: str,
        *,
        tombstone: Entry,
        kept: Sequence[Entry],
        drop: Sequence[str],
    ) -> None:
        """Prune one page of a run, which is finished or holds deliveries alone, in one transaction.

        Appends `tombstone` (a no-op when it is there already; from then on `append` refuses the run with
        `RunPruned`, except for entries of kind `durability/note`), appends the `kept` entries and deletes
        the records in the slots of `drop`.
        """
        ...


@runtime_checkable
class Closing(Protocol):
    """A ledger that holds something open."""

    def close(self) -> None:
        """Let go of it; further use raises `LedgerUnavailable`."""
        ...


@runtime_checkable
class Diagnosable(Protocol):
    """A ledger that can say what its guarantees rest on."""

    def diagnose(self) -> Sequence[tuple[str, str, str, str]]:
        """Return findings: (level `ok | warning | error`, subject, what was found, the mend)."""
        ...
