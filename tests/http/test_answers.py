"""Answers: bounded, early, cut, compressed, redirected."""

import gzip
import tracemalloc
import zlib
from typing import Any

import pytest

from counterfoil import HTTP, Contract, Secret
from counterfoil.recipients.http.bodies import decompressed
from counterfoil.testing.peers import METADATA_URL, Answer, Bomb, Drop, FaultPeer, Refuse, Trickle, redirect
from tests.http.support import KEY, HeldPermit, told
from tests.support import GROWING_S, tries


async def post(colour, peer, permit=None, *, content=b"{}", **options):
    return await colour.perform(HTTP("p", base_url=peer.url, **options).post("/", content=content), permit)


@pytest.mark.rule("H7")
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_bomb_is_cut_at_its_bound(colour, encoding):
    with FaultPeer(Bomb(decoded_bytes=40_000_000, encoding=encoding)) as peer:
        tracemalloc.start()
        try:
            outcome = await post(colour, peer, body_bytes_max=2_000_000)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        # The head was whole: the status counts, and what was to be in the body does not.
        assert told(outcome) == ("Accepted", "status", "done")
        assert outcome.evidence.details["cut"] == "body-bound"
        assert (len(outcome.response.content), outcome.response.complete) == (2_000_000, False)
        assert peak < 20_000_000
        pointed = await post(colour, peer, body_bytes_max=2_000_000, contract=Contract(name="c", proof="/id"))
        assert told(pointed)[:2] == ("Uncertain", "cut-response")


@pytest.mark.rule("H7")
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_is_read_up_to_its_bound(colour, chunked):
    with FaultPeer(Answer(200, body=b"x" * 5_000_000, chunked=chunked)) as peer:
        permit = HeldPermit()
        outcome = await post(colour, peer, permit, body_bytes_max=1_000_000)
        assert outcome.evidence.details["cut"] == "body-bound"
        assert len(outcome.response.content) == 1_000_000
        assert permit.bytes_in < 2_000_000
        whole = await post(colour, peer, body_bytes_max=5_000_000)
        assert (len(whole.response.content), whole.response.complete) == (5_000_000, True)


@pytest.mark.rule("H7")
@pytest.mark.parametrize("script", [Answer(200, headers={"x": "y" * 200_000}), Answer(200, interim=[103] * 5_000)])
async def test_a_head_without_end_is_cut(colour, script):
    with FaultPeer(script) as peer:
        outcome = await post(colour, peer)
        assert told(outcome)[:2] == ("Uncertain", "malformed-response")
        assert peer.requests[0].body_complete


@pytest.mark.rule("H7")
async def test_time_is_bounded_also_for_a_peer_that_never_stops_answering(colour):
    # It would go on for half an hour.
    with FaultPeer(Trickle(Answer(200, body=b"x" * 100_000), every_s=0.02)) as peer:
        ends: list[Any] = []
        for timeout_s in tries(lambda: told(ends[-1])[2] == "answer-body", GROWING_S):
            outcome = await post(colour, peer, timeout_s=timeout_s)
            ends.append(outcome)
        outcome = ends[-1]
        assert told(outcome) == ("Accepted", "status", "answer-body")
        assert outcome.evidence.details["cut"] == "deadline"
        peer.until(lambda found: found.open == 0)


@pytest.mark.rule("H2", "B4")
@pytest.mark.parametrize(
    ("status", "told_so"), [(413, "Failed"), (408, "Failed"), (503, "Uncertain"), (201, "Accepted"), (429, "Uncertain")]
)
@pytest.mark.parametrize("then", ["close", "reset", "keep"])
async def test_an_early_answer_ends_the_sending_and_counts(colour, status, told_so, then):
    with FaultPeer(Answer(status, read="head", then=then)) as peer:
        outcome = await post(colour, peer, content=b"x" * 30_000_000)
        assert told(outcome)[:2] == (told_so, "status")
        assert outcome.evidence.bytes_offered < 30_000_000
        assert len(peer.requests) == len(peer.connections) == 1


@pytest.mark.rule("H2")
async def test_408_after_everything_was_sent_is_uncertain(colour):
    with FaultPeer(Answer(408)) as peer:
        assert told(await post(colour, peer))[:2] == ("Uncertain", "status")


@pytest.mark.rule("O2", "B4")
@pytest.mark.parametrize("interim", [(100,), (103, 103), (102,)])
async def test_interim_answers_are_no_answers(colour, interim):
    with FaultPeer([Answer(201, interim=interim), Drop(interim=interim)]) as peer:
        assert told(await post(colour, peer))[0] == "Accepted"
        outcome = await post(colour, peer)
        assert told(outcome)[:2] == ("Uncertain", "cut-response")
        assert outcome.evidence.status is None


