"""The outbox's own tables, with versions of their own: a ledger without an outbox does not have them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psycopg

from counterfoil.errors import LedgerUnavailable, UsageError
from counterfoil.ledgers.postgres import names
from counterfoil.ledgers.postgres.connections import Connection

# In order; the place in this tuple, counted from 1, is the version.
MIGRATIONS: Final = ("outbox_0001",)

_TABLE: Final = "CREATE TABLE :schema.outbox_migration (version integer PRIMARY KEY, name text NOT NULL);\n"
_THERE: Final = (
    "SELECT EXISTS (SELECT FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = 'outbox_migration')"
)


def sql(schema: str) -> str:
    """Return every migration as one SQL script, to be applied behind the ledger's."""
    lock = f"SELECT pg_advisory_xact_lock({names.lock_key(schema)});\n"
    return "\n".join(["BEGIN;\n", lock, *_scripts(schema, 0), "COMMIT;\n"])


def version_of(connection: Connection, schema: str) -> int:
    """Return the version of the outbox's tables, 0 where there are none."""
    present = connection.execute(_THERE, (schema,)).fetchone()
    if present is None or not present[0]:
        return 0
    asked = "SELECT coalesce(max(version), 0) FROM :schema.outbox_migration".replace(":schema", names.quoted(schema))
    found = connection.execute(asked.encode()).fetchone()
    return int(found[0]) if found else 0


def refuse_newer(version: int) -> None:
    """Refuse tables that a newer Counterfoil has written.

    Raises:
        LedgerUnavailable: they are newer than this version knows.
    """
    if version > len(MIGRATIONS):
        raise LedgerUnavailable(
            f"the outbox's schema has version {version}, this Counterfoil knows {len(MIGRATIONS)}",
            code="schema-newer",
            hint="use the newer Counterfoil that wrote it",
            effect_ran="no",
        )


def apply(connection: Connection, schema: str) -> None:
    """Bring the tables up to date, in one transaction; of many processes one does it and the others wait.

    Raises:
        UsageError: this role may not do it.
    """
    try:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (names.lock_key(schema),))
            present = version_of(connection, schema)
            refuse_newer(present)
            for script in _scripts(schema, present):
                connection.execute(script.encode())
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction) as error:
        raise UsageError(
            f"the outbox's tables are missing or out of date, and this role may not mend that: {error}",
            code="schema-missing",
            hint="run `counterfoil outbox migrate` as a role that may",
        ) from error


def _scripts(schema: str, present: int) -> list[str]:
    made = [] if present else [_TABLE]
    for version, name in enumerate(MIGRATIONS, start=1):
        if version > present:
            script = (Path(__file__).parent / "schema" / f"{name}.sql").read_text(encoding="utf-8").strip()
            mark = f"INSERT INTO :schema.outbox_migration (version, name) VALUES ({version}, '{name}');"  # noqa: S608
            made.append(f"-- {name}\n\n{script}\n\n{mark}\n")
    return [text.replace(":schema", names.quoted(schema)) for text in made]
