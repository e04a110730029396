"""Operations that know their own dispatch line, over real sockets: the peer counts what reached it."""

import asyncio
import threading
import time
from typing import Any

import pytest

from counterfoil import Accepted, Budget, Evidence, Grant, Rejected, Uncertain
from tests.broker.support import Desk, Line, LoopLine, peer, wire_grant
from tests.support import GROWING_S, PATIENCE_S, Colour, eventually, tries

# Calls of a storm; the long ones are among the torture.
STORM = 600


@pytest.fixture
def line(colour: Colour) -> type[Line]:
    return Line if colour.blocking else LoopLine


@pytest.mark.rule("B4", "O1")
async def test_one_operation_reaches_the_peer_once(colour: Colour, line: type[Line]) -> None:
    desk = Desk.make(colour)
    with peer() as other:
        async with desk.activation(grants=[wire_grant(other.port)]) as act:
            outcome = await act.perform(line(other.port))
        assert isinstance(outcome, Accepted)
        assert outcome.proof == {"answer": "ok"}
        assert outcome.evidence.bytes_offered == 6
        assert other.lines == [b"hello\n"]
        await desk.idle()


@pytest.mark.rule("B4", "O2")
async def test_a_peer_that_reads_and_hangs_up_was_reached_once_and_the_outcome_is_uncertain(
    colour: Colour, line: type[Line]
) -> None:
    desk = Desk.make(colour)
    with peer("drop") as other:
        async with desk.activation(grants=[wire_grant(other.port)]) as act:
            outcome = await act.perform(line(other.port))
        assert isinstance(outcome, Uncertain)
        assert other.lines == [b"hello\n"]


@pytest.mark.rule("B3")
async def test_what_cannot_connect_is_rejected_with_the_recipients_own_evidence(
    colour: Colour, line: type[Line]
) -> None:
    desk = Desk.make(colour)
    with peer() as other:
        port = other.port
    async with desk.activation(grants=[wire_grant(port)], budget=Budget(calls=1, bytes_out=6)) as act:
        outcome = await act.perform(line(port, bytes_out=6))
        assert isinstance(outcome, Rejected)
        assert outcome.evidence.kind == "connect-failed"
        # It was tried, so the call is spent (rule B5); its bytes are not.
        again = await act.perform(line(port, bytes_out=6))
        assert again.evidence.details == {"attempts": 0, "budget": "calls"}
    assert desk.report().idle


@pytest.mark.rule("B1", "B3")
@pytest.mark.parametrize(
    "narrower",
    [
        {"targets": ()},
        {"targets": ("tcp://127.0.0.1:1",)},
        {"targets": ("tcp://127.0.0.2:{port}",)},
        {"targets": ("tcp://127.0.0.1:{port}/deep/",)},
        {"operations": ("line",)},
        {"allow_addresses": ()},
        {"allow_addresses": ("127.0.0.2/32",)},
    ],
)
async def test_no_byte_reaches_a_target_or_an_address_that_is_not_granted(
    colour: Colour, line: type[Line], narrower: dict[str, Any]
) -> None:
    desk = Desk.make(colour)
    with peer() as other:
        filled = {what: tuple(text.format(port=other.port) for text in texts) for what, texts in narrower.items()}
        async with desk.activation(grants=[wire_grant(other.port, **filled)]) as act:
            outcome = await act.perform(line(other.port))
        assert isinstance(outcome, Rejected)
        assert outcome.evidence.kind == "refused-by-policy"
        assert other.lines == []


@pytest.mark.rule("B1")
async def test_an_address_is_open_only_through_a_grant_that_covers_the_operation(
    colour: Colour, line: type[Line]
) -> None:
    desk = Desk.make(colour)
    with peer() as other:
        closed = wire_grant(other.port, allow_addresses=())
        elsewhere = Grant("wire", operations=("LINE",), targets=("tcp://h.example",), allow_addresses=("127.0.0.1/32",))
        async with desk.activation(grants=[closed, elsewhere]) as act:
            assert isinstance(await act.perform(line(other.port)), Rejected)
        assert other.lines == []


@pytest.mark.rule("B2", "B3")
@pytest.mark.parametrize("how", ["revoked", "cancelled", "deadline"])
async def test_what_ends_the_call_between_connecting_and_dispatch_lets_no_byte_out(
    colour: Colour, line: type[Line], how: str
) -> None:
    desk = Desk.make(colour)
    with peer() as other:
        async with desk.activation(grants=[wire_grant(other.port)]) as act:

            def before() -> None:
                if how == "revoked":
                    act.revoke()
                elif how == "cancelled":
                    act.cancel()
                else:
                    time.sleep(0.1)

            timeout_s = 0.09 if how == "deadline" else None
            outcome = await act.perform(line(other.port, before=before), timeout_s=timeout_s)
        await desk.idle()
        assert isinstance(outcome, Rejected)
        assert outcome.evidence.kind == ("deadline-before-dispatch" if how == "deadline" else how)
        assert other.lines == []


