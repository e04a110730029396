"""Every crash point of every flow: a life is killed before and after each request, and the next ones finish."""

import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from counterfoil import (
    UNASKABLE,
    Accepted,
    Conflict,
    DeliveryConflict,
    EffectUnresolved,
    Failed,
    Rejected,
    Retry,
    Uncertain,
    UsageError,
)
from counterfoil.ledgers.memory import MemoryLedger
from counterfoil.protocol.checker import Checker, Item
from tests.support import BLOCKING, EVIDENCE, PROVED, Colour, Life, Store, World, at_every_crash_point

HOW = {"reason": "looked", "by": "ada"}


async def until_settled(handle: Any, name: str, **call: Any) -> Any:
    """Call an effect again and again, as bodies do that are restarted."""
    for _ in range(5):
        with suppress(EffectUnresolved):
            return await handle.effect(name, **call)
    raise AssertionError("it is never settled")


# --- scenarios


async def pays(life: Life, world: World) -> Any:
    handlers = {"run": world.handler(world.payee.pay), "reconcile": world.handler(world.payee.find)}
    return await until_settled(life.run("r"), "pay", **handlers)


async def loses_the_reply(life: Life, world: World) -> Any:
    handlers = {"run": world.handler(world.payee.pay_and_drop), "reconcile": world.handler(world.payee.find)}
    return await until_settled(life.run("r"), "pay", **handlers)


async def cannot_ask(life: Life, world: World) -> Any:
    return await until_settled(life.run("r"), "pay", run=world.handler(world.payee.pay_and_drop), reconcile=UNASKABLE)


async def is_rejected(life: Life, world: World) -> Any:
    def refuse() -> None:
        raise Rejected(EVIDENCE)

    handlers = {"run": world.handler(refuse), "reconcile": world.handler(world.payee.find)}
    return await until_settled(life.run("r"), "pay", **handlers)


async def fails(life: Life, world: World) -> Any:
    def fail(ctx: Any) -> None:
        world.payee.requests.append(ctx.key)
        raise Failed(PROVED)

    handlers = {"run": world.handler(fail), "reconcile": world.handler(world.payee.find)}
    return await until_settled(life.run("r"), "pay", **handlers)


async def returns_too_much(life: Life, world: World) -> Any:
    def pay(ctx: Any) -> str:
        return world.payee.pay(ctx) + "x" * 70_000

    handlers = {"run": world.handler(pay), "reconcile": world.handler(world.payee.find)}
    return await until_settled(life.run("r"), "pay", **handlers)


async def retries(life: Life, world: World) -> Any:
    def pay(ctx: Any) -> str:
        if ctx.attempt == 1:
            raise Rejected(EVIDENCE)
        if ctx.attempt == 2:
            world.payee.requests.append(ctx.key)
            raise Failed(PROVED, retryable=True)
        return world.payee.pay(ctx)

    handlers = {"run": world.handler(pay), "reconcile": world.handler(world.payee.find)}
    return await until_settled(life.run("r"), "pay", **handlers, retry=Retry(3, backoff_s=10))


async def is_late_to_show(life: Life, world: World) -> Any:
    """The recipient shows an item ten seconds after it was made."""
    payee = world.payee

    def pay(ctx: Any) -> str:
        world.notes[ctx.key] = world.clock.time()
        return payee.pay_and_drop(ctx)

    def find(ctx: Any) -> str | None:
        made = world.notes.get(ctx.key)
        shown = made is not None and world.clock.time() >= made + 10
        world.clock.advance(4)
        return payee.find(ctx) if shown else None

    handlers = {"run": world.handler(pay), "reconcile": world.handler(find)}
    return await until_settled(life.run("r"), "pay", **handlers, visibility=10)


async def is_verified(life: Life, world: World) -> Any:
    def check(proof: str) -> bool:
        return proof.startswith("item")

    handlers = {"run": world.handler(lambda ctx: world.payee.pay(ctx) and "other")}
    handlers["reconcile"] = world.handler(world.payee.find)
    return await until_settled(life.run("r"), "pay", **handlers, verify=world.handler(check))


async def hears_by_another_way(life: Life, world: World) -> Any:
    payee, run = world.payee, life.run("r")
    handlers = {"run": world.handler(payee.pay_and_drop), "reconcile": world.handler(payee.find)}
    with suppress(EffectUnresolved):
        await run.effect("pay", **handlers)
    for key, item in payee.items:
        await run.settle("pay", item, key=key, source="webhook")
    return await until_settled(run, "pay", **handlers)


