"""The dispatch gate: every order of what may happen to a call, driven by hand through the pure core."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from counterfoil import Accepted, Budget, Evidence, Failed, Grant, Rejected, Uncertain
from counterfoil.broker.calls import Authority, Call, Proposal
from counterfoil.broker.desk import Desk
from counterfoil.broker.gate import Gate
from counterfoil.broker.perform import Admission, Ended, Intended, Performed, Terms, admit, work
from counterfoil.broker.permits import Permit
from counterfoil.errors import RecipientError

GRANT = Grant("r", operations=("go",))
PLAIN = {"deadline": "deadline-before-dispatch"}


@dataclass
class Story:
    """One call on a desk of one place, what disturbs it, and what was sent."""

    now: float = 0.0
    desk: Desk = field(init=False)
    authority: Authority = field(init=False)
    call: Call = field(init=False)
    sent: int = 0
    forbidden: bool = False
    told: list[Any] = field(default_factory=list)
    ended: list[Any] = field(default_factory=list)
    stops: int = 0

    def __post_init__(self) -> None:
        lock = threading.Lock()
        self.desk = Desk(1, policy=None, now=lambda: self.now, lock=lock, changed=lambda: None)
        self.authority = Authority("p", (GRANT,), Budget(calls=9, in_flight=9, bytes_out=100), deadline=10.0)
        assert self.desk.enter(self.authority)
        self.call = self.made()

    def made(self) -> Call:
        proposal = Proposal("p", "r", operation="go", bytes_out=7)
        return Call(self.authority, proposal, key="k", deadline=10.0, began=0.0, wake=lambda: None)

    def disturb(self, what: str) -> None:
        """Something else than the sender reaches for the gate."""
        if what == "deadline":
            self.now = 11.0
            self.desk.close(self.call, "deadline")
        elif what == "cancelled":
            self.desk.close(self.call, "cancelled")
        elif what == "revoked":
            self.desk.end(self.authority, "revoked")
            # On return nothing is undecided under the old authority (rule B2).
            assert not any(call.gate.undecided for call in self.authority.calls)
        else:
            self.desk.end_all()
        if self.call in self.authority.calls or self.call.outcome is not None:
            self.forbidden = self.forbidden or not self.call.gate.dispatched
        if self.call.told and self.call.outcome is not None:
            self.told.append(self.call.outcome)

    def dispatch(self) -> None:
        """The sender reaches for it, and sends if it wins."""
        Permit(self.desk, self.call).dispatch(peer="192.0.2.1")
        assert not self.forbidden, "it was sent after it had been forbidden"
        self.sent += 1


def lived(story: Story, disturbances: dict[int, str], *, answer: Callable[[], Any], queued: bool) -> int:
    """Drive a call to its end with a disturbance at some steps; returns how many steps it had."""
    steps = itertools.count()

    def step() -> None:
        if (what := disturbances.get(next(steps))) is not None:
            story.disturb(what)

    desk, call = story.desk, story.call
    blocker = story.made()
    if queued:
        assert desk.ask(blocker) is None
        assert desk.reserve(blocker) is None
        assert desk.enqueue(blocker)
    step()
    flow: Any = admit(desk, call)
    refused: Any = None
    try:
        while True:
            request = flow.send(None)
            assert isinstance(request, Admission)
            step()
            desk.withdraw(blocker)
            step()
    except StopIteration as done:
        refused = done.value
    if queued:
        desk.withdraw(blocker) if not blocker.retired else None
    step()
    if refused is not None:
        desk.settle(call, refused)
        return next(steps)
    flow = work(desk, call, terms=Terms(True, None, False, 0.0, 10.0))
    given: Any = None
    with suppress(StopIteration):
        while True:
            request = flow.send(given)
            given = None
            step()
            if isinstance(request, Intended):
                call.audited = True
            elif isinstance(request, Performed):
                Permit(desk, call).on_cancel(lambda: setattr(story, "stops", story.stops + 1))
                given = performed(story, answer, step)
            else:
                assert isinstance(request, Ended)
                story.ended.append((call.outcome, request.late))
            step()
    return next(steps)


def performed(story: Story, answer: Callable[[], Any], step: Callable[[], None]) -> Any:
    try:
        step()
        story.dispatch()
        step()
        return answer()
    except BaseException as error:
        return error


def accepted() -> Any:
    return Accepted("proof")


def failed() -> Any:
    return Failed(Evidence("status", status=400))


def lost() -> Any:
    raise ConnectionError("the reply was lost")


def rejected_late() -> Any:
    raise Rejected(Evidence("nonsense"))


def orders() -> Iterator[tuple[dict[int, str], Callable[[], Any], bool]]:
    """Every one and every two of the disturbances, at every step, for every answer, queued or not."""
    kinds = ("deadline", "cancelled", "revoked", "shutdown")
    for queued, answer in itertools.product((False, True), (accepted, failed, lost, rejected_late)):
        steps = lived(Story(), {}, answer=answer, queued=queued)
        yield {}, answer, queued
        for at, what in itertools.product(range(steps), kinds):
            yield {at: what}, answer, queued
            for after, then in itertools.product(range(at + 1, steps), kinds):
                yield {at: what, after: then}, answer, queued


@pytest.mark.rule("B2", "B3", "B5", "O1", "O2")
def test_in_every_order_of_dispatch_deadline_cancellation_revocation_and_shutdown_the_gate_decides() -> None:
    explored = 0
    for disturbances, answer, queued in orders():
        explored += 1
        story = Story()
        lived(story, disturbances, answer=answer, queued=queued)
        call, what = story.call, (disturbances, answer.__name__, queued)
        assert not call.gate.undecided or call.outcome is not None, what
        assert story.sent == call.gate.dispatched, what
        if call.gate.dispatched:
            assert isinstance(call.outcome, (Accepted, Failed, Uncertain)), what
        else:
            assert isinstance(call.outcome, Rejected), what
            assert call.outcome.evidence.phase == "not-dispatched", what
        # Who was told something is never told anything else; what came after it is late evidence.
        assert all(outcome is call.outcome for outcome in story.told), what
        assert all(outcome is call.outcome for outcome, _ in story.ended), what
        report = story.desk.report()
        assert (report.permits, report.waiting, report.cleaning, report.calls) == (0, 0, 0, ()), what
        spending = story.authority.spending
        assert spending.in_flight == 0, what
        assert spending.calls == call.started, what
        assert spending.bytes_out == (7 if call.gate.dispatched else 0), what
        assert story.stops <= 1, what
        # A gate that is closed stays closed.
        with pytest.raises((Rejected, RecipientError)):
            Permit(story.desk, call).dispatch()
    assert explored > 3000


@pytest.mark.rule("B2")
@pytest.mark.parametrize("order", list(itertools.permutations(["dispatch", "deadline", "cancelled", "revoked"])))
def test_of_all_that_reach_for_a_gate_the_first_wins(order: tuple[str, ...]) -> None:
    gate = Gate()
    won = [what for what in order if (gate.dispatch() if what == "dispatch" else gate.close(what))]
    assert won == [order[0]]
    assert gate.dispatched == (order[0] == "dispatch")
    assert gate.closed_by == (None if order[0] == "dispatch" else order[0])


@pytest.mark.rule("B2", "B4")
def test_a_gate_is_won_once() -> None:
    story = Story()
    assert story.desk.ask(story.call) is None
    story.dispatch()
    with pytest.raises(RecipientError) as error:
        story.dispatch()
    assert error.value.code == "dispatched-twice"
    assert story.sent == 1


@pytest.mark.rule("B2")
@pytest.mark.parametrize("reason", ["revoked", "cancelled"])
def test_threads_that_race_for_gates_never_send_after_a_revocation_has_returned(reason: Any) -> None:
    """The real lock, real threads: 300 gates, one revocation in their midst."""
    story = Story()
    calls = [story.made() for _ in range(300)]
    for call in calls:
        assert story.desk.ask(call) is None
    sent: list[Call] = []
    over = threading.Event()
    start = threading.Barrier(5)
    after: list[Call] = []
    kinds: set[str] = set()

    def send(mine: list[Call]) -> None:
        start.wait()
        for call in mine:
            forbidden = over.is_set()
            try:
                Permit(story.desk, call).dispatch()
            except Rejected as refused:
                kinds.add(refused.evidence.kind)
                continue
            sent.append(call)
            if forbidden:
                after.append(call)

    threads = [threading.Thread(target=send, args=(calls[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    start.wait()
    story.desk.end(story.authority, reason)
    over.set()
    for thread in threads:
        thread.join()
    assert after == []
    assert kinds <= {reason}
    assert {call for call in calls if call.gate.dispatched} == set(sent)
    assert all(isinstance(call.outcome, Uncertain if call.gate.dispatched else Rejected) for call in calls)


@pytest.mark.rule("B2")
@pytest.mark.parametrize("look", [1, 2, 3])
def test_authority_is_looked_at_when_asked_after_queueing_and_before_dispatch(look: int) -> None:
    looks = []

    def policy(proposal: Proposal) -> bool:
        looks.append(proposal)
        return len(looks) != look

    story = Story()
    story.desk = Desk(1, policy=policy, now=lambda: 0.0, lock=threading.Lock(), changed=lambda: None)
    lived(story, {}, answer=accepted, queued=False)
    assert isinstance(story.call.outcome, Rejected)
    assert story.call.outcome.evidence.kind == "refused-by-policy"
    assert (len(looks), story.sent) == (look, 0)


@pytest.mark.rule("B2")
def test_a_policy_that_takes_until_after_the_deadline_lets_nothing_out() -> None:
    story = Story()

    def policy(_: Proposal) -> bool:
        story.now += 4.0
        return True

    story.desk = Desk(1, policy=policy, now=lambda: story.now, lock=threading.Lock(), changed=lambda: None)
    lived(story, {}, answer=accepted, queued=False)
    assert isinstance(story.call.outcome, Rejected)
    assert story.call.outcome.evidence.kind == "deadline-before-dispatch"
    assert story.sent == 0
