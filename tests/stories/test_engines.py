"""Stories of runs that are taken over, recovered and finished, and of owners that were taken for gone and live on."""

import asyncio
import itertools
import signal
import threading
from typing import Any

import pytest

from counterfoil import (
    DeliveryConflict,
    EffectUnresolved,
    LedgerUnavailable,
    OwnerRetired,
    UsageError,
)
from counterfoil.protocol.requests import Append
from tests.stories.actors import FOUND_GONE_SOON, Death, Part, Stage, Troupe, in_colour
from tests.stories.recipient import Recipient, Sender, never
from tests.support import PATIENCE_S, Fault, faulty, kill

ADDRESSES = [f"customer-{number}@example.org" for number in range(50)]
TWENTIETH = ADDRESSES[19]


@pytest.mark.rule("E6", "P2")
async def test_s10_a_run_that_ended_by_a_denial_takes_no_approval(make, recipient, colour):
    """mastra-ai/mastra#24796: a call is denied, the run ends, and a later approval makes the call."""
    send = colour.handler(Sender(recipient).send)
    began: list[str] = []

    async def guarded(run: Any) -> str:
        began.append(run.id)
        answer = await run.wait_for("approval", "call-1", timeout=PATIENCE_S)
        if answer == "approve":
            await run.effect("call-1", run=send, reconcile=never)
        return f"{answer}: ended"

    body = in_colour(colour, guarded)
    async with make() as life:
        await life.deliver("r", "approval", "call-1", "deny")
        assert await life.beside.execute("r", body) == "deny: ended"
    async with make() as life:
        with pytest.raises(DeliveryConflict):
            await life.deliver("r", "approval", "call-1", "approve")
        with pytest.raises(UsageError) as raised:
            await life.deliver("r", "approval", "call-1, again", "approve")
        assert raised.value.code == "run-finished"
        assert await life.beside.execute("r", body) == "deny: ended"
        assert await life.beside.recover([body]) == {}
        async with life.run("r") as run:
            with pytest.raises(UsageError) as raised:
                await run.effect("call-1", run=send, reconcile=never)
            assert (raised.value.code, raised.value.effect_ran) == ("run-finished", "no")
    assert began == ["r"]
    assert recipient.sends == 0


def mailing(stage: Stage, at_twentieth: Any = None, asked: Any = None) -> Part:
    """A body with fifty effects. Something may happen while the twentieth is sent, or asked about."""

    async def body(run: Any) -> list[str]:
        return [await mail(run, address) for address in ADDRESSES]

    async def mail(run: Any, address: str) -> str:
        def send(ctx: Any) -> str:
            stage.recipient.takes(ctx.key, to=address)
            item = stage.recipient.makes(ctx.key, to=address)
            if address == TWENTIETH and at_twentieth is not None:
                at_twentieth()
            return item

        def find(ctx: Any) -> str | None:
            if address == TWENTIETH and asked is not None:
                asked()
            return stage.recipient.shows(ctx.key)

        outcome = await run.effect(f"mail:{address}", run=send, reconcile=find, wait=0)
        return str(outcome.proof)

    return body


async def mail_as_a_zombie(stage: Stage) -> Any:
    """The first worker: it is taken for gone in the middle of an effect, and does not know it."""

    def retired() -> None:
        session = stage.life.session
        for epoch in session.own_epochs:
            session.ledger.retire(epoch)
        stage.tell("sent, and taken for gone")
        stage.wait()

    return await stage.execute("mailing", mailing(stage, retired))


async def take_over(stage: Stage, *, slowly: bool = False) -> Any:
    def asks() -> None:
        stage.tell("asks about the twentieth")
        stage.wait()

    return await stage.recover(mailing(stage, asked=asks if slowly else None))


async def take_over_slowly(stage: Stage) -> Any:
    return await take_over(stage, slowly=True)


def mailed_once(recipient: Recipient) -> bool:
    return [item["to"] for item in recipient.items] == ADDRESSES and recipient.sends == len(ADDRESSES)


@pytest.mark.rule("E8", "L7", "L8")
def test_s46_a_second_worker_takes_over_and_the_first_one_wakes_up(troupe: Troupe, store, recipient):
    """pretix/pretix#2058: the lease of a busy worker runs out, and both send to fifty recipients.

    The first one's fact about the mail that it had sent is kept; its next intent is refused.
    """
    first = troupe.start(mail_as_a_zombie, owner="first")
    assert first.says() == "sent, and taken for gone"
    second = troupe.start(take_over_slowly, owner="second")
    assert second.says() == "asks about the twentieth"
    first.hears("wake up")
    with pytest.raises(OwnerRetired) as raised:
        first.result()
    assert raised.value.effect_ran == "no"
    second.hears("go on")
    assert list(second.result().values()) == [[f"item-{number}" for number in range(1, 51)]]
    assert mailed_once(recipient)
    ledger = store.open()
    records = {record.slot: record for record in ledger.read("stories", "mailing")}
    zombies = records["run/started"].epoch
    assert records[f"effect/mail:{TWENTIETH}/1/outcome"].epoch == zombies
    mails = [slot for slot in records if slot.endswith("/intent")]
    assert [records[slot].epoch == zombies for slot in mails] == [True] * 20 + [False] * 30
    if store.kind != "memory":
        ledger.close()