async def hears_too_late(life: Life, world: World) -> Any:
    payee, run = world.payee, life.run("r")
    outcome = await until_settled(run, "pay", run=world.handler(payee.pay_and_drop), reconcile=UNASKABLE)
    for key, item in payee.items:
        await run.settle("pay", item, key=key, source="webhook")
    return outcome


async def is_decided(life: Life, world: World) -> Any:
    payee, run = world.payee, life.run("r")
    first = await until_settled(run, "pay", run=world.handler(payee.refuse), reconcile=UNASKABLE)
    (view,) = [view for view in await life.effects() if view.name == "pay"]
    with suppress(Conflict):
        await life.decide("r", "pay", did_not_happen=True, expect_version=view.version, new_name="again", **HOW)
    decision = await run.decision("pay")
    handlers = {"run": world.handler(payee.pay), "reconcile": world.handler(payee.find)}
    again = await until_settled(run, decision.new_name, **handlers)
    return [first, again]


async def is_ended_by_a_person(life: Life, world: World) -> Any:
    def down() -> None:
        raise ConnectionError

    run = life.run("r")
    handlers = {"run": world.handler(world.payee.pay_and_drop), "reconcile": world.handler(down)}
    with suppress(EffectUnresolved):
        return await run.effect("pay", **handlers)
    (view,) = await life.effects()
    await life.decide("r", "pay", happened="item-1", expect_version=view.version, **HOW)
    return await run.effect("pay", **handlers)


async def steps(life: Life, world: World) -> Any:
    def body() -> int:
        world.notes["calls"] = world.notes.get("calls", 0) + 1
        if world.notes["calls"] % 2:
            raise ValueError
        return 3

    run = life.run("r")
    plain = await run.step("plain", world.handler(lambda: 7))
    return [plain, await run.step("retried", world.handler(body), retry=Retry(40))]


async def parks(life: Life, world: World) -> Any:
    run = life.run("r")
    await run.sleep(100, name="rest")
    world.notes.setdefault("woke", world.clock.time())
    with suppress(DeliveryConflict):
        await run.deliver("paid", "1", "first")
    with suppress(DeliveryConflict):
        await run.deliver("paid", "1", "second")
    return await run.wait_for("paid", "1")


async def waits(life: Life, world: World) -> Any:
    """It parks before anything is delivered; a clerk delivers while it waits."""
    run = life.run("r")
    with suppress(TimeoutError):
        return await run.wait_for("paid", "1", timeout=5)
    await run.deliver("paid", "1", "x")
    return await run.wait_for("paid", "1")


WORLD: list[World] = []


def body(run: Any, amount: int) -> Any:
    (world,) = WORLD
    outcome = run.effect("pay", run=world.payee.pay, reconcile=world.payee.find)
    return [amount, type(outcome).__name__]


async def async_body(run: Any, amount: int) -> Any:
    (world,) = WORLD
    outcome = await run.effect("pay", run=world.payee.pay, reconcile=world.payee.find)
    return [amount, type(outcome).__name__]


async def executes(life: Life, world: World) -> Any:
    WORLD[:] = [world]
    made = body if world.colour.blocking else async_body
    await life.recover([made])
    return await life.execute("r", made, 5)


async def finishes(life: Life, world: World) -> Any:
    run = life.run("r")
    with suppress(UsageError):
        await run.step("sum", world.handler(lambda: 1))
    await run.finish({"ok": True})
    return [row.state for row in await life.runs()]


# --- judging


def kinds(*allowed: Any) -> Callable[[Any], bool]:
    return lambda result: isinstance(result, allowed)


