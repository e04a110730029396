"""Requests that must not be sent: each is refused before dispatch, with its reason."""

import socket
from typing import Any

import pytest

from counterfoil import HTTP, Rejected, Secret, UsageError
from counterfoil.recipients.http import urls
from counterfoil.recipients.http.addresses import literal, special
from counterfoil.recipients.http.refusal import Refused
from counterfoil.testing.peers import Answer, FaultPeer
from tests.http.support import HeldPermit


def details(outcome: Any) -> Any:
    return outcome.evidence.details


async def reason(colour, operation, permit=None):
    permit = permit or HeldPermit(opens=())
    outcome = await colour.perform(operation, permit)
    assert isinstance(outcome, Rejected)
    assert outcome.evidence.kind == "refused-by-policy"
    assert details(outcome)["attempts"] == permit.gates == permit.bytes_out == 0
    return details(outcome)["reason"]


LITERALS = {
    "127.0.0.1": "loopback",
    "127.8.9.10": "loopback",
    "[::1]": "loopback",
    "[0:0:0:0:0:0:0:1]": "loopback",
    "[::ffff:127.0.0.1]": "loopback",
    "[::ffff:7f00:1]": "loopback",
    "[::127.0.0.1]": "loopback",
    "[64:ff9b::127.0.0.1]": "loopback",
    "[2002:7f00:1::]": "loopback",
    "0.0.0.0": "unspecified",
    "[::]": "unspecified",
    "169.254.169.254": "metadata",
    "[::ffff:169.254.169.254]": "metadata",
    "[fd00:ec2::254]": "metadata",
    "169.254.1.1": "link-local",
    "[fe80::1]": "link-local",
    "10.1.2.3": "private",
    "172.31.0.1": "private",
    "192.168.0.1": "private",
    "[fd12::1]": "private",
    "100.64.0.1": "shared",
    "224.0.0.1": "multicast",
    "255.255.255.255": "broadcast",
    "240.0.0.1": "reserved",
    "192.0.2.1": "reserved",
    "198.18.0.1": "reserved",
    "[2001:db8::1]": "reserved",
    "2130706433": "disguised-address",
    "0x7f000001": "disguised-address",
    "017700000001": "disguised-address",
    "127.1": "disguised-address",
    "0177.0.0.1": "disguised-address",
    "0x7f.0.0.1": "disguised-address",
    "127.0.0.1.": "disguised-address",
    "127.0.0.256": "disguised-address",
    "1.1.1.1.1": "disguised-address",
    "①②⑦.0.0.1": "host-not-ascii",
    "127。0。0。1": "host-not-ascii",
    "exämple.test": "host-not-ascii",
    "127%2e0.0.1": "bad-host",
    "[fe80::1%25eth0]": "bad-host",
    "[::1": "bad-url",
    "[127.0.0.1]": "bad-url",
    "a..b": "bad-host",
    "": "bad-host",
}


@pytest.mark.rule("H5", "B3")
@pytest.mark.parametrize("host", LITERALS)
async def test_special_addresses_are_refused_in_every_spelling(colour, host):
    found = await reason(colour, HTTP("p").post(f"http://{host}:9/", json={}))
    assert found == LITERALS[host] or (host == "[127.0.0.1]" and found == "bad-host")


URLS = {
    "http://user:password@api.test/": "userinfo-in-url",
    "http://api.test@169.254.169.254/": "userinfo-in-url",
    "http://api.test\r\nHost: evil/": "url-control-character",
    "http://api.test/a\nb": "url-control-character",
    "http://api.test/a\x00": "url-control-character",
    "http://api.test/%0d%0aX-Evil:1": "url-control-character",
    "http://api.test\\@evil.test/": "url-control-character",
    "ftp://api.test/": "scheme-not-http",
    "file:///etc/passwd": "scheme-not-http",
    "gopher://api.test/": "scheme-not-http",
    "api.test/": "scheme-not-http",
    "http:/api.test/": "scheme-not-http",
    "http://api.test:0/": "bad-port",
    "http://api.test:99999/": "bad-port",
    "http://api.test:\uff18\uff10/": "bad-port",
    "http://api.test/v1/../admin/": "dot-segments",
    "http://api.test/v1/%2e%2e/admin/": "dot-segments",
    "http://api.test/v1/%252e%252e/admin": "dot-segments",
    "http://api.test/v1/..;x=1/admin": "dot-segments",
    "http://api.test/v1/..%2fadmin": "dot-segments",
    "http://api.test/%zz": "bad-percent-encoding",
    " http://api.test/": "bad-url",
    "http://api.test/" + "a" * 20_000: "url-too-long",
}


