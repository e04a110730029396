"""Calls by the hundred against a peer that does anything, with deadlines, cancellations and revocations."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from counterfoil import HTTP, Accepted, Failed, Rejected, Uncertain
from counterfoil.testing.peers import Answer, CutBody, CutHead, Drop, FaultPeer, Hang, Move, Trickle, redirect
from tests.wire.scene import Scene, Seat, grant

CALLS = 150
AT_ONCE = 48
STATUSES = (200, 201, 202, 204, 400, 404, 409, 422, 500, 503)


def misbehaves(seed: random.Random) -> Move:
    """Make a move that tells no lies: what says that it was refused was not carried out."""
    acts = seed.random() < 0.5
    status = seed.choice(STATUSES)
    answer = Answer(
        status,
        json={"id": 1} if status != 204 else None,
        acts=acts if status >= 500 else None,
        delay_s=seed.choice((0.0, 0.0, 0.0, 0.05)),
        then=seed.choice(("keep", "close")),
    )
    moves: list[Any] = [
        answer,
        answer,
        answer,
        Drop(read=seed.choice(("nothing", "head", 3, "all")), reset=acts),
        Drop(acts=acts, interim=(100,)),
        Drop(acts=acts, reset=True),
        CutHead(answer, sent_bytes=seed.randrange(1, 30), reset=acts),
        CutBody(Answer(status, json={"id": 1}, acts=answer.acting), sent_bytes=seed.randrange(4)),
        Hang(read=seed.choice(("nothing", "head", 3, "all")), acts=acts),
        Trickle(answer, every_s=0.002, part=seed.choice(("head", "body"))),
        Answer(413, read="head", then="reset"),
        redirect("/elsewhere", 307),
    ]
    return seed.choice(moves)  # type: ignore[no-any-return]


async def call(seat: Seat, peer: FaultPeer, number: int, seed: random.Random) -> Any:
    http = HTTP(timeout_s=seed.choice((0.05, 0.2, 0.5)))
    operation = http.post(f"{peer.url}/call/{number}", json={"n": number, "fill": "x" * seed.choice((0, 10, 70_000))})
    performing = asyncio.ensure_future(seat.perform(operation, timeout_s=seed.choice((None, 0.02, 0.3))))
    if not seat.blocking and seed.random() < 0.2:
        await asyncio.sleep(seed.random() * 0.05)
        performing.cancel()
    try:
        return await performing
    except asyncio.CancelledError:
        return None


@pytest.mark.rule("B2", "B4", "B5", "B6", "H1", "O2")
@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_happens_the_outcome_agrees_with_the_peer(scene: Scene, seed: int) -> None:
    chance = random.Random(f"{seed}{scene.colour}")
    with FaultPeer([misbehaves(chance) for _ in range(CALLS)]) as peer:
        broker = scene.broker(concurrency=AT_ONCE)
        outcomes: list[Any] = []
        for _ in range(3):
            async with scene.seat(grant(f"{peer.url}/"), broker=broker) as seat:
                numbers = range(len(outcomes), len(outcomes) + CALLS // 3)
                calls = asyncio.gather(*(call(seat, peer, number, chance) for number in numbers))
                if chance.random() < 0.5:
                    await asyncio.sleep(chance.random() * 0.1)
                    await seat.revoke()
                outcomes += await calls
        await asyncio.to_thread(peer.until, lambda _: broker.report().idle)
        report = broker.report()
        async with scene.seat(grant(f"{peer.url}/"), broker=broker) as seat:
            assert await seat.perform(HTTP().post(f"{peer.url}/last", json={}), timeout_s=0.2) is not None
    assert (report.permits, report.waiting, report.cleaning) == (0, 0, 0)
    judge(outcomes, peer)


def judge(outcomes: list[Any], peer: FaultPeer) -> None:
    """Compare what callers were told with what reached the peer."""
    arrived = Counter(request.target for request in peer.requests)
    done = Counter(request.target for request in peer.acted)
    assert max(arrived.values()) == 1
    assert any(isinstance(outcome, Uncertain) for outcome in outcomes)
    for number, outcome in enumerate(outcomes):
        target = f"/call/{number}"
        if isinstance(outcome, Rejected):
            assert arrived[target] == 0, outcome
        elif isinstance(outcome, Accepted):
            assert done[target] == 1, outcome
        elif isinstance(outcome, Failed):
            assert (arrived[target], done[target]) == (1, 0), outcome
        else:
            assert outcome is None or isinstance(outcome, Uncertain)
