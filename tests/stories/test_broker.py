"""Stories of immediate operations: what a caller is told, beside what reached the other side."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from counterfoil import HTTP, Accepted, Broker, EffectUnresolved, Evidence, Failed, Recipient, Rejected, Uncertain
from counterfoil.testing.audit import Finding, audit
from counterfoil.testing.peers import Answer, Drop, FaultPeer, Hang, Move, Refuse, Request
from counterfoil.testing.peers.catalogue import CASES, chosen
from tests.stories.recipient import LostReply
from tests.support import GROWING_S, PATIENCE_S, Colour, tries
from tests.wire.scene import Scene, grant


@pytest.fixture
def scene(colour: Colour) -> Scene:
    return Scene("blocking" if colour.blocking else "asyncio")


async def overdue(scene: Scene, hangs: Hang, **request: Any) -> AsyncIterator[tuple[Any, FaultPeer]]:
    """Yield what a caller is told at its deadline by a peer that has its request, and the peer, once."""
    met: list[Any] = []
    for timeout_s in tries(lambda: met, GROWING_S):
        with FaultPeer(hangs) as peer:
            outcome = await scene.told(peer, http=HTTP(timeout_s=timeout_s), **request)
            if peer.requests:
                met.append(outcome)
                yield outcome, peer


@pytest.mark.rule("O2", "B6")
async def test_s16_a_deadline_before_the_answer_is_uncertain_and_never_called_failed(scene: Scene):
    """Abilityai/trinity#914: R accepts after the client's deadline, and the caller is told that it failed."""
    async for outcome, peer in overdue(scene, Hang(then=Answer(201, json={"id": "task-1"})), json={"task": "write"}):
        assert isinstance(outcome, Uncertain)
        assert (outcome.evidence.kind, outcome.evidence.phase) == ("deadline", "dispatched")
        assert outcome.evidence.details is not None
        assert outcome.evidence.details["attempts"] == 1
        # By this identity it is found in the audit, and asked for where the recipient was told it.
        assert outcome.evidence.details["key"].startswith("cf-")
        assert outcome.evidence.details["peer"] == f"127.0.0.1:{peer.port}"
        assert "failed" not in repr(outcome).lower()
        peer.release()
    assert (len(peer.requests), len(peer.items)) == (1, 1)


@pytest.mark.rule("O1", "O2", "H1")
async def test_s18_a_refused_port_and_a_lost_reply_are_told_apart(scene: Scene):
    """currents-dev/currents-mcp#163: both are "connection error" to the caller."""
    with FaultPeer(Refuse()) as peer:
        refused = await scene.told(peer, json={})
    with FaultPeer(Drop()) as peer:
        dropped = await scene.told(peer, json={})
    assert isinstance(refused, Rejected)
    assert (refused.evidence.kind, refused.evidence.bytes_offered) == ("connect-failed", 0)
    assert isinstance(dropped, Uncertain)
    assert dropped.evidence.kind == "no-response"
    assert dropped.evidence.bytes_offered == peer.bytes_received
    assert (len(peer.requests), len(peer.items)) == (1, 1)


@pytest.mark.rule("O2")
async def test_s35_an_order_whose_reply_does_not_come_is_uncertain(scene: Scene):
    """hummingbot/hummingbot#493: a read time-out is taken for an order that was not placed."""
    async for outcome, peer in overdue(scene, Hang(), json={"side": "buy"}):
        assert isinstance(outcome, Uncertain)
        assert len(peer.requests) == 1
    assert len(peer.items) == 1


@pytest.mark.rule("B4", "H2")
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_s40_an_answer_500_is_one_request(scene: Scene, method: str):
    """bennycode/trading-signals#1178: the client sends an order again after a 500."""
    with FaultPeer([Answer(500, acts=True), Answer(201)]) as peer:
        outcome = await scene.told(peer, method)
    assert isinstance(outcome, Uncertain)
    assert outcome.evidence.status == 500
    assert (len(peer.requests), len(peer.connections)) == (1, 1)


@pytest.mark.rule("B4")
def test_s43_hidden_retries_of_a_client_are_found_out():
    """openclaw/openclaw#22780: the adapter's client was configured with retries. Ours has none; others are audited."""
    urllib3 = pytest.importorskip("urllib3")

    def configured(url: str) -> None:
        urllib3.PoolManager(retries=urllib3.Retry(3, allowed_methods=None, backoff_factor=0)).request("POST", url)

    (found,) = audit(configured, cases=chosen(["read-and-drop"])).findings
    assert found.sent == 4


