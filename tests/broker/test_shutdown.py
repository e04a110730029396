"""Shutdown waits to its deadline and says what is still owned."""

import asyncio
import os
import time

import pytest

from counterfoil import Accepted, Rejected, Uncertain, UsageError
from tests.broker.support import GRANT, Act, Desk, Line, LoopLine, Post, peer, wire_grant
from tests.support import PATIENCE_S, Colour, eventually, in_thread

pytestmark = pytest.mark.rule("B10")


async def test_an_idle_broker_shuts_down_at_once(colour: Colour, post: Post) -> None:
    desk = Desk.make(colour)
    async with desk.activation() as act:
        assert isinstance(await act.perform(post.send()), Accepted)
    # Not at its deadline: nobody would live to see that.
    report = await desk.close(timeout_s=1e6)
    assert report.idle
    assert (report.activations, report.permits, report.waiting, report.cleaning) == (0, 0, 0, 0)


async def test_shutdown_takes_nothing_new_and_waits_for_what_is_under_way(colour: Colour, post: Post) -> None:
    desk = Desk.make(colour)
    async with desk.activation() as act:
        call = act.begin(post.hold())
        await post.arrival()
        closing = asyncio.ensure_future(desk.close(timeout_s=PATIENCE_S))
        await eventually(lambda: desk.inner._shared.desk.closing)
        refused = await act.perform(post.send())
        assert (type(refused), refused.evidence.kind) == (Rejected, "shutdown")
        with pytest.raises(UsageError) as closed:
            async with desk.activation():
                pass
        assert closed.value.code == "broker-closed"
        assert not closing.done()
        post.opened.set()
        assert isinstance(await call, Accepted)
        assert (await closing).idle
    assert post.log == ["hold"]


async def test_at_its_deadline_shutdown_ends_what_is_left_and_reports_it(colour: Colour, post: Post) -> None:
    desk = Desk.make(colour, concurrency=1)
    async with desk.activation(principal="ann") as act:
        working = act.begin(post.hold())
        await post.arrival()
        waiting = act.begin(post.send())
        await eventually(lambda: desk.report().waiting == 1)
        began_s = time.monotonic()
        # What works goes on until after that.
        report = await desk.close(timeout_s=0.1)
        assert time.monotonic() - began_s >= 0.1
        owned = [(call.principal, call.operation, call.state) for call in report.calls]
        assert ("ann", "hold", "cleaning") in owned
        assert not report.idle
        assert (type(await working), type(await waiting)) == (Uncertain, Rejected)
        assert {(await working).evidence.kind, (await waiting).evidence.kind} == {"shutdown"}
        post.opened.set()
        await desk.idle()
        assert (await desk.close(timeout_s=1)).idle
    assert post.log == ["hold"]


async def test_shutdown_hangs_up_on_peers_that_do_not_answer(colour: Colour) -> None:
    desk = Desk.make(colour)
    with peer("hang") as other:
        async with desk.activation(grants=[wire_grant(other.port)]) as act:
            calls = [act.begin((Line if colour.blocking else LoopLine)(other.port)) for _ in range(5)]
            await eventually(lambda: len(other.lines) == 5)
            await desk.close(timeout_s=0)
            assert {type(outcome) for outcome in await asyncio.gather(*calls)} == {Uncertain}
            await eventually(other.gone.is_set)
            await desk.idle()


async def test_a_wrong_time_is_refused(colour: Colour) -> None:
    desk = Desk.make(colour)
    with pytest.raises(UsageError, match="timeout_s"):
        await desk.close(timeout_s=-1)


async def test_leaving_the_block_shuts_the_broker_down(colour: Colour, post: Post) -> None:
    desk = Desk.make(colour)
    if colour.blocking:
        with desk.inner as broker, broker.activation():
            pass
    else:
        async with desk.inner as broker, broker.activation():
            pass
    with pytest.raises(UsageError, match="shut down"):
        async with desk.activation():
            pass


@pytest.mark.rule("B5")
async def test_a_forked_child_begins_with_a_desk_of_its_own(post: Post, colour: Colour) -> None:
    if not colour.blocking:
        pytest.skip("a loop does not survive a fork")
    desk = Desk.make(colour, concurrency=1)
    async with desk.activation() as act:
        call = act.begin(post.hold())
        await post.arrival()
        child = os.fork()
        if child == 0:
            os._exit(_in_the_child(desk, act, post))
        _, status = await in_thread(lambda: os.waitpid(child, 0))
        assert os.waitstatus_to_exitcode(status) == 0
        assert desk.report().permits == 1
        post.opened.set()
        assert isinstance(await call, Accepted)


def _in_the_child(desk: Desk, act: Act, post: Post) -> int:
    """Exit codes say what went wrong; 0: nothing."""
    try:
        act.inner.perform(post.send())
    except UsageError as error:
        if error.code != "forked-activation":
            return 1
    else:
        return 2
    with desk.inner.activation(grants=[GRANT], deadline_s=PATIENCE_S) as own:
        if not isinstance(own.perform(post.send()), Accepted):
            return 3
    return 0 if desk.report().idle else 4
