"""Events in the three modes, on a real server: what is accepted, with which proof, and what is in the stream then."""

from __future__ import annotations

import asyncio
import sqlite3
import time

import pytest

from counterfoil import Accepted, AsyncBroker, Budget, Dispatcher, NameConflict, Outbox, Rejected, Uncertain
from tests.events.support import GRANT, Stream, context
from tests.servers.nats import NatsCluster
from tests.support import in_thread


@pytest.mark.rule("V1", "V5", "O6", "B4")
async def test_an_event_is_accepted_with_the_acknowledgement_of_its_stream(stream, brokered, make):
    event = make(stream).publish(stream.subject(), {"order": 42}, headers={"Trace": "a-1"})
    outcome = await brokered.perform(event)
    assert isinstance(outcome, Accepted)
    assert outcome.proof == {"stream": stream.name, "seq": 1, "duplicate": False}
    (message,) = await stream.messages()
    evidence, details = outcome.evidence, outcome.evidence.details or {}
    assert (evidence.phase, details["attempts"], details["peer"]) == (
        "acknowledged",
        1,
        stream.url.removeprefix("nats://"),
    )
    assert {"consumers-not-established", "sync-policy-unknown", "one-copy"} <= set(evidence.promises)
    assert details["stream"]["replicas"] == 1
    assert details["stream"]["duplicate_window_s"] == 120.0
    assert message.data == b'{"order":42}'
    assert message.headers == {
        "Trace": "a-1",
        "Nats-Expected-Stream": stream.name,
        "Nats-Msg-Id": details["key"],
    }


@pytest.mark.rule("V1", "E1", "E11")
async def test_an_effect_is_published_once_and_its_message_id_is_its_key(stream, colour, make):
    events = make(stream)
    async with colour.life("memory:") as life, life.run("order-42") as run:
        first = await run.effect("placed", events.publish(stream.subject(), b"x"))
        assert first == await run.effect("placed", events.publish(stream.subject(), b"x"))
        with pytest.raises(NameConflict):
            await run.effect("placed", events.publish(stream.subject(), b"another"))
        assert [record.phase for record in life.records("order-42") if record.kind == "effect"] == []
        (view,) = [one for one in await life.effects() if one.run_id == "order-42"]
    (message,) = await stream.messages()
    assert message.headers["Nats-Msg-Id"] == view.effect_key
    assert first.evidence.details["key"] == view.effect_key


@pytest.mark.rule("X3", "X7", "V1")
async def test_a_staged_event_is_published_after_the_commit_and_not_before(stream, colour, make, tmp_path):
    events = make(stream)
    url = f"sqlite:///{tmp_path}/shop.db?engine=sqlite3"

    def stage_and_dispatch():
        outbox = Outbox(url)
        outbox.migrate()
        connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            outbox.stage(connection, events.publish(stream.subject(), [1, "ö"], headers={"A": "b"}), key="order-42")
            connection.execute("COMMIT")
        finally:
            connection.close()
        Dispatcher(url, [events]).run_until_idle(timeout_s=20)
        return outbox.receipt("order-42")

    receipt = stage_and_dispatch()
    assert receipt.state == "accepted"
    assert receipt.outcome.proof == {"stream": stream.name, "seq": 1, "duplicate": False}
    (message,) = await stream.messages()
    assert (message.data, message.headers["A"]) == ('[1,"ö"]'.encode(), "b")
    assert message.headers["Nats-Msg-Id"] == receipt.effect_id


@pytest.mark.rule("V1")
async def test_a_duplicate_is_accepted_and_marked(stream, colour, make):
    # Two recipients: what one process sent is not what another one knows.
    for number, events in enumerate((make(stream), make(stream))):
        event = events.publish(stream.subject(), b"x", headers={"A": "b"})
        accepted = await _run(colour, event, "key-1")
        assert accepted.proof == {"stream": stream.name, "seq": 1, "duplicate": bool(number)}
    assert len(await stream.messages()) == 1


