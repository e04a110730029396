"""The desk: every decision of a broker, taken one at a time under one lock; what follows is done outside it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

from counterfoil.broker.calls import Authority, Call, Proposal, Reason, rejected
from counterfoil.broker.fairness import FairQueue
from counterfoil.broker.grants import Grant
from counterfoil.broker.reports import Owned, Report
from counterfoil.errors import RecipientError
from counterfoil.outcomes import Outcome, Rejected

Policy = Callable[[Proposal], Any]


class Desk:
    """What a broker's activations share.

    Args:
        concurrency: permits in all.
        policy: is asked about every call; only True lets it pass. None: the grants alone decide.
        now: the monotonic clock that deadlines are on.
        lock: guards everything here; nothing of the caller's is called under it.
        changed: called whenever something that is owned has been given back.
    """

    def __init__(
        self,
        concurrency: int,
        *,
        policy: Policy | None,
        now: Callable[[], float],
        lock: AbstractContextManager[Any],
        changed: Callable[[], None],
    ) -> None:
        self._queue: FairQueue[Call] = FairQueue(concurrency)
        self._policy = policy
        self.now = now
        self._lock = lock
        self._changed = changed
        self._activations: set[Authority] = set()
        self._calls: dict[Call, None] = {}
        self.closing = False

    # --- activations

    def enter(self, authority: Authority) -> bool:
        """Let an activation begin; False if the broker is being shut down."""
        with self._lock:
            if not self.closing:
                self._activations.add(authority)
            return not self.closing

    def end(self, authority: Authority, reason: Reason) -> None:
        """Take an activation's authority away; on return no gate is undecided under it (rule B2)."""
        with self._lock:
            authority.ended = authority.ended or reason
            todo = [step for call in authority.calls for step in self._close(call, reason)]
            todo += authority.bells
            self._activations.discard(authority)
        _do(todo)
        self._changed()

    def shut(self) -> None:
        """Take no new activations and no new calls; what is under way goes on."""
        with self._lock:
            self.closing = True

    def end_all(self) -> None:
        """End every call that has not ended, and every activation."""
        with self._lock:
            activations, calls = list(self._activations), list(self._calls)
        for authority in activations:
            self.end(authority, "shutdown")
        for call in calls:
            self.close(call, "shutdown")

    # --- a call, in this order (design section 7)

    def ask(self, call: Call) -> Rejected | None:
        """Take a call in, or refuse it where there is no authority for it (the first of three looks, rule B2)."""
        with self._lock:
            ended = call.authority.ended or ("shutdown" if self.closing else None)
            if ended is None:
                self._calls[call] = None
                call.authority.calls.add(call)
        if ended is not None:
            return rejected(ended)
        return self.check(call)

    def check(self, call: Call, target: str | None = None) -> Rejected | None:
        """Look whether grants and policy allow a call, and whether it has not been ended meanwhile."""
        if self.now() >= call.deadline:
            self.close(call, "deadline")
        if (ended := _refusal(call)) is not None:
            return ended
        proposal = call.proposal
        if target is not None and target != proposal.target:
            proposal = _moved(proposal, target)
        if not _granted(call.authority.grants, proposal):
            return rejected("refused-by-policy", by="grants")
        if self._policy is None:
            return None
        try:
            verdict = self._policy(proposal)
        except Exception as error:  # noqa: BLE001 - a policy that cannot say yes says no
            return rejected("refused-by-policy", by="policy", error=type(error).__name__)
        if verdict is not True:
            return rejected("refused-by-policy", by="policy")
        # The policy may have taken its time.
        return _refusal(call)

    def reserve(self, call: Call) -> Rejected | None:
        """Reserve what the call uses of its budget, all of it or nothing."""
        with self._lock:
            if (limit := call.authority.spending.reserve(call.proposal.bytes_out)) is not None:
                return rejected("budget-exhausted", budget=limit)
            call.reserved = True
            return None

    def enqueue(self, call: Call) -> bool:
        """Ask for a permit; False: the caller is woken when it has one, or when the call has ended."""
        with self._lock:
            if call.outcome is None and self._queue.ask(call.authority.principal, call):
                call.permitted = True
            return call.permitted or call.outcome is not None

    def withdraw(self, call: Call) -> None:
        """Take back a call that did not come to work: what it had reserved and not attempted is free again."""
        with self._lock:
            if call.retired:
                return
            call.gate.close("withdrawn")
            self._queue.leave(call.authority.principal, call)
            if call.reserved:
                call.authority.spending.give_back(calls=1, bytes_out=call.proposal.bytes_out or 0)
                call.authority.spending.retire()
            todo = self._forget(call)
        _do(todo)
        self._changed()

    def start(self, call: Call) -> Outcome[Any] | None:
        """Note that the recipient's code is going to be called; the outcome, if the call has ended before."""
        with self._lock:
            if call.outcome is None:
                call.started = call.working = True
            return call.outcome

    def returned(self, call: Call) -> None:
        """Note that the recipient's code is over, so it can win the gate no more."""
        with self._lock:
            call.working = False
            call.gate.close("returned")
            if not call.gate.dispatched:
                # A recipient that takes the gate itself has tried to reach the other side; a function was not called.
                calls = 1 if call.gate_here else 0
                call.authority.spending.give_back(calls=calls, bytes_out=call.proposal.bytes_out or 0)
            todo = self._retire_if_gone(call)
        _do(todo)
        self._changed()

    def settle(self, call: Call, outcome: Outcome[Any]) -> bool:
        """Say how a call ended; False if its caller was told before, so that this is late evidence."""
        with self._lock:
            if call.outcome is None:
                call.outcome = outcome
                return True
            return False

    def tell(self, call: Call) -> None:
        """Let the caller have the outcome."""
        with self._lock:
            call.told = True
        call.wake()

    def close(self, call: Call, reason: str) -> None:
        """Let the caller leave: at its deadline, cancelled, or revoked. What goes on is cleaning (rules B5, B6)."""
        with self._lock:
            todo = self._close(call, reason)
        _do(todo)

    # --- what a permit does

    def dispatch(self, call: Call, facts: dict[str, str]) -> None:
        """Win the gate for the sender, after the last look at grants, policy and deadline.

        Raises:
            Rejected: something came first; nothing may be sent.
            RecipientError: it was won before.
        """
        if (refused := self.check(call)) is not None:
            with self._lock:
                call.gate.close("refused")
            raise refused
        with self._lock:
            if self.now() >= call.deadline:
                # The policy took its time.
                call.gate.close("deadline")
            if call.gate.dispatch():
                call.facts.update(facts)
                return
            again = call.gate.dispatched
        if again:
            raise RecipientError(
                "an operation makes one attempt: the gate of this one was won before",
                code="dispatched-twice",
                hint="call dispatch() once; a further attempt is a further operation",
            )
        raise _refusal(call) or call.never_sent(call.gate.closed_by or "withdrawn")

    def move(self, call: Call, target: str) -> bool:
        """Authorise a target: that of the operation, or of a redirect's hop, which is charged as one more call.

        Raises:
            Rejected: it is refused, and the gate is not won.
        """
        refused = self.check(call, target)
        with self._lock:
            dispatched = call.gate.dispatched
            if refused is None and dispatched and (call.outcome is not None or not call.authority.spending.hop()):
                return False
            if refused is None:
                call.proposal = _moved(call.proposal, target)
                return True
        if dispatched:
            return False
        raise refused

    def offer(self, call: Call, count: int) -> bool:
        """Charge bytes that are about to be offered: first what was reserved, then what is left of the budget."""
        with self._lock:
            if call.stops is None:
                return False
            before = call.offered or 0
            beyond = max(0, before + count - max(before, call.proposal.bytes_out or 0))
            if beyond and not call.authority.spending.send(beyond):
                return False
            call.offered = before + count
            return True

    def receive(self, call: Call, count: int) -> bool:
        """Charge bytes that arrived."""
        with self._lock:
            call.received += count
            return call.authority.spending.receive(count)

    def on_cancel(self, call: Call, stop: Callable[[], None]) -> None:
        """Have `stop` called once when nobody waits any more; at once if that is so."""
        with self._lock:
            late = call.stops is None
            if call.stops is not None:
                call.stops.append(stop)
        if late:
            _do([stop])

    def hold(self, call: Call) -> Callable[[], None]:
        """Keep a permit beyond the recipient's code; call what is returned to let go."""
        with self._lock:
            call.holds += 1
        held = [True]

        def let_go() -> None:
            with self._lock:
                if not held:
                    return
                held.clear()
                call.holds -= 1
                todo = self._retire_if_gone(call)
            _do(todo)
            self._changed()

        return let_go

    # --- what is owned

    @property
    def owned(self) -> int:
        """How many calls are not over."""
        return len(self._calls)

    def report(self, *, records_pending: int = 0, records_lost: int = 0) -> Report:
        """Say what is owned now."""
        with self._lock:
            now = self.now()
            calls = tuple(
                Owned(
                    principal=call.proposal.principal,
                    recipient=call.proposal.recipient,
                    operation=call.proposal.operation,
                    state=call.state,
                    key=call.key,
                    age_s=now - call.began,
                )
                for call in self._calls
            )
            return Report(
                activations=len(self._activations),
                permits=self._queue.taken,
                waiting=self._queue.waiting,
                cleaning=sum(call.state == "cleaning" for call in calls),
                calls=calls,
                records_pending=records_pending,
                records_lost=records_lost,
            )

    # --- under the lock; each gives back what is to be done outside it

    def _close(self, call: Call, reason: str) -> list[Callable[[], None]]:
        call.told = True
        if call.outcome is None:
            call.gate.close(reason)
            call.outcome = call.ended_by(reason)
        self._queue.leave(call.authority.principal, call)
        stops, call.stops = call.stops or [], None
        return [*stops, call.wake]

    def _retire_if_gone(self, call: Call) -> list[Callable[[], None]]:
        if call.working or call.holds or call.retired or not call.started:
            return []
        call.authority.spending.retire()
        return self._forget(call)

    def _forget(self, call: Call) -> list[Callable[[], None]]:
        """Give a permit back, and to whoever is next."""
        if call.retired:
            return []
        call.retired = True
        call.authority.calls.discard(call)
        self._calls.pop(call, None)
        if not call.permitted:
            return []
        following = self._queue.give_back()
        if following is None:
            return []
        following.permitted = True
        return [following.wake]


def _granted(grants: tuple[Grant, ...], proposal: Proposal) -> bool:
    # Not by `any`: it is asked three times for each call.
    for grant in grants:  # noqa: SIM110
        if grant.allows(proposal.recipient, proposal.operation, proposal.target):
            return True
    return False


def _refusal(call: Call) -> Rejected | None:
    return call.outcome if isinstance(call.outcome, Rejected) else None


def _moved(proposal: Proposal, target: str) -> Proposal:
    return Proposal(
        proposal.principal,
        proposal.recipient,
        operation=proposal.operation,
        target=target,
        bytes_out=proposal.bytes_out,
        request=proposal.request,
    )


def _do(todo: list[Callable[[], None]]) -> None:
    for step in todo:
        # A recipient that cannot stop must not keep the others from being stopped.
        with suppress(Exception):
            step()
