"""Which runs may be left behind: looking for them again and again, and what is learnt about the others."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from counterfoil.effects import carry, lifetime
from counterfoil.errors import UsageError
from counterfoil.protocol import codec, records
from counterfoil.protocol.history import History
from counterfoil.runtime import arguments, views
from counterfoil.runtime.others import any_silent
from counterfoil.runtime.session import Session

Bodies = Iterable[Callable[..., Any]] | Mapping[str, Callable[..., Any]]
Told = Callable[[str, str, Any], None]
"""Called with an event (`resumed`, `finished`, `raised`, `released`, `quarantined`), the run, and what came of it."""

LOOK_S: Final = 0.2
_LIFTED_S: Final = 5.0
# So many lives in a row have ended with a body before it is kept apart, for so many seconds from its beginning.
_SUSPECT: Final = 2
_ALONE_S: Final = 5.0
_AGAIN_FIRST_S: Final = 1.0
_AGAIN_LAST_S: Final = 300.0


class Left(Exception):
    """The run is left alone: somebody else has it, or nobody shall."""


class Search:
    """Which runs may be left behind, oldest first. It remembers what it has learnt about the others.

    Args:
        session: the life that looks.
        bodies: those that may be resumed.
        asynchronous: whether they are to be async functions, or plain ones.
        deaths_max: when a run is quarantined.
        told: hears what happens.

    Attributes:
        again: whether a body that raised is called again, later and later.
        dry: whether the last look found nothing, now or soon.
    """

    def __init__(self, session: Session, bodies: Bodies, *, asynchronous: bool, deaths_max: int, told: Told) -> None:
        if type(deaths_max) is not int or deaths_max < 1:
            raise UsageError(f"deaths_max must be an int of 1 or more, not {deaths_max!r}")
        self._session = session
        self._table = arguments.body_table(bodies)
        for body in self._table.values():
            arguments.coloured(body, asynchronous=asynchronous)
        self.deaths_max = deaths_max
        self.told = told
        self.again = True
        self._carriers: dict[str, str] = {}
        self._foreign: set[str] = set()
        self._quarantined: set[str] = set()
        self._again: dict[str, tuple[float, float]] = {}
        self._queue: deque[str] = deque()
        self._next_s = 0.0
        self._lock = threading.Lock()
        self._begun: dict[str, tuple[float, bool]] = {}
        self._deferred: set[str] = set()
        self._silent = False
        self.dry = False

    def take(self, room: int) -> list[str]:
        """Take runs that may be left behind, as many as there is room for; blocks, and looks anew now and then."""
        if not self._queue and (now := time.monotonic()) >= self._next_s:
            self._queue.extend(self.candidates())
            self._next_s = now + LOOK_S
            self.dry = not self._queue and not self.pending
        return [self._queue.popleft() for _ in range(min(room, len(self._queue)))]

    def candidates(self) -> list[str]:
        """Look for runs that may be left behind; blocks."""
        session = self._session
        self._deferred.clear()
        gone: dict[str, bool] = {}
        found: list[str] = []
        seen: set[str] = set()
        for row in views.rows(session, finished=False, holding=[(records.RUN, "started")]):
            seen.add(row.run)
            if row.run in self._foreign or row.run in session.carried or not self._due(row.run):
                continue
            epoch = self._carriers.get(row.run)
            if epoch is not None and epoch not in gone:
                gone[epoch] = session.owners is None or session.owners.gone(epoch)
            if epoch is None or gone[epoch]:
                found.append(row.run)
        self._silent = any_silent(session.owners, self._carriers.values())
        for known in (self._carriers, self._again):
            for run in known.keys() - seen:
                del known[run]
        self._foreign &= seen
        self._quarantined &= seen
        return found

    @property
    def pending(self) -> bool:
        """Whether there will soon be more: a life that carries a run is silent, or a body waits for its turn."""
        return self._silent or bool(self._deferred)

    def enter(self, history: History) -> None:
        """Note that a body begins; one that may have killed its process begins when no other one has just begun.

        So neighbours of such a body are not blamed for what it does.

        Raises:
            Left: it is not its turn.
        """
        carrier = carry.carrier_of(history)
        suspect = carrier is not None and carrier.deaths >= _SUSPECT
        with self._lock:
            now = time.monotonic()
            fresh = [alone for at, alone in self._begun.values() if now - at < _ALONE_S]
            if fresh and (suspect or any(fresh)):
                self._deferred.add(history.run)
                raise Left
            self._begun[history.run] = (now, suspect)

    def leave(self, run_id: str) -> None:
        """Note that a body has ended."""
        with self._lock:
            self._begun.pop(run_id, None)

    def body_of(self, history: History) -> tuple[Callable[..., Any], list[Any]]:
        """Return a run's body and its arguments.

        Raises:
            Left: it is not one of the bodies that may be resumed.
            LedgerCorrupt: the record of its start cannot be decoded.
        """
        begun = lifetime.started(history)
        body = None if begun is None else self._table.get(begun.body)
        if begun is None or body is None:
            self._foreign.add(history.run)
            raise Left
        return body, codec.decode(bytes(begun.args))

    def refused(self, history: History) -> Left:
        """Remember why a run was not claimed."""
        carrier = carry.carrier_of(history)
        if carrier is not None and carrier.quarantine:
            # Looked at again from time to time: a person may lift it.
            self._again[history.run] = (self._session.clock.monotonic() + _LIFTED_S, _AGAIN_FIRST_S / 2)
            if history.run not in self._quarantined:
                self._quarantined.add(history.run)
                self.told("quarantined", history.run, carrier.deaths)
        elif carrier is not None and carrier.epoch not in self._session.own_epochs:
            self._carriers[history.run] = carrier.epoch
        return Left()

    def ended(self, run_id: str, result: Any) -> None:
        """Tell of an end."""
        if isinstance(result, BaseException):
            _, wait_s = self._again.get(run_id, (0.0, _AGAIN_FIRST_S / 2))
            wait_s = min(wait_s * 2, _AGAIN_LAST_S) if self.again else math.inf
            self._again[run_id] = (self._session.clock.monotonic() + wait_s, wait_s)
            self.told("raised", run_id, result)
        else:
            self.told("finished", run_id, result)

    def _due(self, run_id: str) -> bool:
        due, _ = self._again.get(run_id, (0.0, 0.0))
        return self._session.clock.monotonic() >= due
