"""HTTP through the broker: grants decide where it may go, and permits live until the socket is gone."""

import asyncio
import threading
from typing import Any

import pytest

from counterfoil import HTTP, Accepted, AsyncBroker, Broker, Budget, Contract, Grant, Rejected, Uncertain
from counterfoil.testing.peers import Answer, Drop, FaultPeer, Hang, redirect
from tests.support import GROWING_S, in_thread, tries

LOCAL = ("127.0.0.1/32",)


class Brokered:
    """Performs in an activation, in either colour."""

    def __init__(self, colour: Any, **options: Any) -> None:
        self.asynchronous = colour.name == "asyncio"
        self.broker: Any = AsyncBroker(**options) if self.asynchronous else Broker(**options)

    async def perform(self, operation, *grants, timeout_s=None, budget=None):
        if self.asynchronous:
            async with self.broker.activation(grants=grants, budget=budget) as activation:
                return await activation.perform(operation, timeout_s=timeout_s)

        def now():
            with self.broker.activation(grants=grants, budget=budget) as activation:
                return activation.perform(operation, timeout_s=timeout_s)

        return await in_thread(now)

    async def close(self):
        if self.asynchronous:
            return await self.broker.close()
        return await in_thread(self.broker.close)


def granting(peer, *operations, **more):
    return Grant(
        "payments", operations=operations or ("POST",), targets=(f"{peer.url}/v1/",), allow_addresses=LOCAL, **more
    )


@pytest.mark.rule("B1", "H1", "O6")
async def test_what_a_grant_allows_is_sent_and_answered(colour):
    with FaultPeer(Answer(201, json={"id": "ch_1"})) as peer:
        http = HTTP("payments", base_url=f"{peer.url}/v1", contract=Contract(name="c", proof="/id"))
        outcome = await Brokered(colour).perform(http.post("/charges", json={}), granting(peer))
        assert isinstance(outcome, Accepted)
        assert outcome.proof == "ch_1"
        assert (outcome.response.status, outcome.response.json()) == (201, {"id": "ch_1"})
        assert outcome.evidence.bytes_offered == peer.bytes_received


@pytest.mark.rule("B3", "H5", "H4")
async def test_what_no_grant_allows_is_rejected_and_sends_nothing(colour):
    with FaultPeer(Answer(200)) as peer:
        brokered = Brokered(colour)
        http = HTTP("payments", base_url=peer.url, allow_addresses=LOCAL)
        allowed = granting(peer)
        closed = Grant("payments", operations=("POST",), targets=(f"{peer.url}/v1/",))
        for operation, *grants in (
            (http.post("/v1/a", json={}),),
            (http.put("/v1/a", json={}), allowed),
            (http.post("/v2/a", json={}), allowed),
            (http.post("/v1", json={}), allowed),
            (http.post("/v1/../v2/", json={}), allowed),
            (http.post("/v1/a", json={}, headers={"a": "b\r\nc: d"}), allowed),
            (http.post("/v1/a", json={}), closed),
            (HTTP("other", base_url=peer.url).post("/v1/a", json={}), allowed),
        ):
            outcome = await brokered.perform(operation, *grants)
            assert isinstance(outcome, Rejected)
            assert (outcome.evidence.details or {}).get("attempts") == 0
        assert peer.bytes_received == 0


@pytest.mark.rule("H4", "B2")
async def test_a_redirect_of_a_read_needs_its_own_grant(colour):
    with FaultPeer([redirect("/v2/secret", 302), Answer(200)]) as peer:
        outcome = await Brokered(colour).perform(HTTP("payments", base_url=peer.url).get("/v1/"), granting(peer, "GET"))
        assert outcome.evidence.kind == "refused-by-policy"
        assert len(peer.requests) == 1


