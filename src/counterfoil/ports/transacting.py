"""A transaction of ours that is under way: what code that is handed its connection can learn of it.

While a body of `Run.transaction` runs, `under_way` holds a `Transacting`. Whoever writes through the body's
connection (the outbox, which stages an intent) asks `of(connection)`: it answers only for that very connection, so
a second connection of the body, to whatever database, is not taken for ours. `next_ordinal` numbers what is
staged, 1 for the first; the numbers begin anew when the body has to run again, so that the same staging gets the same
identity. How many there were is recorded with the result.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

from counterfoil.protocol.keys import staged_key


class Transacting:
    """One execution of one body.

    Attributes:
        connection: the driver's own connection (apsw, sqlite3 or psycopg), in the open transaction.
        namespace: the scope of the run's id.
        run: the run.
        name: the transaction's name within the run.
        staged: how many ordinals were given out.
    """

    __slots__ = ("connection", "name", "namespace", "run", "staged")

    def __init__(self, connection: Any, *, namespace: str, run: str, name: str) -> None:
        self.connection = connection
        self.namespace = namespace
        self.run = run
        self.name = name
        self.staged = 0

    def next_ordinal(self) -> int:
        """Give out the next ordinal; they count from 1, in the order in which the body stages."""
        self.staged += 1
        return self.staged

    def key(self, ordinal: int) -> str:
        """Return the key of what is staged under an ordinal without one of its own: the same in each execution."""
        return staged_key(self.namespace, self.run, (self.name, ordinal))


under_way: Final[ContextVar[Transacting | None]] = ContextVar("counterfoil_transacting", default=None)


def of(connection: Any) -> Transacting | None:
    """Return the transaction of ours that a driver's connection is in, None if it is in none."""
    found = under_way.get()
    return found if found is not None and found.connection is connection else None
