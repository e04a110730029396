"""Reading records and listing runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from counterfoil.errors import UsageError
from counterfoil.ledgers.postgres import names, rows
from counterfoil.ledgers.postgres.pool import Pool
from counterfoil.ledgers.rows import RunRow
from counterfoil.protocol.records import Record

PAGE: Final = 5000
# As in the partial index `record_rare`: the planner wants the same words.
_COMMON: Final = (0, 2, 3, 4, 5, 6, 15, 16, 17)
_RARE: Final = "kind NOT IN (0, 2, 3, 4, 5, 6, 15, 16, 17)"

_RECORDS: Final = (
    f"SELECT {rows.COLUMNS} FROM :schema.record r LEFT JOIN :schema.owner o ON o.id = r.owner"  # noqa: S608
    " WHERE r.run = (SELECT u.id FROM :schema.run u WHERE u.namespace = %s AND u.run = %s) AND r.seq > %s"
    " ORDER BY r.seq LIMIT %s"
)
_RUNS: Final = """
SELECT u.run, u.began,
    (SELECT f.at FROM :schema.record f WHERE f.run = u.id AND f.slot = 'run/finished' AND f.kind = 17),
    u.buried, u.id
FROM :schema.run u WHERE {} ORDER BY u.id LIMIT %s
"""


class Reader:
    """Reads a ledger.

    Args:
        pool: where connections are taken from.
        schema: the ledger's schema.
    """

    def __init__(self, pool: Pool, schema: str) -> None:
        self._pool = pool
        self._quoted = names.quoted(schema)

    def query(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a statement that records nothing; `:schema` stands for the ledger's."""
        made = statement.replace(":schema", self._quoted).encode()

        def work(connection: Any) -> list[tuple[Any, ...]]:
            with connection.cursor(binary=True) as cursor:
                cursor.execute(made, parameters)
                return cursor.fetchall()  # type: ignore[no-any-return]

        return self._pool.read(work)

    def records(self, namespace: str, run: str, after: int) -> list[Record]:
        """Return a run's records after a position, in pages, so that no snapshot is held for long."""
        check_name(namespace)
        check_name(run)
        found: list[Record] = []
        while True:
            page = self.query(_RECORDS, (namespace, run, after, PAGE))
            found.extend(map(rows.record, page))
            if len(page) < PAGE:
                return found
            after = found[-1].position

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
        check_name(namespace)
        where = ["u.namespace = %s", "u.id > %s"]
        if finished is not None:
            ended = "(u.buried OR EXISTS (SELECT FROM :schema.record e WHERE e.run = u.id AND e.kind = 17))"
            where.append(ended if finished else f"NOT {ended}")
        if holding:
            where.append(_holding([rows.CODES[words] for words in holding if words in rows.CODES]))
        page = self.query(_RUNS.format(" AND ".join(where)), (namespace, after, limit))
        return [
            RunRow(run=run, began=began, finished=end, pruned=pruned, position=position)
            for run, began, end, pruned, position in page
        ]


def check_name(name: str) -> None:
    """Refuse what cannot be in any record.

    Raises:
        UsageError: it has surrogates or a NUL.
    """
    if "\0" in name or any("\ud800" <= character <= "\udfff" for character in name):
        raise UsageError(f"no name: {name!r}", hint="names are text without NUL and surrogates")


def _holding(codes: list[int]) -> str:
    listed = ", ".join(map(str, codes)) or "-1"
    if codes and not set(codes) & set(_COMMON):
        return f"u.id IN (SELECT c.run FROM :schema.record c WHERE c.kind IN ({listed}) AND c.{_RARE})"  # noqa: S608
    return f"EXISTS (SELECT FROM :schema.record c WHERE c.run = u.id AND c.kind IN ({listed}))"
