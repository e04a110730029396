"""The SQLite ledger: one file, any number of processes on one machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from counterfoil.errors import UsageError
from counterfoil.ledgers.groups import Group
from counterfoil.ledgers.rows import OwnerRow, RunRow
from counterfoil.ledgers.sqlite.beside import Beside
from counterfoil.ledgers.sqlite.checkpoints import Checkpoints
from counterfoil.ledgers.sqlite.database import Database
from counterfoil.ledgers.sqlite.diagnosis import diagnose
from counterfoil.ledgers.sqlite.generations import Generations
from counterfoil.ledgers.sqlite.lending import Lending
from counterfoil.ledgers.sqlite.lives import Lives
from counterfoil.ledgers.sqlite.pruning import bury
from counterfoil.ledgers.sqlite.reader import Reader
from counterfoil.ledgers.sqlite.restores import Restores
from counterfoil.ledgers.sqlite.transactions import Transactions
from counterfoil.ledgers.sqlite.writer import Writer
from counterfoil.ledgers.submissions import Submission, Submissions
from counterfoil.ports.ledger import Deliver
from counterfoil.protocol.records import Entry, Record

if TYPE_CHECKING:
    from counterfoil.ledgers.sqlite.outbox import SqliteOutbox
    from counterfoil.ledgers.sqlite.outbox_view import SqliteOutboxView


class SqliteLedger:
    """A ledger in a SQLite database, which may also be the application's own.

    It is safe to use from several threads. What `append` returns is on the disk: WAL with
    `synchronous=FULL`, read back after setting.

    Args:
        path: the database file; created if it is not there. Beside it stands the folder
            `<path>-counterfoil`, which belongs to it.
        engine: `apsw`, or `sqlite3` where the application opens the file with that in this process.
        timeout_s: how long to wait for other connections, in seconds.
        synchronous: `full` or `extra`.
        strict: refuse a SQLite library with the WAL-reset defect instead of warning.

    Raises:
        UsageError: what the caller must mend: a folder, no database, two SQLite libraries on one file.
        LedgerReadOnly: it would have to be created or migrated, and cannot be written.
        LedgerUnavailable: it cannot be opened, or a newer version has written it.
        ForkedLedger: this process inherited open connections to the file.
    """

    def __init__(
        self,
        path: str,
        *,
        engine: str = "apsw",
        timeout_s: float = 30.0,
        synchronous: str = "full",
        strict: bool = False,
    ) -> None:
        if engine not in ("apsw", "sqlite3") or synchronous not in ("full", "extra"):
            raise UsageError(
                f"engine={engine}, synchronous={synchronous} is not possible",
                hint="engine is apsw or sqlite3, synchronous is full or extra",
            )
        self._database = Database(path, engine=engine, timeout_s=timeout_s, synchronous=synchronous, strict=strict)
        self._beside = Beside(self._database.path)
        self._generations = Generations(self._beside)
        self._transactions = Transactions(self._database, self._generations)
        self._writer = Writer(self._transactions)
        self._reader = Reader(self._database)
        self._lives = Lives(
            self._database,
            transactions=self._transactions,
            reader=self._reader,
            beside=self._beside,
            generations=self._generations,
        )
        self._restores = Restores(
            self._database,
            transactions=self._transactions,
            reader=self._reader,
            writer=self._writer,
            beside=self._beside,
            generations=self._generations,
        )
        self._lending = Lending(self._database, transactions=self._transactions, generations=self._generations)
        self._checkpoints = Checkpoints(self._database, self._beside)
        commit = self._commit_and_checkpoint if self._database.affected else self._writer.commit
        self._group = Group(lambda: self._database.write_lock, commit)
        self._submissions = Submissions(self, SqliteLedger._serve)

    @property
    def path(self) -> str:
        """The database file, absolute, with links resolved."""
        return self._database.path

    @property
    def engine(self) -> str:
        """Which SQLite library opens it: `apsw` or `sqlite3`."""
        return self._database.engine

    def append(self, entry: Entry, *, settle: bool = False) -> Record:
        """Fill a slot, or learn who filled it. See `counterfoil.ports.ledger.Ledger.append`.

        The record is on the disk on return. Once a sync has failed, further intents are refused with the
        code `sync-failed` for as long as this object lives.
        """
        self._database.usable()
        return self._group.append(Submission(entry, settle=settle))

    def read(self, namespace: str, run: str, after: int = 0) -> Sequence[Record]:
        """Return the records of a run with a position above `after`, in order of position.

        What cannot be decoded comes back as a record of kind `unknown`, or one that fails its checksum.

        Raises:
            LedgerCorrupt: the file itself is damaged.
        """
        return self._reader.records(namespace, run, after)

    def submit(self, entry: Entry, *, settle: bool, token: object, deliver: Deliver) -> None:
        """Append without waiting; `deliver` is called from the ledger's thread, once for each commit."""
        self._database.usable()
        submission = Submission(entry, settle=settle, token=token, deliver=deliver)
        self._submissions.put(self, submission)

    def transact(self, entry: Entry, work: Callable[[Any], bytes]) -> Record:
        """Run `work` in a transaction and fill a slot in the same commit. See `counterfoil.ports.ledger.Transactional`.

        `work` gets a connection of its own, of the ledger's engine, with foreign keys enforced. Nobody else writes to
        the database until it returns.
        """
        self._database.usable()
        with self._database.write_lock:
            try:
                return self._lending.transact(entry, work)
            finally:
                self._checkpoints.after_commit()

    def register(self, label: str) -> str:
        """Register a life of this process, durably, and return its fresh epoch.

        Raises:
            LedgerReadOnly: the ledger cannot be written, or a person must accept it first.
        """
        return self._lives.register(label)

    def retire(self, epoch: str) -> None:
        """End an own life, durably; unknown epochs and those of others are left alone."""
        self._lives.retire(epoch)

    def gone(self, epoch: str) -> bool:
        """Return True only if a life is proved to be over; it is then retired durably.

        An epoch that was never registered here is not proved to be over by a missing lock file. `""` is no
        life and always over.
        """
        return self._lives.gone(epoch)

    def live(self, epoch: str) -> bool:
        """Return whether an own life may still decide: not retired, and no sync has failed."""
        return self._lives.live(epoch)

    def owners(self) -> Sequence[OwnerRow]:
        """Return the lives that are not known to be over, oldest first."""
        return self._lives.owners()

    def changes(self, after: int) -> tuple[set[tuple[str, str]], int]:
        """Return the runs with records since `after`, and the new value for `after`."""
        return self._reader.changes(after)

    def restored(self) -> str | None:
        """Return why this ledger refuses new records until a person accepts it, or None."""
        return self._restores.restored()

    def accept_restore(self, *, by: str, reason: str) -> int:
        """Record, durably, that a person accepted the ledger as it is; return the new generation."""
        return self._restores.accept(by=by, reason=reason)

    def accepted_generation(self) -> int:
        """Return the latest accepted generation, 0 if there was none."""
        return self._restores.accepted_generation()

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
        return self._reader.runs(namespace, after=after, limit=limit, finished=finished, holding=holding)

    def bury(
        self,
        namespace: str,
        run: str,
        *,
        tombstone: Entry,
        kept: Sequence[Entry],
        drop: Sequence[str],
    ) -> None:
        """Prune one page of a finished run, durably. See `counterfoil.ports.ledger.Retention.bury`.

        Raises:
            UsageError: the run is not finished.
        """
        self._database.usable()
        with self._database.write_lock:
            try:
                self._transactions.run(
                    lambda connection: bury(
                        connection, self._writer, place=(namespace, run), entries=(tombstone, *kept), drop=drop
                    )
                )
            finally:
                self._transactions.forget()

    def outbox(
        self, *, clock: Callable[[], float] | None = None, create: bool = True
    ) -> tuple[SqliteOutbox, SqliteOutboxView]:
        """Open the outbox in the same database, making its tables, durably, if they are not there.

        Args:
            clock: seconds since 1970; None: the machine's.
            create: False: refuse where there are none, or older ones.

        Raises:
            LedgerReadOnly: they would have to be made, and the database cannot be written.
            UsageError: they are not there, or older, and are not to be made.
        """
        from counterfoil.ledgers.sqlite.outbox import SqliteOutbox
        from counterfoil.ledgers.sqlite.outbox_view import SqliteOutboxView

        store = SqliteOutbox(
            self._database,
            transactions=self._transactions,
            reader=self._reader,
            checkpoints=self._checkpoints,
            clock=clock,
            create=create,
        )
        return store, SqliteOutboxView(store, reader=self._reader)

    def diagnose(self) -> Sequence[tuple[str, str, str, str]]:
        """Return findings about what the guarantees rest on: (level, subject, found, mend)."""
        return diagnose(
            self._database,
            reader=self._reader,
            beside=self._beside,
            reason=self.restored(),
            owners=self.owners(),
        )

    def close(self) -> None:
        """Close the file and end the lives that were registered through this object."""
        if self._database.inherited():
            return
        self._lives.let_go()
        self._database.close()
        self._submissions.stop()

    def _commit_and_checkpoint(self, batch: Sequence[Submission]) -> None:
        self._writer.commit(batch)
        self._checkpoints.after_commit()

    def _serve(self, batch: list[Submission]) -> None:
        self._group.serve(batch)