@pytest.mark.rule("H5", "H6", "B3")
@pytest.mark.parametrize("url", URLS, ids=[url[:40] for url in URLS])
async def test_urls_that_could_be_read_in_two_ways_are_refused(colour, url):
    assert await reason(colour, HTTP("p").post(url, json={})) == URLS[url]


HEADERS = {
    ("X-A", "a\r\nX-Evil: 1"): "bad-header-value",
    ("X-A", "a\nb"): "bad-header-value",
    ("X-A", "a\x00b"): "bad-header-value",
    ("X-A", " a"): "bad-header-value",
    ("X-A", "é€"): "bad-header-value",
    ("X-A", "\x7f"): "bad-header-value",
    ("X A", "a"): "bad-header-name",
    ("X-A\r\n", "a"): "bad-header-name",
    ("", "a"): "bad-header-name",
    (":authority", "evil.test"): "bad-header-name",
    ("Content-Length", "0"): "header-not-yours",
    ("Transfer-Encoding", "chunked"): "header-not-yours",
    ("host", "evil.test"): "header-not-yours",
    ("Connection", "keep-alive"): "header-not-yours",
    ("Upgrade", "h2c"): "header-not-yours",
    ("TE", "trailers"): "header-not-yours",
    ("Expect", "100-continue"): "header-not-yours",
    ("Proxy-Authorization", "Basic x"): "header-not-yours",
    ("X-A", "a" * 40_000): "headers-too-large",
}


@pytest.mark.rule("H6", "B3")
@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
@pytest.mark.parametrize("header", HEADERS, ids=[f"{name!a}:{value[:12]!a}" for name, value in HEADERS])
async def test_headers_that_must_not_be_sent_are_refused_in_both_versions(colour, header, http2):
    with FaultPeer(Answer(200)) as peer:
        http = HTTP("p", base_url=peer.url, http2=http2)
        permit = HeldPermit()
        operation = http.get("/", headers=[header])
        outcome = await colour.perform(operation, permit)
        assert isinstance(outcome, Rejected)
        assert details(outcome)["reason"] == HEADERS[header]
        assert "Evil" not in repr(outcome)
        peer.until(lambda found: found.open == 0)
        assert peer.bytes_received == permit.gates == 0


@pytest.mark.rule("H5")
@pytest.mark.parametrize(
    ("answers", "found"),
    [
        (["127.0.0.1"], ("refused-by-policy", "loopback")),
        (["93.184.216.34", "10.0.0.1"], ("refused-by-policy", "mixed-addresses")),
        (["10.0.0.1", "2606:2800:220:1::1"], ("refused-by-policy", "mixed-addresses")),
        (["::ffff:169.254.169.254"], ("refused-by-policy", "metadata")),
        (["not an address"], ("refused-by-policy", "not-an-address")),
        (["fe80::1%lo"], ("refused-by-policy", "link-local")),
        ([], ("no-address", None)),
    ],
)
async def test_every_answer_of_the_resolver_is_checked(colour, answers, found):
    http = HTTP("p", resolve=lambda host, port: answers)
    outcome = await colour.perform(http.post("http://api.test/", json={}), HeldPermit(opens=()))
    assert isinstance(outcome, Rejected)
    assert (outcome.evidence.kind, details(outcome).get("reason")) == found
    assert details(outcome)["peer"] is None


