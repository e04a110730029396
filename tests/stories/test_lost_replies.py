"""Stories of one sender whose answer was lost, and of what the recipient says when it is asked."""

import asyncio
from typing import Any

import pytest

from counterfoil import (
    UNASKABLE,
    Accepted,
    EffectUnresolved,
    Evidence,
    Failed,
    NameConflict,
    Uncertain,
)
from counterfoil.protocol.keys import effect_key
from tests.stories.actors import NAMESPACE
from tests.stories.recipient import LostReply, Recipient, Sender, never
from tests.support import Gate

NOT_FOUND = Uncertain(Evidence("not-found", phase="dispatched"))


def reason(raised: Any) -> tuple[str, str]:
    return raised.value.reason, raised.value.effect_ran


def key_of(name: str, run_id: str = "r") -> str:
    return effect_key(NAMESPACE, run_id, name, attempt=1)


@pytest.mark.rule("E2", "E11", "E12", "E13", "O4")
async def test_s03_a_charge_is_cancelled_by_its_key_and_a_late_landing_is_refused(make, recipient: Recipient, colour):
    """square/square-mcp-server#31: the caller passes another idempotency key when it tries again.

    Settling closes the key at the recipient, so "failed" is proved and not guessed.
    """
    on_the_way: list[str] = []

    def charge(ctx: Any) -> str:
        recipient.takes(ctx.key)
        on_the_way.append(ctx.key)
        raise LostReply("no answer")

    def cancel(ctx: Any) -> str | None:
        if (charged := recipient.shows(ctx.key)) is not None:
            return charged
        recipient.closes(ctx.key)
        raise Failed(Evidence("cancelled-at-recipient", phase="dispatched", status=200))

    async def order(run: Any, callers_key: str, *, told: bool = False) -> Any:
        request = {"amount": 100, **({"idempotency_key": callers_key} if told else {})}
        handlers = {"run": colour.handler(charge), "reconcile": colour.handler(cancel)}
        return await run.effect("charge", request=request, **handlers)

    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved) as raised:
            await order(run, "k1")
        assert reason(raised) == ("run-failed", "unknown")
    async with make() as life, life.run("r") as run:
        with pytest.raises(NameConflict):
            await order(run, "k2", told=True)
        outcome = await order(run, "k2")
        assert isinstance(outcome, Failed)
        assert outcome.evidence.kind == "cancelled-at-recipient"
        assert recipient.lands(on_the_way[0]) is None
        assert await order(run, "k3") == outcome
    assert on_the_way == [line["key"] for line in recipient.log("closed")] == [key_of("charge")]
    assert (recipient.sends, recipient.items) == (1, [])


@pytest.mark.rule("E3", "E2", "E11", "E13", "O2", "O3")
async def test_s26_a_timeout_then_a_500_then_a_402_have_one_key(make, recipient: Recipient, colour):
    """akash-network/console#3449: each try of a payment had a key of its own.

    Where the story differs: it tries the payment three times. What may have happened is never sent again under
    its name (rule E14), so here the second and the third answer come to look-ups with the key of the only send.
    """
    answers = iter([LostReply("500"), Failed(Evidence("status", phase="acknowledged", status=402, contract="payment"))])

    def pay(ctx: Any) -> str:
        recipient.takes(ctx.key)
        raise TimeoutError

    def ask(ctx: Any) -> None:
        recipient.shows(ctx.key)
        raise next(answers)

    async def attempt(run: Any, name: str) -> Any:
        return await run.effect(name, run=colour.handler(pay), reconcile=colour.handler(ask), request={"amount": 5})

    async with make() as life, life.run("r") as run:
        for expected in ("run-failed", "reconcile-failed"):
            with pytest.raises(EffectUnresolved) as raised:
                await attempt(run, "pay")
            assert reason(raised) == (expected, "unknown")
        outcome = await attempt(run, "pay")
        assert isinstance(outcome, Failed)
        assert outcome.evidence.status == 402
        contacts = [line["key"] for line in recipient.log("request") + recipient.log("look-up")]
        assert contacts == [key_of("pay")] * 3
        # Declined is final for this name; the next card is another effect.
        assert await attempt(run, "pay") == outcome
        assert (recipient.sends, recipient.looks) == (1, 2)
        with pytest.raises(EffectUnresolved):
            await attempt(run, "pay, second card")
    assert [line["key"] for line in recipient.log("request")] == [key_of("pay"), key_of("pay, second card")]


