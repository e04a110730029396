"""The schemas and their versions: forward only, printable, and safe when many processes start together."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psycopg

from counterfoil.errors import LedgerUnavailable, UsageError
from counterfoil.ledgers.postgres import names
from counterfoil.ledgers.postgres.connections import Connection

DEFAULT_SCHEMA: Final = "counterfoil"


class Migrations:
    """The versions of one set of tables, kept in a table of their own.

    Args:
        what: whose tables they are, for messages.
        table: where their versions are kept.
        scripts: in order; the place of each, counted from 1, is a version.
        first: what has to be there before them.
        mend: what brings them up to date, for messages.
    """

    def __init__(self, what: str, *, table: str, scripts: tuple[str, ...], first: str = "", mend: str) -> None:
        self.scripts = scripts
        self._what = what
        self._table = table
        self._create = f"{first}CREATE TABLE :schema.{table} (version integer PRIMARY KEY, name text NOT NULL);\n"
        self._mend = mend

    def sql(self, schema: str = DEFAULT_SCHEMA) -> str:
        """Return every migration as one SQL script, for whoever applies schemas by hand."""
        lock = f"SELECT pg_advisory_xact_lock({names.lock_key(schema)});\n"
        return "\n".join(["BEGIN;\n\n", lock, *self._scripts(schema, 0), "COMMIT;\n"])

    def version_of(self, connection: Connection, schema: str) -> int:
        """Return the version of the tables in a schema, 0 where there are none."""
        # Not by `to_regclass`: what a session has once looked for in vain it does not look for again, and waiting for
        # an advisory lock does not tell it that another one has made it meanwhile.
        there = "SELECT EXISTS (SELECT FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = %s)"
        present = connection.execute(there, (schema, self._table)).fetchone()
        if present is None or not present[0]:
            return 0
        asked = _in(schema, f"SELECT coalesce(max(version), 0) FROM :schema.{self._table}")  # noqa: S608
        found = connection.execute(asked.encode()).fetchone()
        return int(found[0]) if found else 0

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

    def apply(self, connection: Connection, schema: str) -> None:
        """Bring the tables up to date, in one transaction; of many processes one does it and the others wait.

        Raises:
            UsageError: this role may not do it.
        """
        try:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (names.lock_key(schema),))
                present = self.version_of(connection, schema)
                self.refuse_newer(present)
                for script in self._scripts(schema, present):
                    connection.execute(script.encode())
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction) as error:
            raise UsageError(
                f"the {self._what}'s tables in the schema {schema!r} are missing or out of date, "
                f"and this role may not mend that: {error}",
                code="schema-missing",
                hint=self._mend,
            ) from error

    def _scripts(self, schema: str, present: int) -> list[str]:
        made = [] if present else [self._create]
        for version, name in enumerate(self.scripts, start=1):
            if version > present:
                script = (Path(__file__).parent / "schema" / f"{name}.sql").read_text(encoding="utf-8").strip()
                mark = f"INSERT INTO :schema.{self._table} (version, name) VALUES ({version}, '{name}');"  # noqa: S608
                made.append(f"-- {name}\n\n{script}\n\n{mark}\n")
        return [_in(schema, text) for text in made]


def _in(schema: str, script: str) -> str:
    return script.replace(":schema", names.quoted(schema))


LEDGER: Final = Migrations(
    "ledger",
    table="migration",
    scripts=("0001_ledger",),
    first="CREATE SCHEMA IF NOT EXISTS :schema;\n\n",
    mend="run `counterfoil migrate` as a role that may, or apply what `counterfoil migrate --sql` prints",
)
# With versions of its own: a ledger without an outbox does not have these tables.
OUTBOX: Final = Migrations(
    "outbox",
    table="outbox_migration",
    scripts=("outbox_0001",),
    mend="run `counterfoil outbox migrate` as a role that may",
)
