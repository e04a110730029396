"""What the guarantees of a SQLite ledger rest on, looked at now, each with its mend."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from counterfoil.ledgers.rows import OwnerRow
from counterfoil.ledgers.sqlite import migrations
from counterfoil.ledgers.sqlite.beside import Beside
from counterfoil.ledgers.sqlite.database import WAL_BYTES_MAX, Database
from counterfoil.ledgers.sqlite.engines import Connection
from counterfoil.ledgers.sqlite.reader import Reader

Finding = tuple[str, str, str, str]

_LEVELS: Final = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}


def diagnose(
    database: Database,
    *,
    reader: Reader,
    beside: Beside,
    reason: str | None,
    owners: Sequence[OwnerRow],
) -> list[Finding]:
    """Look at everything and return findings: (level, subject, found, mend).

    Args:
        database: the ledger's file.
        reader: how it is read.
        beside: the folder beside it.
        reason: why it counts as restored, or None.
        owners: the lives that are not known to be over.
    """
    return [
        _library(database),
        *reader.query(_settings),
        _wal(database),
        _generation(reason, beside),
        _owners(owners),
        _folder(beside),
    ]


def _library(database: Database) -> Finding:
    found = f"{database.engine}, SQLite {'.'.join(map(str, database.version))}"
    if database.affected:
        mend = "use ?engine=apsw, or a Python with SQLite 3.51.3 or newer"
        return "error", "sqlite", f"{found}: two processes can corrupt a WAL database", mend
    return "ok", "sqlite", found, ""


def _settings(connection: Connection) -> list[Finding]:
    mode = connection.execute("PRAGMA journal_mode")[0][0]
    level = connection.execute("PRAGMA synchronous")[0][0]
    schema = migrations.LEDGER.version_of(connection)
    newest = len(migrations.LEDGER.scripts)
    return [
        _judged(
            ("error", "journal-mode", mode, "open the ledger again: WAL is needed"),
            fine=mode == "wal",
        ),
        _judged(
            ("error", "synchronous", _LEVELS.get(level, str(level)), "it must be FULL or EXTRA"),
            fine=level >= 2,
        ),
        _judged(
            ("error", "schema", f"{schema} of {newest}", "run `counterfoil migrate`"),
            fine=schema == newest,
        ),
    ]


def _wal(database: Database) -> Finding:
    try:
        size = os.stat(f"{database.path}-wal").st_size  # noqa: PTH116
    except OSError:
        size = 0
    mend = "find the connection that holds a snapshot open and end it; the next checkpoint then helps"
    return _judged(("warning", "wal-size", f"{size / 2**20:.1f} MiB", mend), fine=size <= WAL_BYTES_MAX)


def _generation(reason: str | None, beside: Beside) -> Finding:
    mend = f"look at what was lost, then run `{beside.accepting()}`"
    return _judged(("error", "generation", reason or "as it was left", mend), fine=reason is None)


def _owners(owners: Sequence[OwnerRow]) -> Finding:
    silent = [owner.label or owner.epoch for owner in owners if not owner.alive]
    found = f"{len(owners) - len(silent)} alive"
    if silent:
        found += f", gone without notice: {', '.join(silent)}"
    mend = "call their runs again, or recover(): unresolved effects are then reconciled"
    return _judged(("warning", "owners", found, mend), fine=not silent)


def _folder(beside: Beside) -> Finding:
    mend = "this user must be able to write there to register an owner"
    return _judged(("error", "folder", beside.folder, mend), fine=beside.writable())


def _judged(finding: Finding, *, fine: bool) -> Finding:
    return ("ok", *finding[1:3], "") if fine else finding
