"""The schemas and their versions: forward only, printable, and safe when many processes start together."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from counterfoil.errors import LedgerUnavailable
from counterfoil.ledgers.sqlite.engines import Connection


class Migrations:
    """The versions of one set of tables.

    They are kept in a table of ours, since `user_version` may be the application's.

    Args:
        what: whose schema it is, for messages.
        table: where its versions are kept.
        scripts: in order; the place of each, counted from 1, is a version.
    """

    def __init__(self, what: str, *, table: str, scripts: tuple[str, ...]) -> None:
        self.scripts = scripts
        self._what = what
        self._table = table
        self._create = f"CREATE TABLE IF NOT EXISTS {table} (version INTEGER PRIMARY KEY, name TEXT NOT NULL)"

    def sql(self) -> str:
        """Return every migration as one SQL script, for whoever applies schemas by hand."""
        parts = [f"BEGIN IMMEDIATE;\n\n{self._create};\n"]
        for version, name in enumerate(self.scripts, start=1):
            parts.append(f"\n-- {name}\n\n{text(name).strip()}\n\n{self._mark(version, name)};\n")
        parts.append("\nCOMMIT;\n")
        return "".join(parts)

    def version_of(self, connection: Connection) -> int:
        """Return the version of the tables in a database, 0 where there are none."""
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (self._table,)):
            return 0
        return int(connection.execute(f"SELECT ifnull(max(version), 0) FROM {self._table}")[0][0])  # noqa: S608

    def refuse_newer(self, version: int) -> None:
        """Refuse tables that a newer Counterfoil has written.

        Raises:
            LedgerUnavailable: they are newer than this version knows.
        """
        if version > len(self.scripts):
            raise LedgerUnavailable(
                f"the {self._what}'s schema has version {version}, this Counterfoil knows {len(self.scripts)}",
                code="schema-newer",
                hint="use the newer Counterfoil that wrote it",
                effect_ran="no",
            )

    def apply(self, connection: Connection) -> None:
        """Bring the tables up to date, inside a write transaction that the caller holds and commits."""
        present = self.version_of(connection)
        self.refuse_newer(present)
        connection.execute(self._create)
        for version, name in enumerate(self.scripts, start=1):
            if version > present:
                for statement in _statements(text(name)):
                    connection.execute(statement)
                connection.execute(self._mark(version, name))

    def _mark(self, version: int, name: str) -> str:
        return f"INSERT INTO {self._table} (version, name) VALUES ({version}, '{name}')"  # noqa: S608


def text(name: str) -> str:
    """Return the script of one migration."""
    return (Path(__file__).parent / "schema" / f"{name}.sql").read_text(encoding="utf-8")


def _statements(script: str) -> list[str]:
    # Our own scripts end each statement with a semicolon at the end of a line, and have no triggers.
    # A prepared statement is one statement in both engines; `executescript` would commit first.
    return [part.strip() for part in script.split(";\n") if part.strip()]


LEDGER: Final = Migrations("ledger", table="counterfoil_schema", scripts=("0001_ledger",))
# With versions of its own: a ledger without an outbox does not have these tables.
OUTBOX: Final = Migrations("outbox", table="counterfoil_outbox_schema", scripts=("outbox_0001",))