@pytest.mark.rule("B4")
def test_s43_our_client_has_none_in_any_case():
    def ours(url: str, timeout_s: float = PATIENCE_S) -> None:
        with Broker().activation(grants=[grant(url.rpartition("/")[0] + "/")], deadline_s=PATIENCE_S) as activation:
            outcome = activation.perform(HTTP(timeout_s=timeout_s).post(url, json={"cents": 700}))
        if isinstance(outcome, (Rejected, Failed)):
            raise outcome
        if isinstance(outcome, Uncertain):
            raise LostReply

    cases = [case for case in CASES if case.name not in ("trickle", "bomb", "hang")]
    report = audit(ours, cases=cases, at_once=20, limit_s=2 * PATIENCE_S)
    found = list(report.findings)
    hung: list[Finding] = []
    # A deadline may come before anything is sent.
    for timeout_s in tries(lambda: hung[-1].sent, GROWING_S):
        hung.extend(audit(partial(ours, timeout_s=timeout_s), cases=chosen(["hang"])).findings)
    found.append(hung[-1])
    assert report.ok
    assert all(each.sent <= 1 and each.connections <= 1 for each in found + hung)
    told = {each.case: (each.raised or "Accepted").rpartition(".")[2] for each in found}
    # The reset may be here before the first byte is offered, and then nothing was.
    assert told.pop("reset-on-accept") in ("Rejected", "LostReply")
    assert told == {
        "plain": "Accepted",
        "200-with-error": "Accepted",
        "truncated-body": "Accepted",
        "refuse": "Rejected",
        "early-answer": "Failed",
        "redirect": "Failed",
    } | dict.fromkeys(told.keys() - DECIDED, "LostReply")


DECIDED = {"plain", "200-with-error", "truncated-body", "refuse", "early-answer", "redirect"}


class Store:
    """An object store that keeps who put an object there; it is told to lose replies."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[str, str]] = {}
        self.losing = 0

    def __call__(self, request: Request) -> Move:
        name = request.target
        if request.method == "HEAD":
            found = self.objects.get(name)
            if found is None:
                return Answer(404)
            return Answer(200, headers={"etag": found[0], "x-amz-meta-effect": found[1]}, acts=False)
        self.objects.setdefault(name, (f'"{hash(request.body) & 0xFFFF:x}"', request.header("x-amz-meta-effect") or ""))
        if self.losing:
            self.losing -= 1
            return Drop()
        return Answer(200, headers={"etag": self.objects[name][0]})


@pytest.mark.rule("O3", "E2", "E13", "B4")
@pytest.mark.parametrize("foreign", [False, True])
async def test_s64_an_object_is_compared_with_ours(make, colour: Colour, foreign: bool):
    """aws/aws-sdk-java-v2#6580: the retry of a conditional put finds its own object and reports a conflict."""
    import http.client

    server = Store()
    with FaultPeer(server) as peer:

        def ask(method: str, key: str, body: bytes | None = None) -> http.client.HTTPResponse:
            connection = http.client.HTTPConnection("127.0.0.1", peer.port, timeout=PATIENCE_S)
            try:
                connection.request(method, "/bucket/report", body, {"x-amz-meta-effect": key})
                answer = connection.getresponse()
                answer.read()
                return answer
            except http.client.RemoteDisconnected:
                raise LostReply from None
            finally:
                connection.close()

        store = Recipient("store")

        @store.operation
        def put(ctx: Any, body: str) -> str:
            return str(ask("PUT", ctx.key, body.encode()).headers["etag"])

        @put.reconcile
        def find(ctx: Any, body: str) -> str | None:
            there = ask("HEAD", ctx.key)
            if there.status == 404:
                return None
            if there.headers["x-amz-meta-effect"] != ctx.key:
                raise Failed(Evidence("foreign-object", status=200))
            return str(there.headers["etag"])

        if foreign:
            server.objects["/bucket/report"] = ('"other"', "somebody-else")
        server.losing = 1
        async with make() as life, life.run("r") as run:
            with pytest.raises(EffectUnresolved):
                await run.effect("report", put(body="42"))
            outcome = await run.effect("report", put(body="42"))
    assert isinstance(outcome, Failed if foreign else Accepted)
    assert [request.method for request in peer.requests] == ["PUT", "HEAD"]


@pytest.mark.rule("B4", "H1")
async def test_s75_a_connection_that_is_closed_on_the_second_request_is_one_request(scene: Scene):
    """jawah/urllib3.future#280: a kept connection dies on its second request, which is then sent again."""
    with FaultPeer([Answer(201), Drop(), Answer(201)]) as peer:
        async with scene.seat(grant(f"{peer.url}/")) as seat:
            http = HTTP()
            first = await seat.perform(http.post(f"{peer.url}/one", json={}))
            second = await seat.perform(http.post(f"{peer.url}/two", json={}))
    assert isinstance(first, Accepted)
    assert isinstance(second, Uncertain)
    assert [request.target for request in peer.requests] == ["/one", "/two"]