@pytest.mark.rule("E1", "E2", "E3", "O2")
async def test_s28_a_refund_behind_a_504_is_found(make, recipient: Recipient, colour):
    """medusajs/medusa#16681: the attempt's row was deleted when the provider answered 504.

    Where the story differs: what is between the 504 and the look-up is an unresolved effect. `uncertain` would be
    final (rule E2).
    """
    refunds = Sender(recipient, order="order-7")
    handlers = {"run": colour.handler(refunds.send_and_lose), "reconcile": colour.handler(refunds.find)}
    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("refund", **handlers)
        assert reason(raised) == ("run-failed", "unknown")
        assert "failed" not in str(raised.value)
        assert [view.state for view in await life.effects()] == ["unresolved"]
        assert await run.effect("refund", **handlers) == Accepted("item-1", "reconcile")
        assert [record.phase for record in await life.show("r")] == ["intent", "released", "accepted"]
    assert (recipient.sends, len(recipient.items)) == (1, 1)


@pytest.mark.rule("E15", "E18")
async def test_s33_evidence_comes_by_the_side_channel(make, recipient: Recipient, colour):
    """nautechsystems/nautilus_trader#4215: an order times out, and its fill arrives over the stream.

    The venue's "duplicate client order id" says as much as a fill: the first order landed.
    """
    orders = Sender(recipient)
    lose = {"run": colour.handler(orders.send_and_lose), "reconcile": never}
    async with make() as life, life.run("r") as run:
        for name in ("buy", "sell"):
            with pytest.raises(EffectUnresolved):
                await run.effect(name, **lose)
        fill, first_landed = (item["item"] for item in recipient.items)
        assert await life.settle("r", "buy", fill, key=key_of("buy"), source="stream")
        assert await life.settle("r", "sell", first_landed, key=key_of("sell"), source="duplicate-id")
        assert await run.effect("buy", run=never, reconcile=never) == Accepted("item-1", "evidence")
        assert await run.effect("sell", run=never, reconcile=never) == Accepted("item-2", "evidence")
        # What comes second says that it is second, and changes nothing.
        assert not await life.settle("r", "buy", fill, key=key_of("buy"), source="duplicate-id")
        (buy, _) = await life.effects()
        assert [(late.claims, late.proof) for late in buy.late_evidence] == [("accepted", "item-1")]
        assert await run.effect("buy", run=never, reconcile=never) == Accepted("item-1", "evidence")
    assert (recipient.sends, recipient.looks, len(recipient.items)) == (2, 0, 2)


@pytest.mark.rule("E18")
async def test_s33_evidence_comes_from_another_task_while_the_order_waits_for_its_answer(
    make, recipient: Recipient, colour
):
    """nautechsystems/nautilus_trader#4215, with the fill before the timeout: the caller gets what is on record."""
    orders, gate = Sender(recipient), Gate()

    def time_out(ctx: Any) -> str:
        item = orders.send(ctx)
        gate.stop()
        raise LostReply(item)

    async with make() as life, life.run("r") as run:
        caller = asyncio.ensure_future(run.beside.effect("buy", run=time_out, reconcile=never))
        await gate.arrival()
        assert await life.beside.settle("r", "buy", "item-1", key=key_of("buy"), source="stream")
        gate.open()
        assert await caller == Accepted("item-1", "evidence")
        assert await run.effect("buy", run=never, reconcile=never) == Accepted("item-1", "evidence")
    assert (recipient.sends, len(recipient.items)) == (1, 1)


