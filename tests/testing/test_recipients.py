"""The faulty recipients, on their own: each misbehaves as it is told, once, and its log tells what happened."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from counterfoil import Accepted, EffectUnresolved, Failed, Runtime, Uncertain, UsageError
from counterfoil.protocol.checker import Item
from counterfoil.testing.recipients import BlobStore, DecisionQueue, HttpPayee, MailSink, Payee, ReplyLost

pytestmark = pytest.mark.rule("N4")


def test_a_payee_keeps_a_log_of_what_reached_it_and_what_it_made() -> None:
    payee = Payee()
    assert payee.charge("k1", "ada", 500) == "ch_1"
    assert payee.find("k1") == "ch_1"
    assert payee.find("k2") is None
    assert [arrived.key for arrived in payee.requests] == ["k1"]
    assert payee.requests[0].what == {"account": "ada", "cents": 500}
    assert payee.asked == ["k1", "k2"]
    assert payee.log() == [Item("k1", "ch_1")]


def test_it_misbehaves_for_the_next_calls_only_and_in_order() -> None:
    payee = Payee()
    payee.lose_reply()
    payee.drop_request()
    payee.refuse()
    with pytest.raises(ReplyLost):
        payee.charge("lost")
    with pytest.raises(ReplyLost):
        payee.charge("dropped")
    with pytest.raises(Failed):
        payee.charge("refused")
    payee.charge("fine")
    assert [arrived.key for arrived in payee.requests] == ["lost", "refused", "fine"]
    assert payee.log() == [Item("lost", "ch_1"), Item("fine", "ch_2")]


def test_a_delayed_request_arrives_when_it_lands() -> None:
    payee = Payee()
    payee.delay_request(2)
    for key in ("k1", "k2"):
        with pytest.raises(ReplyLost):
            payee.charge(key)
    assert payee.find("k1") is None
    payee.close("k2")
    landed = payee.land()
    assert landed[0] == payee.find("k1") == "ch_1"
    assert isinstance(landed[1], Failed)
    assert payee.land() == []


@pytest.mark.parametrize(("deduplicates", "made"), [(False, 2), (True, 1)])
def test_a_doubled_request_is_made_once_where_keys_are_deduplicated(deduplicates: bool, made: int) -> None:
    payee = Payee(deduplicates=deduplicates)
    payee.double_request()
    payee.charge("k")
    assert payee.sends == 2
    assert len(payee.made_for("k")) == made


def test_look_ups_hide_mislead_and_fail_when_they_are_told() -> None:
    payee = Payee()
    payee.charge("k")
    payee.hide()
    payee.mislead()
    payee.fail_looking()
    assert payee.find("k") is None
    assert payee.find("k") not in (None, "ch_1")
    with pytest.raises(ReplyLost):
        payee.find("k")
    assert payee.find("k") == "ch_1"


def test_what_it_was_told_can_be_taken_back() -> None:
    payee = Payee()
    payee.lose_reply(3)
    payee.hide(3)
    payee.behave()
    assert payee.find(None) is None
    assert payee.charge("k") == payee.find("k")


def test_a_closed_key_takes_nothing_more() -> None:
    payee = Payee()
    with pytest.raises(Failed):
        payee.cancel_or_find("k")
    with pytest.raises(Failed):
        payee.charge("k")
    assert payee.log() == []
    payee.charge("other")
    assert payee.cancel_or_find("other") == "ch_1"


def test_a_mail_sink_shows_late() -> None:
    now = [0.0]
    sink = MailSink(lag_s=5.0, clock=lambda: now[0])
    name = sink.send("k", to="ada", subject="hello")
    assert sink.find("k") is None
    now[0] = 5.0
    assert sink.find("k") == name == "<k@sink>"
    assert sink.subjects() == ["hello"]


def test_a_decision_is_answered_once() -> None:
    queue = DecisionQueue()
    assert queue.find("k1", "r1", "allow") is None
    assert queue.reply("k1", "r1", "allow") == {"request": "r1", "decision": "allow"}
    assert queue.find("k1", "r1", "allow") == {"request": "r1", "decision": "allow"}
    assert not queue.resolve("r1", "deny", by="ada")
    assert queue.reply("k1", "r1", "allow") == {"request": "r1", "decision": "allow"}
    with pytest.raises(Failed):
        queue.reply("k2", "r1", "deny")
    assert queue.decisions() == {"r1": "allow"}


def test_a_decision_of_somebody_else_or_another_one_is_a_known_failure() -> None:
    queue = DecisionQueue()
    assert queue.resolve("r1", "deny", by="ada")
    with pytest.raises(Failed) as by_another:
        queue.find("k1", "r1", "allow")
    assert by_another.value.evidence.kind == "resolved-by-another"
    queue.answer_otherwise("deny")
    queue.reply("k2", "r2", "allow")
    with pytest.raises(Failed) as otherwise:
        queue.find("k2", "r2", "allow")
    assert otherwise.value.evidence.kind == "answered-otherwise"


def test_a_blob_may_be_equal_foreign_or_partial() -> None:
    store = BlobStore()
    assert store.find("k", "a.bin", b"0123") is None
    proof = store.put("k", "a.bin", b"0123")
    assert store.find("k", "a.bin", b"0123") == proof
    with pytest.raises(Failed):
        store.find("k2", "a.bin", b"other")
    with pytest.raises(Failed):
        store.put("k2", "a.bin", b"other")
    store.truncate()
    with pytest.raises(ReplyLost):
        store.put("k3", "b.bin", b"0123456789")
    assert store.find("k3", "b.bin", b"0123456789") is None
    store.put_foreign("c.bin", b"theirs")
    with pytest.raises(Failed):
        store.find("k4", "c.bin", b"ours")


def test_handlers_take_a_context_a_key_or_nothing() -> None:
    with pytest.raises(UsageError, match="takes a handler's context or a key"):
        Payee().charge(object())
    assert Payee().charge(None) == "ch_1"


def test_a_recipient_serves_many_threads() -> None:
    payee = Payee()
    threads = [threading.Thread(target=lambda n=n: [payee.charge(f"{n}-{i}") for i in range(50)]) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({made.item for made in payee.items}) == payee.sends == 400


async def test_a_recipient_serves_the_asynchronous_colour() -> None:
    payee = Payee()
    payee.awaited.lose_reply()
    with pytest.raises(ReplyLost):
        await payee.awaited.charge("k", cents=5)
    assert await payee.awaited.find("k") == "ch_1"
    assert payee.awaited.sends == 1


def test_it_is_a_recipient_of_effects() -> None:
    payee, sink = Payee(), MailSink()
    payee.lose_reply()
    sink.drop_request()
    with Runtime("memory:") as runtime, runtime.run("r") as run:
        for name, send, find in (("charge", payee.charge, payee.find), ("mail", sink.send, sink.find)):
            with pytest.raises(EffectUnresolved):
                run.effect(name, run=send, reconcile=find)
        assert run.effect("charge", run=payee.charge, reconcile=payee.find) == Accepted("ch_1", "reconcile")
        assert isinstance(run.effect("mail", run=sink.send, reconcile=sink.find), Uncertain)
    assert payee.requests[0].place == ("effect", "charge")


@pytest.fixture
def served() -> Any:
    with HttpPayee() as payee:
        yield payee


def ask(served: HttpPayee) -> Callable[..., tuple[int, Any]]:
    def call(method: str, path: str, key: str = "", body: Any = None) -> tuple[int, Any]:
        where = urlsplit(served.url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
        try:
            raw = None if body is None else json.dumps(body)
            connection.request(method, path, raw, {"Idempotency-Key": key} if key else {})
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text else None
        finally:
            connection.close()

    return call


def test_a_payee_behind_http_charges_and_is_asked(served: HttpPayee) -> None:
    call = ask(served)
    assert call("POST", "/charges", "k1", {"account": "ada", "cents": 5}) == (201, {"id": "ch_1"})
    assert call("GET", "/charges?key=k1") == (200, {"id": "ch_1"})
    assert call("GET", "/charges?key=k2") == (404, {"id": None})
    assert call("DELETE", "/charges?key=k2") == (204, None)
    assert call("POST", "/charges", "k2", {})[0] == 409
    assert call("DELETE", "/charges?key=k1") == (200, {"id": "ch_1"})
    assert call("POST", "/charges", "k3", {"colour": "red"})[0] == 400


def test_a_payee_behind_http_breaks_the_connection_when_a_reply_is_lost(served: HttpPayee) -> None:
    call = ask(served)
    served.payee.lose_reply()
    served.payee.drop_request()
    for key in ("k1", "k2"):
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            call("POST", "/charges", key, {"cents": 5})
    served.payee.refuse()
    assert call("POST", "/charges", "k3", {})[0] == 422
    assert served.payee.log() == [Item("k1", "ch_1")]
