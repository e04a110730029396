"""What both colours of a broker share: its desk, its audit, and how an attempt gets its name and its key."""

from __future__ import annotations

import inspect
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final
from weakref import WeakSet

from counterfoil.broker import audit as auditing
from counterfoil.broker.calls import Authority, Call, rejected
from counterfoil.broker.desk import Desk
from counterfoil.broker.perform import Terms
from counterfoil.broker.reports import Report
from counterfoil.effects import activation as flows
from counterfoil.effects.scope import Scope
from counterfoil.errors import CommitUnknown, UsageError
from counterfoil.outcomes import Outcome, Rejected
from counterfoil.ports.ledger import Catalogue
from counterfoil.protocol import keys, records
from counterfoil.runtime import proposals, views
from counterfoil.runtime.coding import canonical
from counterfoil.runtime.proposals import Proposed
from counterfoil.runtime.session import RunState, Session
from counterfoil.runtime.working import Work

AUDITS: Final = ("off", "best-effort", "required")
CONCURRENCY_MAX: Final = 100_000


_alive: WeakSet[Brokerage] = WeakSet()


def _after_fork() -> None:
    for each in list(_alive):
        each.begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Effort:
    """One attempt: the call, what is to be done for it, and how it is recorded."""

    __slots__ = ("call", "entry", "interrupt", "scope", "terms", "trail", "work")

    def __init__(self, call: Call, work: Work, *, terms: Terms, trail: Trail) -> None:
        self.call = call
        self.work = work
        self.terms = terms
        self.trail = trail
        self.entry: flows.Attempt | None = None
        self.scope: Scope | None = None
        # What a handler raised to end the process, for the caller.
        self.interrupt: BaseException | None = None

    def judged(self, answer: Any) -> Any:
        """Take note of an answer of the recipient's code."""
        if isinstance(answer, (KeyboardInterrupt, SystemExit)):
            self.interrupt = answer
        return answer


class Trail:
    """One activation's place in the audit; without an audit it only counts operations."""

    def __init__(self, session: Session | None, principal: str) -> None:
        self.session = session
        self.principal = principal
        self.run = f"{auditing.RUN_PREFIX}{os.urandom(10).hex()}"
        self.numbers: Iterator[int] = itertools.count(1)
        self.pending = 0
        self.recorded = False
        self.over = False
        self.desk: Desk | None = None