@pytest.mark.rule("E2", "E9", "E15")
@pytest.mark.parametrize("settle_s", [10, 1])
async def test_s37_an_order_is_shown_after_three_seconds(make, recipient: Recipient, colour, clock, settle_s):
    """freqtrade/freqtrade#4403: the exchange does not list an order yet, and it is bought again."""

    def buy(ctx: Any) -> str:
        recipient.takes(ctx.key)
        recipient.makes(ctx.key, shown_after=3)
        raise LostReply("no answer")

    handlers = {"run": colour.handler(buy), "reconcile": colour.handler(Sender(recipient).find)}
    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("buy", visibility=settle_s, **handlers)
        if settle_s == 10:
            for _ in range(2):
                clock.advance(1)
                with pytest.raises(EffectUnresolved) as raised:
                    await run.effect("buy", **handlers)
                assert reason(raised) == ("too-early", "unknown")
            clock.advance(1)
            assert await run.effect("buy", **handlers) == Accepted("item-1", "reconcile")
            assert recipient.looks == 3
        else:
            clock.advance(1)
            assert await run.effect("buy", **handlers) == NOT_FOUND
            clock.advance(2)
            assert not await life.settle("r", "buy", "item-1", key=key_of("buy"), source="the exchange's list")
            assert await run.effect("buy", **handlers) == NOT_FOUND
            assert recipient.looks == 1
            (view,) = await life.effects(state="uncertain")
            assert [(late.claims, late.proof) for late in view.late_evidence] == [("accepted", "item-1")]
    assert (recipient.sends, len(recipient.items)) == (1, 1)


@pytest.mark.rule("E2", "E3", "E11", "O2")
async def test_s41_a_text_message_behind_a_500_is_listed_by_its_reference(make, recipient: Recipient, colour):
    """elizaOS/eliza#22382: the provider stores the message and answers 500, and it is sent again."""

    def text(ctx: Any) -> str:
        recipient.takes(ctx.key)
        recipient.makes(ctx.key, client_reference=ctx.key, to="+49")
        raise LostReply("500")

    def look_through(ctx: Any) -> str | None:
        return recipient.shows(ctx.key, client_reference=ctx.key)

    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("text", run=colour.handler(text), reconcile=never)
        outcome = await run.effect("text", run=never, reconcile=colour.handler(look_through))
        assert outcome == Accepted("item-1", "reconcile")
    assert (recipient.sends, len(recipient.items)) == (1, 1)


@pytest.mark.rule("E2", "E9")
async def test_s71_an_instance_is_ready_after_ninety_seconds(make, recipient: Recipient, colour, clock):
    """hashicorp/terraform-provider-google#26893: creating takes longer than the client waits; its name is known."""

    def create(ctx: Any) -> str:
        recipient.takes(ctx.key)
        recipient.makes(ctx.key, name="db-1", shown_after=90)
        clock.advance(60)
        raise TimeoutError

    def by_name(ctx: Any) -> str | None:
        return recipient.shows(ctx.key, name="db-1")

    handlers = {"run": colour.handler(create), "reconcile": colour.handler(by_name)}
    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("create", visibility=60, **handlers)
        assert reason(raised) == ("run-failed", "unknown")
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("create", **handlers)
        assert reason(raised) == ("too-early", "unknown")
        clock.advance(30)
        assert await run.effect("create", **handlers) == Accepted("item-1", "reconcile")
    assert (recipient.sends, len(recipient.items)) == (1, 1)


