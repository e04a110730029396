"""Stories of bodies that run again and again: what a name stands for."""

from typing import Any

import pytest

from counterfoil import Accepted, Evidence, Failed, NameConflict
from tests.stories.recipient import Sender, never

DECLINED = Failed(Evidence("status", phase="acknowledged", status=422, contract="b/1"))


@pytest.mark.rule("E1", "E2", "E6", "E13")
async def test_s04_a_body_is_restarted_twenty_times_behind_a_failure(make, recipient, colour):
    """microsoft/agent-framework#3938: each restart repeats what had succeeded before the failure."""

    def decline(ctx: Any) -> str:
        recipient.takes(ctx.key, effect="B")
        raise DECLINED

    surfaced = []
    for _ in range(20):
        async with make() as life, life.run("r") as run:
            first = await run.effect("A", run=colour.handler(Sender(recipient, effect="A").send), reconcile=never)
            assert first == Accepted("item-1")
            surfaced.append(await run.effect("B", run=colour.handler(decline), reconcile=never))
    assert surfaced == [DECLINED] * 20
    assert [item["effect"] for item in recipient.items] == ["A"]
    assert [line["effect"] for line in recipient.log("request")] == ["A", "B"]


@pytest.mark.rule("E6", "E12", "P2")
async def test_s06_a_loop_that_waits_for_a_person_notifies_once(make, recipient, colour):
    """langchain-ai/langgraph#7780: what stands before an interrupt is done again with every resume."""

    async def review(run: Any, name: str, request: str) -> str:
        send = colour.handler(Sender(recipient, name="{round}" in name).send)
        for number in range(3):
            names = {"round": number}
            await run.effect(name.format(**names), run=send, reconcile=never, request=request.format(**names))
            await run.wait_for("input", f"{request}-{number}", timeout=0)
        return "reviewed"

    async def resumed(name: str, request: str) -> None:
        for number in range(3):
            async with make() as life, life.run("r") as run:
                with pytest.raises(TimeoutError):
                    await review(run, name, request)
                await life.deliver("r", "input", f"{request}-{number}", "go on")
        async with make() as life, life.run("r") as run:
            assert await review(run, name, request) == "reviewed"

    await resumed("notify-reviewer", "please review")
    assert [item["name"] for item in recipient.items] == [False]
    # One per round has a name per round …
    await resumed("notify-reviewer-{round}", "please review again")
    assert [item["name"] for item in recipient.items] == [False] + [True] * 3
    # … and one name for different requests is refused.
    async with make() as life, life.run("r") as run:
        with pytest.raises(NameConflict):
            await review(run, "notify-reviewer", "please review, round {round}")
    assert recipient.sends == 4


@pytest.mark.rule("E6", "E12")
async def test_s45_a_loop_over_items_needs_a_name_for_each(make, recipient, colour):
    """n8n-io/n8n#35653: a node runs once for each item, under one name or under one of the item's own."""
    people = [f"customer-{number}" for number in range(5)]
    send = colour.handler(Sender(recipient).send)

    async with make() as life, life.run("r") as run:
        for _ in people:
            assert await run.effect("mail", run=send, reconcile=never) == Accepted("item-1")
        assert recipient.sends == 1
        await run.effect("greet", run=send, reconcile=never, request={"to": people[0]})
        for person in people[1:]:
            with pytest.raises(NameConflict):
                await run.effect("greet", run=send, reconcile=never, request={"to": person})
        assert recipient.sends == 2
        for _ in range(2):
            for person in people:
                await run.effect(f"mail:{person}", run=send, reconcile=never, request={"to": person})
    assert (recipient.sends, len(recipient.items)) == (7, 7)
    assert len({item["key"] for item in recipient.items}) == 7
