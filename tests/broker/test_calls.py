"""Performing now, in both colours: refused before dispatch, one attempt, and an answer at the deadline."""

import asyncio
import time
from typing import Any

import pytest

from counterfoil import Accepted, Budget, Evidence, Failed, Grant, Rejected, Uncertain, UsageError
from counterfoil.broker.calls import Proposal
from tests.broker.support import GRANT, Act, Desk, Post
from tests.support import GROWING_S, Colour, eventually, tries

RULE_PARTS = ("B",)


@pytest.mark.rule("B1", "O1", "O6")
async def test_what_a_grant_allows_is_performed_and_its_proof_returned(colour: Colour, post: Post) -> None:
    desk = Desk.make(colour)
    async with desk.activation() as act:
        outcome = await act.perform(post.send("a"))
    assert isinstance(outcome, Accepted)
    assert (outcome.proof, outcome.via) == ("a", "run")
    assert outcome.evidence.kind == "acknowledged"
    assert outcome.evidence.details is not None
    assert outcome.evidence.details["attempts"] == 1
    assert outcome.evidence.details["key"] == post.keys[0]
    assert post.log == ["send a"]
    await desk.idle()


@pytest.mark.rule("B1", "B3")
@pytest.mark.parametrize(
    ("grants", "budget", "kind"),
    [
        ([], None, "refused-by-policy"),
        ([Grant("desk", operations=("hold",))], None, "refused-by-policy"),
        ([Grant("other", operations=("send",))], None, "refused-by-policy"),
        ([Grant("desk", operations=())], None, "refused-by-policy"),
        ([GRANT], Budget(calls=0), "budget-exhausted"),
        ([GRANT], Budget(bytes_out=0), "budget-exhausted"),
        ([GRANT], Budget(bytes_in=0), "budget-exhausted"),
        ([GRANT], Budget(in_flight=0), "budget-exhausted"),
    ],
)
async def test_what_is_not_allowed_is_rejected_and_nothing_is_sent(
    colour: Colour, post: Post, grants: Any, budget: Any, kind: str
) -> None:
    desk = Desk.make(colour)
    async with desk.activation(grants=grants, budget=budget) as act:
        outcome = await act.perform(post.send())
    assert isinstance(outcome, Rejected)
    assert (outcome.evidence.kind, outcome.evidence.phase) == (kind, "not-dispatched")
    assert outcome.evidence.details is not None
    assert outcome.evidence.details["attempts"] == 0
    assert post.log == []
    assert desk.report().idle


@pytest.mark.rule("B1", "B3")
@pytest.mark.parametrize("verdict", [False, None, 1, "yes", ValueError("planted-secret")])
async def test_a_policy_that_does_not_say_true_says_no(colour: Colour, post: Post, verdict: Any) -> None:
    asked: list[Proposal] = []

    def policy(proposal: Proposal) -> Any:
        asked.append(proposal)
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    desk = Desk.make(colour, policy=policy)
    async with desk.activation(principal="ann") as act:
        outcome = await act.perform(post.send("a"))
    assert isinstance(outcome, Rejected)
    assert outcome.evidence.kind == "refused-by-policy"
    assert "planted-secret" not in repr(outcome)
    assert post.log == []
    (one,) = asked
    assert (one.principal, one.recipient, one.operation, one.target) == ("ann", "desk", "send", None)
    assert one.request["arguments"] == {"item": "a"}
    assert "arguments" not in repr(one)


@pytest.mark.rule("B1")
async def test_a_budget_of_calls_is_used_up_by_what_was_attempted(colour: Colour, post: Post) -> None:
    desk = Desk.make(colour)
    async with desk.activation(budget=Budget(calls=2)) as act:
        outcomes = [
            await act.perform(post.send("a"), timeout_s=0),  # never attempted, so it costs nothing
            await act.perform(post.raises(ConnectionError())),
            await act.perform(post.send("b")),
            await act.perform(post.send("c")),
        ]
    kinds = [outcome.evidence.kind for outcome in outcomes]
    assert kinds == ["deadline-before-dispatch", "run-raised", "acknowledged", "budget-exhausted"]
    assert post.log == ["raise", "send b"]