@pytest.mark.rule("B5", "B6", "O6")
@pytest.mark.parametrize("how", ["revoked", "cancelled", "deadline"])
async def test_what_ends_the_call_after_dispatch_is_uncertain_and_the_socket_is_really_gone(
    colour: Colour, line: type[Line], how: str
) -> None:
    desk = Desk.make(colour)
    with peer("hang") as other:
        async with desk.activation(grants=[wire_grant(other.port)]) as act:
            ends: list[Any] = []
            times_s = GROWING_S if how == "deadline" else [None]
            for timeout_s in tries(lambda: isinstance(ends[-1], Uncertain), times_s):
                call = act.begin(line(other.port), timeout_s=timeout_s)
                await eventually(lambda call=call: other.lines or call.done())  # type: ignore[misc]
                if how == "revoked":
                    act.revoke()
                elif how == "cancelled":
                    act.cancel()
                ends.append(await call)
            outcome = ends[-1]
            assert outcome.evidence.kind == how
            assert outcome.evidence.bytes_offered == 6
            assert outcome.evidence.contract == "line-1"
            assert outcome.evidence.details is not None
            assert outcome.evidence.details["peer"] == f"127.0.0.1:{other.port}"
            await desk.idle()
        await eventually(lambda: other.lines and other.gone.is_set())
        assert other.lines == [b"hello\n"]


@pytest.mark.rule("B1")
async def test_bytes_are_charged_as_they_are_offered_and_cut_at_the_bound(colour: Colour, line: type[Line]) -> None:
    desk = Desk.make(colour)
    with peer("hang") as other:
        async with desk.activation(grants=[wire_grant(other.port)], budget=Budget(bytes_out=2500)) as act:
            outcome = await act.perform(line(other.port, text=b"x" * 4999 + b"\n"))
            assert isinstance(outcome, Uncertain)
            assert (outcome.evidence.kind, outcome.evidence.bytes_offered) == ("cut-request", 2000)
            # What is known beforehand not to fit never goes out.
            known = await act.perform(line(other.port, text=b"x" * 999 + b"\n", bytes_out=1000))
            assert (type(known), known.evidence.kind) == (Rejected, "budget-exhausted")
        assert other.lines == []


@pytest.mark.rule("B1")
async def test_a_response_is_cut_at_the_budget(colour: Colour, line: type[Line]) -> None:
    desk = Desk.make(colour)
    with peer() as other:
        async with desk.activation(grants=[wire_grant(other.port)], budget=Budget(bytes_in=4)) as act:
            assert isinstance(await act.perform(line(other.port)), Accepted)
            cut = await act.perform(line(other.port))
            assert (type(cut), cut.evidence.kind) == (Uncertain, "cut-response")
            refused = await act.perform(line(other.port))
            assert refused.evidence.details == {"attempts": 0, "budget": "bytes_in"}
        assert len(other.lines) == 2


@pytest.mark.rule("B1", "B2")
async def test_each_hop_is_authorised_and_charged(colour: Colour, line: type[Line]) -> None:
    desk = Desk.make(colour)
    with peer() as other:
        hops = (f"tcp://127.0.0.1:{other.port}/next", "tcp://evil.example/", f"tcp://127.0.0.1:{other.port}/third")
        operation = line(other.port, hops=hops)
        async with desk.activation(grants=[wire_grant(other.port)], budget=Budget(calls=2)) as act:
            outcome = await act.perform(operation)
            # Dispatched is dispatched: a hop that is refused is not followed, and never makes it `Rejected`.
            assert isinstance(outcome, Accepted)
            assert operation.hopped == [True, False, False]
            assert (await act.perform(line(other.port))).evidence.kind == "budget-exhausted"


class Held(Line):
    """Its work goes on in a thread after `perform` has returned."""

    def perform(self, context: Any, permit: Any) -> Any:
        let_go = permit.hold()
        self.release = threading.Event()

        def work() -> None:
            self.release.wait(PATIENCE_S)
            let_go()
            let_go()

        threading.Thread(target=work, daemon=True).start()
        raise Rejected(Evidence("no-address", phase="not-dispatched"))


@pytest.mark.rule("B5")
async def test_a_permit_is_held_for_work_that_outlives_the_recipients_code(colour: Colour) -> None:
    desk = Desk.make(colour, concurrency=1)
    operation = Held(9)
    async with desk.activation(grants=[wire_grant(9)]) as act:
        assert (await act.perform(operation)).evidence.kind == "no-address"
        assert (desk.report().permits, desk.report().cleaning) == (1, 1)
        blocked = await act.perform(Held(9), timeout_s=0.1)
        assert blocked.evidence.kind == "deadline-before-dispatch"
        operation.release.set()
        await desk.idle()


