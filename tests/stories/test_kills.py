"""Stories of processes that are killed: each dies by SIGKILL at exactly the point that its story names."""

from typing import Any

import pytest

from counterfoil import Accepted, Evidence, Uncertain
from counterfoil.protocol.requests import Append, Call
from tests.stories.actors import FOUND_GONE_SOON, OUTLIVING, Death, Stage, Troupe, die
from tests.stories.recipient import Sender
from tests.support import Store

# Only one life at a time is there, so that no living one can be taken for gone.
pytestmark = FOUND_GONE_SOON

BEFORE_THE_OUTCOME = Death("before", Append, "/outcome")
AFTER_A_LOOK_UP = Death("after", Call)


async def charge(stage: Stage) -> Any:
    bank = Sender(stage.recipient, amount=100)
    handlers = {"run": stage.colour.handler(bank.send), "reconcile": stage.colour.handler(bank.find)}
    async with stage.life.run("order-7") as run:
        outcome = await run.effect("charge:order-7", request={"amount": 100}, **handlers)
        return outcome, await run.step("receipt", stage.colour.handler(lambda: f"paid: {outcome.proof}"))


@pytest.mark.rule("E1", "E2", "E8", "E21", "L2", "L7")
@OUTLIVING
def test_s01_a_process_is_killed_between_the_charge_and_its_outcome(troupe: Troupe, recipient):
    """crewAIInc/crewAI#5802: a task that is resumed after a crash charges again."""
    troupe.dies(charge, dies=BEFORE_THE_OUTCOME)
    assert (recipient.sends, len(recipient.items)) == (1, 1)
    for _ in range(2):
        assert troupe.plays(charge) == (Accepted("item-1", "reconcile"), "paid: item-1")
    assert (recipient.sends, recipient.looks, len(recipient.items)) == (1, 1, 1)


async def mail(stage: Stage, *, arrives: bool, dies: bool = False) -> Any:
    mailbox = stage.recipient

    def send(ctx: Any) -> None:
        message_id = f"<{ctx.key}@example.org>"
        mailbox.takes(ctx.key)
        if arrives:
            mailbox.makes(ctx.key, message_id=message_id)
        if dies:
            die()

    def search(ctx: Any) -> str | None:
        return mailbox.shows(ctx.key, message_id=f"<{ctx.key}@example.org>")

    handlers = {"run": stage.colour.handler(send), "reconcile": stage.colour.handler(search)}
    async with stage.life.run("order-7") as run:
        return await run.effect("confirmation", **handlers)


async def mail_and_die(stage: Stage, arrives: bool) -> Any:
    return await mail(stage, arrives=arrives, dies=True)


async def mail_again(stage: Stage, arrives: bool) -> Any:
    return await mail(stage, arrives=arrives)


@pytest.mark.rule("E2", "E8", "L2", "O2", "O4")
@pytest.mark.parametrize("arrives", [True, False])
@OUTLIVING
def test_s13_a_process_is_killed_three_times_after_the_bytes_of_a_mail_are_sent(troupe: Troupe, recipient, arrives):
    """recoupable/app#1918: a mail goes out again with each crash; here the mailbox is searched by Message-ID."""
    troupe.dies(mail_and_die, arrives)
    for _ in range(2):
        troupe.dies(mail_again, arrives, dies=AFTER_A_LOOK_UP)
    expected = Accepted("item-1", "reconcile") if arrives else Uncertain(Evidence("not-found", phase="dispatched"))
    for _ in range(2):
        assert troupe.plays(mail_again, arrives) == expected
    assert (recipient.sends, recipient.looks, len(recipient.items)) == (1, 3, int(arrives))


async def create_machine(stage: Stage) -> Any:
    cloud = stage.recipient

    def create(ctx: Any) -> str:
        cloud.takes(ctx.key)
        return cloud.makes(ctx.key, client_token=ctx.key)

    def by_token(ctx: Any) -> str | None:
        return cloud.shows(ctx.key, client_token=ctx.key)

    handlers = {"run": stage.colour.handler(create), "reconcile": stage.colour.handler(by_token)}
    async with stage.life.run("cluster") as run:
        return await run.effect("machine", **handlers)


@pytest.mark.rule("E2", "E8", "E11", "L2")
@pytest.mark.parametrize("colour", ["blocking"], indirect=True)
@pytest.mark.parametrize("store", ["sqlite", "sqlite3", "postgres", "nats"], indirect=True)
def test_s67_a_controller_in_a_crash_loop_makes_one_machine(troupe: Troupe, store: Store, recipient):
    """kubernetes-sigs/cluster-api-provider-aws#5794: each restart of a crashing controller makes another machine.

    Ten lives, by turns of either colour, each die when they know the machine and before that is on record.
    """
    colours = ["blocking", "asyncio"]
    for number in range(10):
        troupe.dies(create_machine, dies=BEFORE_THE_OUTCOME, colour=colours[number % 2])
    assert troupe.plays(create_machine) == Accepted("item-1", "reconcile")
    assert (recipient.sends, recipient.looks, len(recipient.items)) == (1, 10, 1)