@pytest.mark.rule("V1", "V4", "O5")
async def test_a_duplicate_of_another_content_is_not_accepted(stream, colour, make):
    await _run(colour, make(stream).publish(stream.subject(), b"x"), "key-1")
    for other in (
        make(stream).publish(stream.subject(), b"y"),
        make(stream).publish(stream.subject(), b"x", headers={"A": "b"}),
    ):
        outcome = await _perform(colour, other, "key-1")
        assert isinstance(outcome, Uncertain)
        assert outcome.evidence.kind == "duplicate-differs"
    assert len(await stream.messages()) == 1


@pytest.mark.rule("V1", "B3")
async def test_another_content_under_a_key_that_went_out_here_is_refused_before_the_broker_sees_it(
    stream, colour, make
):
    events = make(stream)
    await _run(colour, events.publish(stream.subject(), b"x"), "key-1")
    outcome = await _perform(colour, events.publish(stream.subject(), b"y"), "key-1")
    assert isinstance(outcome, Rejected)
    assert outcome.evidence.kind == "duplicate-differs"
    assert (outcome.evidence.details or {})["attempts"] == 0


@pytest.mark.rule("B1", "B3")
async def test_without_a_grant_or_a_budget_nothing_is_published(stream, colour, make):
    event = make(stream).publish(stream.subject(), b"x" * 500)
    for options, kind in (
        ({"grants": []}, "refused-by-policy"),
        ({"grants": [GRANT], "budget": Budget(calls=0)}, "budget-exhausted"),
        ({"grants": [GRANT], "budget": Budget(bytes_out=400)}, "refused-by-policy"),
    ):
        async with AsyncBroker() as broker, broker.activation(**options) as activation:
            outcome = await activation.perform(event)
            assert isinstance(outcome, Rejected)
            assert outcome.evidence.kind == kind
    assert await stream.messages() == []


@pytest.mark.rule("V1", "B3")
async def test_a_stream_that_acknowledges_nothing_is_refused_before_anything_is_sent(nats, brokered, make):
    silent = await Stream.make(nats.url, no_ack=True)
    outcome = await brokered.perform(make(silent).publish(silent.subject(), b"x"))
    assert isinstance(outcome, Rejected)
    assert outcome.evidence.kind == "stream-no-ack"
    assert await silent.messages() == []


@pytest.mark.rule("V1")
async def test_many_at_once_each_get_their_own_acknowledgement(stream, brokered, make):
    events = make(stream)
    outcomes = await asyncio.gather(
        *(brokered.perform(events.publish(stream.subject(str(n)), str(n))) for n in range(60))
    )
    found = {message.seq: message.data.decode() for message in await stream.messages()}
    assert {outcome.proof["seq"]: str(n) for n, outcome in enumerate(outcomes)} == found


@pytest.mark.rule("V1", "O6")
async def test_three_nodes_acknowledge_by_majority(nats_cluster: NatsCluster, make):
    stream = await Stream.make(nats_cluster.url, num_replicas=3)
    async with AsyncBroker() as broker, broker.activation(grants=[GRANT]) as activation:
        events = make(stream, ",".join(nats_cluster.urls))
        outcome = await activation.perform(events.publish(stream.subject(), b"x"))
        assert isinstance(outcome, Accepted)
        assert "majority-of-replicas" in outcome.evidence.promises
        # The node that we are on is gone; the next event finds another one.
        nats_cluster.nodes[0].stop()
        give_up = time.monotonic() + 20
        while not isinstance(await activation.perform(events.publish(stream.subject(), b"y"), timeout_s=5), Accepted):
            assert time.monotonic() < give_up


async def _perform(colour, event, key):
    from counterfoil.recipients.events.authority import CodeAuthority

    permit = CodeAuthority(time.monotonic() + 10)
    if colour.blocking:
        return await in_thread(lambda: event.perform(context(key), permit))
    return await event.perform_async(context(key), permit)


async def _run(colour, event, key):
    return await in_thread(lambda: event.run(context(key))) if colour.blocking else await event.run_async(context(key))
