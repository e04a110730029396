"""Reading: in pages, so that no snapshot is held longer than a page takes and no commit waits for a reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from counterfoil.errors import UsageError
from counterfoil.ledgers.rows import RunRow
from counterfoil.ledgers.sqlite import rows, troubles
from counterfoil.ledgers.sqlite.database import Database
from counterfoil.ledgers.sqlite.engines import Connection, Row, StoreError
from counterfoil.protocol.records import Record

T = TypeVar("T")

PAGE: Final = 5000
# As in the partial index `counterfoil_record_rare`: the planner wants the same words.
_COMMON: Final = (0, 2, 3, 4, 5, 6, 15, 16, 17)
_RARE: Final = "kind NOT IN (0, 2, 3, 4, 5, 6, 15, 16, 17)"

_RUN_ID: Final = (
    "SELECT r.id FROM counterfoil_run r JOIN counterfoil_namespace n ON n.id = r.namespace"
    " WHERE n.name = ? AND r.run = ?"
)
_RECORDS: Final = "SELECT {} FROM counterfoil_record WHERE run = ? AND seq > ? ORDER BY seq LIMIT {}"
_OWNER: Final = "SELECT CAST(epoch AS BLOB) FROM counterfoil_owner WHERE id = ?"
_LAST: Final = "SELECT ifnull(max(seq), 0) FROM counterfoil_record"
_CHANGED: Final = (
    "SELECT n.name, r.run FROM (SELECT DISTINCT run FROM counterfoil_record WHERE seq > ?) c"
    " JOIN counterfoil_run r ON r.id = c.run JOIN counterfoil_namespace n ON n.id = r.namespace"
)


class Reader:
    """Reads records and listings from a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._seen: tuple[Connection, int] | None = None
        self._last = 0

    def query(self, work: Callable[[Connection], T]) -> T:
        """Do one short piece of reading on the reading connection.

        Raises:
            LedgerUnavailable: SQLite did not answer.
            LedgerCorrupt: the database is damaged.
        """
        database = self._database
        database.usable()
        with database.read_lock:
            try:
                connection = database.reading()
                try:
                    return work(connection)
                except StoreError as error:
                    if error.code not in troubles.WAITS:
                        raise
                return database.patiently(lambda: work(connection))
            except StoreError as error:
                raise troubles.while_reading(error) from error
            except UnicodeEncodeError as error:
                raise UsageError(f"no name: {error.object!r}", hint="names are text without surrogates") from error

    def records(self, namespace: str, run: str, after: int) -> list[Record]:
        """Return a run's records after a position."""
        found: list[Record] = []
        run_id = self.query(lambda connection: connection.execute(_RUN_ID, (namespace, run)))
        if not run_id:
            return found
        while True:
            place = (run_id[0][0], after)
            page = self.query(partial(_page, place=place))
            found.extend(page)
            if len(page) < PAGE:
                return found
            after = page[-1].position

    def changes(self, after: int) -> tuple[set[tuple[str, str]], int]:
        """Return the runs with records after a position in the whole ledger, and the last position."""
        return self.query(lambda connection: self._changes(connection, after))

    def _changes(self, connection: Connection, after: int) -> tuple[set[tuple[str, str]], int]:
        # Read first: a commit between the two statements then only means another look next time.
        version = connection.execute("PRAGMA data_version")[0][0]
        if self._seen != (connection, version):
            self._last = connection.execute(_LAST)[0][0]
            self._seen = (connection, version)
        if after < 0 or after >= self._last:
            return set(), self._last
        last = connection.execute(_LAST)[0][0]
        return {(name, run) for name, run in connection.execute(_CHANGED, (after,))}, last

    def runs(
        self,
        namespace: str,
        *,
        after: int,
        limit: int,
        finished: bool | None,
        holding: Sequence[tuple[str, str]],
    ) -> list[RunRow]:
        """Return a page of runs, oldest first."""
        where, parameters = ["n.name = ?", "r.id > ?"], [namespace, after]
        if finished is not None:
            where.append(f"(r.finished IS NOT NULL OR r.pruned) = {int(finished)}")
        if holding:
            where.append(_holding([rows.CODES[words] for words in holding if words in rows.CODES]))
        sql = (
            "SELECT r.run, r.began, r.finished, r.pruned, r.id FROM counterfoil_run r"  # noqa: S608
            " JOIN counterfoil_namespace n ON n.id = r.namespace"
            f" WHERE {' AND '.join(where)} ORDER BY r.id LIMIT ?"
        )
        page = self.query(lambda connection: connection.execute(sql, (*parameters, limit)))
        return [
            RunRow(run=run, began=began, finished=end, pruned=bool(pruned), position=position)
            for run, began, end, pruned, position in page
        ]


def _holding(codes: list[int]) -> str:
    listed = ", ".join(map(str, codes)) or "-1"
    if codes and not set(codes) & set(_COMMON):
        return f"r.id IN (SELECT run FROM counterfoil_record WHERE kind IN ({listed}) AND {_RARE})"  # noqa: S608
    return (
        "EXISTS (SELECT 1 FROM counterfoil_record c"  # noqa: S608
        f" WHERE c.run = r.id AND c.kind IN ({listed}))"
    )


class _Epochs(dict[Any, str]):
    """Owners to epochs, looked up once each."""

    def __init__(self, connection: Connection) -> None:
        super().__init__({rows.NO_OWNER: ""})
        self._connection = connection

    def __missing__(self, owner: Any) -> str:
        found = self[owner] = _epoch(self._connection, owner)
        return found


def _page(connection: Connection, *, place: tuple[int, int]) -> list[Record]:
    try:
        page = connection.execute(_RECORDS.format(rows.COLUMNS, PAGE), place)
    except UnicodeDecodeError:
        page = _raw(connection, place)
    except StoreError as error:
        if "UTF-8" not in str(error):  # how sqlite3 words it; it gives no code
            raise
        page = _raw(connection, place)

    epoch_of = _Epochs(connection).__getitem__
    return [rows.record(row, epoch_of) for row in page]


def _raw(connection: Connection, place: tuple[int, int]) -> list[Row]:
    page = connection.execute(_RECORDS.format(rows.RAW_COLUMNS, PAGE), place)
    return [_repaired(row) for row in page]


def _repaired(row: Row) -> Row:
    slot = row[1]
    return (row[0], slot.decode(errors="replace") if isinstance(slot, bytes) else slot, *row[2:])


def _epoch(connection: Connection, owner: object) -> str:
    # An owner that cannot be read is no owner's epoch, so that the record fails its checksum.
    if not isinstance(owner, int):
        return "?"
    found = connection.execute(_OWNER, (owner,))
    return found[0][0].decode(errors="replace") if found and found[0][0] else "?"
