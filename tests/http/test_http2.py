"""HTTP/2, for reads alone: what its own protocol proves, and nothing else."""

import ssl

import pytest
import trustme

from counterfoil import HTTP, UsageError
from counterfoil.testing.peers import (
    CANCEL,
    INTERNAL_ERROR,
    REFUSED_STREAM,
    Answer,
    CutBody,
    Drop,
    FaultPeer,
    GoAway,
    Hang,
    ResetStream,
    redirect,
)
from tests.http.support import HeldPermit, told
from tests.support import GROWING_S, tries


async def get(colour, peer, permit=None, *, method="GET", cancel_when=None, **options):
    http = HTTP("p", base_url=peer.url, http2=True, **options)
    return await colour.perform(http.request(method, "/x?y=1"), permit, cancel_when=cancel_when)


TABLE = [
    (ResetStream(REFUSED_STREAM), ("Failed", "refused-stream"), True),
    (ResetStream(INTERNAL_ERROR), ("Uncertain", "reset"), None),
    (ResetStream(CANCEL), ("Uncertain", "reset"), None),
    (GoAway(0), ("Failed", "goaway"), True),
    (GoAway(0, error_code=INTERNAL_ERROR), ("Failed", "goaway"), True),
    (GoAway(1), ("Uncertain", "no-response"), None),
    (GoAway(2**31 - 1), ("Uncertain", "no-response"), None),
    # A connection that goes away still answers what it has taken on.
    (GoAway(1, then=Answer(200)), ("Accepted", "status"), None),
    (GoAway(0, then=Answer(200)), ("Failed", "goaway"), True),
    (Drop(), ("Uncertain", "no-response"), None),
    (Drop(reset=True), ("Uncertain", "reset"), None),
    (Answer(404), ("Failed", "status"), False),
    (Answer(503), ("Uncertain", "status"), None),
]


@pytest.mark.rule("H3", "B4", "O2")
@pytest.mark.parametrize(("script", "expected", "retryable"), TABLE, ids=[repr(row[0])[:60] for row in TABLE])
async def test_only_the_protocols_own_statements_prove_that_nothing_was_done(colour, script, expected, retryable):
    with FaultPeer(script) as peer:
        permit = HeldPermit()
        outcome = await get(colour, peer, permit)
        assert told(outcome)[:2] == expected
        assert getattr(outcome, "retryable", None) == retryable
        assert (outcome.evidence.details["attempts"], permit.gates) == (1, 1)
        # Not sent again, whatever it was.
        assert len(peer.requests) == len(peer.connections) == 1
        assert peer.connections[0].protocol == "h2"


@pytest.mark.rule("H7")
async def test_an_answer_is_read_whole_and_bounded(colour):
    with FaultPeer(Answer(200, body=b"x" * 3_000_000, headers={"x-a": "b"})) as peer:
        outcome = await get(colour, peer)
        assert (len(outcome.response.content), outcome.response.headers["x-a"]) == (3_000_000, "b")
        assert outcome.response.complete
        bounded = await get(colour, peer, body_bytes_max=1_000_000)
        assert (len(bounded.response.content), bounded.evidence.details["cut"]) == (1_000_000, "body-bound")
        assert peer.requests[0].target == "/x?y=1"
    with FaultPeer(CutBody(Answer(200, body=b"x" * 100), sent_bytes=10)) as peer:
        outcome = await get(colour, peer)
        assert (told(outcome)[0], outcome.response.content, outcome.response.complete) == ("Accepted", b"x" * 10, False)
    with FaultPeer(Answer(200, headers={"x": "y" * 70_000})) as peer:
        assert told(await get(colour, peer))[:2] == ("Uncertain", "malformed-response")


@pytest.mark.rule("H2", "O2")
@pytest.mark.parametrize("ending", ["cancel", "deadline"])
async def test_a_read_that_hangs_is_uncertain_when_nobody_waits(colour, ending):
    with FaultPeer(Hang()) as peer:
        permit = HeldPermit()
        if ending == "cancel":
            waited = lambda: peer.until(lambda found: bool(found.requests))  # noqa: E731
            outcome = await get(colour, peer, permit, cancel_when=waited)
            assert told(outcome)[:2] == ("Uncertain", "cancelled")
        else:
            expected = "Rejected", "deadline-before-dispatch"
            for timeout_s in tries(lambda: permit.gates, GROWING_S):
                outcome = await get(colour, peer, permit, timeout_s=timeout_s)
                expected = ("Uncertain", "deadline") if permit.gates else expected
                assert told(outcome)[:2] == expected
        peer.until(lambda found: found.open == 0)


