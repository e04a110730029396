"""Budgets and permits: reserved together or not at all, zero is zero, and nothing is refunded that was attempted."""

import threading
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from counterfoil import Accepted, Budget, Evidence, Grant, Rejected, Uncertain, UsageError
from counterfoil.broker.budgets import Spending
from counterfoil.broker.calls import Authority, Call, Proposal
from counterfoil.broker.desk import Desk
from counterfoil.broker.fairness import FairQueue
from counterfoil.broker.permits import Permit

pytestmark = pytest.mark.rule("B1")

PLACES = 3


@pytest.mark.parametrize("limit", ["calls", "bytes_out", "bytes_in", "in_flight"])
def test_zero_is_zero(limit: Any) -> None:
    spending = Spending(Budget(**{limit: 0}))
    assert spending.reserve(None) == limit
    assert spending.reserve(0) == limit
    assert (spending.calls, spending.in_flight, spending.bytes_out) == (0, 0, 0)


@pytest.mark.parametrize("value", [-1, 1.0, True, "1", 2**63])
@pytest.mark.parametrize("limit", ["calls", "bytes_out", "bytes_in", "in_flight"])
def test_a_limit_that_is_no_count_is_refused(limit: str, value: Any) -> None:
    with pytest.raises(UsageError, match=limit):
        Budget(**{limit: value})


def test_a_reservation_that_does_not_fit_in_one_part_takes_nothing_of_the_others() -> None:
    spending = Spending(Budget(calls=5, bytes_out=10, in_flight=5))
    assert spending.reserve(4) is None
    assert spending.reserve(7) == "bytes_out"
    assert (spending.calls, spending.in_flight, spending.bytes_out) == (1, 1, 4)
    assert spending.reserve(6) is None
    assert spending.reserve(None) == "bytes_out"


def test_none_is_no_limit() -> None:
    spending = Spending(Budget())
    assert all(spending.reserve(10**12) is None for _ in range(100))
    assert spending.receive(10**15)
    assert spending.send(10**15)


def test_principals_take_turns_however_much_one_of_them_asks_for() -> None:
    queue: FairQueue[str] = FairQueue(1)
    assert queue.ask("greedy", "g0")
    for number in range(1, 6):
        assert not queue.ask("greedy", f"g{number}")
    for number in range(2):
        assert not queue.ask("modest", f"m{number}")
    assert not queue.ask("third", "t0")
    assert queue.leave("greedy", "g2")
    assert not queue.leave("greedy", "g2")
    order = [queue.give_back() for _ in range(8)]
    assert order == ["g1", "m0", "t0", "g3", "m1", "g4", "g5", None]
    assert (queue.taken, queue.waiting) == (0, 0)


@dataclass(eq=False)
class Model:
    """What a call of the plain model has used."""

    call: Call
    bytes_out: int | None
    stage: str = "reserved"
    offered: int = 0
    holds: Any = None


