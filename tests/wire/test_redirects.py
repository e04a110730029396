"""Where a read may be sent on to: each hop has what its own grants allow, and nothing of those before it."""

from __future__ import annotations

import pytest

from counterfoil import HTTP, Accepted, Failed, Grant, Secret
from counterfoil.testing.peers import Answer, FaultPeer, redirect
from tests.wire.scene import LOOPBACK, Scene, grant

pytestmark = pytest.mark.rule("H4", "H5", "B2")


@pytest.mark.parametrize("opened", [False, True])
async def test_an_address_that_is_open_for_one_hop_is_not_open_for_the_next(scene: Scene, opened: bool) -> None:
    with FaultPeer(Answer(200, body=b"inner")) as inner:
        beyond = f"http://rebound.example:{inner.port}/"
        with FaultPeer(redirect(f"{beyond}x", 302)) as peer:
            http = HTTP(resolve=lambda host, port: ["127.0.0.1"])
            second = Grant("http", operations=("GET",), targets=(beyond,), allow_addresses=LOOPBACK if opened else ())
            async with scene.seat(grant(f"{peer.url}/"), second) as seat:
                outcome = await seat.perform(http.get(f"{peer.url}/start"))
    assert len(peer.requests) == 1
    assert len(inner.connections) == int(opened)
    if opened:
        assert isinstance(outcome, Accepted)
    else:
        assert isinstance(outcome, Failed)
        assert (outcome.evidence.details or {})["reason"] == "loopback"


async def test_credentials_stay_at_their_origin(scene: Scene) -> None:
    with FaultPeer(Answer(200)) as other, FaultPeer(redirect(f"{other.url}/x", 302)) as peer:
        http = HTTP(auth=Secret(lambda: "tok"), headers={"X-Key": Secret(lambda: "k"), "Cookie": "c=1", "X-Plain": "v"})
        async with scene.seat(grant(f"{peer.url}/", f"{other.url}/")) as seat:
            assert isinstance(await seat.perform(http.get(f"{peer.url}/start")), Accepted)
    (first,), (second,) = peer.requests, other.requests
    sent = ("authorization", "x-key", "cookie", "x-plain")
    assert [first.header(name) for name in sent] == ["Bearer tok", "k", "c=1", "v"]
    assert [second.header(name) for name in sent] == [None, None, None, "v"]