@pytest.mark.rule("H2")
async def test_another_protocol_is_never_spoken(colour):
    with FaultPeer(Answer(101, headers={"upgrade": "websocket", "connection": "upgrade"})) as peer:
        assert told(await post(colour, peer))[:2] == ("Uncertain", "malformed-response")


@pytest.mark.rule("O5")
@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-OpenSSH_9.6\r\n\r\n", b"HTTP/1.1 2000 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nA\x00: b\r\n\r\n"]
)
async def test_what_is_no_answer_in_http_is_uncertain(colour, answer, raw_peer):
    with raw_peer(answer) as url:
        outcome = await colour.perform(HTTP("p", base_url=url).post("/", json={}))
        assert told(outcome)[:2] == ("Uncertain", "malformed-response")


@pytest.mark.rule("B5", "H7")
async def test_a_budget_for_what_comes_in_cuts_the_answer(colour):
    with FaultPeer(Answer(200, body=b"x" * 3_000_000)) as peer:
        permit = HeldPermit()
        permit.bytes_in_max = 500_000
        outcome = await post(colour, peer, permit)
        assert (told(outcome)[0], outcome.evidence.details["cut"]) == ("Accepted", "budget-bytes-in")
        assert permit.bytes_in < 1_000_000


@pytest.mark.rule("B1", "H1")
async def test_a_budget_for_what_goes_out_that_has_no_room_for_the_head_sends_nothing(colour):
    with FaultPeer(Answer(200)) as peer:
        permit = HeldPermit()
        permit.bytes_out_max = 10
        outcome = await post(colour, peer, permit)
        assert told(outcome)[:2] == ("Rejected", "refused-by-policy")
        peer.until(lambda found: found.open == 0)
        assert (permit.gates, peer.bytes_received) == (0, 0)


@pytest.mark.rule("B4", "O2")
async def test_a_budget_that_ends_within_the_body_leaves_it_uncertain(colour):
    with FaultPeer(Answer(200)) as peer:
        permit = HeldPermit()
        permit.bytes_out_max = 1_000_000
        outcome = await post(colour, peer, permit, content=b"x" * 3_000_000)
        assert told(outcome) == ("Uncertain", "budget-bytes-out", "body")
        assert outcome.evidence.bytes_offered == permit.bytes_out <= 1_000_000


# --- redirects


@pytest.mark.rule("H4", "H2", "B4")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_mutation_is_never_sent_on(colour, status):
    with FaultPeer([redirect("/elsewhere", status), Answer(200)]) as peer:
        outcome = await post(colour, peer)
        assert told(outcome)[:2] == ("Failed" if status in (301, 307, 308) else "Uncertain", "status")
        assert outcome.response.headers["location"] == "/elsewhere"
        assert len(peer.requests) == len(peer.connections) == 1


@pytest.mark.rule("H4")
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_read_is_sent_on_three_times_each_hop_authorised_and_charged(colour, method):
    with FaultPeer([redirect("/1", 301), redirect("2", 302), redirect("?3", 307), Answer(200)]) as peer:
        permit = HeldPermit()
        outcome = await colour.perform(HTTP("p", base_url=peer.url).request(method, "/a/b"), permit)
        assert told(outcome)[:2] == ("Accepted", "status")
        assert [request.target for request in peer.requests] == ["/a/b", "/1", "/2", "/2?3"]
        assert permit.targets == [f"{peer.url}{path}" for path in ("/a/b", "/1", "/2", "/2")]
        assert permit.bytes_out == peer.bytes_received == outcome.evidence.bytes_offered
        assert (permit.gates, outcome.evidence.details["hops"]) == (1, 3)
    with FaultPeer(redirect("/again", 302)) as peer:
        outcome = await colour.perform(HTTP("p", base_url=peer.url).request(method, "/"))
        assert told(outcome)[:2] == ("Failed", "too-many-redirects")
        assert len(peer.requests) == 4


@pytest.mark.rule("H4", "H5")
@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (METADATA_URL, "metadata"),
        ("http://[::ffff:10.0.0.1]/", "private"),
        ("http://user@api.test/", "userinfo-in-url"),
        ("ftp://api.test/", "scheme-not-http"),
        ("http://0x7f000001/", "disguised-address"),
        ("http://[", "bad-url"),
    ],
)
async def test_a_redirect_to_where_nothing_may_go_is_refused(colour, place, reason):
    with FaultPeer(redirect(place, 302)) as peer:
        outcome = await colour.perform(HTTP("p", base_url=peer.url).get("/"))
        # Something was dispatched, so it is not rejected; the read was not done, and that is known.
        assert told(outcome)[:2] == ("Failed", "refused-by-policy")
        assert (outcome.evidence.details["reason"], outcome.evidence.status) == (reason, 302)
        assert len(peer.requests) == 1


