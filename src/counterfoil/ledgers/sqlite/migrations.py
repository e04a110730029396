"""The schema and its versions: forward only, printable, and safe when many processes start together."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from counterfoil.errors import LedgerUnavailable
from counterfoil.ledgers.sqlite.engines import Connection

# In order; the place in this tuple, counted from 1, is the version.
MIGRATIONS: Final = ("0001_ledger",)

_TABLE: Final = "CREATE TABLE IF NOT EXISTS counterfoil_schema (version INTEGER PRIMARY KEY, name TEXT NOT NULL)"


def sql() -> str:
    """Return every migration as one SQL script, for whoever applies schemas by hand."""
    parts = [f"BEGIN IMMEDIATE;\n\n{_TABLE};\n"]
    for version, name in enumerate(MIGRATIONS, start=1):
        parts.append(f"\n-- {name}\n\n{text(name).strip()}\n\n{_mark(version, name)};\n")
    parts.append("\nCOMMIT;\n")
    return "".join(parts)


def version_of(connection: Connection) -> int:
    """Return the version of the schema in a database, 0 where there is none.

    The version is kept in a table of ours, since `user_version` may be the application's.
    """
    present = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'counterfoil_schema'")
    if not present:
        return 0
    return int(connection.execute("SELECT ifnull(max(version), 0) FROM counterfoil_schema")[0][0])


def refuse_newer(version: int) -> None:
    """Refuse a database whose schema a newer Counterfoil has written.

    Raises:
        LedgerUnavailable: the schema is newer than this version knows.
    """
    if version > len(MIGRATIONS):
        raise LedgerUnavailable(
            f"the ledger's schema has version {version}, this Counterfoil knows {len(MIGRATIONS)}",
            code="schema-newer",
            hint="use the newer Counterfoil that wrote it",
            effect_ran="no",
        )


def apply(connection: Connection) -> None:
    """Bring the schema up to date, inside a write transaction that the caller holds and commits."""
    present = version_of(connection)
    refuse_newer(present)
    connection.execute(_TABLE)
    for version, name in enumerate(MIGRATIONS, start=1):
        if version > present:
            for statement in statements(text(name)):
                connection.execute(statement)
            connection.execute(_mark(version, name))


def _mark(version: int, name: str) -> str:
    return f"INSERT INTO counterfoil_schema (version, name) VALUES ({version}, '{name}')"  # noqa: S608


def text(name: str) -> str:
    """Return the script of one migration."""
    return (Path(__file__).parent / "schema" / f"{name}.sql").read_text(encoding="utf-8")


def statements(script: str) -> list[str]:
    """Take a script apart."""
    # Our own scripts end each statement with a semicolon at the end of a line, and have no triggers.
    # A prepared statement is one statement in both engines; `executescript` would commit first.
    return [part.strip() for part in script.split(";\n") if part.strip()]
