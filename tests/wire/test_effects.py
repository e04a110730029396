"""What is known of an effect over HTTP whose end nobody knows: how far it got (rule O6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from counterfoil import HTTP, Contract, EffectUnresolved, LookUp, Uncertain
from counterfoil.testing.peers import Answer, Drop, FaultPeer, Move, Request
from tests.wire.scene import Scene

pytestmark = pytest.mark.rule("O6", "E2")


async def paid(scene: Scene, url: str, http: HTTP) -> Any:
    """Ask for the effect in a life of its own."""
    async with scene.entered(scene.runtime(url)) as life, scene.entered(life.run("order-42")) as run:
        found = run.effect("pay", http.post("/charges", json={"cents": 700}))
        return found if scene.colour == "blocking" else await found


@pytest.mark.parametrize("askable", [False, True])
@pytest.mark.parametrize(
    ("move", "ended", "status"), [(Drop(), "no-response", None), (Answer(503, acts=True), "status", 503)]
)
async def test_how_far_it_got_is_on_record(
    scene: Scene, tmp_path: Path, move: Move, ended: str, status: int | None, askable: bool
) -> None:
    def answers(request: Request) -> Move:
        return Answer(404) if request.method == "GET" else move

    look_up = LookUp(url="charges?key={key}", proof="/id") if askable else None
    with FaultPeer(answers) as peer:
        http = HTTP("shop", base_url=f"{peer.url}/", contract=Contract(name="shop-v1", look_up=look_up))
        with pytest.raises(EffectUnresolved) as unresolved:
            await paid(scene, f"sqlite:///{tmp_path / 'l.db'}", http)
        assert unresolved.value.reason == "run-failed"
        outcome = await paid(scene, f"sqlite:///{tmp_path / 'l.db'}", http)
        again = await paid(scene, f"sqlite:///{tmp_path / 'l.db'}", http)
    assert isinstance(outcome, Uncertain)
    assert outcome == again
    evidence = outcome.evidence
    assert (evidence.kind, evidence.phase) == ("not-found" if askable else "unaskable", "dispatched")
    assert (evidence.status, evidence.contract) == (status, "shop-v1")
    post = next(request for request in peer.requests if request.method == "POST")
    assert (evidence.bytes_offered or 0) > post.body_bytes > 0
    assert evidence.details is not None
    assert (evidence.details["run"], evidence.details["attempts"]) == (ended, 1)
    assert evidence.details["peer"] == f"127.0.0.1:{peer.port}"
    assert sum(request.method == "POST" for request in peer.requests) == 1