@pytest.mark.rule("H4")
async def test_reads_are_sent_on_in_http2_too(colour):
    with FaultPeer([redirect("/there", 302), Answer(200)]) as peer:
        outcome = await get(colour, peer, method="HEAD")
        assert told(outcome)[0] == "Accepted"
        assert [request.target for request in peer.requests] == ["/x?y=1", "/there"]


@pytest.mark.rule("B4")
async def test_mutations_stay_with_http1(colour):
    with FaultPeer(Answer(201)) as peer:
        assert told(await get(colour, peer, method="POST"))[0] == "Accepted"
        assert peer.connections[0].protocol == "http/1.1"


# --- TLS


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


def context(authority, *, server=False, names=("127.0.0.1", "api.test"), versions=("h2", "http/1.1")):
    if server:
        made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(*names).configure_cert(made)
        made.set_alpn_protocols(list(versions))
        return made
    made = ssl.create_default_context()
    authority.configure_trust(made)
    return made


@pytest.mark.rule("H1", "H6")
@pytest.mark.parametrize("versions", [("h2", "http/1.1"), ("http/1.1",)])
async def test_tls_agrees_upon_the_version_and_mutations_never_upon_http2(colour, authority, versions):
    with FaultPeer(Answer(200), tls=context(authority, server=True, versions=versions)) as peer:
        http = HTTP("p", base_url=peer.url, http2=True, tls=context(authority))
        for method in ("GET", "POST", "GET", "POST"):
            assert told(await colour.perform(http.request(method, "/")))[0] == "Accepted"
        expected = "h2" if "h2" in versions else "http/1.1"
        assert [found.protocol for found in peer.connections] == [expected, "http/1.1"] * 2


@pytest.mark.rule("H1", "B3")
async def test_a_peer_that_is_somebody_else_gets_nothing(colour, authority):
    with FaultPeer(Answer(200), tls=context(authority, server=True, names=("other.test",))) as peer:
        http = HTTP("p", base_url=peer.url, tls=context(authority))
        permit = HeldPermit()
        outcome = await colour.perform(http.post("/", json={}), permit)
        assert told(outcome) == ("Rejected", "tls-failed", "tls")
        assert outcome.evidence.details["reason"] == "certificate-of-another-host"
        unknown = await colour.perform(HTTP("p", base_url=peer.url).post("/", json={}), permit)
        assert told(unknown) == ("Rejected", "tls-failed", "tls")
        # What the chain ends in depends on what the peer sends of it.
        assert unknown.evidence.details["reason"] in (
            "certificate-self-signed",
            "certificate-of-unknown-authority",
        )
        assert permit.gates == len(peer.requests) == 0


@pytest.mark.rule("H1")
async def test_a_large_upload_over_tls_arrives_whole(colour, authority):
    with FaultPeer(Answer(200, body=b"y" * 1_000_000), tls=context(authority, server=True)) as peer:
        http = HTTP("p", base_url=peer.url, tls=context(authority))
        permit = HeldPermit()
        outcome = await colour.perform(http.put("/", content=b"x" * 5_000_000), permit)
        assert told(outcome) == ("Accepted", "status", "done")
        assert len(outcome.response.content) == 1_000_000
        assert peer.requests[0].body_bytes == 5_000_000
        assert outcome.evidence.bytes_offered == permit.bytes_out


@pytest.mark.rule("H1", "B5")
async def test_an_upload_over_tls_that_is_cancelled_stops(colour, authority):
    with FaultPeer(Hang(read=100_000), tls=context(authority, server=True)) as peer:
        http = HTTP("p", base_url=peer.url, tls=context(authority))
        permit = HeldPermit()
        outcome = await colour.perform(
            http.put("/", content=b"x" * 30_000_000),
            permit,
            cancel_when=lambda: permit.until(lambda p: p.bytes_out > 200_000 and peer.requests),
        )
        assert told(outcome) == ("Uncertain", "cancelled", "body")
        peer.until(lambda found: found.open == 0)
        assert not peer.requests[0].body_complete


@pytest.mark.rule("H1")
def test_tls_that_would_not_verify_is_refused():
    loose = ssl.create_default_context()
    loose.check_hostname = False
    with pytest.raises(UsageError):
        HTTP("p", tls=loose)
    loose.verify_mode = ssl.CERT_NONE
    with pytest.raises(UsageError):
        HTTP("p", tls=loose)
