"""What the conformance suite is written with: a ledger for each test, entries, expected errors, many threads."""

from __future__ import annotations

import threading
import unittest
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from counterfoil.ports.ledger import Batching, Closing, Ledger, Owners, Reply
from counterfoil.protocol.records import STEP, Entry, Record, checksum
from counterfoil.threads import start_daemon

E = TypeVar("E", bound=BaseException)
R = TypeVar("R")

Put = Callable[..., Record]

NAMESPACE: Final = "conformance"
WAIT_S: Final = 30.0
_SHARED: Final = ("slot", "kind", "phase", "body", "epoch", "append_id", "at", "check", "format")


class Suite:
    """Tests of one ledger; each gets a ledger of its own."""

    ledger: Ledger
    epoch: str
    _number: int

    def make_ledger(self) -> Ledger:
        """Return a fresh, empty ledger."""
        raise NotImplementedError

    def setup_method(self) -> None:
        """Open the ledger and register a life, where there are owners."""
        self.ledger = self.make_ledger()
        self.epoch = self.ledger.register("conformance") if isinstance(self.ledger, Owners) else ""
        self._number = 0

    def teardown_method(self) -> None:
        """Close the ledger."""
        if isinstance(self.ledger, Closing):
            self.ledger.close()

    # --- what the tests are written with

    def entry(
        self,
        slot: str,
        *,
        run: str = "run",
        namespace: str = NAMESPACE,
        kind: str = STEP,
        phase: str = "result",
        body: bytes = b"null",
        epoch: str | None = None,
        append_id: int | None = None,
        decision: bool = False,
    ) -> Entry:
        """Make an entry with a checksum and, unless one is given, an append id of its own."""
        if append_id is None:
            self._number += 1
            append_id = self._number
        epoch = self.epoch if epoch is None else epoch
        return Entry(
            namespace=namespace,
            run=run,
            slot=slot,
            kind=kind,
            phase=phase,
            body=body,
            epoch=epoch,
            append_id=append_id,
            at=1_790_000_000.25 + append_id,
            decision=decision,
            check=checksum(namespace, run, slot, kind=kind, phase=phase, body=body, epoch=epoch, append_id=append_id),
        )

    def ways(self) -> Iterator[tuple[str, Put]]:
        """Yield each way of appending with a name for it."""
        yield "append", lambda entry, settle=False: self.ledger.append(entry, settle=settle)
        if isinstance(self.ledger, Batching):
            yield "submit", lambda entry, settle=False: self.submit(entry, settle=settle)

    def submit(self, entry: Entry, *, settle: bool = False) -> Record:
        """Append through `submit` and wait for the reply."""
        token = object()
        told: SimpleQueue[list[tuple[object, Reply]]] = SimpleQueue()
        self.having(Batching).submit(entry, settle=settle, token=token, deliver=told.put)
        ((back, reply),) = told.get(timeout=WAIT_S)
        assert back is token
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def having(self, port: Any) -> Any:
        """Return the ledger if it has an optional port; skip the test otherwise."""
        if not isinstance(self.ledger, port):
            raise unittest.SkipTest(f"the ledger has no {port.__name__}")
        return self.ledger

    def slots_of(self, run: str = "run", namespace: str = NAMESPACE, *, after: int = 0) -> list[str]:
        """Return the slots of a run in order of position."""
        return [record.slot for record in self.ledger.read(namespace, run, after)]


def same(record: Record, entry: Entry) -> bool:
    """Return whether a record is what an entry becomes, position aside."""
    return all(getattr(record, name) == getattr(entry, name) for name in _SHARED)


def expect(error: type[E], work: Callable[[], object]) -> E:
    """Do work that must raise, and return what it raised."""
    try:
        work()
    except error as raised:
        return raised
    raise AssertionError(f"{error.__name__} was not raised")


def in_threads(works: Sequence[Callable[[], R]]) -> list[R]:
    """Do all works at once, each in a thread of its own, and return their results."""
    results: list[R | BaseException | None] = [None] * len(works)
    barrier = threading.Barrier(len(works))

    def run(place: int, work: Callable[[], R]) -> None:
        barrier.wait(WAIT_S)
        try:
            results[place] = work()
        except BaseException as error:  # noqa: BLE001
            results[place] = error

    threads = [start_daemon("conformance", partial(run, *pair)) for pair in enumerate(works)]
    for thread in threads:
        thread.join(WAIT_S)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # type: ignore[return-value]
