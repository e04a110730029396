"""The part of the conformance suite for ledgers in a database that the application writes to (`Transactional`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from counterfoil.errors import CounterfoilError, OwnerRetired, RunPruned, UsageError
from counterfoil.ports.ledger import Owners, Retention, Transactional
from counterfoil.protocol import slots
from counterfoil.protocol.records import RUN, TRANSACTION, Entry, with_body
from counterfoil.testing.suite import Suite, expect, in_threads, same


class TransactionCases(Suite):
    """Tests of `Transactional`; a table of the application's own stands beside the ledger's."""

    table: str

    def transactional(self) -> Transactional:
        """Return the ledger with the application's table made; skip the test where it has no transactions."""
        ledger: Transactional = self.having(Transactional)

        # A name of its own: the application's tables may be shared by ledgers that are not.
        self.table = f"counterfoil_conformance_{os.urandom(4).hex()}"

        def makes(connection: Any) -> bytes:
            connection.execute(f"CREATE TABLE {self.table} (n INT)")
            return b"{}"

        ledger.transact(self.receipt("schema"), makes)
        return ledger

    def receipt(self, name: str, *, phase: str = "committed", number: int = 1, epoch: str | None = None) -> Entry:
        """Make the entry of a transaction's receipt; its body is not known yet."""
        slot = slots.transaction(name, number)
        return self.entry(slot, kind=TRANSACTION, phase=phase, body=b"", epoch=epoch, decision=phase == "committed")

    def inserted(self) -> int:
        """Count the rows of the application's table."""
        found: list[int] = []

        def body(connection: Any) -> bytes:
            found.append(int(connection.execute(f"SELECT count(*) FROM {self.table}").fetchall()[0][0]))  # noqa: S608
            return b"{}"

        self._number += 1
        self.having(Transactional).transact(self.receipt(f"count {self._number}"), body)
        return found[0]

    def inserts(self, error: BaseException | None = None, *, then: tuple[str, ...] = ()) -> Callable[[Any], bytes]:
        """Make a body that inserts a row, executes more statements, and raises or returns."""

        def body(connection: Any) -> bytes:
            connection.execute(f"INSERT INTO {self.table} VALUES (1)")  # noqa: S608
            for statement in then:
                connection.execute(statement)
            if error is not None:
                raise error
            return b'{"n":1}'

        return body

    def test_a_body_and_its_record_are_committed_together(self) -> None:
        """The record is the receipt with the body's own words, and the application's row is there."""
        ledger = self.transactional()
        entry = self.receipt("a")
        record = ledger.transact(entry, self.inserts())
        assert same(record, with_body(entry, b'{"n":1}'))
        assert entry.slot in self.slots_of()
        assert self.inserted() == 1

    def test_what_a_body_raises_passes_and_leaves_nothing(self) -> None:
        """Neither a row nor a record is left, and the slot is free."""
        ledger = self.transactional()
        raised = ValueError("the body's own")
        entry = self.receipt("a")
        assert expect(ValueError, lambda: ledger.transact(entry, self.inserts(raised))) is raised
        assert entry.slot not in self.slots_of()
        assert self.inserted() == 0
        ledger.transact(self.receipt("a"), self.inserts())
        assert self.inserted() == 1

    def test_a_filled_slot_answers_and_no_body_runs(self) -> None:
        """A receipt answers for its transaction, and `aborted` for a COMMIT that can no longer succeed."""
        ledger = self.transactional()
        first = ledger.transact(self.receipt("a"), self.inserts())
        aborted = self.ledger.append(with_body(self.receipt("b", phase="aborted"), b"{}"))
        for name, standing in (("a", first), ("b", aborted)):
            assert ledger.transact(self.receipt(name), _never) == standing
        assert self.inserted() == 1

    def test_of_many_threads_one_bodys_rows_are_committed(self) -> None:
        """All are told of the one record, and only its body's row stays."""
        ledger = self.transactional()
        works = [partial(ledger.transact, self.receipt("a"), self.inserts()) for _ in range(6)]
        found = in_threads(works)
        assert len({record.append_id for record in found}) == 1
        assert self.inserted() == 1

    def test_savepoints_work_and_ending_the_transaction_does_not(self) -> None:
        """A body may roll back to a savepoint of its own; one that commits or rolls back is refused."""
        ledger = self.transactional()
        then = ("SAVEPOINT s", f"INSERT INTO {self.table} VALUES (2)", "ROLLBACK TO s")  # noqa: S608
        ledger.transact(self.receipt("a"), self.inserts(then=then))
        assert self.inserted() == 1
        for name, ending in (("b", "ROLLBACK"), ("c", "COMMIT")):
            error = expect(UsageError, partial(ledger.transact, self.receipt(name), self.inserts(then=(ending,))))
            assert error.code == "transaction-ended"
            assert slots.transaction(name, 1) not in self.slots_of()
            # What a store cannot keep from being committed must not be called undone.
            assert self.inserted() == 1 or error.effect_ran == "unknown"

    def test_a_fenced_life_runs_no_body(self) -> None:
        """To begin a transaction is a decision."""
        ledger = self.transactional()
        owners: Owners = self.having(Owners)
        gone = owners.register("gone")
        owners.retire(gone)
        expect(OwnerRetired, lambda: ledger.transact(self.receipt("a", epoch=gone), _never))
        first = ledger.transact(self.receipt("b"), self.inserts())
        assert ledger.transact(self.receipt("b", epoch=gone), _never) == first

    def test_a_pruned_run_runs_no_body(self) -> None:
        """The tombstone is checked before the body is called."""
        ledger = self.transactional()
        retention: Retention = self.having(Retention)
        entry = partial(self.entry, run="pruned")
        self.ledger.append(entry(slots.FINISHED, kind=RUN, phase="finished"))
        tombstone = entry(slots.TOMBSTONE, kind=RUN, phase="tombstone")
        retention.bury(tombstone.namespace, "pruned", tombstone=tombstone, kept=[], drop=[])
        receipt = entry(slots.transaction("a", 1), kind=TRANSACTION, phase="committed", decision=True)
        expect(RunPruned, lambda: ledger.transact(receipt, _never))


def _never(connection: Any) -> bytes:
    raise CounterfoilError(f"this body must not be called, with {connection!r} or without")
