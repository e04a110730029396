"""Stories of permission requests and of the replies to them: effects whose recipient is a queue of decisions."""

from typing import Any

import pytest

from counterfoil import Accepted, EffectUnresolved, Evidence, Failed, NameConflict
from tests.stories.recipient import LostReply, Recipient, Sender, never


@pytest.mark.rule("E12", "S6")
@pytest.mark.parametrize("listed_first", [False, True])
async def test_s08_two_pending_requests_have_one_id(make, recipient: Recipient, colour, listed_first):
    """pydantic/pydantic-ai#6241: one approval is bound to two pending calls with the id 'dup'.

    Where the story differs: it refuses both. A name belongs to whoever used it first (rule E12), so the second reply
    is refused and the first is sent, unless the body puts what is pending on record before it replies.
    """
    pending = [{"id": "dup", "tool": "read"}, {"id": "dup", "tool": "delete"}]

    async def approve(run: Any) -> None:
        if listed_first:
            for request in pending:
                await run.step(f"pending:{request['id']}", colour.handler(lambda: None), inputs=request)
        for request in pending:
            send = colour.handler(Sender(recipient, **request).send)
            await run.effect(f"approve:{request['id']}", run=send, reconcile=never, request=request)

    async with make() as life:
        for _ in range(2):
            async with life.run("r") as run:
                with pytest.raises(NameConflict) as raised:
                    await approve(run)
                assert raised.value.effect_ran == "no"
    assert [line["tool"] for line in recipient.log("request")] == ([] if listed_first else ["read"])


@pytest.mark.rule("E2", "E13", "O3", "O4")
@pytest.mark.parametrize("answered", ["by us", "otherwise"])
async def test_s20_a_permission_reply_is_read_back_from_its_request(make, recipient: Recipient, colour, answered):
    """PostHog/posthog#71493: the first reply is processed, its answer is lost, and it is sent again.

    A request takes one reply, so another decision in it proves that ours cannot land any more.
    """

    def reply(ctx: Any) -> str:
        recipient.takes(ctx.key, request="req-1", decision="allow")
        if answered == "by us":
            recipient.makes(ctx.key, request="req-1", decision="allow")
        raise LostReply("no answer")

    def read_request(ctx: Any) -> str | None:
        recipient.shows(ctx.key, request="req-1")
        decided = next((item for item in recipient.items if item["request"] == "req-1"), None)
        if decided is not None and decided["decision"] != "allow":
            raise Failed(Evidence("answered-otherwise", phase="acknowledged", details={"by": decided["key"]}))
        return None if decided is None else str(decided["item"])

    if answered == "otherwise":
        recipient.makes("somebody else", request="req-1", decision="deny")
    handlers = {"run": colour.handler(reply), "reconcile": colour.handler(read_request)}
    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("reply:req-1", request={"decision": "allow"}, **handlers)
    async with make() as life, life.run("r") as run:
        outcome = await run.effect("reply:req-1", request={"decision": "allow"}, **handlers)
        assert await run.effect("reply:req-1", run=never, reconcile=never) == outcome
    if answered == "by us":
        assert outcome == Accepted("item-1", "reconcile")
    else:
        assert isinstance(outcome, Failed)
        assert outcome.evidence.kind == "answered-otherwise"
    assert (recipient.sends, len(recipient.items)) == (1, 1)


@pytest.mark.rule("E11", "E12")
async def test_s24_two_requests_of_equal_content_are_two(make, recipient: Recipient, colour):
    """imbue-ai/mngr#1843: two permission requests that look alike are taken for one, and one is never answered."""
    content = {"tool": "shell", "command": "make"}

    async with make() as life, life.run("r") as run:
        for request in ("req-1", "req-2"):
            send = colour.handler(Sender(recipient, request=request).send)
            outcome = await run.effect(f"approve:{request}", run=send, reconcile=never, request=content)
            assert isinstance(outcome, Accepted)
        assert [(view.name, view.state) for view in await life.effects()] == [
            ("approve:req-1", "accepted"),
            ("approve:req-2", "accepted"),
        ]
    assert [item["request"] for item in recipient.items] == ["req-1", "req-2"]
    assert len({line["key"] for line in recipient.log("request")}) == 2
