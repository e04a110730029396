"""Asking the stream what became of a message (V4): by subject, from the newest backwards, by id and content."""

from __future__ import annotations

import asyncio

import pytest

from counterfoil import Accepted, EffectUnresolved, RecipientError, Uncertain
from counterfoil.recipients.events import look_ups
from counterfoil.recipients.proving import Unproved
from tests.events.support import admin, asked, through
from tests.servers.proxy import Act, On, Proxy


async def fill(stream, subject, count, **headers):
    async with admin(stream.url) as client:
        js = client.jetstream()
        await asyncio.gather(*(js.publish(subject, b"x", headers=headers or None) for _ in range(count)))


@pytest.mark.rule("V4", "E2", "E3")
async def test_a_lost_acknowledgement_is_settled_by_looking_the_message_up(stream, colour, nats_proxy: Proxy, make):
    event = make(stream, through(nats_proxy.port)).publish(stream.subject(), {"n": 1}, headers={"A": "b"})
    nats_proxy.rule = On(rb"HPUB", Act.LOSE_REPLY, times=1)
    async with colour.life("memory:") as life, life.run("order-42") as run:
        with pytest.raises(EffectUnresolved) as caught:
            await run.effect("placed", event)
        assert (caught.value.reason, caught.value.effect_ran) == ("run-failed", "unknown")
        assert isinstance(caught.value.__cause__, Unproved)
        outcome = await run.effect("placed", event)
        assert isinstance(outcome, Accepted)
        assert (outcome.via, outcome.evidence.kind) == ("reconcile", "found")
        assert outcome.proof == {"stream": stream.name, "seq": 1, "duplicate": False}
        assert await run.effect("placed", event) == outcome
    assert len(await stream.messages()) == 1


@pytest.mark.rule("V4", "O4", "E2")
async def test_what_is_not_in_the_stream_is_uncertain_and_not_sent_again(stream, colour, nats_proxy: Proxy, make):
    event = make(stream, through(nats_proxy.port)).publish(stream.subject(), b"x")
    nats_proxy.rule = On(rb"HPUB", Act.CUT, times=1)
    async with colour.life("memory:") as life, life.run("order-42") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("placed", event)
        for _ in range(2):
            outcome = await run.effect("placed", event)
            assert isinstance(outcome, Uncertain)
            assert outcome.evidence.kind == "not-found"
    assert await stream.messages() == []


@pytest.mark.rule("V4", "E4")
async def test_a_broker_that_cannot_be_asked_leaves_it_open(stream, colour, nats_proxy: Proxy, make):
    event = make(stream, through(nats_proxy.port)).publish(stream.subject(), b"x")
    nats_proxy.rule = On(rb"HPUB|MSG\.GET", Act.LOSE_REPLY)
    async with colour.life("memory:") as life, life.run("order-42") as run:
        for reason in ("run-failed", "reconcile-failed"):
            with pytest.raises(EffectUnresolved) as caught:
                await run.effect("placed", event)
            assert caught.value.reason == reason
        nats_proxy.rule = None
        assert isinstance(await run.effect("placed", event), Accepted)
    assert len(await stream.messages()) == 1


@pytest.mark.rule("V4")
@pytest.mark.parametrize(("before", "after"), [(0, 0), (3, 0), (0, 3), (40, 70)])
async def test_it_is_found_wherever_it_is(stream, colour, make, monkeypatch, before, after):
    monkeypatch.setattr(look_ups, "_STRETCH", 4)
    events, subject = make(stream), stream.subject()
    await fill(stream, subject, before)
    await fill(stream, stream.subject("other"), 5)
    event = events.publish(subject, b"ours")
    async with colour.life("memory:") as life, life.run("r") as run:
        accepted = await run.effect("e", event)
        (view,) = list(await life.effects())
    await fill(stream, subject, after)
    await fill(stream, stream.subject("other"), 5)
    found = await asked(colour, event, view.effect_key)
    assert (found.proof, found.via) == (accepted.proof, "reconcile")
    assert await asked(colour, event, "another-key") is None
    assert await asked(colour, events.publish(stream.subject("other"), b"ours"), view.effect_key) is None


@pytest.mark.rule("V4", "E19")
@pytest.mark.parametrize("newer", [0, 2])
async def test_another_content_under_its_id_is_not_it(stream, colour, make, newer):
    await fill(stream, stream.subject(), 1, **{"Nats-Msg-Id": "key-1"})
    await fill(stream, stream.subject(), newer)
    events = make(stream)
    assert await asked(colour, events.publish(stream.subject(), b"y"), "key-1") is None
    assert await asked(colour, events.publish(stream.subject(), b"x", headers={"A": "b"}), "key-1") is None
    assert (await asked(colour, events.publish(stream.subject(), b"x"), "key-1")).proof["seq"] == 1


@pytest.mark.rule("V4", "O4")
async def test_an_empty_stream_has_nothing_and_a_missing_one_does_not_answer(stream, colour, make):
    event = make(stream).publish(stream.subject(), b"x")
    assert await asked(colour, event, "key-1") is None
    async with admin(stream.url) as client:
        await client.jetstream().delete_stream(stream.name)
    with pytest.raises(RecipientError):
        await asked(colour, event, "key-1")