@pytest.mark.rule("H5", "H1")
@pytest.mark.parametrize(
    ("trouble", "named"),
    [(socket.gaierror(socket.EAI_NONAME, "x"), "EAI_NONAME"), (ValueError("secret"), "ValueError")],
)
async def test_a_name_without_an_address_is_rejected(colour, trouble, named):
    def resolve(host, port):
        raise trouble

    outcome = await colour.perform(HTTP("p", resolve=resolve).post("http://api.test/", json={}))
    assert (type(outcome), outcome.evidence.kind) == (Rejected, "no-address")
    assert details(outcome)["error"] == named


@pytest.mark.rule("H5")
async def test_a_resolver_that_changes_its_mind_is_asked_once_for_each_operation_and_its_answer_pinned(colour):
    answers = iter([["127.0.0.1"], ["127.0.0.1"], ["10.0.0.1"]])
    with FaultPeer(Answer(200)) as peer:
        http = HTTP("p", base_url=f"http://api.test:{peer.port}", resolve=lambda host, port: next(answers))
        for _ in range(2):
            outcome = await colour.perform(http.post("/", json={}))
            assert details(outcome)["peer"] == f"127.0.0.1:{peer.port}"
        # No connection is used again, so a name that now leads inside is found out.
        assert await reason(colour, http.post("/", json={}), HeldPermit()) == "private"
        assert len(peer.requests) == len(peer.connections) == 2
        assert peer.requests[0].header("host") == f"api.test:{peer.port}"


@pytest.mark.rule("H5", "B2")
async def test_only_the_grant_opens_an_address_inside_an_activation(colour):
    with FaultPeer(Answer(200)) as peer:
        http = HTTP("p", base_url=peer.url, allow_addresses=("127.0.0.0/8",))
        assert await reason(colour, http.post("/", json={})) == "loopback"
        permit = HeldPermit(opens=("127.0.0.1",))
        assert (await colour.perform(http.post("/a?b=1", json={}), permit)).proof == {"status": 200}
        assert permit.targets == [f"{peer.url}/a"]
        assert permit.addresses == ["127.0.0.1"]


@pytest.mark.rule("H6")
async def test_nothing_is_taken_from_the_surroundings(colour, monkeypatch, tmp_path):
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login planted password planted-password\n")
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(netrc))
    with FaultPeer(Answer(200, headers={"set-cookie": "planted=1"})) as peer:
        http = HTTP("p", base_url=peer.url)
        for _ in range(2):
            assert (await colour.perform(http.post("/", json={}))).proof == {"status": 200}
        names = {name for request in peer.requests for name, _ in request.headers}
        assert names == {
            "host",
            "user-agent",
            "accept",
            "accept-encoding",
            "content-type",
            "content-length",
            "connection",
        }


@pytest.mark.rule("H5")
def test_public_addresses_are_open():
    for host in (
        "93.184.216.34",
        "8.8.8.8",
        "2606:2800:220:1:248:1893:25c8:1946",
        "64:ff9b::8.8.8.8",
        "::ffff:8.8.8.8",
    ):
        address = literal(host)
        assert address is not None
        assert special(address) is None


@pytest.mark.rule("H5")
def test_a_url_is_put_into_one_spelling():
    assert str(urls.parse("HTTP://API.Test:80")) == "http://api.test/"
    assert str(urls.parse("https://api.test:443/a b?q=ä#part")) == "https://api.test/a%20b?q=%C3%A4"
    assert str(urls.parse("http://[0:0::1]:8080/x")) == "http://[::1]:8080/x"
    assert urls.join("https://a.test/v1/", "/charges") == "https://a.test/v1/charges"
    assert urls.join("https://a.test/v1", "charges") == "https://a.test/v1/charges"
    assert urls.join("https://a.test/v1", "") == "https://a.test/v1"
    assert urls.join("https://a.test/v1", "?a=1") == "https://a.test/v1?a=1"
    assert urls.join("https://a.test/v1", "https://b.test/") == "https://b.test/"
    with pytest.raises(Refused):
        urls.parse("http://a.test/\ud800")