class Brokerage:
    """The part of a broker that has no colour."""

    def __init__(
        self,
        session: Session | None,
        *,
        policy: Callable[..., Any] | None,
        audit: str,
        concurrency: int,
        changed: Callable[[], None] | None = None,
    ) -> None:
        if audit not in AUDITS:
            raise UsageError(f"audit is one of {', '.join(AUDITS)}, not {audit!r}")
        if audit != "off" and session is None:
            raise UsageError(
                f"audit={audit!r} needs a runtime, whose ledger it is recorded in", hint="Broker(runtime, audit=…)"
            )
        if type(concurrency) is not int or not 1 <= concurrency <= CONCURRENCY_MAX:
            raise UsageError(f"concurrency is an int from 1 to {CONCURRENCY_MAX}, not {concurrency!r}")
        if policy is not None and not _decides_at_once(policy):
            raise UsageError(
                "policy takes a plain function of a proposal, which decides at once and returns True or not"
            )
        self.session = session
        self.audit = audit
        # Whether anybody looks at requests: a policy, or the audit for its fingerprints.
        self.whole = policy is not None or audit != "off"
        self._policy = policy
        self._concurrency = concurrency
        self._tell = changed
        self.begin_anew()
        _alive.add(self)

    def begin_anew(self) -> None:
        """Forget every call: at the beginning, and in a forked child, where the parent's go on without it."""
        self._lock = threading.Lock()
        self._retired = threading.Condition()
        self._waiting = 0
        self.desk = Desk(
            self._concurrency,
            policy=self._policy,
            now=time.monotonic,
            lock=threading.Lock(),
            changed=self._changed,
        )
        self.pending = 0
        self.lost = 0
        self._looked = False

    def _changed(self) -> None:
        # Whoever waits says so before it looks: one of the two sees the other.
        if self._waiting:
            with self._retired:
                self._retired.notify_all()
        if self._tell is not None:
            self._tell()

    def wait_idle(self, timeout_s: float) -> None:
        """Wait until nothing is owned, in this thread."""
        with self._retired:
            self._waiting += 1
            try:
                self._retired.wait_for(lambda: self.idle, timeout_s)
            finally:
                self._waiting -= 1

    @property
    def audited(self) -> bool:
        """Whether attempts are recorded."""
        return self.audit != "off"

    @property
    def required(self) -> bool:
        """Whether an attempt must be on record before it goes out."""
        return self.audit == "required"

    def report(self) -> Report:
        """Say what is still owned."""
        return self.desk.report(records_pending=self.pending, records_lost=self.lost)

    @property
    def idle(self) -> bool:
        """Whether nothing is owned."""
        return not self.desk.owned and not self.pending

    # --- activations

    def authority(self, principal: str, *, grants: Any, budget: Any, deadline_s: float) -> tuple[Authority, Trail]:
        """Check an activation's arguments and make it; it has not begun."""
        authority = Authority(
            keys.name(principal, "principal"),
            proposals.grants(grants),
            proposals.budget(budget),
            deadline=keys.seconds(deadline_s, "deadline_s"),
        )
        return authority, Trail(self.session, authority.principal)

    def check(self, trail: Trail) -> None:
        """Check that an activation may be used.

        Raises:
            UsageError: it was not entered, or in another process than this one; or its audit is required, and the
                runtime was left.
        """
        if trail.desk is None:
            raise UsageError("the activation is not open", hint="use it in a `with` block", code="not-entered")
        if trail.desk is not self.desk:
            raise UsageError(
                "this activation was entered before fork() and does not work in the child; the parent is unharmed",
                hint="enter another one after the fork",
                code="forked-activation",
            )
        if self.session is not None and self.required:
            self.session.check()

    def begin(self, authority: Authority, trail: Trail) -> None:
        """Let an activation begin; its deadline counts from now.

        Raises:
            UsageError: the broker was shut down, or the runtime of its audit was left.
        """
        if self.session is not None and self.audited:
            self.session.check()
        authority.deadline += self.desk.now()
        if not self.desk.enter(authority):
            raise UsageError("this broker was shut down", code="broker-closed", hint="make another one")
        trail.desk = self.desk

    # --- attempts

    def ended(self, authority: Authority, bell: Callable[[], None], *, listening: bool) -> bool:
        """Have `bell` rung when an activation ends, or no longer; says whether it has ended."""
        with self._lock:
            if listening:
                authority.bells = {*authority.bells, bell}
            else:
                authority.bells = authority.bells - {bell}
        return authority.ended is not None

    def terms(self, authority: Authority, asked: Proposed, timeout_s: float | None) -> Terms:
        """Say what holds for all attempts of an operation."""
        began = self.desk.now()
        deadline = authority.deadline
        if timeout_s is not None:
            deadline = min(deadline, began + keys.seconds(timeout_s, "timeout_s"))
        return Terms(self.audited, asked.retry, asked.retryable, began, deadline)

    def attempt(
        self,
        trail: Trail,
        authority: Authority,
        asked: Proposed,
        *,
        terms: Terms,
        name: str,
        number: int,
        wake: Callable[[], None],
    ) -> Effort:
        """Make one attempt of an operation; nothing is reserved yet."""
        # An activation's run has a random name, so that keys are its own without a ledger too.
        namespace = "" if self.session is None else self.session.namespace
        key = keys.effect_key(namespace, trail.run, name, attempt=1 if asked.keep_key else number)
        call = Call(
            authority,
            asked.proposal,
            key=key,
            deadline=terms.deadline,
            began=self.desk.now(),
            wake=wake,
            number=number,
        )
        made = Effort(call, Work(self.desk, call, asked), terms=terms, trail=trail)
        if self.session is not None and self.audited:
            made.scope = self.session.scope(trail.run, RunState(self.session.namespace, trail.run))
            made.entry = flows.Attempt(
                principal=trail.principal,
                name=name,
                number=number,
                recipient=asked.proposal.recipient,
                fingerprint=made.scope.fingerprint(canonical(asked.proposal.request, "the operation's request")),
                retry=asked.retry,
                keep_key=asked.keep_key,
            )
        return made

    def name(self, trail: Trail, asked: Proposed) -> str:
        """Name an operation in its activation's run. Its key is made of it, so that no two may have the same."""
        number = next(trail.numbers)
        return auditing.name_of(asked.proposal, number) if self.audited else str(number)

    # --- the audit

    def expect(self, made: Effort) -> None:
        """Note that a record of how an attempt ended is owed to the audit; `concluded` takes it back."""
        made.call.audited = True
        with self._lock:
            self.pending += 1
            made.trail.pending += 1
            made.trail.recorded = True

    def owes(self, made: Effort) -> bool:
        """Say whether what a caller is told who leaves before the work is over is to be recorded, and expect it."""
        owes = made.call.audited and made.call.stops is None
        if owes:
            self.expect(made)
        return owes

    def refused(self, made: Effort, error: BaseException) -> Rejected:
        """Say why an attempt may not go out that could not be recorded; an intent that may stand is ended later."""
        intended = made.entry is not None and made.entry.intended
        if intended or isinstance(error, CommitUnknown):
            self.expect(made)
        return rejected("audit-unavailable", error=type(error).__name__)

    def concluding(self, made: Effort, late: Outcome[Any] | None) -> Any:
        """Return the flow that records how an attempt ended."""
        assert made.scope is not None
        assert made.entry is not None
        assert made.call.outcome is not None
        return flows.conclude(made.scope, made.entry, made.call.outcome, pause_s=made.call.pause_s, late=late)

    def concluded(self, made: Effort, error: BaseException | None) -> bool:
        """Note that an outcome was recorded, or could not be; True: the activation's end is to be recorded now."""
        with self._lock:
            self.lost += error is not None
            self.pending -= 1
            made.trail.pending -= 1
            finish = self._finishes(made.trail)
        self._changed()
        return finish

    def left(self, trail: Trail) -> bool:
        """Note that an activation was left; True: its end is to be recorded now."""
        with self._lock:
            trail.over = True
            return self._finishes(trail)

    @staticmethod
    def _finishes(trail: Trail) -> bool:
        if not trail.over or trail.pending or not trail.recorded:
            return False
        trail.recorded = False
        return True

    def scope(self, trail: Trail) -> Scope:
        """Make a scope for the activation's own records."""
        assert self.session is not None
        return self.session.scope(trail.run, RunState(self.session.namespace, trail.run))

    def leftovers(self) -> list[Scope]:
        """Find, once for each broker, activations that somebody left without an end; blocks."""
        session = self.session
        if session is None or not self.audited or self._looked:
            return []
        # A ledger of the two methods alone cannot list its runs; what a crash left there is found by whoever looks.
        listed = isinstance(session.ledger, Catalogue)
        rows = views.rows(session, finished=False, holding=[(records.RUN, "started")]) if listed else iter(())
        left = [row.run for row in rows if row.run.startswith(auditing.RUN_PREFIX)]
        self._looked = True
        return [session.scope(run, RunState(session.namespace, run)) for run in left]


def _decides_at_once(policy: Any) -> bool:
    return callable(policy) and not inspect.iscoroutinefunction(policy)
