"""Retries of immediate operations: explicit, bounded, tied to a contract (rule B7)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from counterfoil import HTTP, Accepted, Contract, Failed, Keyed, Rejected, Retry, Runtime, Uncertain
from counterfoil.testing.peers import Answer, Drop, FaultPeer, Refuse
from tests.wire.scene import Scene, grant

pytestmark = pytest.mark.rule("B7", "E14")

LIMITED = Answer(429, then="close")
KEYED = Keyed(header="Idempotency-Key", horizon_s=3600)


def contract(**more: Any) -> Contract:
    return Contract(name="shop", statuses={429: "failed"}, idempotency=KEYED, **more)


async def performed(scene: Scene, peer: FaultPeer, terms: Contract | None, *, calls: int = 1, **more: Any) -> Any:
    http = HTTP(contract=terms)
    outcome = None
    async with scene.seat(grant(f"{peer.url}/")) as seat:
        for _ in range(calls):
            outcome = await seat.perform(http.post(f"{peer.url}/charges", json={}), **more)
    return outcome


@pytest.mark.parametrize("keep", [False, True])
async def test_attempts_have_a_key_of_their_own_unless_the_contract_keeps_it(scene: Scene, keep: bool) -> None:
    with FaultPeer([LIMITED, LIMITED, Answer(201), Answer(201)]) as peer:
        terms = contract(retryable=[429], keep_key=keep)
        outcome = await performed(scene, peer, terms, calls=2, retry=Retry(3))
    assert isinstance(outcome, Accepted)
    *first, second = [request.key for request in peer.requests]
    assert len(set(first)) == (1 if keep else 3)
    assert second not in first


@pytest.mark.parametrize("answer", [Drop(), Answer(500), Answer(503), Answer(200, body=b"")])
async def test_a_key_alone_enables_nothing(scene: Scene, answer: Any) -> None:
    with FaultPeer([answer, Answer(201, json={"id": "late"})]) as peer:
        outcome = await performed(scene, peer, contract(retryable=True, keep_key=True, proof="/id"), retry=Retry(5))
    assert isinstance(outcome, Uncertain)
    assert len(peer.requests) == 1


async def test_without_a_policy_nothing_is_tried_again(scene: Scene) -> None:
    with FaultPeer([LIMITED, Answer(201)]) as peer:
        outcome = await performed(scene, peer, contract(retryable=True))
    assert isinstance(outcome, Failed)
    assert outcome.retryable
    assert len(peer.requests) == 1


async def test_what_a_later_attempt_says_about_a_conflict_is_uncertain(scene: Scene) -> None:
    with FaultPeer([LIMITED, Answer(409)]) as peer:
        outcome = await performed(scene, peer, contract(retryable=True), retry=Retry(5))
    assert isinstance(outcome, Uncertain)
    assert len(peer.requests) == 2


async def test_attempts_that_never_went_out_are_bounded_too(scene: Scene) -> None:
    with FaultPeer(Refuse()) as peer:
        outcome = await performed(scene, peer, None, retry=Retry(3))
    assert isinstance(outcome, Rejected)
    assert outcome.evidence.kind == "connect-failed"


@pytest.mark.rule("E14", "X10")
async def test_what_the_recipient_asks_for_is_waited_for_within_the_bound(scene: Scene) -> None:
    # Where the bound did not count, a day would be beyond the deadline, and no second attempt made.
    for asked_s, bound_s, waited_s in ((1, 60.0, 1.0), (86_400, 0.1, 0.1)):
        asked = Answer(429, headers={"retry-after": str(asked_s)}, then="close")
        with FaultPeer([asked, Answer(201)]) as peer:
            policy = Retry(3, backoff_s=0.01, backoff_max_s=bound_s)
            began_s = time.monotonic()
            assert isinstance(await performed(scene, peer, contract(retryable=True), retry=policy), Accepted)
        assert peer.requests[1].at_s - began_s >= waited_s


@pytest.mark.rule("B7")
async def test_a_wait_beyond_the_deadline_is_not_begun(scene: Scene) -> None:
    with FaultPeer([Answer(429, headers={"retry-after": "60"}, then="close"), Answer(201)]) as peer:
        outcome = await performed(scene, peer, contract(retryable=True), retry=Retry(3), timeout_s=25.0)
    assert isinstance(outcome, Failed)
    assert len(peer.requests) == 1


@pytest.mark.rule("E14")
def test_an_effect_waits_for_what_the_recipient_asks_for() -> None:
    asked = Answer(429, headers={"retry-after": "1"}, then="close")
    with FaultPeer([asked, Answer(201)]) as peer, Runtime("memory:") as runtime, runtime.run("r") as run:
        began_s = time.monotonic()
        http = HTTP(base_url=peer.url, contract=contract(retryable=True))
        outcome = run.effect("pay", http.post("/charges", json={}), retry=Retry(3))
    assert isinstance(outcome, Accepted)
    assert peer.requests[1].at_s - began_s >= 1
