"""Calls by the hundred against a peer that does anything, with deadlines, cancellations and revocations."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from counterfoil import HTTP, Accepted, Failed, Rejected, Runtime, Uncertain
from counterfoil.testing.peers import Answer, CutBody, CutHead, Drop, FaultPeer, Hang, Move, Trickle, redirect
from tests.support import eventually, tries
from tests.wire.scene import Scene, Seat, grant

CALLS = 150
AT_ONCE = 48
# Its times are of an idle machine: where nothing came so far that its end is unknown, they are tried longer.
PACES = (1, 8, 64)
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


async def call(seat: Seat, peer: FaultPeer, number: int, *, seed: random.Random, pace: int) -> Any:
    http = HTTP(timeout_s=pace * seed.choice((0.05, 0.2, 0.5)))
    operation = http.post(f"{peer.url}/call/{number}", json={"n": number, "fill": "x" * seed.choice((0, 10, 70_000))})
    timeout_s = seed.choice((None, 0.02 * pace, 0.3 * pace))
    performing = asyncio.ensure_future(seat.perform(operation, timeout_s=timeout_s))
    if not seat.blocking and seed.random() < 0.2:
        await asyncio.sleep(seed.random() * 0.05 * pace)
        performing.cancel()
    try:
        return await performing
    except asyncio.CancelledError:
        return None


@pytest.mark.rule("B2", "B4", "B5", "B6", "B8", "H1", "O2")
@pytest.mark.parametrize(("seed", "audit"), [(1, "off"), (2, "required")])
async def test_whatever_happens_the_outcome_agrees_with_the_peer(
    scene: Scene, tmp_path: Path, seed: int, audit: str
) -> None:
    ends: list[type] = []
    for pace in tries(lambda: Uncertain in ends, PACES):
        chance = random.Random(f"{seed}{scene.colour}")
        url = f"sqlite:///{tmp_path / f'{pace}.db'}"
        with FaultPeer([misbehaves(chance) for _ in range(CALLS)]) as peer:
            async with scene.entered(scene.runtime(url)) as runtime:
                broker = scene.broker(None if audit == "off" else runtime, audit=audit, concurrency=AT_ONCE)
                outcomes = await played(scene, broker, peer, chance=chance, pace=pace)
                await eventually(lambda broker=broker: broker.report().idle)  # type: ignore[misc]
                report = broker.report()
            if audit != "off":
                audited(url, outcomes, peer)
        assert (report.permits, report.waiting, report.cleaning, report.records_lost) == (0, 0, 0, 0)
        judge(outcomes, peer)
        ends.extend(map(type, outcomes))


async def played(scene: Scene, broker: Any, peer: FaultPeer, *, chance: random.Random, pace: int) -> list[Any]:
    """Make all calls, in three activations; some of these are revoked meanwhile."""
    outcomes: list[Any] = []
    for _ in range(3):
        async with scene.seat(grant(f"{peer.url}/"), broker=broker) as seat:
            numbers = range(len(outcomes), len(outcomes) + CALLS // 3)
            calls = asyncio.gather(*(call(seat, peer, number, seed=chance, pace=pace) for number in numbers))
            if chance.random() < 0.5:
                await asyncio.sleep(chance.random() * 0.1 * pace)
                await seat.revoke()
            outcomes += await calls
    return outcomes


def audited(url: str, outcomes: list[Any], peer: FaultPeer) -> None:
    """Compare what is on record with what callers were told; a cancelled caller was told nothing."""
    with Runtime(url) as runtime:
        recorded = Counter(view.state for view in runtime.effects())
        assert all(view.state == "finished" for view in runtime.runs())
    told = Counter(type(outcome).__name__.lower() for outcome in outcomes if outcome is not None)
    untold = outcomes.count(None)
    for state in ("accepted", "failed", "uncertain"):
        assert told[state] <= recorded[state] <= told[state] + untold
    assert recorded["unresolved"] == 0
    assert recorded.total() >= len({request.target for request in peer.requests})


def judge(outcomes: list[Any], peer: FaultPeer) -> None:
    """Compare what callers were told with what reached the peer."""
    arrived = Counter(request.target for request in peer.requests)
    done = Counter(request.target for request in peer.acted)
    assert set(arrived.values()) <= {1}
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