class Spendings(RuleBasedStateMachine):
    """Any order of what calls, recipients and revocations do, against a plain count of what is used."""

    def __init__(self) -> None:
        super().__init__()
        lock = threading.Lock()
        self.desk = Desk(PLACES, policy=None, now=lambda: 0.0, lock=lock, changed=lambda: None)
        self.budget = Budget(calls=12, bytes_out=60, bytes_in=50, in_flight=5)
        self.authority = Authority("p", (Grant("r", operations=("go",)),), self.budget, deadline=9.0)
        assert self.desk.enter(self.authority)
        self.alive: list[Model] = []
        self.calls = 0
        self.bytes_out = 0
        self.bytes_in = 0

    def pick(self, data: Any, *stages: str) -> Model:
        return data.draw(st.sampled_from([model for model in self.alive if model.stage in stages]))  # type: ignore[no-any-return]

    def some(self, *stages: str) -> bool:
        return any(model.stage in stages for model in self.alive)

    @rule(size=st.one_of(st.none(), st.integers(0, 30)))
    def ask(self, size: int | None) -> None:
        proposal = Proposal("p", "r", operation="go", bytes_out=size)
        call = Call(self.authority, proposal, key="k", deadline=9.0, began=0.0, wake=lambda: None)
        assert self.desk.ask(call) is None
        left = 60 - self.bytes_out
        fits = self.calls < 12 and len(self.alive) < 5 and self.bytes_in < 50 and left > 0 and (size or 0) <= left
        refused = self.desk.reserve(call)
        assert (refused is None) == fits
        if refused is not None:
            assert refused.evidence.kind == "budget-exhausted"
            self.desk.withdraw(call)
            return
        self.calls += 1
        self.bytes_out += size or 0
        model = Model(call, size)
        self.alive.append(model)
        working = sum(one.call.permitted for one in self.alive)
        assert self.desk.enqueue(call) == (working < PLACES)

    @precondition(lambda self: self.some("reserved"))
    @rule(data=st.data())
    def withdraw(self, data: Any) -> None:
        model = self.pick(data, "reserved")
        self.desk.withdraw(model.call)
        self.calls -= 1
        self.bytes_out -= model.bytes_out or 0
        self.alive.remove(model)

    @precondition(lambda self: any(model.stage == "reserved" and model.call.permitted for model in self.alive))
    @rule(data=st.data(), dispatched=st.booleans())
    def start(self, data: Any, dispatched: bool) -> None:
        ready = [model for model in self.alive if model.stage == "reserved" and model.call.permitted]
        model = data.draw(st.sampled_from(ready))
        assert self.desk.start(model.call) is None
        model.stage = "working"
        if dispatched:
            Permit(self.desk, model.call).dispatch()

    @precondition(lambda self: any(model.stage == "working" and model.call.gate.dispatched for model in self.alive))
    @rule(data=st.data(), count=st.integers(0, 40))
    def offer(self, data: Any, count: int) -> None:
        sending = [model for model in self.alive if model.stage == "working" and model.call.gate.dispatched]
        model = data.draw(st.sampled_from(sending))
        reserved = model.bytes_out or 0
        beyond = max(0, model.offered + count - max(model.offered, reserved))
        allowed = beyond == 0 or self.bytes_out + beyond <= 60
        assert Permit(self.desk, model.call).offered(count) == allowed
        if allowed:
            model.offered += count
            self.bytes_out += beyond

    @precondition(lambda self: self.some("working"))
    @rule(data=st.data(), count=st.integers(0, 20))
    def receive(self, data: Any, count: int) -> None:
        self.bytes_in += count
        assert Permit(self.desk, self.pick(data, "working").call).received(count) == (self.bytes_in <= 50)

    @precondition(lambda self: any(model.stage == "working" and model.holds is None for model in self.alive))
    @rule(data=st.data())
    def hold(self, data: Any) -> None:
        free = [model for model in self.alive if model.stage == "working" and model.holds is None]
        model = data.draw(st.sampled_from(free))
        model.holds = Permit(self.desk, model.call).hold()

    @precondition(lambda self: self.some("working"))
    @rule(data=st.data())
    def returned(self, data: Any) -> None:
        model = self.pick(data, "working")
        self.desk.returned(model.call)
        if not model.call.gate.dispatched:
            self.bytes_out -= model.bytes_out or 0
        self.desk.settle(model.call, Accepted("x") if model.call.gate.dispatched else Rejected(Evidence("x")))
        self.desk.tell(model.call)
        model.stage = "held"
        if model.holds is None:
            self.alive.remove(model)

    @precondition(lambda self: any(model.holds is not None for model in self.alive))
    @rule(data=st.data())
    def let_go(self, data: Any) -> None:
        model = data.draw(st.sampled_from([model for model in self.alive if model.holds is not None]))
        model.holds()
        model.holds()
        model.holds = None
        if model.stage == "held":
            self.alive.remove(model)

    @precondition(lambda self: self.some("working"))
    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        """The caller goes; its permit stays, and so does what it used."""
        model = self.pick(data, "working")
        self.desk.close(model.call, "cancelled")
        kind = Uncertain if model.call.gate.dispatched else Rejected
        assert isinstance(model.call.outcome, kind)
        # What nobody waits for sends no more.
        assert not Permit(self.desk, model.call).offered(1)
        self.desk.returned(model.call)
        if not model.call.gate.dispatched:
            self.bytes_out -= model.bytes_out or 0
        model.stage = "held"
        if model.holds is None:
            self.alive.remove(model)

    @invariant()
    def nothing_is_lost_and_nothing_is_made_up(self) -> None:
        spending = self.authority.spending
        assert (spending.calls, spending.bytes_out) == (self.calls, self.bytes_out)
        assert spending.bytes_in == self.bytes_in
        assert spending.in_flight == len(self.alive)
        report = self.desk.report()
        assert report.permits == min(PLACES, len(self.alive))
        assert report.permits + report.waiting == len(self.alive)
        assert len(report.calls) == len(self.alive)


Spendings.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_any_order_of_use_is_counted_exactly = pytest.mark.rule("B5")(Spendings.TestCase)
