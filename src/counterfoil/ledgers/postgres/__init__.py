"""The PostgreSQL ledger; it needs the extra `postgres`."""

from counterfoil.ledgers.postgres.ledger import PostgresLedger
from counterfoil.ledgers.postgres.migrations import LEDGER

sql = LEDGER.sql

__all__ = ["PostgresLedger", "sql"]
