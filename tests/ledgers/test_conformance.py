"""The public suite, for every ledger that we ship."""

import tempfile

import pytest

from counterfoil.ledgers.memory import MemoryLedger
from counterfoil.ledgers.sqlite import SqliteLedger
from counterfoil.ports.ledger import Ledger
from counterfoil.testing.conformance import LedgerConformance

pytestmark = pytest.mark.rule("L1", "L6", "L8", "L10", "L13", "L16")


class TestMemory(LedgerConformance):
    def make_ledger(self) -> Ledger:
        return MemoryLedger()


class _Sqlite(LedgerConformance):
    engine: str

    def make_ledger(self) -> Ledger:
        self._folder = tempfile.TemporaryDirectory()
        return SqliteLedger(f"{self._folder.name}/ledger.db", engine=self.engine)

    def teardown_method(self) -> None:
        super().teardown_method()
        self._folder.cleanup()


class TestSqliteWithApsw(_Sqlite):
    engine = "apsw"


class TestSqliteWithSqlite3(_Sqlite):
    engine = "sqlite3"