@pytest.mark.rule("H4", "B2")
async def test_a_redirect_that_no_grant_allows_is_refused(colour):
    with FaultPeer([redirect("/secret", 302), Answer(200)]) as peer:
        permit = HeldPermit(refuses=f"{peer.url}/secret")
        outcome = await colour.perform(HTTP("p", base_url=peer.url).get("/"), permit)
        assert told(outcome)[:2] == ("Failed", "refused-by-policy")
        assert outcome.evidence.details["reason"] == "redirect-not-granted"
        assert len(peer.requests) == 1


@pytest.mark.rule("H4", "B9")
async def test_credentials_do_not_leave_their_origin(colour, monkeypatch):
    monkeypatch.setenv("PLANTED", "planted-token")
    with FaultPeer(Answer(200)) as other, FaultPeer([redirect("/here", 302), redirect(other.url, 302)]) as peer:
        http = HTTP(
            "p",
            base_url=peer.url,
            auth=Secret("env:PLANTED"),
            headers={"X-Key": Secret("env:PLANTED"), "X-A": "1", "Cookie": "c"},
        )
        outcome = await colour.perform(http.get("/"))
        assert told(outcome)[0] == "Accepted"
        for request in peer.requests:
            assert request.header("authorization") == "Bearer planted-token"
            assert request.header("x-key") == "planted-token"
        (strange,) = other.requests
        assert (strange.header("x-a"), strange.header("authorization"), strange.header("x-key")) == ("1", None, None)
        assert strange.header("cookie") is None


@pytest.mark.rule("H4", "O2")
async def test_a_read_that_is_lost_where_it_was_sent_on_to_is_uncertain(colour):
    with FaultPeer(Drop()) as other, FaultPeer(redirect(other.url, 302)) as peer:
        assert told(await colour.perform(HTTP("p", base_url=peer.url).get("/")))[:2] == ("Uncertain", "no-response")
    with FaultPeer(Refuse()) as other, FaultPeer(redirect(other.url, 302)) as peer:
        outcome = await colour.perform(HTTP("p", base_url=peer.url).get("/"))
        assert told(outcome)[:2] == ("Uncertain", "connect-failed")


# --- bodies


@pytest.mark.rule("H7")
def test_compressed_bodies_are_read_layer_by_layer():
    text = b"hello " * 100
    bare = zlib.compressobj(wbits=-15)
    assert decompressed(gzip.compress(text), "GZip", 1000) == (text, True)
    assert decompressed(gzip.compress(text) + gzip.compress(b"!") + b"\0\0", "x-gzip", 1000) == (text + b"!", True)
    assert decompressed(zlib.compress(text), "deflate", 1000) == (text, True)
    assert decompressed(bare.compress(text) + bare.flush(), "deflate", 1000) == (text, True)
    assert decompressed(zlib.compress(gzip.compress(text)), "gzip, identity, deflate", 1000) == (text, True)
    assert decompressed(gzip.compress(text), "gzip", len(text)) == (text, True)
    assert decompressed(gzip.compress(text), "gzip", len(text) - 1) == (text[:-1], False)
    assert decompressed(gzip.compress(text)[:-9], "gzip", 1000)[1] is False
    assert decompressed(b"no gzip", "gzip", 1000) == (b"", False)
    assert decompressed(b"raw", "br", 1000) == (b"raw", False)
    assert decompressed(b"raw", "gzip, gzip, gzip, gzip", 1000) == (b"", False)
    assert decompressed(b"", "gzip", 1000) == decompressed(b"", "deflate", 1000) == (b"", True)


async def test_compressed_answers_are_read(colour):
    body = gzip.compress(b'{"id": "ch_1"}')
    with FaultPeer(Answer(200, body=body, headers={"content-encoding": "gzip"})) as peer:
        outcome = await post(colour, peer, contract=Contract(name="c", proof="/id"))
        assert outcome.proof == "ch_1"
        assert outcome.response.json() == {"id": "ch_1"}
        assert peer.requests[0].key == ""


@pytest.mark.rule("E11", "X9")
async def test_the_effect_key_goes_where_the_contract_says(colour):
    with FaultPeer(Answer(200)) as peer:
        contract = Contract(name="c", idempotency={"header": "Idempotency-Key", "horizon_s": 86_400})
        await post(colour, peer, contract=contract)
        assert peer.requests[0].key == KEY
        http = HTTP("p", base_url=peer.url, contract=contract)
        outcome = await colour.perform(http.post("/", headers={"idempotency-key": "mine"}))
        # Whose key would it be? The recipient must see one, derived from the effect.
        assert told(outcome)[:2] == ("Rejected", "refused-by-policy")
        assert outcome.evidence.details["reason"] == "header-of-the-contract"
        assert len(peer.requests) == 1
