"""The public suite, for every ledger that we ship."""

import pkgutil
import tempfile
from importlib import import_module

import pytest

from counterfoil import ledgers
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


RULE_PARTS = ("W", "L")


@pytest.mark.rule("L16")
def test_every_ledger_that_ships_is_held_to_the_suite_in_both_colours() -> None:
    shipped = {
        name
        for module in pkgutil.walk_packages(ledgers.__path__, f"{ledgers.__name__}.")
        for name in vars(import_module(module.name))
        if name.endswith("Ledger") and name not in ("Ledger", "ForkedLedger")
    }
    assert shipped == {"MemoryLedger", "SqliteLedger"}
    tests = [name for name in dir(LedgerConformance) if name.startswith("test_")]
    assert len(tests) >= 20
    suite = TestMemory()
    suite.setup_method()
    # The colours differ in how they append: one waits, the other is told.
    assert [colour for colour, _ in suite.ways()] == ["append", "submit"]
    suite.teardown_method()
