"""Checkpoints of our own, for a SQLite with the WAL-reset defect.

The defect needs a checkpoint and a writer in two processes at one instant. Automatic checkpoints of every
connection are off there; whoever holds a lock file does one now and then. That narrows the window, it does not
close it.
"""

from __future__ import annotations

import os
from typing import Final

from counterfoil.errors import LedgerError
from counterfoil.ledgers.sqlite.beside import Beside
from counterfoil.ledgers.sqlite.database import Database
from counterfoil.ledgers.sqlite.engines import StoreError

_PAGES: Final = 1000
_COMMITS: Final = 250


class Checkpoints:
    """Does a passive checkpoint after every few hundred commits, if the WAL has grown.

    Args:
        database: the ledger's file.
        beside: where the lock file is.
    """

    def __init__(self, database: Database, beside: Beside) -> None:
        self._database = database
        self._beside = beside
        self._commits = 0

    def after_commit(self) -> None:
        """Count a commit, and checkpoint if it is time. The caller holds the write lock."""
        if not self._database.affected:
            return
        self._commits += 1
        if self._commits < _COMMITS:
            return
        self._commits = 0
        try:
            if os.stat(f"{self._database.path}-wal").st_size < _PAGES * 4096:  # noqa: PTH116
                return
            with self._beside.checkpoint_turn() as free:
                if free:
                    self._database.writing().execute("PRAGMA wal_checkpoint(PASSIVE)")
        except (OSError, StoreError, LedgerError):
            return  # the records are in the WAL; the next one tries again
