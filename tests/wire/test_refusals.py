"""What is refused for the request's own sake: nobody is even connected to."""

from __future__ import annotations

import pytest

from counterfoil import HTTP, Rejected, Secret
from counterfoil.testing.peers import FaultPeer
from tests.wire.scene import Scene, grant

pytestmark = pytest.mark.rule("B3", "H6")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("X-A", "a\r\nX-B: c", "bad-header-value"),
        ("X-A", "a\nb", "bad-header-value"),
        ("X-A", "a\x00b", "bad-header-value"),
        ("X-A", " padded", "bad-header-value"),
        ("X-A", "日本", "bad-header-value"),
        ("X A", "v", "bad-header-name"),
        (":authority", "v", "bad-header-name"),
        ("", "v", "bad-header-name"),
        ("Host", "elsewhere", "header-not-yours"),
        ("Content-Length", "0", "header-not-yours"),
        ("transfer-encoding", "chunked", "header-not-yours"),
        ("Connection", "keep-alive", "header-not-yours"),
        ("Upgrade", "h2c", "header-not-yours"),
        ("Proxy-Authorization", "x", "header-not-yours"),
    ],
)
async def test_a_header_that_must_not_be_sent(scene: Scene, name: str, value: str, reason: str) -> None:
    with FaultPeer() as peer:
        for http, inner in ((HTTP(), {name: value}), (HTTP(headers={name: value}), {})):
            outcome = await scene.told(peer, http=http, headers=inner, json={})
            assert isinstance(outcome, Rejected)
            assert outcome.evidence.kind == "refused-by-policy"
            assert (outcome.evidence.details or {})["reason"] == reason
    assert peer.connections == []


@pytest.mark.rule("B9")
async def test_a_secret_that_cannot_be_a_header_is_not_shown(scene: Scene) -> None:
    with FaultPeer() as peer:
        outcome = await scene.told(peer, http=HTTP(auth=Secret(lambda: "tok\r\nen")))
    assert isinstance(outcome, Rejected)
    assert "tok" not in repr(outcome)
    assert peer.bytes_received == 0


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/api/../secret", "dot-segments"),
        ("/api/%2e%2e/secret", "dot-segments"),
        ("/api/%2E%2E%2Fsecret", "dot-segments"),
        ("/api/..;/secret", "dot-segments"),
        ("/api/x\r\nX: y", "url-control-character"),
        ("/api/%zz", "bad-percent-encoding"),
    ],
)
async def test_a_path_that_leads_out_of_its_grant(scene: Scene, path: str, reason: str) -> None:
    with FaultPeer() as peer:
        async with scene.seat(grant(f"{peer.url}/api/")) as seat:
            outcome = await seat.perform(HTTP().post(f"{peer.url}{path}"))
    assert isinstance(outcome, Rejected)
    assert (outcome.evidence.details or {})["reason"] == reason
    assert peer.connections == []


@pytest.mark.parametrize("path", ["/apix", "/api", "/API/x", "/", "/other/api/"])
async def test_a_path_beside_its_grant(scene: Scene, path: str) -> None:
    with FaultPeer() as peer:
        async with scene.seat(grant(f"{peer.url}/api/")) as seat:
            assert isinstance(await seat.perform(HTTP().post(f"{peer.url}{path}")), Rejected)
    assert peer.connections == []
