"""What both drivers share: one ledger, one life in it, and what that life remembers of its runs."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, cast
from weakref import WeakValueDictionary

from counterfoil import threads
from counterfoil.effects.scope import Memory, Scope
from counterfoil.errors import CommitUnknown, ForkedLedger, LedgerError, LedgerReadOnly, OwnerRetired, UsageError
from counterfoil.ledgers.urls import parse
from counterfoil.ports.clock import Clock
from counterfoil.ports.ledger import Batching, Cautious, Closing, Ledger, Notifier, Owners, Restorable, Transactional
from counterfoil.protocol import codec, keys, records, slots
from counterfoil.protocol.history import History
from counterfoil.protocol.keys import Fingerprints
from counterfoil.protocol.records import Draft, Entry, Record, entry_of
from counterfoil.protocol.requests import Filled

_forks = itertools.count()
_process: int = next(_forks)


def _after_fork() -> None:
    global _process  # noqa: PLW0603 - sessions of the parent must not work in the child
    _process = next(_forks)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class RunState:
    """What this life has of one run, shared by all its handles."""

    __slots__ = ("__weakref__", "history", "memory")

    def __init__(self, namespace: str, run: str) -> None:
        self.history = History(namespace, run)
        self.memory = Memory()


class CallableClock:
    """A clock made of a function that returns seconds since 1970."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.time = now
        self._last = now()
        self._grown = 0.0

    def monotonic(self) -> float:
        """Return the sum of all forward movements of the function."""
        now = self.time()
        self._grown += max(0.0, now - self._last)
        self._last = now
        return self._grown


