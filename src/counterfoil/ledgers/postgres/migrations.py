"""The schema and its versions: forward only, printable, and safe when many processes start together."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psycopg

from counterfoil.errors import LedgerUnavailable, UsageError
from counterfoil.ledgers.postgres import names
from counterfoil.ledgers.postgres.connections import Connection

# In order; the place in this tuple, counted from 1, is the version.
MIGRATIONS: Final = ("0001_ledger",)
DEFAULT_SCHEMA: Final = "counterfoil"

_TABLE: Final = "CREATE TABLE :schema.migration (version integer PRIMARY KEY, name text NOT NULL)"


def sql(schema: str = DEFAULT_SCHEMA) -> str:
    """Return every migration as one SQL script, for whoever applies schemas by hand."""
    parts = [
        "BEGIN;\n\n",
        f"SELECT pg_advisory_xact_lock({names.lock_key(schema)});\n",
        *_scripts(schema, 0),
        "COMMIT;\n",
    ]
    return "\n".join(parts)


def version_of(connection: Connection, schema: str) -> int:
    """Return the version of a schema, 0 where there is none."""
    # Not by `to_regclass`: what a session has once looked for in vain it does not look for again, and waiting for an
    # advisory lock does not tell it that another one has made it meanwhile.
    there = "SELECT EXISTS (SELECT FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = 'migration')"
    present = connection.execute(there, (schema,)).fetchone()
    if present is None or not present[0]:
        return 0
    found = connection.execute(_text("SELECT coalesce(max(version), 0) FROM :schema.migration", schema)).fetchone()
    return int(found[0]) if found else 0


def refuse_newer(version: int) -> None:
    """Refuse a schema that a newer Counterfoil has written.

    Raises:
        LedgerUnavailable: it is newer than this version knows.
    """
    if version > len(MIGRATIONS):
        raise LedgerUnavailable(
            f"the ledger's schema has version {version}, this Counterfoil knows {len(MIGRATIONS)}",
            code="schema-newer",
            hint="use the newer Counterfoil that wrote it",
            effect_ran="no",
        )


def apply(connection: Connection, schema: str) -> None:
    """Bring the schema up to date, in one transaction; of many processes one does it and the others wait.

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
            f"the schema {schema!r} is missing or out of date, and this role may not mend that: {error}",
            code="schema-missing",
            hint="run `counterfoil migrate` as a role that may, or apply what `counterfoil migrate --sql` prints",
        ) from error


def _scripts(schema: str, present: int) -> list[str]:
    made = [] if present else [_text(f"CREATE SCHEMA IF NOT EXISTS :schema;\n\n{_TABLE};\n", schema).decode()]
    for version, name in enumerate(MIGRATIONS, start=1):
        if version > present:
            script = (Path(__file__).parent / "schema" / f"{name}.sql").read_text(encoding="utf-8").strip()
            mark = f"INSERT INTO :schema.migration (version, name) VALUES ({version}, '{name}');"  # noqa: S608
            made.append(_text(f"-- {name}\n\n{script}\n\n{mark}\n", schema).decode())
    return made


def _text(script: str, schema: str) -> bytes:
    return script.replace(":schema", names.quoted(schema)).encode()
