"""The SQLite ledger."""

from counterfoil.ledgers.sqlite.ledger import SqliteLedger
from counterfoil.ledgers.sqlite.migrations import LEDGER

sql = LEDGER.sql

__all__ = ["SqliteLedger", "sql"]
