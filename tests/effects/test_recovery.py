"""Recovery: so many bodies at once, oldest first, one life at a time; what takes its processes along is quarantined."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from counterfoil import Conflict, Denied, LedgerCorrupt, UsageError
from counterfoil.effects import carry
from counterfoil.protocol import codec, records, slots
from counterfoil.protocol.legality import RunCheck
from counterfoil.protocol.requests import Append, Call, Pause
from counterfoil.runtime.recovery import AsyncRecovery, Recovery
from tests.support import (
    BLOCKING,
    IN_MEMORY,
    PATIENCE_S,
    Clock,
    Colour,
    Life,
    Payee,
    Store,
    die_at,
    eventually,
    in_thread,
    kill,
    record_by,
)

LOG: list[str] = []
GATE = threading.Event()
PAYEE = Payee()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(request.param, tmp_path)


@pytest.fixture(autouse=True)
def fresh() -> None:
    LOG.clear()
    GATE.clear()
    PAYEE.__init__()  # type: ignore[misc]


def body(run: Any, name: str) -> str:
    LOG.append(f"begin {name}")
    run.step("one", lambda: 1)
    LOG.append(f"end {name}")
    return name


async def body_async(run: Any, name: str) -> str:
    LOG.append(f"begin {name}")
    await run.step("one", lambda: 1)
    LOG.append(f"end {name}")
    return name


def gated(run: Any, name: str) -> str:
    LOG.append(f"begin {name}")
    assert GATE.wait(PATIENCE_S)
    LOG.append(f"end {name}")
    return name


async def gated_async(run: Any, name: str) -> str:
    LOG.append(f"begin {name}")
    await eventually(GATE.is_set)
    LOG.append(f"end {name}")
    return name


def parks(run: Any, name: str) -> Any:
    LOG.append(f"begin {name}")
    run.step("one", lambda: 1)
    got = run.wait_for("go", name)
    LOG.append(f"end {name}")
    return got


async def parks_async(run: Any, name: str) -> Any:
    LOG.append(f"begin {name}")
    await run.step("one", lambda: 1)
    got = await run.wait_for("go", name)
    LOG.append(f"end {name}")
    return got


def swallows(run: Any, name: str) -> str:
    LOG.append(f"begin {name}")
    try:
        run.wait_for("go", name)
    except Exception:
        return "wrong"
    return "right"


async def swallows_async(run: Any, name: str) -> str:
    LOG.append(f"begin {name}")
    try:
        await run.wait_for("go", name)
    except BaseException:
        return "wrong"
    return "right"


def raising(run: Any, name: str) -> str:
    LOG.append(f"begin {name}")
    raise ValueError("the body's own")


async def raising_async(run: Any, name: str) -> str:
    return raising(run, name)


TWINS = {each: globals()[f"{each.__name__}_async"] for each in (body, gated, parks, swallows, raising)}


def of(colour: Colour, function: Callable[..., Any]) -> Callable[..., Any]:
    return function if colour.blocking else TWINS[function]


def named(function: Callable[..., Any]) -> str:
    return f"{function.__module__}:{function.__qualname__}"


async def left_behind(make: Callable[..., Life], colour: Colour, *names: str, function: Any = body) -> None:
    """Let a life begin runs and die before their bodies have done anything."""
    life = await make().__aenter__()
    for name in names:
        given = codec.StartedBody(body=named(of(colour, function)), args=msgspec.Raw(b'["' + name.encode() + b'"]'))
        session = life.session
        draft = records.Draft(slot=slots.STARTED, kind=records.RUN, phase="started", body=codec.body_of(given))
        session.ledger.append(session.entry(session.scope(name, session.state(name)), draft, session.epoch()))
    kill(life)


def recovery(life: Life, colour: Colour, function: Any, **options: Any) -> Any:
    kind: Any = Recovery if colour.blocking else AsyncRecovery
    return kind(life.inner, [of(colour, function)], **options)


def phases(life: Life, run: str) -> list[str]:
    return [record.phase for record in life.records(run) if record.kind == records.RUN]


def sound(life: Life, *runs: str) -> bool:
    return all(RunCheck(life.session.namespace, run, life.records(run)).findings == [] for run in runs)


# --- so many at once, oldest first


async def test_runs_are_resumed_oldest_first(make, colour):
    names = [f"r{number}" for number in range(5)]
    await left_behind(make, colour, *names)
    async with make() as life:
        assert await life.recover([of(colour, body)]) == {name: name for name in names}
        assert [line for line in LOG if line.startswith("begin")] == [f"begin {name}" for name in names]
        assert sound(life, *names)


async def test_no_more_bodies_run_at_once_than_allowed(make, colour):
    names = [f"r{number}" for number in range(5)]
    await left_behind(make, colour, *names, function=gated)
    async with make() as life:
        work = asyncio.ensure_future(life.beside.recover([of(colour, gated)], at_once=2))
        await eventually(lambda: len(LOG) == 2)
        await asyncio.sleep(0.05)
        assert sorted(LOG) == ["begin r0", "begin r1"]
        GATE.set()
        assert await work == {name: name for name in names}
        assert sound(life, *names)


@pytest.mark.parametrize("wrong", [{"at_once": 0}, {"at_once": 1.5}, {"at_once": 10**6}, {"deaths_max": 0}])
async def test_bounds_are_checked(make, colour, wrong):
    async with make() as life:
        with pytest.raises(UsageError):
            await life.recover([of(colour, body)], **wrong)


async def test_of_several_that_recover_at_once_one_gets_each_run(make, colour):
    names = [f"r{number}" for number in range(6)]
    await left_behind(make, colour, *names)
    async with make() as one, make() as two:
        calls = [life.beside.recover([of(colour, body)], at_once=3) for life in (one, two, one, two)]
        results = await asyncio.gather(*calls)
        assert sorted(name for result in results for name in result) == names
        assert sorted(LOG) == sorted(f"{word} {name}" for name in names for word in ("begin", "end"))
        assert sound(one, *names)


async def test_what_one_body_raises_stops_no_other(make, colour):
    await left_behind(make, colour, "a", function=raising)
    await left_behind(make, colour, "b", "c")
    async with make() as life:
        results = await life.recover([of(colour, raising), of(colour, body)], at_once=2)
        assert isinstance(results.pop("a"), ValueError)
        assert results == {"b": "b", "c": "c"}


def quits(run: Any, name: str) -> str:
    LOG.append(f"begin {name}")
    raise SystemExit(3)


@BLOCKING
async def test_a_body_that_quits_in_a_thread_is_told_as_one_that_raises(make, colour):
    await left_behind(make, colour, "a", function=quits)
    await left_behind(make, colour, "b")
    clock, told = Clock(), []
    async with make(clock=clock) as life:
        results = await life.recover([quits, body], at_once=2)
        assert isinstance(results.pop("a"), SystemExit)
        assert results == {"b": "b"}
        work = recovery(life, colour, quits, told=lambda event, run, _what: told.append((event, run)))
        assert work.begin() == 1
        await eventually(lambda: not work._active)
        # And not again at once.
        work.search._next_s = 0.0
        assert work.begin() == 0
        assert told == [("resumed", "a"), ("raised", "a")]


async def test_a_recovery_that_dies_is_found_by_the_next_one(make, colour):
    await left_behind(make, colour, "r")
    for _ in range(3):
        life = await make().__aenter__()
        await die_at(life, life.recover([of(colour, body)]), moment="before", request=Call)
    async with make() as life:
        assert await life.recover([of(colour, body)]) == {"r": "r"}
        # Each attempt was on record before its body began.
        assert phases(life, "r") == ["started", *["claimed"] * 4, "finished"]
        assert sound(life, "r")


# --- a worker that is told to end


async def stopped(work: Any, colour: Colour) -> list[str]:
    if colour.blocking:
        work.stop()
        return await in_thread(lambda: work.drain(PATIENCE_S))  # type: ignore[no-any-return]
    work.stop()
    return await work.drain(PATIENCE_S)  # type: ignore[no-any-return]


async def begun(work: Any, colour: Colour) -> int:
    return work.begin() if colour.blocking else await work.begin()  # type: ignore[no-any-return]


@pytest.mark.parametrize("function", [parks, swallows])
async def test_a_body_that_is_drained_is_taken_by_another_life_at_once_and_no_death_is_counted(make, colour, function):
    await left_behind(make, colour, "r", function=function)
    told: list[tuple[str, str]] = []
    async with make() as one, make() as two:
        for number in range(carry.DEATHS_MAX + 1):
            work = recovery(
                one if number % 2 else two, colour, function, told=lambda event, run, _what: told.append((event, run))
            )
            assert await begun(work, colour) == 1
            await eventually(partial(lambda count: len(LOG) == count, number + 1))
            if function is parks:
                await eventually(lambda: any(record.phase == "armed" for record in one.records("r")))
            assert await stopped(work, colour) == []
            assert work.stopping
            assert phases(one, "r")[-1] == "released"
        assert told == [("resumed", "r"), ("released", "r")] * (carry.DEATHS_MAX + 1)
        await two.deliver("r", "go", "r", "gone")
        results = await one.recover([of(colour, function)])
        assert results == {"r": "gone" if function is parks else "right"}
        assert sound(one, "r")


async def test_a_worker_takes_nothing_once_it_was_told_to_end(make, colour):
    await left_behind(make, colour, "r")
    async with make() as life:
        work = recovery(life, colour, body)
        work.stop()
        assert await begun(work, colour) == 0
        waits = in_thread(lambda: work.wait(3600.0)) if colour.blocking else work.wait(3600.0)
        await asyncio.wait_for(waits, PATIENCE_S)
        assert LOG == []


async def test_a_body_that_does_not_end_is_named(make, colour):
    await left_behind(make, colour, "r", function=gated)
    async with make(drain_timeout=0.1) as life:
        work = recovery(life, colour, gated)
        assert await begun(work, colour) == 1
        await eventually(lambda: LOG == ["begin r"])
        if colour.blocking:
            work.stop()
            assert work.drain(0.05) == ["r"]
            GATE.set()
            assert await in_thread(lambda: work.drain(PATIENCE_S)) == []
            # It returned all the same; but it had been told to stop, so its result is another life's to record.
            assert phases(life, "r") == ["started", "claimed", "released"]


async def test_a_body_that_raises_is_called_again_later_and_later(make, colour):
    await left_behind(make, colour, "r", function=raising)
    clock, told = Clock(), []
    async with make(clock=clock) as life:
        work = recovery(life, colour, raising, told=lambda event, run, what: told.append((event, type(what).__name__)))
        for wait_s in (1.0, 2.0, 4.0):
            work.search._next_s = 0.0
            assert await begun(work, colour) == 1
            await eventually(lambda: not work._active)
            clock.advance(wait_s - 0.1)
            work.search._next_s = 0.0
            assert await begun(work, colour) == 0
            assert work.idle
            clock.advance(0.2)
        assert told == [("resumed", "NoneType"), ("raised", "ValueError")] * 3


async def test_runs_of_other_bodies_and_of_the_living_are_left_alone(make, colour):
    await left_behind(make, colour, "other", function=gated)
    async with make() as living, make() as life:
        await living.run("by hand").step("one", lambda: 1)
        with pytest.raises(ValueError, match="own"):
            await living.execute("theirs", of(colour, raising), "theirs")
        work = recovery(life, colour, raising)
        for _ in range(3):
            work.search._next_s = 0.0
            await begun(work, colour)
            await eventually(lambda: not work._active)
        assert LOG == ["begin theirs"]
        assert work.idle
        # What it has learnt about them it forgets when they are finished.
        await living.run("theirs").finish()
        await living.run("other").finish()
        work.search._next_s = 0.0
        assert await begun(work, colour) == 0
        assert (work.search._carriers, work.search._foreign) == ({}, set())


# --- quarantine


async def deaths(
    make: Callable[..., Life], colour: Colour, count: int, *, function: Any = body, request: Any = Call
) -> None:
    for _ in range(count):
        life = await make().__aenter__()
        await die_at(life, life.recover([of(colour, function)]), moment="before", request=request)


async def test_a_body_that_takes_its_processes_along_is_quarantined_and_its_neighbours_are_not(make, colour):
    await left_behind(make, colour, "killer")
    await deaths(make, colour, carry.DEATHS_MAX - 1)
    await left_behind(make, colour, "neighbour")
    told: list[Any] = []
    async with make() as life:
        work = recovery(life, colour, body, told=lambda *what: told.append(what))
        results = work.once() if colour.blocking else await work.once()
        assert results == {"neighbour": "neighbour"}
        assert told[0] == ("quarantined", "killer", carry.DEATHS_MAX)
        assert phases(life, "killer") == ["started", *["claimed"] * (carry.DEATHS_MAX - 1), "quarantined"]
        # Once told is told; and nobody carries it, by whatever way.
        again = work.once() if colour.blocking else await work.once()
        assert (again, len(told)) == ({}, 3)
        with pytest.raises(Denied) as caught:
            await life.execute("killer", of(colour, body), "killer")
        assert caught.value.code == "quarantined"
        assert sound(life, "killer", "neighbour")


async def test_a_quarantine_is_lifted_by_a_person_and_deaths_are_counted_anew(make, colour):
    await left_behind(make, colour, "r")
    await deaths(make, colour, carry.DEATHS_MAX - 1)
    async with make() as life:
        with pytest.raises(UsageError):
            await life.lift("r", by="ann", reason="too early")
        assert await life.recover([of(colour, body)]) == {}
        for wrong in ({"by": "", "reason": "x"}, {"by": "ann", "reason": " "}):
            with pytest.raises(UsageError):
                await life.lift("r", **wrong)
        await life.lift("r", by="ann", reason="the library was mended")
        with pytest.raises(UsageError):
            await life.lift("r", by="ben", reason="so was mine")
        with pytest.raises(UsageError):
            await life.lift("unknown", by="ann", reason="x")
    await deaths(make, colour, carry.DEATHS_MAX)
    async with make() as life:
        assert await life.recover([of(colour, body)]) == {}
        assert phases(life, "r").count("quarantined") == 2
        await life.lift("r", by="ann", reason="again")
        assert await life.recover([of(colour, body)]) == {"r": "r"}
        assert sound(life, "r")


@BLOCKING
@IN_MEMORY
async def test_of_two_that_lift_at_once_the_second_is_told_who_was_first(make, colour):
    await left_behind(make, colour, "r")
    await deaths(make, colour, carry.DEATHS_MAX - 1)
    async with make() as life:
        assert await life.recover([body]) == {}
        lifted = codec.LiftedBody(by="ben", reason="mine")

        def before(moment: str, run: str, request: Any) -> None:
            if moment == "before" and isinstance(request, Append) and request.draft.phase == "lifted":
                life.watch(None)
                session = life.session
                draft = records.Draft(
                    slot=slots.lifted(1), kind=records.RUN, phase="lifted", body=codec.body_of(lifted)
                )
                session.ledger.append(session.entry(session.scope("r", session.state("r")), draft, session.epoch()))

        life.watch(before)
        with pytest.raises(Conflict) as caught:
            await life.lift("r", by="ann", reason="theirs")
        assert caught.value.by == "ben"


async def test_deaths_after_something_new_do_not_add_up(make, colour):
    await left_behind(make, colour, "r")
    await deaths(make, colour, 2)
    life = await make().__aenter__()
    # It has recorded its step: whatever kills it afterwards is not what killed it before.
    await die_at(life, life.recover([of(colour, body)]), moment="before", request=Append, slot=slots.FINISHED)
    async with make() as life:
        life.session.states.clear()
        found = life.session.state("r")
        found.history.add(life.records("r"))
        carrier = carry.carrier_of(found.history)
        assert carrier is not None
        assert (carrier.number, carrier.deaths) == (3, 1)
        assert await life.recover([of(colour, body)], deaths_max=2) == {"r": "r"}


async def test_a_run_that_stands_at_a_park_is_not_blamed(make, colour):
    await left_behind(make, colour, "r", function=parks)
    await deaths(make, colour, carry.DEATHS_MAX + 2, function=parks, request=Pause)
    async with make() as life:
        await life.deliver("r", "go", "r", "at last")
        # Now it is not parked any more: the next death counts, and this one goes through.
        assert await life.recover([of(colour, parks)], deaths_max=carry.DEATHS_MAX + 4) == {"r": "at last"}


@BLOCKING
@IN_MEMORY
async def test_a_sleep_that_has_passed_is_no_park(make):
    async with make() as life, life.run("r") as run:
        await run.sleep(0, name="nap")
        history = life.session.state("r").history
        assert not carry.parked(history)
        record_by(life, slots.sleep("next"), kind=records.PARK, phase="armed", body=codec.ArmedBody(deadline=1.0))
        history.add(life.records("r"))
        assert carry.parked(history)


@BLOCKING
@IN_MEMORY
@pytest.mark.rule("L4")
async def test_a_damaged_claim_keeps_the_body_from_being_called(make, colour, store):
    await left_behind(make, colour, "r")
    async with make() as life:
        session = life.session
        draft = records.Draft(slot=slots.claim(1), kind=records.RUN, phase="claimed", body=b"{}")
        entry = session.entry(session.scope("r", session.state("r")), draft, session.epoch())
        session.ledger.append(msgspec.structs.replace(entry, check=1))
        results = await life.recover([body])
        assert isinstance(results["r"], LedgerCorrupt)
    assert LOG == []


@BLOCKING
@IN_MEMORY
@pytest.mark.rule("L7")
async def test_a_life_that_was_taken_for_gone_claims_anew(make, colour):
    await left_behind(make, colour, "r", function=raising)
    async with make() as life:
        assert isinstance((await life.recover([raising]))["r"], ValueError)
        assert isinstance((await life.recover([raising]))["r"], ValueError)
        assert phases(life, "r") == ["started", "claimed"]
        (epoch,) = life.session.own_epochs
        life.session.ledger.retire(epoch)
        # This handle's epoch is retired: claiming is a decision, and the next handle has a fresh one.
        first = (await life.recover([raising])).get("r")
        assert first is None or type(first).__name__ in ("OwnerRetired", "ValueError")
        assert isinstance((await life.recover([raising]))["r"], ValueError)
        assert phases(life, "r") == ["started", "claimed", "claimed"]


@BLOCKING
@IN_MEMORY
async def test_letting_go_of_what_one_does_not_hold_records_nothing(make, colour):
    await left_behind(make, colour, "r")
    async with make() as other, make() as life:
        for run in ("r", "unknown"):
            life.run(run).inner._drive(carry.let_go)
        assert await other.recover([body]) == {"r": "r"}
        other.run("r").inner._drive(carry.let_go)
        assert phases(life, "r") == ["started", "claimed", "finished"]


@BLOCKING
@IN_MEMORY
async def test_the_checker_knows_whose_claim_is_released_and_what_is_lifted(make):
    async with make() as life:
        empty, lifted = codec.EmptyBody(), codec.LiftedBody(by="ann", reason="x")
        record_by(life, slots.claim_released(0), kind=records.RUN, phase="released", body=empty)
        record_by(life, slots.claim_released(2), kind=records.RUN, phase="released", body=empty)
        record_by(life, slots.lifted(1), kind=records.RUN, phase="lifted", body=lifted)
        found = RunCheck(life.session.namespace, "r", life.records()).findings
        assert sorted(f.code for f in found) == ["lifted-unset", "released-unclaimed", "released-unclaimed"]


# --- a changed body


def old(run: Any) -> str:
    run.step("price", lambda: 1)
    run.effect("charge", run=PAYEE.pay, reconcile=PAYEE.find)
    run.sleep(0, name="cool off")
    if run.id == "with a database":
        run.transaction("ship", lambda connection: 1)
    run.wait_for("paid", "1")
    raise AssertionError("it waits for ever")


def changed(run: Any) -> str:
    run.step("new before old", lambda: 2)
    run.effect("charge it", run=PAYEE.pay, reconcile=PAYEE.find)
    run.step("price", lambda: 3)
    return "done"


def reordered(run: Any) -> str:
    run.step("new", lambda: 2)
    if run.id == "with a database":
        run.transaction("ship", lambda connection: 1)
    run.sleep(0, name="cool off")
    run.effect("charge", run=PAYEE.pay, reconcile=PAYEE.find)
    run.step("price", lambda: 3)
    run.wait_for("paid", "1")
    return "done"


@BLOCKING
@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_a_changed_body_is_met_by_names_and_what_it_no_longer_asks_for_is_on_record(make):
    for run_id in ("with a database", "without"):
        life = await make().__aenter__()
        await die_at(life, life.execute(run_id, old), moment="before", request=Append, slot="park/wait/paid/1")
    async with make() as life:
        for run_id in ("with a database", "without"):
            await life.deliver(run_id, "paid", "1", True)
        assert await life.recover({named(old): reordered}) == {"with a database": "done", "without": "done"}
        for run_id in ("with a database", "without"):
            (finished,) = [view for view in await life.show(run_id) if view.phase == "finished"]
            assert finished.body == {"result": "done"}
    assert PAYEE.sends == 2


@BLOCKING
async def test_a_renamed_effect_is_another_one_and_the_old_one_is_named(make):
    life = await make().__aenter__()
    await die_at(life, life.execute("r", old), moment="before", request=Pause)
    async with make() as life:
        assert await life.recover({named(old): changed}) == {"r": "done"}
        (finished,) = [view for view in await life.show("r") if view.phase == "finished"]
        assert finished.body["unasked"] == ["effect/charge", "park/sleep/cool off", "park/wait/paid/1"]
        assert sound(life, "r")
    # Two names, two effects: that is what the body now says.
    assert PAYEE.sends == 2