async def mail_and_be_stopped(stage: Stage) -> Any:
    def stop() -> None:
        stage.tell("sent")
        stage.wait()

    return await stage.execute("mailing", mailing(stage, stop))


async def ask_at_once(stage: Stage) -> Any:
    with pytest.raises(EffectUnresolved) as raised:
        await stage.execute("mailing", mailing(stage))
    return raised.value.reason


@pytest.mark.rule("E8", "L7")
@pytest.mark.parametrize("ends", ["goes on", "is killed"])
@pytest.mark.parametrize("store", ["sqlite", "sqlite3"], indirect=True)
def test_s46_a_worker_that_is_stopped_is_not_gone(troupe: Troupe, recipient, ends):
    """pretix/pretix#2058, where no heart beats: the operating system's lock says who lives, however slow he is."""
    first = troupe.start(mail_and_be_stopped)
    assert first.says() == "sent"
    first.signal(signal.SIGSTOP)
    assert troupe.plays(take_over) == {}
    assert troupe.plays(ask_at_once) == "in-flight"
    assert recipient.sends == 20
    if ends == "goes on":
        first.signal(signal.SIGCONT)
        first.hears("go on")
        assert len(first.result()) == 50
        assert recipient.looks == 0
    else:
        first.signal(signal.SIGKILL)
        first.died()
        (result,) = troupe.plays(take_over).values()
        assert len(result) == 50
        assert recipient.looks == 1
    assert mailed_once(recipient)


async def take_over_at_last(stage: Stage) -> Any:
    return await stage.recover_at_last(mailing(stage))


@FOUND_GONE_SOON
@pytest.mark.rule("E8", "L7", "L8")
@pytest.mark.parametrize("colour", ["blocking"], indirect=True)
@pytest.mark.parametrize("store", ["postgres", "nats"], indirect=True)
def test_s46_a_worker_whose_heart_stopped_is_gone_and_wakes_up_too_late(troupe: Troupe, store, recipient):
    """pretix/pretix#2058 itself: a stopped process does not beat, is taken for gone, and goes on where it was stopped.

    What it had sent is not sent again. It sends nothing more, and is told what the other one has done.
    """
    first = troupe.start(mail_and_be_stopped)
    assert first.says() == "sent"
    first.signal(signal.SIGSTOP)
    (result,) = troupe.plays(take_over_at_last).values()
    assert result == [f"item-{number}" for number in range(1, 51)]
    first.signal(signal.SIGCONT)
    first.hears("go on")
    assert first.result() == result
    assert mailed_once(recipient)
    assert recipient.looks == 1
    ledger = store.open()
    records = {record.slot: record for record in ledger.read("stories", "mailing")}
    ledger.close()
    # The look-up found the mail before its sender could say so.
    assert b"reconcile" in records[f"effect/mail:{TWENTIETH}/1/outcome"].body
    assert sum(slot.endswith("/intent") for slot in records) == 50


@pytest.mark.rule("L7", "L8")
async def test_s81_an_old_attempt_under_an_equal_worker_name_ends_nothing(make, recipient, colour):
    """aegra/aegra#547: a worker that restarts as the same hostname-pid-index takes its own lease for live.

    Two lives of equal name are two owners. The old one's heartbeat says that it is over, its second release leaves
    the new owner alone, and it cannot end the run.
    """
    sender = Sender(recipient)

    async def send(run: Any, name: str) -> Any:
        return await run.effect(name, run=colour.handler(sender.send), reconcile=never)

    async with make(owner="host-1-0") as old, old.run("r") as olds, make(owner="host-1-0") as new:
        await send(olds, "first")
        (epoch,) = old.session.own_epochs
        ledger = old.session.ledger
        ledger.retire(epoch)
        async with new.run("r") as news:
            await send(news, "second")
            (fresh,) = new.session.own_epochs
            assert [owner.label for owner in new.session.ledger.owners()] == ["host-1-0"]
            assert (ledger.live(epoch), new.session.ledger.gone(epoch)) == (False, True)
            ledger.retire(epoch)
            assert (new.session.ledger.live(fresh), ledger.gone(fresh)) == (True, False)
            with pytest.raises(OwnerRetired):
                await send(olds, "third")
            with pytest.raises(OwnerRetired):
                await olds.finish("what the old attempt made of it")
            await send(news, "third")
            await news.finish("done")
        assert [view.state for view in await new.runs()] == ["finished"]
        assert [line.body for line in await new.show("r")][-1] == {"result": "done"}
    assert (recipient.sends, len(recipient.items)) == (3, 3)