@pytest.mark.rule("O1", "O2", "B3")
@pytest.mark.parametrize("error", [ConnectionError("no"), TimeoutError(), asyncio.CancelledError(), StopIteration(1)])
async def test_an_exception_is_no_evidence(colour: Colour, post: Post, error: BaseException) -> None:
    desk = Desk.make(colour)
    async with desk.activation() as act:
        outcome = await act.perform(post.raises(error))
    assert isinstance(outcome, Uncertain)
    assert (outcome.evidence.kind, outcome.evidence.phase) == ("run-raised", "dispatched")
    assert post.log == ["raise"]


@pytest.mark.rule("O1", "O2")
@pytest.mark.parametrize("kind", [Rejected, Failed])
async def test_a_function_may_prove_that_nothing_happened(colour: Colour, post: Post, kind: Any) -> None:
    proved = kind(Evidence("closed-account", status=403))
    desk = Desk.make(colour)
    async with desk.activation() as act:
        assert await act.perform(post.raises(proved)) == proved


@pytest.mark.rule("O5")
@pytest.mark.parametrize("value", [float("nan"), {1, 2}, b"bytes", {"a": (1, 2)}, "x" * 70_000, "\ud800"])
async def test_an_acknowledgement_that_is_no_proof_is_uncertain(colour: Colour, post: Post, value: Any) -> None:
    desk = Desk.make(colour)
    async with desk.activation() as act:
        outcome = await act.perform(post.send(value))
    assert isinstance(outcome, Uncertain)
    assert outcome.evidence.kind == "proof-rejected"


@pytest.mark.rule("O5")
@pytest.mark.parametrize(("verdict", "kind"), [(True, "acknowledged"), (False, "proof-refused"), (None, "run-raised")])
async def test_an_acknowledgement_from_somebody_else_is_uncertain(
    colour: Colour, post: Post, verdict: bool | None, kind: str
) -> None:
    def check(proof: str, ctx: Any) -> bool:
        assert (proof, ctx.key) == ("a", post.keys[0])
        if verdict is None:
            raise ConnectionError
        return verdict

    post.recipient.operations["send"].verify(check)
    desk = Desk.make(colour)
    async with desk.activation() as act:
        outcome = await act.perform(post.send("a"))
    assert outcome.evidence.kind == kind
    assert isinstance(outcome, Accepted if verdict else Uncertain)


@pytest.mark.rule("B6", "B5", "O2")
async def test_an_overdue_caller_gets_uncertain_at_its_deadline_and_its_permit_is_held(
    colour: Colour, post: Post
) -> None:
    desk = Desk.make(colour, concurrency=1)
    async with desk.activation(budget=Budget(in_flight=2)) as act:
        outcome = await overdue(act, post)
        assert outcome.evidence.kind == "deadline"
        report = desk.report()
        assert (report.permits, report.cleaning, report.idle) == (1, 1, False)
        (owned,) = report.calls
        assert (owned.state, owned.recipient, owned.operation) == ("cleaning", "desk", "hold")
        # Its place is taken as long as the work goes on: the next one never gets to its gate.
        late = await act.perform(post.send(), timeout_s=0.1)
        assert isinstance(late, Rejected)
        assert late.evidence.kind == "deadline-before-dispatch"
        assert not post.ended.is_set()
        post.opened.set()
        await desk.idle()
        assert post.cancelled
        assert isinstance(await act.perform(post.send()), Accepted)
    assert post.log == ["hold", "send a"]


async def overdue(act: Act, post: Post) -> Any:
    """Perform what works until it is let go, which is not before its caller has been told."""
    ends: list[Any] = []
    for timeout_s in tries(lambda: isinstance(ends[-1], Uncertain), GROWING_S):
        began_s = time.monotonic()
        ends.append(await act.perform(post.hold(), timeout_s=timeout_s))
        assert time.monotonic() - began_s >= timeout_s
        assert isinstance(ends[-1], Uncertain) or ends[-1].evidence.kind == "deadline-before-dispatch"
    return ends[-1]