class Careless(Line):
    """Breaks its contract beyond the gate: it says that nothing went out, or wins it twice, or says nothing."""

    how = "rejected"

    def perform(self, context: Any, permit: Any) -> Any:
        permit.dispatch()
        if self.how == "rejected":
            raise Rejected(Evidence("surely-not", phase="not-dispatched"))
        if self.how == "twice":
            permit.dispatch()
        return None


@pytest.mark.rule("B2", "O1")
@pytest.mark.parametrize("how", ["rejected", "twice", "silent"])
async def test_beyond_the_gate_nothing_is_rejected_whatever_a_recipient_says(colour: Colour, how: str) -> None:
    desk = Desk.make(colour)
    operation = Careless(9)
    operation.how = how
    async with desk.activation(grants=[wire_grant(9)]) as act:
        assert isinstance(await act.perform(operation), Uncertain)
    assert desk.report().idle


@pytest.mark.rule("B4", "B5")
async def test_an_upload_that_is_cancelled_early_stops_and_frees_its_permit(colour: Colour, line: type[Line]) -> None:
    desk = Desk.make(colour, concurrency=1)
    # 30 MB do not fit into any buffer between here and there.
    text = b"x" * 30_000_000 + b"\n"
    ends: list[Any] = []
    for timeout_s in tries(lambda: ends[-1].evidence.bytes_offered, GROWING_S):
        with peer("stall") as other:
            async with desk.activation(grants=[wire_grant(other.port)]) as act:
                outcome = await act.perform(line(other.port, text=text), timeout_s=timeout_s)
                ends.append(outcome)
                await desk.idle()
                other.released.set()
                if offered := outcome.evidence.bytes_offered:
                    assert isinstance(outcome, Uncertain)
                    assert offered < 30_000_000
                    await eventually(other.gone.is_set)
                    assert other.bytes_read <= offered + 1000
                other.answer = "ok"
                assert isinstance(await act.perform(line(other.port)), Accepted)


@pytest.mark.rule("B5", "B6")
async def test_a_storm_of_cancelled_calls_returns_every_permit(line: type[Line], colour: Colour) -> None:
    """Many calls, cancelled at every stage they can be in: waiting, connecting, sent."""
    desk = Desk.make(colour, concurrency=16)
    with peer("hang") as other:
        grants = [wire_grant(other.port)]
        outcomes: list[Any] = []
        if colour.blocking:
            await _storm_of_threads(desk, other, grants=grants, outcomes=outcomes)
        else:
            await _storm_of_tasks(desk, other, grants=grants, outcomes=outcomes)
        assert len(outcomes) == STORM
        assert {type(outcome) for outcome in outcomes} == {Rejected, Uncertain}
        uncertain = sum(isinstance(outcome, Uncertain) for outcome in outcomes)
        await desk.idle()
        assert len(other.lines) <= uncertain
        report = desk.report()
        assert (report.permits, report.waiting, report.cleaning, report.calls) == (0, 0, 0, ())
        other.answer = "ok"
        async with desk.activation(grants=grants) as act:
            after = await asyncio.gather(*(act.perform(line(other.port)) for _ in range(32)))
        assert all(isinstance(outcome, Accepted) for outcome in after)


async def _storm_of_tasks(desk: Desk, other: Any, *, grants: Any, outcomes: list[Any]) -> None:
    async with desk.activation(grants=grants, deadline_s=300) as act:
        tasks = [act.begin(LoopLine(other.port)) for _ in range(STORM)]
        await eventually(lambda: len(other.lines) >= 16)
        for number, task in enumerate(tasks):
            if number % 50 == 0:
                await asyncio.sleep(0.003)
            task.cancel()
        for ended in tasks:
            with pytest.raises(asyncio.CancelledError) as cancelled:
                await ended
            # A task that had not begun asked for nothing.
            outcomes.append(getattr(cancelled.value, "outcome", Rejected(Evidence("not-begun"))))


async def _storm_of_threads(desk: Desk, other: Any, *, grants: Any, outcomes: list[Any]) -> None:
    # 40 callers at a time; each crowd is cancelled as one, in the midst of what it does.
    for crowd in range(STORM // 40):
        async with desk.activation(grants=grants, deadline_s=300) as act:
            calls = [act.begin(Line(other.port)) for _ in range(40)]
            if not crowd:
                # However busy the machine is, some of them are on their way.
                await eventually(lambda: other.lines)
            await asyncio.sleep(0.004)
            act.cancel()
            outcomes.extend(await asyncio.gather(*calls))