@pytest.mark.rule("B6", "B5")
async def test_an_overdue_caller_is_told_at_its_deadline(colour):
    with FaultPeer(Hang()) as peer:
        http = HTTP("payments", base_url=peer.url)
        brokered = Brokered(colour)
        ends: list[Any] = []
        # The peer says nothing for as long as it is asked, so whoever is told anything is told at its deadline.
        for timeout_s in tries(lambda: not isinstance(ends[-1], Rejected), GROWING_S):
            outcome = await brokered.perform(http.post("/v1/", json={}), granting(peer), timeout_s=timeout_s)
            ends.append(outcome)
        outcome = ends[-1]
        assert (type(outcome), outcome.evidence.kind) == (Uncertain, "deadline")
        assert outcome.evidence.details["peer"] == f"127.0.0.1:{peer.port}"
        report = await brokered.close()
        assert not report.permits
        peer.until(lambda found: bool(found.requests) and found.open == 0)
        assert peer.connections[-1].ended == "client-reset"


@pytest.mark.rule("B1")
async def test_a_budget_that_has_no_room_for_the_request_sends_nothing(colour):
    with FaultPeer(Answer(200)) as peer:
        http = HTTP("payments", base_url=peer.url)
        upload = http.post("/v1/", content=b"x" * 10_000)
        outcome = await Brokered(colour).perform(upload, granting(peer), budget=Budget(bytes_out=9_000))
        assert isinstance(outcome, Rejected)
        assert (await Brokered(colour).perform(upload, granting(peer), budget=Budget(bytes_out=11_000))).proof
        assert len(peer.requests) == 1


@pytest.mark.rule("B2", "B5", "B10")
async def test_two_thousand_cancelled_calls_leave_nothing_behind():
    hanging = threading.Event()

    def script(request):
        return Answer(200) if hanging.is_set() else Hang()

    with FaultPeer(script) as peer:
        http = HTTP("payments", base_url=peer.url)
        broker = AsyncBroker(concurrency=64)
        async with broker.activation(grants=[granting(peer)], deadline_s=300) as activation:
            calls = [asyncio.create_task(activation.perform(http.post("/v1/", json={}))) for _ in range(2000)]
            await peer.awaited.until(lambda found: len(found.requests) >= 60)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            hanging.set()
            outcome = await activation.perform(http.post("/v1/", json={}))
            assert isinstance(outcome, Accepted)
        report = await broker.close()
        assert not report.permits
        await peer.awaited.until(lambda found: found.open == 0)
        # Those that were waiting for their turn were never sent.
        assert len(peer.requests) <= 64 + 1


@pytest.mark.rule("O2", "E2", "H8", "B4")
async def test_a_charge_whose_reply_is_lost_is_uncertain_now_and_settled_as_an_effect(colour, tmp_path):
    from tests.http.test_effects import CONTRACT, Payments
    from tests.support import Colour as Life

    payments = Payments(Drop(), Drop())
    with FaultPeer(payments) as peer:
        http = HTTP("payments", base_url=f"{peer.url}/v1", contract=CONTRACT)
        grant = granting(peer)
        now = await Brokered(colour).perform(http.post("/charges", json={"cents": 700}), grant)
        assert (type(now), now.evidence.kind, now.evidence.details["attempts"]) == (Uncertain, "no-response", 1)
        assert len(peer.requests) == len(payments.charges) == 1

        charge = http.post("/charges", json={"cents": 700})
        lives = Life(colour.name)
        async with lives.life(f"sqlite:///{tmp_path}/ledger.db") as first, first.run("order-42") as run:
            with pytest.raises(Exception, match="unresolved"):
                await run.effect("charge", charge)
        async with lives.life(f"sqlite:///{tmp_path}/ledger.db") as second, second.run("order-42") as run:
            outcome = await run.effect("charge", charge)
        assert isinstance(outcome, Accepted)
        assert (outcome.proof, outcome.via) == ("ch_2", "reconcile")
        assert [request.method for request in peer.requests] == ["POST", "POST", "GET"]
