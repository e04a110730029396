"""Which runs have new records, by anybody: each process asks the database once for all who wait in it.

A record is new when the transaction that made it was not visible in the snapshot of the look before. So one that was
held open for an hour is found when it commits, and none is reported twice.
"""

from __future__ import annotations

import time
from threading import Lock
from typing import Final

from counterfoil.ledgers.postgres.reader import Reader

# How many changed runs are remembered for callers that look more seldom than others; they look into their runs anyway.
_KEPT_MAX: Final = 100_000
# Nobody has waited for so long that nobody's place must be kept.
_FORGET_S: Final = 60.0

# How many transactions back a look begins when the server behind the address is another one now.
_BACK: Final = 100_000

_NOW: Final = "SELECT pg_current_snapshot()::text"
_CHANGED: Final = """
SELECT pg_current_snapshot()::text, NULL, NULL
UNION ALL
SELECT NULL, u.namespace, u.run FROM (
    SELECT DISTINCT r.run FROM :schema.record r
    WHERE r.made_by >= pg_snapshot_xmax(%(last)s::pg_snapshot) AND r.made_by < pg_snapshot_xmax(pg_current_snapshot())
    UNION
    SELECT r.run FROM :schema.record r WHERE r.made_by IN (SELECT pg_snapshot_xip(%(last)s::pg_snapshot))
) c JOIN :schema.run u ON u.id = c.run
"""

Place = tuple[str, str]


class Tail:
    """Follows what is appended to a ledger.

    Args:
        reader: how it is read.
        poll_s: seconds between two looks at least; 0: look whenever somebody asks.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._lock = Lock()
        self._last: str | None = None
        self._looked = 0.0
        self._count = 0
        self._changed: dict[Place, int] = {}

    def changes(self, after: int, *, fresh: bool) -> tuple[set[Place], int]:
        """Return the runs with records since `after`, and the new value for `after`; -1 asks for that alone.

        Args:
            after: what the look before returned.
            fresh: look into the database, and not only at what is known here.
        """
        with self._lock:
            if fresh or self._last is None:
                self._look()
            found: set[Place] = set()
            if 0 <= after < self._count:
                for place in reversed(self._changed):
                    if self._changed[place] <= after:
                        break
                    found.add(place)
            return found, self._count

    def _look(self) -> None:
        idle_s, self._looked = time.monotonic() - self._looked, time.monotonic()
        if self._last is None or idle_s > _FORGET_S:
            # Whoever begins to wait reads his run after this.
            self._last = self._reader.query(_NOW)[0][0]
            return
        found = self._reader.query(_CHANGED, {"last": self._last})
        if _end_of(found[0][0]) < _end_of(self._last):
            # A promoted standby, or another cluster: its transactions are counted anew.
            start = max(3, _end_of(found[0][0]) - _BACK)
            found = self._reader.query(_CHANGED, {"last": f"{start}:{start}:"})
        for snapshot, namespace, run in found:
            if snapshot is not None:
                self._last = snapshot
                continue
            self._count += 1
            self._changed.pop((namespace, run), None)
            self._changed[namespace, run] = self._count
        while len(self._changed) > _KEPT_MAX:
            del self._changed[next(iter(self._changed))]


def _end_of(snapshot: str) -> int:
    return int(snapshot.split(":")[1])