@pytest.mark.rule("H5")
async def test_a_recipient_with_a_base_url_stays_at_its_origin(colour):
    http = HTTP("p", base_url="https://api.test/v1", auth=Secret("env:NEVER_READ"))
    assert await reason(colour, http.post("https://evil.test/", json={})) == "outside-base-url"
    assert await reason(colour, http.post("http://api.test/v1", json={})) == "outside-base-url"
    assert http.post("https://api.test/other", json={}).target == "https://api.test/other"


@pytest.mark.parametrize(
    "mistake",
    [
        lambda http: http.post(b"/", json={}),
        lambda http: http.post("/", json={}, content=b""),
        lambda http: http.post("/", json={"a": float("nan")}),
        lambda http: http.post("/", content=object()),
        lambda http: http.post("/", headers={"a": 1}),
        lambda http: http.post("/", headers="a: b"),
        lambda http: http.post("/", params={"a": object()}),
        lambda http: http.post("/", params={"a": Secret("env:X")}),
        lambda http: http.post("/", params=[("a",)]),
        lambda http: http.request("CON NECT", "/"),
        lambda http: http.request("CONNECT", "/"),
        lambda _: HTTP("p", base_url="ftp://a"),
        lambda _: HTTP("p", base_url="https://a.test/?q=1"),
        lambda _: HTTP("p", base_url=1),  # type: ignore[arg-type]
        lambda _: HTTP("p", auth="planted-token"),
        lambda _: HTTP("p", auth=("user:name", Secret("env:X"))),
        lambda _: HTTP("p", timeout_s=0),
        lambda _: HTTP("p", timeout_s=float("inf")),
        lambda _: HTTP("p", allow_addresses="10.0.0.0/8"),
        lambda _: HTTP("p", allow_addresses=("10.0.0.1/8",)),
        lambda _: HTTP("p", contract={"name": "x"}),  # type: ignore[arg-type]
        lambda _: HTTP("p", tls=object()),
        lambda _: HTTP("p", body_bytes_max=0),
        lambda _: HTTP("p", resolve=5),  # type: ignore[arg-type]
        lambda _: HTTP(""),
    ],
)
def test_what_cannot_be_sent_at_all_is_a_usage_error(mistake):
    with pytest.raises(UsageError) as caught:
        mistake(HTTP("p", base_url="https://api.test"))
    assert "planted" not in str(caught.value)


async def test_a_request_says_what_was_asked_for(colour):
    with FaultPeer(Answer(200)) as peer:
        http = HTTP("p", base_url=peer.url + "/v1", headers={"X-Team": "blue", "Accept": "application/json"})
        await colour.perform(http.patch("a", json={"b": [1, None, "ä"]}, params={"q": ["x y", True], "n": None}))
        await colour.perform(http.put("a", content=b"\0\1", headers={"content-type": "image/png", "x-team": "red"}))
        await colour.perform(http.delete("a"))
        await colour.perform(http.post("a"))
        patch, put, delete, post = peer.requests
        assert (patch.method, patch.target) == ("PATCH", "/v1/a?q=x+y&q=true")
        assert patch.json() == {"b": [1, None, "ä"]}
        assert (patch.header("content-type"), patch.header("accept")) == ("application/json", "application/json")
        assert (put.body, put.header("content-type"), put.header("x-team")) == (b"\0\1", "image/png", "red")
        assert (delete.method, delete.header("content-length")) == ("DELETE", None)
        assert post.header("content-length") == "0"
        assert patch.header("x-team") == "blue"
        assert all(request.header("connection") == "close" for request in peer.requests)


@pytest.mark.parametrize("body", [{}, {"json": {"a": "ä"}}, {"content": b"x" * 200_000}])
async def test_bytes_out_says_what_will_be_charged(colour, body):
    with FaultPeer(Answer(200)) as peer:
        operation = HTTP("p", base_url=peer.url).post("/a?b=c", headers={"X-A": "b"}, **body)
        permit = HeldPermit()
        await colour.perform(operation, permit)
        assert operation.bytes_out == permit.bytes_out == peer.bytes_received
