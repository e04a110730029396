"""A driver that a test sees through: it answers a flow's requests one by one, and keeps them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from counterfoil.effects.call import UNASKABLE, EffectCall
from counterfoil.effects.scope import Memory, Scope
from counterfoil.protocol import codec, records
from counterfoil.protocol.history import History
from counterfoil.protocol.keys import Fingerprints
from counterfoil.protocol.records import Draft, Entry, Record, entry_of, record_of
from counterfoil.protocol.requests import (
    Append,
    Call,
    Filled,
    Gone,
    Instant,
    Live,
    Now,
    Overran,
    Pause,
    Raised,
    Read,
    Request,
    Returned,
    Transact,
)

ME, OTHER = "2.me", "2.other"
REQUESTS_MAX = 5000
Refusal = Callable[[Draft], BaseException | None]


class Play:
    """One life, one run, and a ledger that is a list.

    Attributes:
        scope: what flows are given.
        records: what is in the ledger.
        requests: what flows have asked for, in order.
        gone: epochs that are over.
        refusing: may give an error for an append, which then records nothing.
        before: called with each request before it is answered: somebody else may act there, or the ledger may fail.
        staged: how many intents the body of a transaction stages.
        wall: the time on the wall clock; pausing moves it on.
        mono: the time on the monotonic clock, which goes on beside it.
    """

    def __init__(self, *, own: tuple[str, ...] = (ME,), **scope: Any) -> None:
        self.scope = Scope(
            namespace="n",
            run="r",
            history=History("n", "r"),
            memory=Memory(),
            fingerprints=Fingerprints({"k": b"k" * 32}, "k"),
            own_epochs=set(own),
            **{"owned": True, **scope},
        )
        self.records: list[Record] = []
        self.requests: list[Request[Any]] = []
        self.gone: set[str] = set()
        self.refusing: Refusal = lambda draft: None
        self.before: Callable[[Request[Any]], None] = lambda request: None
        self.live = True
        self.staged = 0
        self.wall = self.mono = 1000.0
        self._numbers = 0

    def record(self, slot: str, phase: str, body: msgspec.Struct, *, epoch: str = OTHER, kind: str = "") -> Record:
        """Let somebody record something; this life learns of it when it reads."""
        kind = kind or (records.NOTE if "/note/" in slot else records.EFFECT)
        return self._fill(self._entry(Draft(slot=slot, kind=kind, phase=phase, body=codec.body_of(body)), epoch))

    def known(self, slot: str, phase: str, body: msgspec.Struct, **more: Any) -> Record:
        """The same, and this life has read it."""
        made = self.record(slot, phase, body, **more)
        self.scope.history.add(self.records)
        return made

    def pass_time(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self.wall += seconds
        self.mono += seconds

    def run(self, flow: Coroutine[Request[Any], Any, Any]) -> Any:
        """Answer a flow to its end; return what it returns, raise what it raises."""
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                request = flow.send(answer) if error is None else flow.throw(error)
            except StopIteration as done:
                return done.value
            self.requests.append(request)
            assert len(self.requests) < REQUESTS_MAX, "this flow does not end"
            answer, error = None, None
            try:
                self.before(request)
                answer = self._answer(request)
            except BaseException as raised:
                error = raised

    def appended(self, slot_ends: str = "") -> list[Draft]:
        """The drafts that were to be recorded, in slots that end so."""
        asked = [request.draft for request in self.requests if isinstance(request, Append)]
        return [draft for draft in asked if draft.slot.endswith(slot_ends)]

    def body(self, slot: str, shape: type[codec.T]) -> codec.T:
        """The body of the record in a slot."""
        (found,) = [record for record in self.records if record.slot == slot]
        return codec.parse(found, shape, namespace="n", run="r")

    def _answer(self, request: Request[Any]) -> Any:
        if isinstance(request, Append):
            return self._append(request)
        if isinstance(request, Read):
            return self.scope.history.add(self.records)
        if isinstance(request, Call):
            return self._call(request)
        if isinstance(request, Transact):
            return self._transact(request)
        if isinstance(request, Now):
            return Instant(self.wall, self.mono)
        if isinstance(request, Pause):
            self.pass_time(request.seconds)
            return None
        if isinstance(request, Gone):
            return request.epoch in self.gone
        assert isinstance(request, Live)
        return self.live

    def _append(self, request: Append) -> Filled:
        if (error := self.refusing(request.draft)) is not None:
            if getattr(error, "entry", ...) is None:
                error.entry = self._entry(request.draft, ME)  # type: ignore[attr-defined]
            raise error
        entry = request.settle or self._entry(request.draft, ME)
        record = self._fill(entry)
        self.scope.history.take(record)
        return Filled(record, (record.epoch, record.append_id) == (entry.epoch, entry.append_id))

    def _call(self, request: Call) -> Any:
        if request.handler is overrunning:
            return Overran()
        given = list(request.proof)
        if len(inspect.signature(request.handler).parameters) > len(given):
            given.append(request)
        try:
            return Returned(request.handler(*given))
        except BaseException as error:
            return Raised(error)

    def _transact(self, request: Transact) -> Filled | Raised:
        try:
            value = request.body(self)
        except BaseException as error:
            return Raised(error)
        body = request.receipt(value, self.staged)
        return self._append(Append(msgspec.structs.replace(request.draft, body=body)))

    def _entry(self, draft: Draft, epoch: str) -> Entry:
        self._numbers += 1
        return entry_of(draft, "n", "r", epoch=epoch, append_id=self._numbers, at=self.wall)

    def _fill(self, entry: Entry) -> Record:
        for record in self.records:
            if record.slot == entry.slot:
                return record
        self.records.append(record_of(entry, len(self.records) + 1))
        return self.records[-1]


def overrunning() -> None:
    """A handler that does not end before its deadline."""


def never() -> Any:
    """A handler that must not be called."""
    raise AssertionError("this handler must not be called")


def call(name: str = "pay", **more: Any) -> EffectCall:
    """What a caller gives for an effect: handlers that must not be called, unless it says more."""
    return EffectCall(name=name, **{"run": never, "reconcile": UNASKABLE, **more})
