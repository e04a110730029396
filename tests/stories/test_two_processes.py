"""Stories of two processes that do the same at once; where memory is the ledger, two lives in two threads."""

import asyncio
import threading
from typing import Any

import pytest

from counterfoil import Accepted, DeliveryConflict, EffectUnresolved
from counterfoil.protocol.requests import Gone
from tests.stories.actors import Stage, Troupe
from tests.stories.recipient import Sender, never
from tests.support import PATIENCE_S, in_thread


async def answer_slowly(stage: Stage) -> Any:
    """The first process: R takes its time, and meanwhile another event replays the body."""
    reached = threading.Event()

    def send(ctx: Any) -> str:
        stage.recipient.takes(ctx.key)
        reached.set()
        stage.wait()
        return stage.recipient.makes(ctx.key)

    async def body() -> Any:
        async with stage.life.run("r") as run:
            outcome = await run.beside.effect("start", run=send, reconcile=never)
            return outcome, await run.beside.wait_for("tick", "1")

    first = asyncio.ensure_future(body())
    assert await in_thread(lambda: reached.wait(PATIENCE_S))
    await stage.life.beside.deliver("r", "tick", "1", {"n": 1})
    again = asyncio.ensure_future(body())
    await asyncio.sleep(0)
    stage.tell("sent and replayed")
    return await asyncio.gather(first, again)


async def replay(stage: Stage) -> Any:
    """The second process: it is told that the effect is under way, or waits for it."""
    async with stage.life.run("r") as run:
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("start", run=never, reconcile=never, wait=0)
        stage.tell((raised.value.reason, raised.value.effect_ran))
        return await run.effect("start", run=never, reconcile=never), await run.wait_for("tick", "1")


@pytest.mark.rule("E7", "E8", "P2")
def test_s12_an_event_replays_a_body_while_its_effect_waits_for_an_answer(troupe: Troupe, recipient):
    """vercel/workflow#2780: an event that arrives while a step runs starts the step once more."""
    first = troupe.start(answer_slowly)
    assert first.says() == "sent and replayed"
    second = troupe.start(replay)
    assert second.says() == ("in-flight", "unknown")
    first.hears("answer")
    expected = (Accepted("item-1"), {"n": 1})
    assert first.result() == [expected, expected]
    assert second.result() == expected
    assert (recipient.sends, recipient.looks, len(recipient.items)) == (1, 0, 1)


async def race(stage: Stage, run_id: str, names: list[str]) -> Any:
    sender = Sender(stage.recipient)
    stage.tell("ready")
    await stage.heard()
    async with stage.life.run(run_id) as run:
        send = stage.colour.handler(sender.send)
        return [await run.effect(name, run=send, reconcile=never, request={"to": name}) for name in names]


def raced(troupe: Troupe, runs: tuple[str, str], names: list[str]) -> list[Any]:
    """Start two processes on the same names and let them go at once."""
    actors = [troupe.start(race, run_id, names) for run_id in runs]
    assert [actor.says() for actor in actors] == ["ready", "ready"]
    for actor in actors:
        actor.hears("go")
    return [actor.result() for actor in actors]


@pytest.mark.rule("E8", "L1")
def test_s29_two_processes_charge_one_order(troupe: Troupe, recipient):
    """openfoodfoundation/openfoodnetwork#6330: two requests ten milliseconds apart charge twice."""
    names = [f"charge:order-{number}" for number in range(10)]
    first, second = raced(troupe, ("r", "r"), names)
    assert first == second
    assert all(isinstance(outcome, Accepted) and outcome.via == "run" for outcome in first)
    assert (recipient.sends, recipient.looks, len(recipient.items)) == (10, 0, 10)
    assert len({line["key"] for line in recipient.log("request")}) == 10


async def charge_and_leave(stage: Stage) -> Any:
    def send(ctx: Any) -> str:
        stage.tell("sent")
        stage.wait()
        return Sender(stage.recipient).send(ctx)

    async with stage.life.run("r") as run:
        return await run.effect("charge", run=send, reconcile=never)


@pytest.mark.rule("E2", "E8")
async def test_s29_the_first_process_ends_while_the_second_looks_whether_it_lives(troupe: Troupe, make, recipient):
    """openfoodfoundation/openfoodnetwork#6330, at the moment between a read and the look at the owner.

    What the first one recorded before it ended is the answer; the recipient is not asked.
    """
    first = troupe.start(charge_and_leave)
    assert first.says() == "sent"
    outcomes: list[Any] = []

    def watch(moment: str, run: str, request: Any) -> None:
        if moment == "before" and isinstance(request, Gone) and not outcomes:
            first.hears("go on")
            outcomes.append(first.result())

    async with make() as life, life.run("r") as run:
        life.watch(watch)
        outcomes.append(await run.effect("charge", run=never, reconcile=never))
    assert outcomes == [Accepted("item-1")] * 2
    assert (recipient.sends, recipient.looks) == (1, 0)


@pytest.mark.rule("E8", "E11")
def test_s80_two_processes_upload_one_name_in_one_run_or_in_two(troupe: Troupe, recipient):
    """buildinternet/uploads#470: two uploads of one name: one if they are of one run, two if each has its own."""
    first, second = raced(troupe, ("r", "r"), ["upload"])
    assert first == second == [Accepted("item-1")]
    first, second = raced(troupe, ("one", "two"), ["upload"])
    assert {outcome.proof for outcome in first + second} == {"item-2", "item-3"}
    assert (recipient.sends, len(recipient.items)) == (3, 3)
    assert len({line["key"] for line in recipient.log("request")}) == 3


async def decide(stage: Stage, decision: str) -> Any:
    """Decide a request; whoever comes second is told who was first, and goes on with that decision."""
    told = None
    stage.tell("ready")
    await stage.heard()
    async with stage.life.run("session") as run:
        try:
            await run.deliver("permission", "req-1", decision)
        except DeliveryConflict as conflict:
            told = conflict.by, conflict.at
        stands = await run.wait_for("permission", "req-1")
        send = stage.colour.handler(Sender(stage.recipient, decision=stands).send)
        outcome = await run.effect("reply:req-1", run=send, reconcile=never, request={"decision": stands})
        return stands, told, outcome


@pytest.mark.rule("E8", "P2")
def test_s21_two_processes_decide_one_request(troupe: Troupe, recipient, store):
    """Emanuele-web04/synara#403: two windows answer one permission request, one allows and one denies."""
    actors = {who: troupe.start(decide, said, owner=who) for who, said in (("ann", "allow"), ("bob", "deny"))}
    assert [actor.says() for actor in actors.values()] == ["ready", "ready"]
    for actor in actors.values():
        actor.hears("go")
    results = {who: actor.result() for who, actor in actors.items()}
    (winner,) = [who for who, (_, told, _) in results.items() if told is None]
    (loser,) = results.keys() - {winner}
    stands, _, outcome = results[winner]
    assert stands == ("allow" if winner == "ann" else "deny")
    ledger = store.open()
    (delivered,) = [record for record in ledger.read("stories", "session") if record.phase == "delivered"]
    assert results[loser] == (stands, (winner, delivered.at), outcome)
    if store.kind != "memory":
        ledger.close()
    assert outcome == Accepted("item-1")
    assert [line["decision"] for line in recipient.log("request")] == [stands]
