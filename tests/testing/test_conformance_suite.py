"""The suite for ledgers of other people's own finds stores that take two names for one."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

import pytest

from counterfoil.ledgers.memory import MemoryLedger
from counterfoil.ports.ledger import Ledger
from counterfoil.protocol.records import Entry, Record
from counterfoil.testing.conformance import LedgerConformance

pytestmark = pytest.mark.rule("N4")


class Folding:
    """A ledger that compares names as a collation does; what it keeps, it keeps as it was.

    Args:
        fold: what a name is compared as.
        fields: whose names are: `namespace`, `run`, `slot`.
    """

    def __init__(self, fold: Callable[[str], str], *fields: str) -> None:
        self._fold = fold
        self._fields = fields
        self._records: dict[tuple[str, ...], Record] = {}

    def _names(self, **names: str) -> tuple[str, ...]:
        return tuple(self._fold(name) if field in self._fields else name for field, name in names.items())

    def append(self, entry: Entry, *, settle: bool = False) -> Record:
        names = self._names(namespace=entry.namespace, run=entry.run, slot=entry.slot)
        kept = {name: getattr(entry, name) for name in Record.__struct_fields__ if name != "position"}
        return self._records.setdefault(names, Record(position=len(self._records) + 1, **kept))

    def read(self, namespace: str, run: str, after: int = 0) -> list[Record]:
        place = self._names(namespace=namespace, run=run)
        return [record for names, record in self._records.items() if names[:2] == place and record.position > after]


def look_alikes(ledger: Ledger) -> None:
    class Suite(LedgerConformance):
        def make_ledger(self) -> Ledger:
            return ledger

    suite: Any = Suite()
    suite.setup_method()
    suite.test_names_that_look_alike_stay_apart()


FOLDS: dict[str, Callable[[str], str]] = {
    "case": str.lower,
    "trailing spaces": str.rstrip,
    "composition": lambda name: unicodedata.normalize("NFC", name),
    "sharp s": lambda name: name.replace("\u00df", "ss"),
}


@pytest.mark.parametrize("field", ["namespace", "run", "slot"])
@pytest.mark.parametrize("fold", FOLDS)
def test_a_store_that_folds_names_is_found_out(fold: str, field: str) -> None:
    with pytest.raises(AssertionError):
        look_alikes(Folding(FOLDS[fold], field))


def test_a_store_that_keeps_names_apart_passes() -> None:
    look_alikes(MemoryLedger())
    look_alikes(Folding(str))
