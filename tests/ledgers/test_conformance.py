"""The public suite, for every ledger that we ship."""

import os
import pkgutil
import tempfile
from collections.abc import Iterator
from importlib import import_module
from itertools import count
from typing import Any

import pytest

from counterfoil import ledgers
from counterfoil.ledgers.jetstream import JetStreamLedger
from counterfoil.ledgers.jetstream.place import Place
from counterfoil.ledgers.memory import MemoryLedger
from counterfoil.ledgers.postgres import PostgresLedger
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


class TestPostgres(LedgerConformance):
    major = 18
    _numbers = count(1)
    url: str

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls, postgres_clusters: Any) -> Iterator[None]:
        cluster = postgres_clusters(cls.major)
        cls.url = cluster.database(name := f"conformance_{os.getpid()}")
        yield
        cluster.drop(name)

    def make_ledger(self) -> Ledger:
        return PostgresLedger(self.url, schema=f"test_{next(self._numbers)}")


class TestOldestPostgres(TestPostgres):
    major = 16


class TestJetStream(LedgerConformance):
    _numbers = count(1)
    place: Place

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls, nats: Any) -> None:
        cls.place = Place(servers=(nats.url,))

    def make_ledger(self) -> Ledger:
        # The shared server syncs lazily, which is refused unless it is allowed.
        return JetStreamLedger(self.place, stream=f"conformance{next(self._numbers)}", allow_lazy_sync=True)


RULE_PARTS = ("W", "L")


@pytest.mark.rule("L16")
def test_every_ledger_that_ships_is_held_to_the_suite_in_both_colours() -> None:
    shipped = {
        name
        for module in pkgutil.walk_packages(ledgers.__path__, f"{ledgers.__name__}.")
        for name in vars(import_module(module.name))
        if name.endswith("Ledger") and name not in ("Ledger", "ForkedLedger")
    }
    assert shipped == {"MemoryLedger", "SqliteLedger", "PostgresLedger", "JetStreamLedger"}
    tests = [name for name in dir(LedgerConformance) if name.startswith("test_")]
    assert len(tests) >= 20
    suite = TestMemory()
    suite.setup_method()
    # The colours differ in how they append: one waits, the other is told.
    assert [colour for colour, _ in suite.ways()] == ["append", "submit"]
    suite.teardown_method()
