"""What is given is checked and copied at once, so that what is sent is what was meant."""

from __future__ import annotations

import pickle

import pytest

from counterfoil import Events, NotSerializable, Secret, UsageError
from counterfoil.recipients.events import replies, streams
from counterfoil.recipients.events.facts import Facts
from counterfoil.recipients.events.replies import Answer, Denied, Gone

RULE_PARTS = ("V",)
EVENTS = Events("nats://127.0.0.1:4222", stream="ORDERS")


@pytest.mark.rule("V1")
@pytest.mark.parametrize(
    "subject",
    [
        "",
        "a b",
        "a.*",
        "a.>",
        "a*.b",
        ".a",
        "a.",
        "a..b",
        "a\r\nPUB x 0\r\n\r\n",
        "a\tb",
        "a\x00b",
        "a\u2028b",
        "a\ud800",
        "$JS.API.STREAM.DELETE.ORDERS",
        "$SYS.x",
        "_INBOX.x",
        "a" * 300,
        7,
        None,
        b"a",
    ],
)
def test_a_subject_that_could_be_read_as_something_else_is_refused(subject):
    with pytest.raises(UsageError):
        EVENTS.publish(subject, b"")


@pytest.mark.rule("V1")
@pytest.mark.parametrize(
    "headers",
    [
        {"A": "b\r\nNats-Rollup: all"},
        {"A": "b\nc"},
        {"A": " b"},
        {"A": "b\x00"},
        {"A\r\nB": "c"},
        {"": "c"},
        {"A B": "c"},
        {"A:": "c"},
        {"Nats-Msg-Id": "mine"},
        {"nats-expected-stream": "OTHER"},
        {"Nats-Rollup": "all"},
        {"CC": "queue"},
        {"A": 7},
        {"A": "x" * 40_000},
        [("A", "1"), ("a", "2")],
        [("A",)],
        "A: b",
        7,
    ],
)
def test_a_header_that_could_be_read_as_something_else_is_refused(headers):
    with pytest.raises(UsageError):
        EVENTS.publish("orders.new", b"", headers=headers)


@pytest.mark.rule("V1", "L5")
@pytest.mark.parametrize("payload", [{1: "a"}, float("nan"), {"a": {1, 2}}, ("a",), 1 << 64, object(), "\ud800", None])
def test_a_payload_that_is_not_lossless_is_refused(payload):
    with pytest.raises((NotSerializable, UsageError)):
        EVENTS.publish("orders.new", payload)


@pytest.mark.rule("V1")
def test_what_the_caller_does_with_its_own_later_changes_nothing():
    headers, body, raw = {"A": "b"}, {"lines": [1]}, bytearray(b"abc")
    told, kept = EVENTS.publish("orders.new", body, headers=headers), EVENTS.publish("orders.new", raw)
    before = repr((told.serialised(), told.request, kept.serialised()))
    headers["A"], headers["C"] = "x", "d"
    body["lines"].append(2)
    raw[:] = b"xyz"
    assert repr((told.serialised(), told.request, kept.serialised())) == before


@pytest.mark.rule("X1", "E12")
@pytest.mark.parametrize("payload", [b"", b"\x00\xff", "tëxt", {"a": [1, None, True, 0.5]}, [], 7])
def test_what_an_outbox_keeps_is_the_same_event(payload):
    event = EVENTS.publish("orders.new", payload, headers={"A": "ö"})
    again = EVENTS.restore(event.serialised())
    assert again.request == event.request
    assert again.serialised() == event.serialised()
    assert repr(payload) not in repr(event) or payload in (b"", [], 7)


@pytest.mark.rule("X1")
def test_what_is_not_ours_is_not_restored():
    good = EVENTS.publish("orders.new", b"").serialised()
    arguments = good["arguments"]
    for bad in (
        {},
        {**good, "format": 2},
        {**good, "recipient": "other"},
        {**good, "operation": "delete"},
        {**good, "arguments": {**arguments, "stream": "OTHER"}},
        {**good, "arguments": {**arguments, "subject": "a.>"}},
        {**good, "arguments": {**arguments, "content": "%%%"}},
        {**good, "arguments": {**arguments, "headers": [["Nats-Msg-Id", "x"]]}},
        {**good, "arguments": None},
    ):
        with pytest.raises(UsageError):
            EVENTS.restore(bad)


@pytest.mark.rule("E12")
def test_a_fingerprint_tells_events_apart_by_everything_that_is_sent():
    def told(subject="a.b", payload=b"x", headers=None):
        return repr(EVENTS.publish(subject, payload, headers=headers).request)

    other = Events("nats://127.0.0.1:4222", stream="OTHER").publish("a.b", b"x").request
    assert len({told(), told("a.c"), told(payload=b"y"), told(headers={"A": "b"}), repr(other)}) == 5
    assert told() == told(payload="x")


@pytest.mark.rule("B9", "N6")
def test_a_password_is_shown_nowhere():
    secret = "hunter" + "2"
    events = Events(f"nats://me:{secret}@127.0.0.1:4222", stream="S", auth=("me", Secret(lambda: secret)))
    assert secret not in repr(events) + repr(events.publish("a", b"")) + repr(vars(events))
    for bad in (f"nats://me:{secret}@host:0", f"ftp://me:{secret}@host", f"nats://me:{secret}@ho st"):
        with pytest.raises(UsageError) as caught:
            Events(bad, stream="S")
        assert secret not in str(caught.value)