SCENARIOS: list[Any] = [
    pytest.param(pays, kinds(Accepted, Uncertain), id="pays"),
    pytest.param(loses_the_reply, kinds(Accepted, Uncertain), id="loses the reply"),
    pytest.param(cannot_ask, kinds(Uncertain), id="cannot ask"),
    pytest.param(is_rejected, kinds(Rejected, Uncertain), id="is rejected"),
    pytest.param(fails, kinds(Failed, Uncertain), id="fails"),
    pytest.param(returns_too_much, kinds(Accepted, Uncertain), id="returns too much"),
    pytest.param(retries, kinds(Accepted, Uncertain), id="retries"),
    pytest.param(is_late_to_show, kinds(Accepted, Uncertain), id="late to show"),
    pytest.param(is_verified, kinds(Accepted, Uncertain), id="is verified"),
    pytest.param(hears_by_another_way, kinds(Accepted, Uncertain), id="hears by another way"),
    pytest.param(hears_too_late, kinds(Accepted, Uncertain), id="hears too late"),
    pytest.param(is_decided, lambda found: isinstance(found[0], Uncertain), id="is decided"),
    pytest.param(is_ended_by_a_person, kinds(Uncertain), id="is ended by a person"),
    pytest.param(steps, lambda found: found == [7, 3], id="steps"),
    pytest.param(parks, lambda found: found == "first", id="parks"),
    pytest.param(waits, lambda found: found == "x", id="waits"),
    pytest.param(executes, lambda found: found[0] == 5 and found[1] in ("Accepted", "Uncertain"), id="executes"),
    pytest.param(finishes, lambda found: found == ["finished"], id="finishes"),
]


def judged(scenario: Any, legal: Callable[[Any], bool]) -> Any:
    async def judge(life: Life, world: World) -> None:
        assert legal(world.result), world.result
        assert all(count == 1 for count in Counter(world.payee.requests).values()), "sent twice under one key"
        records = life.records()
        checker = Checker("crash", [Item(key, item) for key, item in world.payee.items])
        assert [*checker.run("r", records), *checker.rest()] == []
        # A replay is told the same, and records nothing but what it hears again.
        assert await scenario(life, world) == world.result
        assert [r for r in life.records() if r.phase != "late"] == [r for r in records if r.phase != "late"]

    return judge


@pytest.mark.rule("E1", "E2", "E3", "E9", "E10", "E13", "E14", "E15", "E16", "E18", "E21", "S1", "S4", "P1", "P2", "P3")
@pytest.mark.parametrize(("scenario", "legal"), SCENARIOS)
async def test_a_life_may_die_at_any_of_its_events(colour, scenario, legal):
    events = await at_every_crash_point(lambda: World(colour, MemoryLedger()), scenario, judged(scenario, legal))
    assert events >= 4


@BLOCKING
@pytest.mark.rule("E1", "E2", "E14", "E16", "E18", "S4")
@pytest.mark.parametrize(("scenario", "legal"), SCENARIOS)
async def test_two_lives_may_die_one_after_the_other_at_any_of_their_events(colour, scenario, legal):
    # Of the pairs of events one in three, with each of the second life among them; all with CRASHES_IN_FULL=1.
    stride = 1 if os.environ.get("CRASHES_IN_FULL") else 3
    await at_every_crash_point(
        lambda: World(colour, MemoryLedger()), scenario, judged(scenario, legal), deaths=2, stride=stride
    )


@pytest.mark.rule("E1", "E2", "E14", "E18", "S1", "P1")
# What an engine does is the same for both colours, and what a colour does for both engines.
@pytest.mark.parametrize(("colour", "kind"), [("blocking", "sqlite"), ("asyncio", "sqlite3")], indirect=["colour"])
@pytest.mark.parametrize(
    ("scenario", "legal"),
    [param for param in SCENARIOS if param.id in ("pays", "loses the reply", "retries", "hears too late", "parks")],
)
async def test_the_same_holds_on_sqlite(colour, kind, scenario, legal, tmp_path: Path):
    made = 0

    def make() -> World:
        nonlocal made
        made += 1
        folder = tmp_path / str(made)
        folder.mkdir()
        return World(colour, Store(kind, folder).target)

    await at_every_crash_point(make, scenario, judged(scenario, legal))


@pytest.mark.rule("E1")
async def test_the_enumeration_notices_a_recipient_that_is_paid_twice():
    """The harness itself: a naive body that asks nobody is found out."""

    async def naive(life: Life, world: World) -> Any:
        run = life.run("r")
        # A step may run again after a crash; an effect inside one is sent again.
        return await run.step("pay", lambda: world.payee.pay(type("Context", (), {"key": "k"})))

    async def judge(life: Life, world: World) -> None:
        assert world.payee.sends == 1

    with pytest.raises(AssertionError) as raised:
        await at_every_crash_point(lambda: World(Colour("blocking"), MemoryLedger()), naive, judge)
    assert "crashed at events" in raised.value.__notes__[0]
