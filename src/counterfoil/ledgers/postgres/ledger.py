"""The PostgreSQL ledger: one database, any number of processes on any number of machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import psycopg

from counterfoil.errors import LedgerUnavailable, UsageError
from counterfoil.ledgers.lanes import Lanes
from counterfoil.ledgers.postgres import migrations, names, opening, troubles
from counterfoil.ledgers.postgres.diagnosis import diagnose
from counterfoil.ledgers.postgres.lending import Lending
from counterfoil.ledgers.postgres.listener import Listener
from counterfoil.ledgers.postgres.lives import Lives
from counterfoil.ledgers.postgres.pool import Pool
from counterfoil.ledgers.postgres.pruning import bury
from counterfoil.ledgers.postgres.reader import Reader
from counterfoil.ledgers.postgres.restores import Restores
from counterfoil.ledgers.postgres.tail import Tail
from counterfoil.ledgers.postgres.writer import Writer
from counterfoil.ledgers.rows import OwnerRow, RunRow
from counterfoil.ledgers.submissions import Submission
from counterfoil.ports.ledger import Deliver
from counterfoil.protocol.records import Entry, Record, with_body

if TYPE_CHECKING:
    from counterfoil.ledgers.postgres.outbox import PostgresOutbox
    from counterfoil.ledgers.postgres.outbox_view import PostgresOutboxView


class PostgresLedger:
    """A ledger in a schema of its own in a PostgreSQL database, which may also be the application's.

    It is safe to use from several threads. What `append` returns is durable: each of its transactions commits with
    `synchronous_commit` on or stronger, whatever the role's or the database's default is.

    Args:
        conninfo: what libpq takes: a `postgresql://` address or `key=value` pairs.
        schema: the ledger's schema; made if this role may.
        pool: connections at most, beside one for the heart and one for listening.
        timeout_s: how long to wait for a connection, a lock and an answer, in seconds.
        beat_s: seconds between two beats of owners that register here; an owner is taken for gone after three.
        poll_s: look for what others did this often, in seconds, instead of listening: for transaction poolers.
        migrate: bring the schema up to date.

    Raises:
        UsageError: what the caller must mend: an address that is none, an old server, a schema that this role may
            not make.
        LedgerReadOnly: the server is a standby.
        LedgerUnavailable: it cannot be reached, or a newer version has written it.
    """

    def __init__(
        self,
        conninfo: str,
        *,
        schema: str = migrations.DEFAULT_SCHEMA,
        pool: int = 3,
        timeout_s: float = 30.0,
        beat_s: float = 5.0,
        poll_s: float | None = None,
        migrate: bool = True,
    ) -> None:
        if pool < 1 or timeout_s <= 0 or beat_s <= 0 or (poll_s is not None and poll_s <= 0):
            raise UsageError(
                f"pool={pool}, timeout_s={timeout_s}, beat_s={beat_s}, poll_s={poll_s} is not possible",
                hint="all of them are more than 0",
            )
        names.quoted(schema)
        self.schema = schema
        self._pool = Pool(opening.complete(conninfo), size=pool, timeout_s=timeout_s)
        opening.prepare(self._pool, schema, migrate=migrate)
        self._reader = Reader(self._pool, schema)
        self._writer = Writer(self._pool, schema)
        self._lanes = Lanes(pool, self._commit)
        self._lending = Lending(self._pool, schema)
        self._lives = Lives(self._pool, reader=self._reader, schema=schema, beat_s=beat_s)
        self._restores = Restores(self._pool, reader=self._reader, schema=schema)
        self._tail = Tail(self._reader)
        self._listener = Listener(self._pool, channel=names.channel(schema), poll_s=poll_s)

    @cached_property
    def place(self) -> tuple[str, int, int, str]:
        """What tells this ledger's database and schema from all others."""
        ((system, database),) = self._reader.query("SELECT system_identifier, database::bigint FROM :schema.ledger")
        return ("postgresql", system, database, self.schema)

    @property
    def quoted(self) -> str:
        """The ledger's schema, quoted."""
        return names.quoted(self.schema)

    @property
    def pool(self) -> Pool:
        """Its connections, for what else is kept in the same database."""
        return self._pool

    def append(self, entry: Entry, *, settle: bool = False) -> Record:
        """Fill a slot, or learn who filled it. See `counterfoil.ports.ledger.Ledger.append`.

        Every append writes and waits for its own commit, so `settle` asks for nothing more.
        """
        self._pool.usable()
        return self._lanes.append(Submission(entry, settle=settle))

    def read(self, namespace: str, run: str, after: int = 0) -> Sequence[Record]:
        """Return the records of a run with a position above `after`, in order of position.

        Positions within a run are in commit order: an append holds a lock on the run's row until its commit.
        """
        return self._reader.records(namespace, run, after)

    def submit(self, entry: Entry, *, settle: bool, token: object, deliver: Deliver) -> None:
        """Append without waiting; `deliver` is called from a thread of the ledger, once for each commit."""
        self._pool.usable()
        self._lanes.put(Submission(entry, settle=settle, token=token, deliver=deliver))

    def transact(self, entry: Entry, work: Callable[[Any], bytes]) -> Record:
        """Run `work` in a transaction and fill a slot in the same commit. See `counterfoil.ports.ledger.Transactional`.

        `work` gets a connection of its own, beside those of the pool.
        """
        record = self._lending.transact(entry, work)
        if (record.epoch, record.append_id) == (entry.epoch, entry.append_id):
            return record
        # Somebody else's: the answer waits for a commit of its own.
        return self.append(with_body(entry, record.body))

    def register(self, label: str) -> str:
        """Register a life of this process, durably, and return its fresh epoch; its heart beats from now on.

        Raises:
            LedgerReadOnly: a person must accept the ledger first.
        """
        return self._lives.register(label)

    def retire(self, epoch: str) -> None:
        """End an own life, durably; unknown epochs and those of others are left alone."""
        self._lives.retire(epoch)

    def gone(self, epoch: str) -> bool:
        """Return True only if a life is proved to be over; it is then retired durably.

        Silence must have been seen for three beats, so the first answers about a life that was killed are False.
        """
        return self._lives.gone(epoch)

    def live(self, epoch: str) -> bool:
        """Return whether an own life may still decide: nobody has retired it."""
        return self._lives.live(epoch)

    def owners(self) -> Sequence[OwnerRow]:
        """Return the lives that are not known to be over, oldest first."""
        return self._lives.owners()

    def changes(self, after: int) -> tuple[set[tuple[str, str]], int]:
        """Return the runs with records since `after`, and the new value for `after`, which means nothing elsewhere."""
        self._pool.usable()
        return self._tail.changes(after, fresh=self._listener.due())

    def restored(self) -> str | None:
        """Return why this ledger refuses new records until a person accepts it, or None."""
        return self._restores.restored()

    def accept_restore(self, *, by: str, reason: str) -> int:
        """Record, durably, that a person accepted the ledger as it is; return the new generation.

        All owners end with it.
        """
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
        with self._pool.take() as connection:
            try:
                with connection.transaction():
                    bury(connection, self.schema, place=(namespace, run), entries=(tombstone, *kept), drop=drop)
            except psycopg.Error as error:
                if connection.idle:
                    raise troubles.said(error) from error
                raise LedgerUnavailable(
                    f"whether the page was pruned is unknown: {troubles.text(error)}",
                    effect_ran="no",
                    hint="prune again",
                ) from error

    def outbox(
        self, *, clock: Callable[[], float] | None = None, create: bool = True
    ) -> tuple[PostgresOutbox, PostgresOutboxView]:
        """Open the outbox in the same database, making its tables, durably, if they are not there.

        Args:
            clock: seconds since 1970; None: the database's.
            create: False: refuse where there are none, or older ones.

        Raises:
            UsageError: they are not there, or older, and may or shall not be made.
        """
        from counterfoil.ledgers.postgres.outbox import PostgresOutbox
        from counterfoil.ledgers.postgres.outbox_view import PostgresOutboxView

        store = PostgresOutbox(self._pool, schema=self.schema, clock=clock, create=create)
        return store, PostgresOutboxView(store)

    def diagnose(self) -> Sequence[tuple[str, str, str, str]]:
        """Return findings about what the guarantees rest on: (level, subject, found, mend)."""
        return diagnose(self._pool, schema=self.schema, reason=self.restored(), owners=self.owners())

    def close(self) -> None:
        """End the lives that were registered through this object, and close the connections."""
        if self._pool.inherited:
            return
        self._listener.stop()
        self._lives.let_go()
        self._pool.close()
        self._lanes.stop()

    def _commit(self, batch: Sequence[Submission]) -> None:
        self._writer.commit(batch)
        self._listener.tell(batch)