@pytest.mark.rule("L3", "L7")
@pytest.mark.parametrize("break_at", ["claim", "intent", "outcome"])
async def test_s83_the_ledger_fails_between_two_runs_of_a_recovery(make, store, recipient, colour, break_at):
    """dbos-inc/dbos-transact-py#716: one lost connection ends a recovery, and what was not reached stays pending.

    The run that met the failure is the only one that it keeps: the scan goes on, and the next one finishes it.
    """
    sender = Sender(recipient)
    fault = Fault()
    crashing = True

    def close() -> None:
        fault.refuse(f"/{break_at}/1" if break_at == "claim" else f"/{break_at}", error=LedgerUnavailable, times=1)

    async def work(run: Any, number: int) -> int:
        if crashing:
            raise ConnectionAbortedError
        find = colour.handler(sender.find)
        await run.effect("work", run=colour.handler(sender.send), reconcile=find)
        if number == 3:
            close()
        return number

    body = in_colour(colour, work)
    life = make()
    await life.__aenter__()
    for number in range(1, 11):
        with pytest.raises(ConnectionAbortedError):
            await life.beside.execute(f"run-{number}", body, number)
    kill(life)

    crashing = False
    ledger = store.open()
    try:
        async with make(target=faulty(ledger, fault)) as life:
            results = await life.beside.recover([body])
            assert isinstance(results.pop("run-4"), LedgerUnavailable)
            assert results == {f"run-{number}": number for number in range(1, 11) if number != 4}
            assert await life.beside.recover([body]) == {"run-4": 4}
            assert {view.state for view in await life.runs()} == {"finished"}
    finally:
        if store.kind != "memory":
            ledger.close()
    assert (recipient.sends, len(recipient.items)) == (10, 10)


NAMES = ("a", "b", "c")
TURNS = list(map("".join, itertools.permutations(NAMES)))


def gathering(stage: Stage, turns: list[str], *, anew: bool) -> Part:
    """A body with three effects at once; begun anew, all are sent before the first ends, and they end by turns."""
    changed = threading.Condition()
    sent: list[str] = []
    ended: list[str] = []

    def may_end(name: str) -> bool:
        return not anew or (len(sent) == len(NAMES) and turns[len(ended)] == name)

    async def body(run: Any) -> dict[str, str]:
        proofs = await asyncio.gather(*(one(run, name) for name in NAMES))
        return dict(zip(NAMES, proofs, strict=True))

    async def one(run: Any, name: str) -> str:
        def send(ctx: Any) -> str:
            stage.recipient.takes(ctx.key, name=name)
            item = stage.recipient.makes(ctx.key, name=name)
            with changed:
                sent.append(name)
                changed.notify_all()
                assert changed.wait_for(lambda: may_end(name), PATIENCE_S)
            return item

        outcome = await run.beside.effect(name, run=send, reconcile=Sender(stage.recipient).find)
        with changed:
            ended.append(name)
            changed.notify_all()
        return str(outcome.proof)

    return body


async def gather(stage: Stage, turns: list[str]) -> Any:
    return await stage.execute("gathered", gathering(stage, turns, anew=True))


async def gather_again(stage: Stage, turns: list[str]) -> Any:
    return await stage.recover_at_last(gathering(stage, turns, anew=False))


@FOUND_GONE_SOON
@pytest.mark.rule("E2", "E8", "L2")
@pytest.mark.parametrize(
    ("store", "colour", "turns"),
    # One order is enough where it takes so long until the dead life is found gone.
    [
        *itertools.product(["sqlite", "sqlite3"], ["blocking", "asyncio"], TURNS),
        *itertools.product(["postgres", "nats"], ["blocking"], TURNS[3:4]),
    ],
    ids=str,
    indirect=["store", "colour"],
)
def test_s85_three_effects_at_once_end_in_any_order_before_a_crash(troupe: Troupe, store, recipient, turns):
    """dbos-inc/dbos-transact-py#688: a recovery matches what ran at once by its order, and diverges.

    Two of the three are on record when the process is killed, in each of the six orders.
    """
    troupe.dies(gather, list(turns), dies=Death("after", Append, "/outcome", count=2))
    ledger = store.open()
    recorded = [record.slot for record in ledger.read("stories", "gathered") if record.phase == "accepted"]
    ledger.close()
    assert recorded == [f"effect/{name}/1/outcome" for name in turns[:2]]
    made = {item["name"]: item["item"] for item in recipient.items}
    assert list(troupe.plays(gather_again, list(turns)).values()) == [made]
    assert (recipient.sends, len(recipient.items)) == (3, 3)
    assert [line["key"] for line in recipient.log("look-up")] == [
        item["key"] for item in recipient.items if item["name"] == turns[2]
    ]