@pytest.mark.rule("B5")
async def test_work_that_goes_on_without_a_caller_counts_as_in_flight(colour: Colour, post: Post) -> None:
    desk = Desk.make(colour)
    async with desk.activation(budget=Budget(in_flight=1)) as act:
        await overdue(act, post)
        refused = await act.perform(post.send())
        assert refused.evidence.kind == "budget-exhausted"
        assert refused.evidence.details == {"attempts": 0, "budget": "in_flight"}
        post.opened.set()
        await desk.idle()
        assert isinstance(await act.perform(post.send()), Accepted)


@pytest.mark.rule("B1", "B2")
@pytest.mark.parametrize(("deadline_s", "timeout_s"), [(0, None), (30, 0), (0, 30)])
async def test_no_time_is_no_time(colour: Colour, post: Post, deadline_s: float, timeout_s: float | None) -> None:
    desk = Desk.make(colour)
    async with desk.activation(deadline_s=deadline_s) as act:
        outcome = await act.perform(post.send(), timeout_s=timeout_s)
    assert isinstance(outcome, Rejected)
    assert outcome.evidence.kind == "deadline-before-dispatch"
    assert post.log == []


@pytest.mark.rule("B1")
async def test_a_timeout_narrows_the_deadline_of_the_activation_and_never_widens_it(colour: Colour, post: Post) -> None:
    desk = Desk.make(colour)
    ends: list[Any] = []
    for deadline_s in tries(lambda: isinstance(ends[-1], Uncertain), GROWING_S):
        async with desk.activation(deadline_s=deadline_s) as act:
            ends.append(await act.perform(post.hold(), timeout_s=3600))
    assert ends[-1].evidence.kind == "deadline"
    post.opened.set()
    await desk.idle()


@pytest.mark.rule("B2", "B6")
@pytest.mark.parametrize("how", ["revoke", "cancel"])
async def test_revocation_and_cancellation_end_what_waits_and_what_works(colour: Colour, post: Post, how: str) -> None:
    kind = {"revoke": "revoked", "cancel": "cancelled"}[how]
    desk = Desk.make(colour, concurrency=1)
    async with desk.activation() as act:
        working = act.begin(post.hold())
        await post.arrival()
        waiting = act.begin(post.send())
        await eventually(lambda: desk.report().waiting == 1)
        getattr(act, how)()
        dispatched, never = await working, await waiting
        assert isinstance(dispatched, Uncertain)
        assert isinstance(never, Rejected)
        assert {dispatched.evidence.kind, never.evidence.kind} == {kind}
        after = await act.perform(post.send())
        assert (type(after), after.evidence.kind) == (Rejected, kind)
        post.opened.set()
        await desk.idle()
    assert post.log == ["hold"]
    assert post.cancelled


@pytest.mark.rule("B6", "B5")
async def test_a_cancelled_task_learns_what_may_have_happened(post: Post, colour: Colour) -> None:
    if colour.blocking:
        pytest.skip("a thread is not cancelled from outside: `Activation.cancel` is what there is")
    desk = Desk.make(colour, concurrency=1)
    async with desk.activation() as act:
        working = act.begin(post.hold())
        await post.arrival()
        waiting = act.begin(post.send())
        await eventually(lambda: desk.report().waiting == 1)
        told = []
        for task in (waiting, working):
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as cancelled:
                await task
            told.append(cancelled.value.outcome)  # type: ignore[attr-defined]
        assert [type(outcome) for outcome in told] == [Rejected, Uncertain]
        assert {outcome.evidence.kind for outcome in told} == {"cancelled"}
        assert desk.report().cleaning == 1
        post.opened.set()
        await desk.idle()
        assert isinstance(await act.perform(post.send()), Accepted)
    assert post.log == ["hold", "send a"]


class Interrupted(BaseException):
    """What Ctrl-C is in a test that must go on."""


@pytest.mark.rule("B5")
@pytest.mark.parametrize("look", [1, 2])
async def test_an_interrupt_of_the_caller_loses_no_permit(colour: Colour, post: Post, look: int) -> None:
    looks: list[Proposal] = []

    def policy(proposal: Proposal) -> bool:
        looks.append(proposal)
        if len(looks) == look:
            raise Interrupted
        return True

    desk = Desk.make(colour, policy=policy, concurrency=1)
    async with desk.activation(budget=Budget(calls=1, in_flight=1)) as act:
        with pytest.raises(Interrupted):
            await act.perform(post.send("a"))
        assert desk.report().idle
        assert isinstance(await act.perform(post.send("b")), Accepted)
    assert post.log == ["send b"]


