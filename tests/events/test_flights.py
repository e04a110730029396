"""How replies, denials and cancellations find the message that they belong to, without a server."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from counterfoil.recipients.events.facts import Unsent
from counterfoil.recipients.events.flights import Flights
from counterfoil.recipients.events.leaving import Leaving
from counterfoil.recipients.events.lines import Lines
from counterfoil.recipients.events.replies import Answer, Denied, Gone

OK = Answer(None, b"{}")


def ends(*flights):
    return [flight.end for flight in flights]


@pytest.mark.rule("V3", "O2")
def test_a_denial_is_nobodys_until_it_can_be_only_theirs():
    flights = Flights()
    one, two, other = flights.add("s.a"), flights.add("s.A"), flights.add("s.b")
    flights.denied("s.a")
    assert ends(one, two, other) == [None, None, None]
    flights.answered(two.token, OK)
    assert ends(one, two, other) == [Denied(), OK, None]
    flights.denied("s.b")
    assert other.end == Denied()
    assert len(flights) == 0


@pytest.mark.rule("V3", "O2")
def test_as_many_denials_as_messages_deny_them_all():
    flights = Flights()
    several = [flights.add("s.a") for _ in range(3)]
    for count in (1, 2):
        flights.denied("s.a")
        assert ends(*several) == [None] * 3, count
    flights.denied("s.a")
    assert ends(*several) == [Denied()] * 3


@pytest.mark.rule("V3", "O2")
def test_what_nobody_waits_for_counts_until_no_denial_can_come_for_it():
    flights = Flights()
    gone, waiting = flights.add("s.a"), flights.add("s.a")
    flights.denied("s.a")
    assert ends(waiting) == [None]
    flights.forget(gone)
    assert ends(waiting) == [Denied()]
    flights.denied("s.a")
    later = flights.add("s.a")
    assert later.end is None


@pytest.mark.rule("V3", "O5")
def test_the_first_word_counts_and_a_lost_connection_ends_what_is_left():
    flights = Flights()
    one, two = flights.add("s.a"), flights.add("s.b")
    flights.answered(one.token, OK)
    flights.answered(one.token, Answer("503", b""))
    flights.answered("nobody", OK)
    flights.lose("connection-lost")
    assert ends(one, two) == [OK, Gone("connection-lost")]
    two.finish(OK)
    assert two.end == Gone("connection-lost")


@pytest.mark.rule("B5", "B6")
async def test_one_cancellation_is_the_brokers_and_the_next_is_the_loops():
    for told, allowed in ((True, 1), (False, 0)):
        leaving = Leaving(time.monotonic() + 60, bool)
        if told:
            leaving.stop()
        begun, over = asyncio.Event(), asyncio.Event()

        async def work(begun=begun, over=over) -> None:
            begun.set()
            await over.wait()

        task = asyncio.ensure_future(leaving.see_out(work()))
        await begun.wait()
        for _ in range(allowed):
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


class Dead:
    """A connection that is gone as soon as it is made."""

    alive = False

    def cut(self) -> None:
        return


@pytest.mark.rule("V2", "B6")
async def test_making_a_connection_is_shared_and_outlives_whoever_cannot_wait():
    made: list[Dead] = []
    go = asyncio.Event()

    async def make(_: float) -> Dead:
        await go.wait()
        made.append(Dead())
        return made[-1]

    lines: Lines[Dead] = Lines(make, timeout_s=5)
    with pytest.raises(Unsent) as caught:
        await lines.get(time.monotonic())
    assert caught.value.kind == "deadline-before-dispatch"
    callers = [asyncio.ensure_future(lines.get(time.monotonic() + 5)) for _ in range(3)]
    await asyncio.sleep(0)
    callers[0].cancel()
    go.set()
    found = await asyncio.gather(*callers[1:])
    assert found == [made[0], made[0]]
    # It is dead already, so the next caller gets another one.
    assert await lines.get(time.monotonic() + 5) is not made[0]
    assert len(made) == 2


@pytest.mark.rule("V2", "B3")
async def test_a_failure_to_connect_is_each_callers_own():
    async def make(_: float) -> Dead:
        raise Unsent("connect-failed", error="ECONNREFUSED")

    lines: Lines[Dead] = Lines(make, timeout_s=5)
    told: list[Any] = list(
        await asyncio.gather(*(lines.get(time.monotonic() + 5) for _ in range(2)), return_exceptions=True)
    )
    assert [(type(one), one.kind) for one in told] == [(Unsent, "connect-failed")] * 2
    assert told[0] is not told[1]
