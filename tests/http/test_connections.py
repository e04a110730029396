"""Connections: which address is taken, and what becomes of one whose runtime is left."""

import asyncio
import socket
from typing import Any

import pytest

from counterfoil import HTTP, Accepted, AsyncRuntime, EffectUnresolved, LedgerUnavailable, Rejected, Uncertain
from counterfoil.testing.peers import Answer, Drop, FaultPeer, Hang, Refuse
from tests.http.support import HeldPermit, deaf_listener, told
from tests.support import GROWING_S, tries


@pytest.mark.rule("H5", "B4")
async def test_the_next_address_is_tried_only_where_nothing_was_connected(colour):
    with FaultPeer(Answer(200)) as peer:
        http = HTTP("p", base_url=f"http://two.test:{peer.port}", resolve=lambda host, port: ["127.0.0.2", "127.0.0.1"])
        outcome = await colour.perform(http.post("/", json={}))
        assert (type(outcome), outcome.evidence.details["peer"]) == (Accepted, f"127.0.0.1:{peer.port}")
    with FaultPeer(Drop()) as peer:
        http = HTTP(
            "p",
            base_url=f"http://two.test:{peer.port}",
            resolve=lambda host, port: ["127.0.0.1", "127.0.0.1", "127.0.0.2"],
        )
        assert told(await colour.perform(http.post("/", json={})))[:2] == ("Uncertain", "no-response")
        assert len(peer.connections) == 1
    with FaultPeer(Refuse()) as peer:
        http = HTTP("p", base_url=f"http://two.test:{peer.port}", resolve=lambda host, port: ["127.0.0.2", "127.0.0.1"])
        outcome = await colour.perform(http.post("/", json={}))
        assert told(outcome) == ("Rejected", "connect-failed", "connecting")


@pytest.mark.rule("H5", "H7")
async def test_an_address_that_does_not_answer_leaves_time_for_the_next(colour):
    with FaultPeer(Answer(200)) as peer, deaf_listener("127.0.0.2", peer.port):
        ends: list[Any] = []
        for timeout_s in tries(lambda: isinstance(ends[-1], Accepted), GROWING_S):
            http = HTTP(
                "p",
                base_url=f"http://two.test:{peer.port}",
                timeout_s=timeout_s,
                resolve=lambda host, port: ["127.0.0.2", "127.0.0.1"],
            )
            before = len(peer.requests)
            ends.append(await colour.perform(http.post("/", json={})))
            if isinstance(ends[-1], Accepted):
                assert (ends[-1].evidence.details or {})["peer"] == f"127.0.0.1:{peer.port}"
                assert len(peer.requests) == before + 1


@pytest.mark.rule("H5")
async def test_the_systems_resolver_is_asked_where_none_is_given(colour):
    with FaultPeer(Answer(200)) as peer:
        http = HTTP("p", base_url=f"http://localhost:{peer.port}")
        assert isinstance(await colour.perform(http.post("/", json={})), Accepted)
        closed = await colour.perform(http.post("/", json={}), HeldPermit(opens=()))
        assert (type(closed), closed.evidence.details["reason"]) == (Rejected, "loopback")
        assert len(peer.requests) == 1


@pytest.mark.rule("H5")
async def test_ipv6_is_spoken(colour):
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    with FaultPeer(Answer(200), host="::1") as peer:
        outcome = await colour.perform(HTTP("p", base_url=peer.url).post("/", json={}))
        assert (type(outcome), outcome.evidence.details["peer"]) == (Accepted, f"[::1]:{peer.port}")
        assert peer.requests[0].header("host") == f"[::1]:{peer.port}"


@pytest.mark.rule("E10", "O2", "B5")
async def test_what_a_runtime_leaves_behind_is_cut_and_asked_about_later(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with FaultPeer([Hang(), Answer(200)]) as peer:
        charge = HTTP("p", base_url=peer.url).post("/", json={})
        async with AsyncRuntime(url, drain_timeout=0.1) as runtime:
            run = runtime.run("r")
            call = asyncio.create_task(run.effect("charge", charge))
            await peer.awaited.until(lambda found: bool(found.requests))
        with pytest.raises((LedgerUnavailable, EffectUnresolved)):
            await call
        await peer.awaited.until(lambda found: found.open == 0)
        assert peer.connections[0].ended == "client-reset"
        async with AsyncRuntime(url) as runtime, runtime.run("r") as again:
            assert isinstance(await again.effect("charge", charge), Uncertain)
        assert len(peer.requests) == 1