@pytest.mark.rule("V1")
@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("", {}),
        ("localhost", {}),
        ("http://x", {}),
        (7, {}),
        (["nats://a", "amqp://b"], {}),
        ("nats://a", {"stream": "a b"}),
        ("nats://a", {"stream": "a.b"}),
        ("nats://a", {"stream": ">"}),
        ("nats://a", {"stream": ""}),
        ("nats://a", {"name": ""}),
        ("nats://a", {"timeout_s": 0}),
        ("nats://a", {"visibility_s": -1}),
        ("nats://a", {"auth": "password"}),
        ("nats://a", {"tls": True}),
        ("nats://a", {"inbox_prefix": "a.>"}),
    ],
)
def test_an_argument_that_cannot_be_is_refused_when_the_recipient_is_made(url, options):
    with pytest.raises(UsageError):
        Events(url, **{"stream": "S", **options})


@pytest.mark.rule("V6")
@pytest.mark.parametrize("url", ["nats://a", "amqp://a"])
def test_a_missing_extra_is_named_when_the_recipient_is_made(url, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError) as caught:
        Events(url, stream="S")
    assert caught.value.code == "missing-extra"
    assert ("counterfoil[nats]" if url.startswith("nats") else "counterfoil[rabbitmq]") in caught.value.hint


def test_an_error_of_usage_can_be_pickled():
    with pytest.raises(UsageError) as caught:
        EVENTS.publish("a.>", b"")
    assert pickle.loads(pickle.dumps(caught.value)).code == "bad-subject"


@pytest.mark.rule("V3", "O5", "O2")
@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (Answer(None, b'{"stream":"S","seq":3}'), ("Accepted", "acknowledged")),
        (Answer(None, b'{"stream":"S","seq":3,"duplicate":true}'), ("Accepted", "acknowledged")),
        (Answer(None, b'{"stream":"T","seq":3}'), ("Uncertain", "foreign-reply")),
        (Answer(None, b'{"stream":"S","seq":0}'), ("Uncertain", "malformed-reply")),
        (Answer(None, b'{"stream":"S","seq":true}'), ("Uncertain", "malformed-reply")),
        (Answer(None, b'{"stream":"S"}'), ("Uncertain", "malformed-reply")),
        (Answer(None, b'{"stream":"S","seq":3,"duplicate":"no"}'), ("Uncertain", "malformed-reply")),
        (Answer(None, b""), ("Uncertain", "malformed-reply")),
        (Answer(None, b"+OK"), ("Uncertain", "malformed-reply")),
        (Answer(None, b"[" * 99_999), ("Uncertain", "malformed-reply")),
        (Answer(None, b'"S"'), ("Uncertain", "malformed-reply")),
        (Answer("503", b""), ("Failed", "no-responders")),
        (Answer("503", b'{"stream":"S","seq":3}'), ("Uncertain", "malformed-reply")),
        (Answer("100", b""), ("Uncertain", "malformed-reply")),
        (Answer(None, b'{"error":{"code":400,"err_code":10060},"stream":"T"}'), ("Failed", "wrong-stream")),
        (Answer(None, b'{"error":{"code":400,"err_code":10054},"stream":"S"}'), ("Failed", "too-large")),
        (Answer(None, b'{"error":{"code":400,"err_code":10097},"stream":"S"}'), ("Failed", "headers-too-large")),
        (Answer(None, b'{"error":{"code":400,"err_code":10109},"stream":"S"}'), ("Failed", "sealed")),
        (Answer(None, b'{"error":{"code":400,"err_code":10109},"stream":"T"}'), ("Uncertain", "broker-error")),
        (Answer(None, b'{"error":{"code":503,"err_code":10077},"stream":"S"}'), ("Uncertain", "broker-error")),
        (Answer(None, b'{"error":{"code":503,"err_code":10008}}'), ("Uncertain", "broker-error")),
        (Answer(None, b'{"error":{"description":"sealed"}}'), ("Uncertain", "malformed-reply")),
        (Answer(None, b'{"error":"invalid operation on sealed stream"}'), ("Uncertain", "malformed-reply")),
        (Answer(None, b'{"error":{"err_code":"10109"}}'), ("Uncertain", "malformed-reply")),
        (Denied(), ("Failed", "denied")),
        (Gone("connection-lost"), ("Uncertain", "connection-lost")),
        (Gone("deadline"), ("Uncertain", "deadline")),
    ],
)
def test_each_reply_proves_what_the_table_says(end, outcome):
    judged = replies.judge(end, Facts(dispatched=True), stream="S", known=streams.UNKNOWN)
    assert (type(judged).__name__, judged.evidence.kind) == outcome


@pytest.mark.rule("O6", "V5")
def test_evidence_says_what_an_acknowledgement_leaves_open():
    read = streams.read(
        {"num_replicas": 3, "storage": "file", "discard": "old", "max_age": 10**9, "duplicate_window": 12 * 10**10}
    )
    assert read.promises == (*streams.ALWAYS_OPEN, "majority-of-replicas", "may-be-dropped")
    assert (read.details["max_age_s"], read.details["duplicate_window_s"]) == (1.0, 120.0)
    alone = streams.read({"num_replicas": 1, "storage": "memory", "max_msgs": -1, "no_ack": True})
    assert alone.promises == (*streams.ALWAYS_OPEN, "one-copy", "in-memory")
    assert alone.no_ack
    assert "replicas-unknown" in streams.read("nonsense").promises
