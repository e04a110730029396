"""Owners in PostgreSQL: a life that falls silent is retired, under a lock on its row.

Each life counts up a number in the database. Whoever wants to know whether it is over looks at that number again and
again: it is gone when it has not moved for three beats on the observer's own monotonic clock. No time stamps are
compared. Time in which the observer itself could not look does not count, since the owner could not beat then either.
"""

from __future__ import annotations

import os
from typing import Any, Final

import psycopg

from counterfoil.errors import LedgerUnavailable, UsageError
from counterfoil.ledgers.postgres import names, troubles, writer
from counterfoil.ledgers.postgres.connections import Connection
from counterfoil.ledgers.postgres.heart import Heart
from counterfoil.ledgers.postgres.pool import Pool
from counterfoil.ledgers.postgres.reader import Reader
from counterfoil.ledgers.rows import OwnerRow
from counterfoil.ledgers.watch import BEATS, Watch

_TRIES: Final = 3
# Whoever leaves waits no longer for a database that is gone; his silence says the same.
_LEAVE_S: Final = 2.0
_LIVE: Final = 0
_STATE: Final = (
    "SELECT o.retired, coalesce(b.count, -1), o.beat_s FROM :schema.owner o LEFT JOIN :schema.beat b ON b.owner = o.id"
    " WHERE o.epoch = %s"
)
_OWNERS: Final = (
    "SELECT o.epoch, o.label, o.since, coalesce(b.at > clock_timestamp() - make_interval(secs => %s * o.beat_s), false)"
    " FROM :schema.owner o LEFT JOIN :schema.beat b ON b.owner = o.id WHERE o.retired = 0 ORDER BY o.id"
)


class Lives:
    """Registers, retires and observes owners.

    Args:
        pool: where connections are taken from.
        reader: how the ledger is read.
        schema: the ledger's schema.
        beat_s: seconds between two beats of the lives that register here.
    """

    def __init__(self, pool: Pool, *, reader: Reader, schema: str, beat_s: float) -> None:
        self._pool = pool
        self._reader = reader
        self._quoted = names.quoted(schema)
        self._beat_s = beat_s
        self._own: set[str] = set()
        self._watch = Watch()
        self._heart = Heart(self, beat_s)

    def register(self, label: str) -> str:
        """Register a life, durably, and return its fresh epoch; its heart beats from now on."""
        if not label.isprintable():
            raise UsageError(f"{label!r} is no label for an owner", hint="use printable text")
        made = self._write("register(%s, %s, %s)", (os.urandom(8).hex(), label, self._beat_s))
        if made is None:
            raise writer.restored("run `counterfoil doctor` to see why")
        self._own.add(made)
        self._heart.start()
        return str(made)

    def retire(self, epoch: str) -> None:
        """End an own life, durably; those of others are left alone."""
        self._pool.usable()
        if epoch in self._own:
            self._own.discard(epoch)
            self._write("retire(%s, NULL)", (epoch,), timeout_s=min(_LEAVE_S, self._pool.timeout_s))

    def gone(self, epoch: str) -> bool:
        """Return True only if a life is proved to be over; it is then retired durably.

        `""` is no life. An epoch that was never registered here is not proved to be over.
        """
        self._pool.usable()
        if epoch == "":
            return True
        found = self._reader.query(_STATE, (epoch,))
        if not found:
            return False
        ((state, count, beat_s),) = found
        if state != _LIVE:
            return bool(state == 1)
        if epoch in self._own:
            return False
        self._heart.start()
        return self._watch.look(epoch, count, beat_s) and bool(self._write("retire(%s, %s)", (epoch, count)))

    def live(self, epoch: str) -> bool:
        """Return whether an own life may still decide."""
        self._pool.usable()
        if epoch not in self._own:
            return False
        found = self._reader.query(_STATE, (epoch,))
        return bool(found) and found[0][0] == _LIVE

    def owners(self) -> list[OwnerRow]:
        """Return the lives that are not known to be over, oldest first.

        Whether one is alive is said for people, by the time of its last beat on the database's clock.
        """
        return [
            OwnerRow(epoch=epoch, label=label, since=since, alive=alive)
            for epoch, label, since, alive in self._reader.query(_OWNERS, (BEATS,))
        ]

    def beat(self, connection: Connection) -> None:
        """Count up for the own lives, and look at all others."""
        own = list(self._own)
        statement = f"SELECT epoch, count, beat_s FROM {self._quoted}.beats(%s::text[])"  # noqa: S608
        found = connection.execute(statement.encode(), (own,)).fetchall()
        for epoch, count, beat_s in found:
            if epoch not in self._own:
                self._watch.look(epoch, count, beat_s)
        self._watch.keep_only({epoch for epoch, _, _ in found})

    def spare(self) -> Connection:
        """Open a connection for the heart, which must not wait for the pool's."""
        return self._pool.spare()

    def let_go(self) -> None:
        """End all own lives, if the database can be reached: others then find them gone at once."""
        self._heart.stop()
        own, self._own = self._own, set()
        for epoch in own:
            try:
                self._write("retire(%s, NULL)", (epoch,), timeout_s=_LEAVE_S)
            except LedgerUnavailable:
                return

    def _write(self, call: str, values: tuple[Any, ...], *, timeout_s: float | None = None) -> Any:
        """Call a function that may be called again, and return its durable answer."""
        statement = f"SELECT {self._quoted}.{call}".encode()
        tries = 0
        while True:
            tries += 1
            with self._pool.take(timeout_s=timeout_s) as connection:
                try:
                    found = connection.execute(statement, values).fetchone()
                except psycopg.Error as error:
                    known = connection.idle
                    if known and error.sqlstate not in troubles.AGAIN:
                        raise troubles.said(error) from error
                    if tries == _TRIES:
                        # Nobody settles this: the caller acts as if it had not happened, which is safe either way.
                        raise LedgerUnavailable(
                            f"PostgreSQL: {troubles.text(error)}", code="ledger-io", effect_ran="no"
                        ) from error
                    continue
                if not connection.wait_cancelled or tries == _TRIES:
                    return found[0] if found else None