@pytest.mark.rule("E2", "E13", "O4")
@pytest.mark.parametrize("there", ["equal", "other", "partial"])
async def test_s72_an_asset_is_there_with_equal_or_other_bytes_or_in_part(make, recipient: Recipient, colour, there):
    """mattt/iMCP#227: an import that lost its answer is judged by the bytes that are there.

    The library of assets never replaces one, so other bytes under our name prove that ours cannot land any more.
    """
    ours = "sha256:1"

    def upload(ctx: Any) -> str:
        recipient.takes(ctx.key)
        if there == "equal":
            recipient.makes(ctx.key, asset="cover", digest=ours)
        raise LostReply("no answer")

    def compare(ctx: Any) -> str | None:
        recipient.shows(ctx.key, asset="cover")
        found = next((item for item in recipient.items if item["asset"] == "cover"), None)
        if found is None or not found["digest"]:
            return None
        if found["digest"] != ours:
            raise Failed(Evidence("name-taken", phase="acknowledged", details={"digest": found["digest"]}))
        return str(found["item"])

    if there == "other":
        recipient.makes("somebody else's key", asset="cover", digest="sha256:2")
    handlers = {"run": colour.handler(upload), "reconcile": colour.handler(compare)}
    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("import", **handlers)
        if there == "partial":
            recipient.makes(key_of("import"), asset="cover", digest=None)
        outcome = await run.effect("import", **handlers)
        assert await run.effect("import", **handlers) == outcome
    if there == "equal":
        assert outcome == Accepted("item-1", "reconcile")
    elif there == "other":
        assert isinstance(outcome, Failed)
        assert outcome.evidence.kind == "name-taken"
    else:
        assert outcome == NOT_FOUND
    assert (recipient.sends, recipient.looks, len(recipient.items)) == (1, 1, 1)


@pytest.mark.rule("E2", "E3", "E11", "O2")
async def test_s77_a_comment_behind_a_401_is_found_by_its_hidden_marker(make, recipient: Recipient, colour):
    """kurone-kito/idd-skill#2460: the comment is created, and a proxy answers 401 once."""
    marker = "<!-- counterfoil {} -->"

    def comment(ctx: Any) -> str:
        recipient.takes(ctx.key)
        recipient.makes(ctx.key, text=f"Looks good. {marker.format(ctx.key)}")
        raise PermissionError("401")  # a proxy's: no word of the recipient's about the comment

    def look_through(ctx: Any) -> str | None:
        recipient.shows(ctx.key)
        marked = (item["item"] for item in recipient.items if marker.format(ctx.key) in item["text"])
        return next(marked, None)

    recipient.makes("a person", text="Looks good.")
    handlers = {"run": colour.handler(comment), "reconcile": colour.handler(look_through)}
    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("comment", **handlers)
        assert reason(raised) == ("run-failed", "unknown")
        assert await run.effect("comment", **handlers) == Accepted("item-2", "reconcile")
    assert (recipient.sends, len(recipient.items)) == (1, 2)


@pytest.mark.rule("E2", "E3", "N1")
async def test_s87_a_door_that_cannot_be_asked_is_for_a_person_to_look_at(make, recipient: Recipient, colour):
    """technyon/nuki_hub#278: a lock is told to open, the reply is lost, and it is told again.

    Where the story differs: the call whose `run` raised says "unresolved" (rule E3); the next one is uncertain at
    once, however long the recipient may take to show things. And there is no field for what a person should check:
    the effect's name is what the inbox shows, so it says that.
    """
    name = "open the front door (if in doubt: check the door)"
    handlers = {"run": colour.handler(Sender(recipient).send_and_lose), "reconcile": UNASKABLE, "visibility": 60}
    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect(name, **handlers)
        assert reason(raised) == ("run-failed", "unknown")
        for _ in range(3):
            assert await run.effect(name, **handlers) == Uncertain(Evidence("unaskable", phase="dispatched"))
        (item,) = await life.effects(state="uncertain")
        assert "check the door" in item.name
        assert item.effect_key == key_of(name)
    assert (recipient.sends, recipient.looks) == (1, 0)
