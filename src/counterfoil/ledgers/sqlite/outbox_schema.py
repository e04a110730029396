"""The outbox's own tables, with versions of their own: a ledger without an outbox does not have them."""

from __future__ import annotations

from typing import Final

from counterfoil.errors import LedgerUnavailable
from counterfoil.ledgers.sqlite import migrations
from counterfoil.ledgers.sqlite.engines import Connection

# In order; the place in this tuple, counted from 1, is the version.
MIGRATIONS: Final = ("outbox_0001",)

_TABLE: Final = "CREATE TABLE IF NOT EXISTS counterfoil_outbox_schema (version INTEGER PRIMARY KEY, name TEXT NOT NULL)"
PRESENT: Final = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'counterfoil_outbox_schema'"


def sql() -> str:
    """Return every migration as one SQL script, to be applied behind the ledger's."""
    parts = [f"BEGIN IMMEDIATE;\n\n{_TABLE};\n"]
    for version, name in enumerate(MIGRATIONS, start=1):
        parts.append(f"\n-- {name}\n\n{migrations.text(name).strip()}\n\n{_mark(version, name)};\n")
    parts.append("\nCOMMIT;\n")
    return "".join(parts)


def version_of(connection: Connection) -> int:
    """Return the version of the outbox's tables, 0 where there are none."""
    if not connection.execute(PRESENT):
        return 0
    return int(connection.execute("SELECT ifnull(max(version), 0) FROM counterfoil_outbox_schema")[0][0])


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


def apply(connection: Connection) -> None:
    """Bring the tables up to date, inside a write transaction that the caller holds and commits."""
    present = version_of(connection)
    refuse_newer(present)
    connection.execute(_TABLE)
    for version, name in enumerate(MIGRATIONS, start=1):
        if version > present:
            for statement in migrations.statements(migrations.text(name)):
                connection.execute(statement)
            connection.execute(_mark(version, name))


def _mark(version: int, name: str) -> str:
    return f"INSERT INTO counterfoil_outbox_schema (version, name) VALUES ({version}, '{name}')"  # noqa: S608