class Session:
    """One runtime's life against a ledger."""

    def __init__(self, url_or_ledger: str | Ledger, *, namespace: str | None, owner: str | None, clock: Any) -> None:
        self._url = parse(url_or_ledger) if isinstance(url_or_ledger, str) else None
        if self._url is None and not isinstance(url_or_ledger, Ledger):
            raise UsageError(
                f"a runtime takes a ledger's URL or a ledger (append and read), not {type(url_or_ledger).__name__}",
                hint="for example sqlite:///effects.db",
            )
        self._given: Ledger | None = None if isinstance(url_or_ledger, str) else url_or_ledger
        self._namespace = None if namespace is None else keys.name(namespace, "namespace")
        self.label = f"pid {os.getpid()}" if owner is None else keys.name(owner, "owner")
        self.clock: Clock = _clock(clock)
        self.virtual = self.clock is not time
        self._ledger: Ledger | None = None
        # What the open ledger can do: found once, since to ask an instance for a protocol is slow.
        self.batching: Batching | None = None
        self.owners: Owners | None = None
        self.notifier: Notifier | None = None
        self.transactional: Transactional | None = None
        self._lock = threading.Lock()
        self._registering = threading.Lock()
        self._appends = itertools.count(1)
        self._process: int = _process
        self._epoch: str | None = None
        self.own_epochs: set[str] = set()
        self.states: WeakValueDictionary[str, RunState] = WeakValueDictionary()
        self.pinned: dict[str, RunState] = {}
        self.carried: Counter[str] = Counter()
        self.namespace = ""
        self._fingerprints = Fingerprints({}, "")
        self._accepted = 0
        self._unborn: LedgerReadOnly | None = None
        self._physical: set[object] = set()
        self._ended = False
        self.ending = False

    # --- opening and closing

    def open(self) -> None:
        """Open the ledger and learn its birth.

        Raises:
            UsageError, LedgerUnavailable, LedgerCorrupt: as the ledger says; nothing was recorded.
        """
        if self._ledger is not None:
            raise UsageError("this runtime is open already, or was left", hint="make another one", code="entered-twice")
        self._process = _process
        if self._given is not None:
            self._ledger = self._given
        else:
            assert self._url is not None
            self._ledger = self._url.open()
        try:
            ledger = self.ledger
            self.batching = ledger if isinstance(ledger, Batching) else None
            self.owners = ledger if isinstance(ledger, Owners) else None
            self.notifier = ledger if isinstance(ledger, Notifier) else None
            self.transactional = ledger if isinstance(ledger, Transactional) else None
            self._learn_birth()
            if isinstance(ledger, Restorable):
                self._accepted = ledger.accepted_generation()
        except BaseException:
            self._close_ledger()
            raise

    @property
    def shown(self) -> str:
        """What tells it from others, for people: its ledger, and what that does not promise."""
        ledger: object = self._ledger
        caution = ledger.caution if isinstance(ledger, Cautious) else None
        return f"{self._url or self._given!r}{'' if caution is None else f', {caution}'}"

    @property
    def ledger(self) -> Ledger:
        """The open ledger.

        Raises:
            UsageError: the runtime is not entered.
            ForkedLedger: this process is a fork of the one that opened it.
        """
        ledger = self._ledger
        if ledger is None or self._process != _process:
            self._opened()
            assert ledger is not None
        return ledger

    def check(self) -> None:
        """Check that the session takes new calls: it is open, in this process, and not being left."""
        if self._ledger is None or self._process != _process:
            self._opened()
        if self.ending:
            raise UsageError("the runtime was left", hint="open another one", code="not-entered")

    def _opened(self) -> None:
        if self._process != _process and self._ledger is not None:
            raise ForkedLedger(
                "this runtime was opened before fork() and does not work in the child; the parent is unharmed",
                hint="open a runtime after the fork",
            )
        if self._ledger is None:
            raise UsageError("the runtime is not open", hint="use it in a `with` block", code="not-entered")

    def _learn_birth(self) -> None:
        found = {r.slot: r for r in self.ledger.read(slots.SYSTEM_NAMESPACE, slots.SYSTEM_RUN)}
        record = found.get(slots.BIRTH)
        if record is None:
            try:
                record = self._give_birth()
            except LedgerReadOnly as error:
                # Nothing was ever recorded in it: any namespace will do for looking, and nothing else is possible.
                self.namespace = self._namespace or "unborn"
                self._unborn = error
                return
        birth = codec.parse(record, codec.BirthBody, namespace=slots.SYSTEM_NAMESPACE, run=slots.SYSTEM_RUN)
        self.namespace = self._namespace or birth.namespace
        self._fingerprints = Fingerprints({birth.key_id: bytes.fromhex(birth.key)}, birth.key_id)

    def _give_birth(self) -> Record:
        body = codec.BirthBody(namespace=os.urandom(8).hex(), key_id=os.urandom(3).hex(), key=os.urandom(32).hex())
        draft = Draft(slot=slots.BIRTH, kind=records.LEDGER, phase="birth", body=codec.body_of(body))
        entry = entry_of(
            draft,
            slots.SYSTEM_NAMESPACE,
            slots.SYSTEM_RUN,
            epoch="",
            append_id=next(self._appends),
            at=self.clock.time(),
        )
        # Two processes may give birth at once with the same (epoch, append id): the body tells them apart, and
        # the record in the slot is what counts either way.
        try:
            return self.ledger.append(entry)
        except CommitUnknown:
            return self.ledger.append(entry, settle=True)

    def retain(self, work: object) -> None:
        """Note that a flow, or the call of a handler of the user, has begun."""
        self._physical.add(work)

    def release(self, work: object, *, on_loop: bool = False) -> None:
        """Note that one has really ended; the last one after closing ends the life, never on an event loop."""
        # No lock: what is set first here is looked at last in `close`, and the other way round.
        self._physical.discard(work)
        if self.ending and not self._physical:
            if on_loop:
                threads.submit(self._end_unwatched)
            else:
                self._end()

    def close(self) -> None:
        """End this life: at once, or when the last handler that still runs has really ended.

        Until then its owner stays alive for others, so that nobody asks the recipient about something that is
        still being sent.
        """
        with self._lock:
            if self.ending or self._ledger is None:
                return
            self.ending, self._ended = True, False
        if not self._physical:
            self._end()

    def _end_unwatched(self) -> None:
        # Nobody is left to be told: what the ledger has is durable, and its locks are given back either way.
        with suppress(LedgerError):
            self._end()

    def _end(self) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
        try:
            if self._ledger is not None and self.owners is not None and self._process == _process:
                for epoch in self.own_epochs:
                    # Its lock is given back even if that cannot be recorded, so others find it gone; and what the
                    # caller has in hand (perhaps the proof of an effect) matters more than this.
                    with suppress(LedgerError):
                        self.owners.retire(epoch)
        finally:
            self._close_ledger()

    def _close_ledger(self) -> None:
        ledger, self._ledger = self._ledger, None
        ours = ledger is not None and self._given is None and self._process == _process
        if ours and ledger is not None and isinstance(ledger, Closing):
            ledger.close()
        self.ending = False
        self._epoch = None

    # --- the life

    def epoch(self) -> str:
        """Return this life's epoch, registering it with the first record that it makes."""
        epoch = self._epoch
        if epoch is not None:
            return epoch
        with self._registering:
            if self._epoch is None:
                self._opened()
                if self.owners is not None:
                    epoch = self.owners.register(self.label)
                    ledger = self.ledger
                    if isinstance(ledger, Restorable):
                        # It may have been accepted as restored since this runtime opened it.
                        self._accepted = ledger.accepted_generation()
                else:
                    epoch = f"0.{os.urandom(4).hex()}"
                self.own_epochs.add(epoch)
                self._epoch = epoch
            return self._epoch

    def epoch_of(self, scope: Scope) -> str:
        """Return the epoch of a handle. It stays: what a retired one had decided it must not go on with.

        Raises:
            OwnerRetired: the ledger went back in time, and was accepted, after the handle was opened.
        """
        if scope.epoch is None:
            epoch = self.epoch()
            if scope.accepted_generation < self._accepted:
                raise OwnerRetired("the ledger was restored, and accepted, since this handle was opened")
            scope.epoch = epoch
        return scope.epoch

    def has_epoch(self, scope: Scope) -> bool:
        """Say whether `epoch_of` answers without blocking."""
        return scope.epoch is not None or self._epoch is not None

    def retired(self, epoch: str) -> None:
        """Note that an epoch was refused; new handles get a fresh one."""
        if self._epoch != epoch:
            # It was noted before. Whoever registers the next one has the lock meanwhile, and this may be a loop.
            return
        with self._registering:
            if self._epoch == epoch:
                self._epoch = None

    # --- records

    def entry(self, scope: Scope, draft: Draft, epoch: str) -> Entry:
        """Make an entry of a draft, with an append id of its own."""
        return entry_of(
            draft, scope.namespace, scope.run, epoch=epoch, append_id=next(self._appends), at=self.clock.time()
        )

    def filled(self, scope: Scope, entry: Entry, record: Record) -> Filled:
        """Answer an append."""
        scope.history.take(record)
        return Filled(record, record.append_id == entry.append_id and record.epoch == entry.epoch)

    def refused(self, error: BaseException, entry: Entry) -> None:
        """Take note of an append's error."""
        if isinstance(error, CommitUnknown):
            error.entry = entry  # type: ignore[attr-defined]
        elif isinstance(error, OwnerRetired):
            self.retired(entry.epoch)

    def read(self, scope: Scope) -> None:
        """Bring what is known of a run up to date; blocks."""
        history = scope.history
        known = history.pruned
        history.add(self.ledger.read(scope.namespace, scope.run, history.position))
        if history.pruned and not known:
            # What this life had read is answered no longer: only the tombstone speaks (rule L10).
            history.forget()
            history.add(self.ledger.read(scope.namespace, scope.run))

    # --- runs

    def state(self, run: str) -> RunState:
        """Return what this life has of a run."""
        with self._lock:
            state = self.states.get(run)
            if state is None:
                state = self.states[run] = RunState(self.namespace, run)
            return state

    @contextmanager
    def carrying(self, run: str, *, alone: bool = False) -> Generator[bool, None, None]:
        """Note that this life carries a run's body, so that it does not take the run for left behind.

        Args:
            run: the run.
            alone: only if it does not carry it yet; the value says whether it does now.
        """
        state = self.state(run)
        with self._lock:
            takes = not alone or run not in self.carried
            self.carried[run] += takes
            if takes and self.carried[run] == 1:
                state.memory.asked = set()
        try:
            yield takes
        finally:
            with self._lock:
                self.carried[run] -= takes
                self.carried += Counter()
                if run not in self.carried:
                    state.memory.asked = None

    def scope(self, run: str, state: RunState) -> Scope:
        """Make the scope of a flow.

        Raises:
            LedgerReadOnly: nothing was ever recorded in this ledger, and nothing can be.
        """
        self._opened()
        if self._unborn is not None:
            raise self._unborn.again()
        return Scope(
            namespace=self.namespace,
            run=run,
            history=state.history,
            memory=state.memory,
            fingerprints=self._fingerprints,
            own_epochs=self.own_epochs,
            owned=self.owners is not None,
            accepted_generation=self._accepted,
        )

    def keep(self, run: str, state: RunState) -> None:
        """Keep what must outlive the handles: facts that wait for the ledger, and intents not yet sent."""
        with self._lock:
            if state.memory.held or state.memory.unsent:
                self.pinned[run] = state
            else:
                self.pinned.pop(run, None)


def _clock(given: Any) -> Clock:
    if given is None:
        return time
    if hasattr(given, "time") and hasattr(given, "monotonic"):
        return given  # type: ignore[no-any-return]
    if callable(given):
        return CallableClock(cast(Callable[[], float], given))
    raise UsageError("a clock has `time()` and `monotonic()`, or is a function that returns seconds since 1970")
