"""What a trial takes place on: a clock that moves when somebody waits, and a ledger that fails as planned."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any, Final, Self

from counterfoil import threads
from counterfoil.errors import CommitUnknown, LedgerError, LedgerUnavailable
from counterfoil.ledgers.memory import MemoryLedger
from counterfoil.ledgers.urls import parse
from counterfoil.ports.ledger import Closing, Ledger, Owners
from counterfoil.testing.plans import LedgerFault

BEGAN: Final = 1_790_000_000.0


class Clock:
    """A clock that stands still until it is moved, or until somebody begins to wait."""

    def __init__(self) -> None:
        self.elapsed = 0.0
        self._skip = 0.0

    def now(self) -> float:
        """Return the seconds since it was made."""
        return self.elapsed

    def time(self) -> float:
        """Return seconds since 1970."""
        return BEGAN + self.elapsed

    def monotonic(self) -> float:
        """Return seconds that only grow. Who looks when a wait begins finds it over at his next look."""
        now, skip, self._skip = self.elapsed, self._skip, 0.0
        self.elapsed += skip
        return now

    def skip(self, seconds: float) -> None:
        """Let time pass as soon as somebody has looked when his wait began."""
        self._skip = seconds

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.elapsed += seconds


class LedgerFaults:
    """Counts the calls of a ledger that concern one run, and says what becomes of them.

    A commit may still be open when its caller learns nothing of it: who looks sees nothing yet, and who writes
    waits for it to end.
    """

    def __init__(self, run: str, planned: Mapping[int, LedgerFault], times: int) -> None:
        self.run = run
        self.planned: dict[int, LedgerFault] = {
            number + more: fault for number, fault in planned.items() for more in range(times)
        }
        self.calls = 0
        self.healed = False
        self._open: list[tuple[Any, bool]] = []

    def next(self, run: str) -> LedgerFault | None:
        """Count a call, and say what becomes of it."""
        if run != self.run or self.healed:
            return None
        self.calls += 1
        return self.planned.get(self.calls)

    def next_append(self, ledger: Any, entry: Any, *, settle: bool) -> LedgerFault | None:
        """Count an append, which waits for open commits, and say what becomes of it; it may be left open itself."""
        self.land(ledger)
        fault = self.next(entry.run)
        if fault == "late":
            self._open.append((entry, settle))
        return fault

    def land(self, ledger: Any) -> None:
        """End the commits that are open."""
        ending, self._open = self._open, []
        for entry, settle in ending:
            # Nobody is there any more to be told of a refusal.
            with suppress(LedgerError):
                ledger.append(entry, settle=settle)


def _refused(what: str) -> LedgerUnavailable:
    return LedgerUnavailable(f"the disk is full ({what})", code="disk-full", effect_ran="no")


def _unknown() -> CommitUnknown:
    return CommitUnknown("the connection broke at COMMIT")


def faulty(ledger: Any, faults: LedgerFaults) -> Any:
    """Put planned faults before a ledger; it keeps exactly the ports that it has."""

    def append(entry: Any, *, settle: bool = False) -> Any:
        fault = faults.next_append(ledger, entry, settle=settle)
        if fault == "full":
            raise _refused(entry.slot)
        if fault == "committed":
            ledger.append(entry, settle=settle)
        if fault is not None:
            raise _unknown()
        return ledger.append(entry, settle=settle)

    def submit(entry: Any, *, settle: bool, token: object, deliver: Callable[[Any], None]) -> None:
        fault = faults.next_append(ledger, entry, settle=settle)
        if fault == "committed":

            def answer(batch: list[tuple[object, Any]]) -> None:
                lost = _unknown()
                deliver([(each, reply if isinstance(reply, BaseException) else lost) for each, reply in batch])

            ledger.submit(entry, settle=settle, token=token, deliver=answer)
        elif fault is not None:
            error = _refused(entry.slot) if fault == "full" else _unknown()
            threads.submit(lambda: deliver([(token, error)]))
        else:
            ledger.submit(entry, settle=settle, token=token, deliver=deliver)

    def read(namespace: str, run: str, after: int = 0) -> Any:
        if faults.next(run) == "full":
            raise LedgerUnavailable("the ledger cannot be read", effect_ran="no")
        found = ledger.read(namespace, run, after)
        faults.land(ledger)
        return found

    return _with_ports(ledger, {"append": append, "submit": submit, "read": read}, faults)


def _with_ports(ledger: Any, replaced: dict[str, Callable[..., Any]], faults: LedgerFaults) -> Any:
    """Make a ledger with the methods of another, some of them replaced: ports are found by their methods."""
    methods: dict[str, Any] = {}
    for name in dir(ledger):
        method = getattr(ledger, name)
        if name.startswith("_") or not callable(method):
            continue
        if name in ("register", "gone", "live", "changes"):
            method = _failing(method, faults)
        methods[name] = staticmethod(replaced.get(name, method))
    return type("FaultyLedger", (), methods)()


def _failing(method: Callable[..., Any], faults: LedgerFaults) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        if faults.next(faults.run) == "full":
            raise _refused(method.__name__)
        return method(*args)

    return call


class Store:
    """A ledger that outlives the lives of one examination.

    Args:
        target: a ledger's URL, `memory` or `sqlite` (a file of its own, removed afterwards), or a ledger.
    """

    def __init__(self, target: str | Ledger) -> None:
        self._target = target
        self._kept: Ledger | None = None
        self._stack = ExitStack()
        self.name = target if isinstance(target, str) else type(target).__name__

    def __enter__(self) -> Self:
        target = self._target
        if not isinstance(target, str):
            self._kept = target
        elif target in ("memory", "memory:"):
            self._kept = MemoryLedger()
        elif target in ("sqlite", "sqlite3"):
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="counterfoil-trial-"))
            engine = "?engine=sqlite3" if target == "sqlite3" else ""
            self._target = f"sqlite:///{folder}/ledger.db{engine}"
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open(self) -> Ledger:
        """Open the ledger for one life."""
        if self._kept is not None:
            return self._kept
        assert isinstance(self._target, str)
        return parse(self._target).open()

    def leave(self, ledger: Ledger) -> None:
        """Close what one life had open."""
        if self._kept is None and isinstance(ledger, Closing):
            ledger.close()

    def kill(self, ledger: Ledger, epochs: set[str]) -> None:
        """End a life as the death of its process would: others find it gone."""
        if self._kept is None:
            self.leave(ledger)
        elif isinstance(ledger, Owners):
            for epoch in epochs:
                ledger.retire(epoch)