@pytest.mark.rule("B5")
async def test_a_thread_keeps_its_permit_when_the_library_is_torn_down_around_it(post: Post, colour: Colour) -> None:
    if colour.blocking:
        pytest.skip("there is no task that could be torn down")
    desk = Desk.make(colour)
    async with desk.activation() as act:
        call = act.begin(post.hold())
        await post.arrival()
        for task in desk.inner._tasks:
            task.cancel()
        assert isinstance(await call, Uncertain)
        assert (desk.report().permits, desk.report().cleaning) == (1, 1)
        post.opened.set()
        await desk.idle()


@pytest.mark.rule("B2")
async def test_an_activation_that_was_left_allows_nothing(colour: Colour, post: Post) -> None:
    desk = Desk.make(colour)
    async with desk.activation() as act:
        pass
    outcome = await act.perform(post.send())
    assert (type(outcome), outcome.evidence.kind) == (Rejected, "activation-over")
    assert post.log == []


@pytest.mark.rule("B1")
async def test_principals_take_turns(colour: Colour, post: Post) -> None:
    desk = Desk.make(colour, concurrency=1)
    async with desk.activation(principal="greedy") as greedy, desk.activation(principal="modest") as modest:
        first = greedy.begin(post.hold())
        await post.arrival()
        many = []
        for number in range(4):
            many.append(greedy.begin(post.send(f"greedy {number}")))
            await eventually(lambda count=number + 1: desk.report().waiting == count)  # type: ignore[misc]
        one = modest.begin(post.send("modest"))
        await eventually(lambda: desk.report().waiting == 5)
        post.opened.set()
        await asyncio.gather(first, one, *many)
    assert post.log[1:3] == ["send greedy 0", "send modest"]


@pytest.mark.rule("B3")
async def test_a_handler_that_ends_the_process_ends_it_after_its_call_was_accounted_for(
    colour: Colour, post: Post
) -> None:
    if not colour.blocking:
        pytest.skip("an event loop ends at once at these")
    desk = Desk.make(colour)
    with desk.inner.activation(grants=[GRANT]) as act, pytest.raises(SystemExit):
        act.perform(post.raises(SystemExit(3)))
    assert desk.report().idle


@pytest.mark.parametrize(
    "wrong",
    [
        {"principal": ""},
        {"principal": "a\nb"},
        {"grants": GRANT},
        {"grants": ["desk"]},
        {"budget": 3},
        {"deadline_s": -1},
        {"deadline_s": float("nan")},
        {"deadline_s": "1"},
    ],
)
def test_an_activation_of_the_wrong_shape_is_refused(colour: Colour, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Desk.make(colour).activation(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"audit": "on"},
        {"audit": "required"},
        {"audit": "best-effort"},
        {"concurrency": 0},
        {"concurrency": 1.5},
        {"concurrency": True},
        {"policy": "allow"},
        {"runtime": "sqlite:///x.db"},
    ],
)
def test_a_broker_of_the_wrong_shape_is_refused(colour: Colour, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Desk.make(colour, **wrong)


def test_an_asynchronous_policy_is_refused(colour: Colour) -> None:
    async def policy(proposal: Proposal) -> bool:
        return True

    with pytest.raises(UsageError, match="plain function"):
        Desk.make(colour, policy=policy)


async def test_what_is_no_operation_or_no_time_is_refused_before_anything_happens(colour: Colour, post: Post) -> None:
    desk = Desk.make(colour)
    unopened = desk.activation()
    with pytest.raises(UsageError, match="not open"):
        await unopened.perform(post.send())
    async with desk.activation() as act:
        for wrong in (None, "send", post.recipient, post.recipient.operations["send"]):
            with pytest.raises(UsageError, match="operation"):
                await act.perform(wrong)
        for time_out in (-1, float("inf"), "3"):
            with pytest.raises(UsageError, match="timeout_s"):
                await act.perform(post.send(), timeout_s=time_out)
        with pytest.raises(UsageError, match="Retry"):
            await act.perform(post.send(), retry=3)
        with pytest.raises(UsageError, match="entered before"):
            await act.__aenter__()
    assert post.log == []
    assert desk.report().idle
