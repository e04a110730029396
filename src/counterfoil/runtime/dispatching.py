"""The dispatcher's engine: flows, and the transactions that answer many of them at once.

`turn` does one round: it steps the flows whose handlers have replied, and answers what they ask of the store in one
transaction: ends are recorded first, then what is due is claimed, then the send-right is taken for what starts now. A
handler starts after that transaction is durable, never before. Nothing here knows a colour: `turn` blocks, and
returns the handlers to start.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

from counterfoil.errors import CommitUnknown, LedgerUnavailable, NotSerializable, UsageError
from counterfoil.outbox.agreed import agreed
from counterfoil.outbox.dispatch import overdue
from counterfoil.outbox.requests import (
    Ask,
    Chance,
    Clock,
    Encode,
    Expire,
    Finish,
    Grant,
    Note,
    Perform,
    Unsent,
    Verify,
)
from counterfoil.outbox.terms import Terms
from counterfoil.ports.outbox_store import Claim, Given, LateFact, Sweep, Wanted
from counterfoil.protocol import codec
from counterfoil.protocol.requests import Overran, Request
from counterfoil.protocol.standings import LOOK, SEND
from counterfoil.runtime import telemetry
from counterfoil.runtime.claimed import Asked, Work, unfit
from counterfoil.runtime.coding import PROOF, coder
from counterfoil.runtime.deadlines import Deadlines
from counterfoil.runtime.desks import Opened
from counterfoil.runtime.handlers import Context
from counterfoil.runtime.jobs import Job, Replied, boot_s
from counterfoil.runtime.others import any_silent, proved_gone
from counterfoil.runtime.registry import Registry
from counterfoil.runtime.snapshots import DispatcherSnapshot

LOOKS_MAX: Final = 8
SWEEP_S: Final = 1.0
WATCH_S: Final = 0.02
# Handlers that end so soon are worth having the next ones claimed before.
QUICK_S: Final = 0.05
_TROUBLE_FIRST_S: Final = 0.05
_TROUBLE_LAST_S: Final = 1.0


class Engine:
    """Dispatches for one life.

    Args:
        opened: the outbox.
        registry: the recipients.
        terms: the bounds that hold where no contract says otherwise.
        label: what people call this dispatcher.
        batch: claims in hand at most, if that is more than `concurrency`, beside those claimed in advance: as many as
            end at once where handlers are quick, and as many again where another process is the store.
        concurrency: handlers that run at once at most.
        poll_s: how long it looks away while idle, in seconds.
        wake: called, from any thread, when somebody nudges. Whoever calls handlers says by itself when they have ended.
    """

    def __init__(
        self,
        opened: Opened,
        registry: Registry,
        *,
        terms: Terms,
        label: str,
        batch: int,
        concurrency: int,
        poll_s: float,
        wake: Callable[[], None],
    ) -> None:
        self._opened = opened
        self._registry = registry
        self._known = registry.known()
        self._terms = terms
        self._label = label
        self._batch = batch
        self._concurrency = concurrency
        self._poll_s = poll_s
        self._wake = wake
        self._epoch: str | None = None
        self._replies: deque[tuple[Work, Job, Replied]] = deque()
        self._granting: list[Work] = []
        self._expiring: list[Work] = []
        self._finishing: list[Work] = []
        self._notes: list[LateFact] = []
        self._starting: list[Job] = []
        # Claimed in advance, and looked at while the store works on the next round.
        self._fresh: deque[Claim] = deque()
        # Handlers that run, abandoned ones too: they hold their place until they have really ended.
        self._running: dict[Job, str] = {}
        self._deadlines = Deadlines(self._running)
        self._looking = True
        self._swept: Sweep = Sweep()
        self._sweep_at = 0.0
        self._due_at: float | None = None
        self._exchanged = 0.0
        self._pause_until = 0.0
        self._pause_s = _TROUBLE_FIRST_S
        self._learnt: dict[tuple[Any, ...], Terms] = {}
        self._watcher = telemetry.Watcher()
        store = opened.store
        self._at_once: dict[type[Request[Any]], Callable[[Work, Any], Any]] = {
            Clock: lambda _work, _request: store.now(),
            Chance: lambda _work, _request: random.random(),  # noqa: S311 - jitter, no secret
            Encode: self._encoded,
            Note: lambda _work, request: self._notes.append(request.fact),
        }
        self._later: dict[type[Request[Any]], Callable[[Work], None]] = {
            Grant: self._granting.append,
            Expire: self._expiring.append,
            Finish: self._finishing.append,
            Ask: self._start,
            Verify: self._start,
        }
        self.stopping = False
        self.ended: Counter[str] = Counter()
        self.in_hand = 0

    # --- the life

    @property
    def epoch(self) -> str:
        """The epoch of this life; registered, durably, when it is first needed or after it was found retired."""
        if self._epoch is None:
            session = self._opened.session
            owners = session.owners
            epoch = f"0.{os.urandom(4).hex()}" if owners is None else owners.register(self._label)
            session.own_epochs.add(epoch)
            self._opened.store.enlist(epoch, self._label)
            self._epoch = epoch
        return self._epoch

    def leave(self) -> None:
        """End the life. Where handlers still run it lasts as long as they do, so that nobody asks too early."""
        epoch, session = self._epoch, self._opened.session
        if epoch is None:
            return
        self._epoch = None
        if not self._running:
            if self.in_hand == 0:
                self._opened.store.dismiss(epoch)
            if session.owners is not None:
                session.owners.retire(epoch)
            session.own_epochs.discard(epoch)

    # --- one round

    def turn(self) -> tuple[list[Job], float]:
        """Do one round; return the handlers to start, and how long there is nothing to do, in seconds.

        Raises:
            CommitUnknown: the store did not say how a commit ended; this life must end.
        """
        self._abandon_overdue()
        self._take_replies()
        mono = time.monotonic()
        if mono >= self._pause_until:
            try:
                self._sweep(mono)
                self._exchange()
                self._pause_s = _TROUBLE_FIRST_S
            except CommitUnknown:
                raise
            except LedgerUnavailable as error:
                # Nothing was recorded. What is in hand stays in hand, and nothing is claimed meanwhile.
                if self._pause_s == _TROUBLE_FIRST_S:
                    telemetry.unavailable(error, pause_s=_TROUBLE_LAST_S)
                self._pause_until = mono + self._pause_s
                self._pause_s = min(self._pause_s * 2, _TROUBLE_LAST_S)
        started, self._starting = self._starting, []
        for job in started:
            self._opened.session.retain(job)
        return started, self._idle_s(mono)

    def idle(self, within_s: float) -> bool:
        """Say whether nothing is in hand, nothing is due, and nothing in progress will be due `within_s`."""
        if self.in_hand or self._replies:
            return False
        # Looked at afresh: claims of lives that are gone are work too.
        self._sweep_at = 0.0
        try:
            self._sweep(time.monotonic(), unsettled=True)
        except LedgerUnavailable:
            return False
        due, later = self._swept.next_due_s, self._swept.unsettled_due_s
        if due is not None and due <= 0:
            self._looking = True
            return False
        # What the silent have in hand is work too, once they are found gone.
        return (later is None or later > within_s) and not any_silent(self._opened.session.owners, self._swept.lives)

    def nudged(self) -> None:
        """Look at once, from any thread."""
        self._looking = True
        self._wake()

    @property
    def running(self) -> int:
        """Handlers that have not ended."""
        return len(self._running)

    def _calls(self, kind: str) -> int:
        # Copied at once: handlers end in threads of their own meanwhile.
        return [*self._running.values()].count(kind)

    def abandon(self) -> None:
        """Let go of all that is in hand: for the store this is a crash."""
        self._fresh.clear()
        for job in list(self._running):
            job.abandon()
        self._granting.clear()
        self._deadlines.clear()

    # --- stepping

    def _take_replies(self) -> None:
        while self._replies:
            work, job, reply = self._replies.popleft()
            if work.job is job:
                work.job = None
                self._step(work, reply)
            elif job.handler == work.operation.run and not isinstance(reply, Unsent):
                flow = overdue(work.claim, work.terms, reply=reply)
                late = Work(work.claim, work.operation, work.terms, flow=flow)
                self.in_hand += 1
                self._step(late, None)

    def _step(self, work: Work, answer: Any) -> None:
        """Send an answer to a flow and put its next request where it will be answered."""
        while True:
            try:
                request = work.flow.send(answer)
            except StopIteration:
                self.in_hand -= 1
                return
            work.request = request
            at_once = self._at_once.get(type(request))
            if at_once is None:
                self._later[type(request)](work)
                return
            answer = at_once(work, request)

    def _start(self, work: Work, *, until: tuple[float, float] | None = None) -> None:
        operation, request = work.operation, work.request
        handler, given = operation.run, None if isinstance(request, Perform) else tuple[Any, ...]()
        # A bound function says of its own halves whether they are asynchronous.
        written = getattr(operation, "operation", None)
        function = getattr(written, "function", None)
        if isinstance(request, Ask):
            handler, function = operation.reconcile, getattr(written, "look_up", None)
        elif isinstance(request, Verify):
            handler, given = operation.verify, (self._coder(work).decode(request.proof),)
            function = None
        deadline = time.monotonic() + request.timeout_s
        context = Context(request.key, request.number, deadline)
        job = Job(
            handler,
            given,
            context,
            done=lambda job, reply: self._replied(work, job, reply),
            until=until,
            clock=self._opened.session.clock,
            function=function,
            scope=self._watcher.scope(work.span),
        )
        work.job = job
        self._running[job] = work.claim.kind
        self._deadlines.add(work, job, at=deadline)
        self._starting.append(job)

    def _replied(self, work: Work, job: Job, reply: Replied) -> None:
        self._running.pop(job, None)
        self._replies.append((work, job, reply))
        self._opened.session.release(job)

    def _abandon_overdue(self) -> None:
        for work, job in self._deadlines.passed():
            work.job = None
            job.abandon()
            self._step(work, Overran())

    def _coder(self, work: Work) -> Any:
        return coder(work.operation.settings.proof_type, PROOF)

    def _encoded(self, work: Work, request: Encode) -> bytes | str:
        try:
            proof: bytes = self._coder(work).encode(request.value)
        except NotSerializable:
            return type(request.value).__name__
        return proof if len(proof) <= codec.PROOF_BYTES_MAX else codec.digest(proof)

    # --- the store

    def _exchange(self) -> None:
        """Answer in one transaction all that flows ask of the store, and claim what there is room for."""
        epoch = self.epoch
        asked = self._ask()
        if asked is None:
            return
        clock = self._opened.session.clock
        since = boot_s(clock), clock.time()
        raised: list[BaseException] = []
        try:
            given = self._opened.store.exchange(epoch, asked.wanted, meanwhile=lambda: self._take_fresh(raised))
        except BaseException:
            self._finishing[:0] = asked.finishing
            self._notes[:0] = asked.wanted.notes
            self._expiring[:0] = asked.expiring
            self._granting[:0] = [*asked.rights, *asked.refused]
            raise
        self._exchanged = time.monotonic()
        # Durable from here on: flows learn it, and handlers may start.
        self._answered(asked, given, since=since)
        if raised:
            raise raised[0]
        if not given.live:
            # Somebody took this life for gone: what it had decided is void, and a fresh one goes on.
            self._opened.session.retired(epoch)
            self._epoch = None
            telemetry.lost(epoch)

    def _ask(self) -> Asked | None:
        """Take out all that flows ask of the store now, None where that is nothing."""
        room = max(0, self._concurrency - self._calls(SEND))
        streams = self._streams() and not (self.stopping or self._swept.paused)
        while self._fresh and not (streams and len(self._granting) >= room):
            self._take(self._fresh.popleft())
        granting, refused = self._held_apart()
        rights = granting[:room]
        sends, looks = self._wanted(room, len(granting))
        finishing, expiring, notes = [*self._finishing], [*self._expiring], [*self._notes]
        if not (finishing or notes or expiring or rights or refused or sends or looks):
            return None
        for taken in (self._finishing, self._expiring, self._notes):
            taken.clear()
        self._granting[:] = granting[room:]
        wanted = Wanted(
            endings=[work.request.ending for work in finishing],
            notes=notes,
            expiring=[work.claim for work in expiring],
            rights=[work.claim for work in rights],
            sends=sends,
            looks=looks,
            known=self._known,
        )
        return Asked(wanted, finishing=finishing, expiring=expiring, rights=rights, refused=refused)

    def _answered(self, asked: Asked, given: Given, *, since: tuple[float, float]) -> None:
        sends, looks = asked.wanted.sends, asked.wanted.looks
        claimed = sum(claim.kind == SEND for claim in given.claims)
        # Where it took all that there was room for there may be more.
        more = claimed >= sends if sends else self._looking
        self._looking = more or len(given.claims) - claimed >= looks > 0
        for work, ours in zip(asked.finishing, given.recorded, strict=True):
            self._note_end(work, recorded=ours)
            self._step(work, ours)
        for work, ours in zip(asked.expiring, given.expired, strict=True):
            self._step(work, ours)
        for work in asked.refused:
            self._step(work, None)
        for work, at in zip(asked.rights, given.granted, strict=True):
            self._granted(work, at, since=since)
        self.in_hand += len(given.claims)
        self._fresh.extend(given.claims)
        if not (asked.finishing and self._opened.store.elsewhere):
            while self._fresh:
                self._take(self._fresh.popleft())

    def _take_fresh(self, raised: list[BaseException]) -> None:
        """Look at what was claimed in advance; what that raises waits until the store has answered."""
        try:
            while self._fresh:
                self._take(self._fresh.popleft())
        except BaseException as error:  # noqa: BLE001
            raised.append(error)

    def _streams(self) -> bool:
        """Say whether handlers have ended a moment after the last round: others will have by the next one."""
        return bool(self._finishing) and time.monotonic() - self._exchanged < QUICK_S

    def _granted(self, work: Work, at: float | None, *, since: tuple[float, float]) -> None:
        if at is None:
            self._step(work, None)
            return
        within_s = work.request.within_s
        request = work.flow.send(at)
        assert isinstance(request, Perform)
        work.request = request
        self._start(work, until=(since[0] + within_s, since[1] + within_s))

    def _take(self, claim: Claim) -> None:
        """Begin the flow of a claim."""
        try:
            operation = self._registry.restore(claim.body)
            terms = self._terms_of(operation)
        except UsageError:
            work = Work(claim, None, self._terms, flow=unfit(claim))
        else:
            work = Work(claim, operation, terms)
        work.span = self._watcher.begin(claim)
        self._step(work, None)

    def _terms_of(self, operation: Any) -> Terms:
        """Return what holds for an operation; what functions make of it is learnt once."""
        written: Any = getattr(operation, "operation", None)
        if not hasattr(written, "look_up"):
            return agreed(operation, self._terms)
        key = (written, written.look_up, written.check)
        terms = self._learnt.get(key)
        if terms is None:
            terms = self._learnt[key] = agreed(operation, self._terms)
        return terms

    def _wanted(self, room: int, waiting: int) -> tuple[int, int]:
        if self.stopping or not (self._looking or self._finishing):
            return 0, 0
        ahead = len(self._finishing) if self._streams() else 0
        if self._opened.store.elsewhere:
            # As many again, which are looked at while it works.
            ahead *= 2
        sends = max(room, self._batch - (self._concurrency - room)) + ahead - waiting - len(self._fresh)
        looks = LOOKS_MAX - self._calls(LOOK)
        return max(0, min(sends, self._batch + ahead)), max(0, looks)

    def _held_apart(self) -> tuple[list[Work], list[Work]]:
        """Return what waits for its send-right: what may have it, and what is held back."""
        paused, refused = self._swept.paused, list[Work]()
        if not (paused or self.stopping):
            return [*self._granting], refused
        granting = list[Work]()
        everything = self.stopping or "*" in paused
        for work in self._granting:
            held = everything or f"recipient:{work.claim.recipient}" in paused
            (refused if held else granting).append(work)
        return granting, refused

    def _note_end(self, work: Work, *, recorded: bool) -> None:
        ending = work.request.ending
        self.ended[ending.phase if recorded else "late"] += 1
        self._watcher.end(work.span, ending, recorded=recorded)

    def snapshot(self) -> DispatcherSnapshot:
        """Return what it has done and what it has in hand."""
        swept = self._swept
        return DispatcherSnapshot(
            ended=dict(self.ended),
            in_hand=self.in_hand,
            running=len(self._running),
            lag_s=max(0.0, -(swept.next_due_s or 0.0)),
            paused=tuple(sorted(swept.paused)),
        )

    # --- looking around

    def _sweep(self, mono: float, *, unsettled: bool = False) -> None:
        store = self._opened.store
        if mono >= self._sweep_at:
            self._sweep_at = mono + SWEEP_S
            epoch = self.epoch
            swept = store.sweep(epoch, self._known)
            for gone in swept.lives:
                if proved_gone(self._opened.session.owners, gone):
                    store.recover(gone, by=epoch)
            self._swept = store.sweep(epoch, self._known, unsettled=unsettled) if swept.lives or unsettled else swept
            due = self._swept.next_due_s
            self._due_at = None if due is None else mono + max(0.0, due)
            self._looking = self._looking or (due is not None and due <= 0)
        elif self._looking or self._finishing:
            pass  # it is looked at anyhow, so nobody needs to say that something has changed
        elif store.changed() or (self._due_at is not None and mono >= self._due_at):
            self._due_at = None
            self._looking = True

    def _idle_s(self, mono: float) -> float:
        if self._replies:
            return 0.0
        if mono < self._pause_until:
            return self._pause_until - mono
        room = self._concurrency > len(self._running) and not self.stopping
        if self._finishing or self._expiring or (room and (self._looking or self._granting or self._fresh)):
            return 0.0
        rest = [min(self._poll_s, WATCH_S), self._sweep_at - mono, self._deadlines.wait_s(mono)]
        if self._due_at is not None:
            rest.append(self._due_at - mono)
        return max(0.0, min(rest))
