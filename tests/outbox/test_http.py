"""HTTP operations through the outbox (X7, X9, H2), to a real peer: it knows keys, loses replies and can be asked."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil import (
    HTTP,
    Accepted,
    AsyncDispatcher,
    Contract,
    Dispatcher,
    Failed,
    Outbox,
    Recipient,
    Rejected,
    Secret,
    Uncertain,
    UsageError,
)
from counterfoil.testing.peers import Answer, Drop, FaultPeer, Refuse
from tests.outbox.shop import ACT, Shop, quick
from tests.support import PATIENCE_S

KEYED: dict[str, Any] = {
    "name": "charges-1",
    "proof": "/id",
    "policy": "at-least-once-keyed",
    "idempotency": {"header": "Idempotency-Key", "horizon_s": 600.0, "concurrent": True},
    "resends": 2,
}
ASKED: dict[str, Any] = {
    "name": "charges-2",
    "proof": "/id",
    "idempotency": {"header": "Idempotency-Key"},
    "look_up": {"url": "/charges", "params": {"key": "{key}"}, "items": "", "where": {"/key": "{key}"}, "proof": "/id"},
}


class Bank:
    """A peer that makes one charge for each key, and loses the replies that a test says."""

    def __init__(self, *, loses: int = 0) -> None:
        self.loses = loses
        self.charges: dict[str, dict[str, Any]] = {}

    def __call__(self, request: Any) -> Any:
        if request.method == "GET":
            return Answer(200, json=[charge for key, charge in self.charges.items() if key in request.target])
        made = {"id": f"ch-{len(self.charges) + 1}", "key": request.key, **request.json()}
        charge = self.charges.setdefault(request.key, made)
        if self.loses:
            self.loses -= 1
            return Drop()
        return Answer(201, json=charge)


def order(shop: Shop, operation: Any, key: str = "o1", **more: Any) -> str:
    with shop.transaction() as connection:
        return shop.outbox.stage(connection, operation, key=key, **more).effect_id


def posts(peer: FaultPeer) -> list[Any]:
    return [request for request in peer.requests if request.method == "POST"]


@pytest.mark.rule("X3", "X9", "X7")
def test_a_lost_reply_is_sent_again_with_key_and_bytes_of_the_first_send_and_made_once(lone: Shop) -> None:
    bank = Bank(loses=2)
    with FaultPeer(bank) as peer:
        payments = HTTP("payments", base_url=peer.url, contract=Contract(**KEYED), auth=Secret(lambda: "s3cret"))
        effect_id = order(lone, payments.post("/charges", json={"cents": 700}, headers={"X-Shop": "7"}))
        with Dispatcher(lone.url, [payments], terms=quick()) as dispatcher:
            assert dispatcher.run_until_idle(timeout_s=PATIENCE_S)
        sent = posts(peer)
        assert len(sent) == 3
        assert {(request.key, request.body, request.header("x-shop")) for request in sent} == {
            (effect_id, b'{"cents":700}', "7")
        }
    assert list(bank.charges) == [effect_id]
    receipt = lone.receipt("o1")
    assert isinstance(receipt.outcome, Accepted)
    assert (receipt.outcome.proof, receipt.attempts) == ("ch-1", 3)
    assert receipt.outcome.evidence is not None
    assert (receipt.outcome.evidence.status, receipt.outcome.evidence.contract) == (201, "charges-1")
    # What is stored has no secret in it.
    story = lone.outbox.opened.view.story(effect_id)
    assert story is not None
    assert b"s3cret" not in (story.body or b"")


@pytest.mark.rule("X9")
@pytest.mark.parametrize(("resends", "after_s", "sends"), [(1, 1.0, {2}), (9, 150.0, {2, 3, 4})])
def test_resends_end_with_their_number_and_with_the_horizon(
    timed: Shop, resends: int, after_s: float, sends: set[int]
) -> None:
    bank, clock, moments = Bank(loses=99), timed.clock, []

    def answers(request: Any) -> Any:
        moments.append(clock.time())
        # So long it takes until the reply is lost.
        clock.advance(after_s)
        return bank(request)

    with FaultPeer(answers) as peer:
        payments = HTTP("payments", base_url=peer.url, contract=Contract(**{**KEYED, "resends": resends}))
        order(timed, payments.post("/charges", json={"cents": 700}))
        for _ in range(8):
            with Dispatcher(timed.url, [payments], clock=clock, terms=quick()) as dispatcher:
                dispatcher.run_until_idle(timeout_s=PATIENCE_S)
            clock.advance(1.0)
        assert len(peer.requests) in sends
    # After its horizon the recipient may have forgotten the key.
    assert moments[-1] - moments[0] + quick().timeout_s < 600.0
    assert len(bank.charges) == 1
    receipt = timed.receipt("o1")
    assert receipt.state == "needs-operator"
    assert isinstance(receipt.outcome, Uncertain)
    assert receipt.reason


@pytest.mark.rule("X7", "X8", "H8")
def test_a_lost_reply_is_asked_about_where_the_contract_says_how_and_never_sent_again(lone: Shop) -> None:
    bank = Bank(loses=1)
    with FaultPeer(bank) as peer:
        payments = HTTP("payments", base_url=peer.url, contract=Contract(**ASKED))
        order(lone, payments.post("/charges", json={"cents": 700}))
        with Dispatcher(lone.url, [payments], terms=quick()) as dispatcher:
            assert dispatcher.run_until_idle(timeout_s=PATIENCE_S)
        assert [request.method for request in peer.requests] == ["POST", "GET"]
    receipt = lone.receipt("o1")
    assert isinstance(receipt.outcome, Accepted)
    assert (receipt.outcome.proof, receipt.outcome.via) == ("ch-1", "reconcile")


@pytest.mark.rule("X7")
def test_without_a_contract_a_lost_reply_is_uncertain_and_a_refusal_failed(lone: Shop) -> None:
    with FaultPeer([Drop(), Answer(422)]) as peer:
        http = HTTP("http", base_url=peer.url)
        for key in ("lost", "refused"):
            order(lone, http.post("/x", content=b"\0\xff", headers={"Content-Type": "a/b"}), key, lane="L")
            with Dispatcher(lone.url, [http], terms=quick()) as dispatcher:
                assert dispatcher.run_until_idle(timeout_s=PATIENCE_S)
            receipt = lone.receipt(key)
            if key == "lost":
                assert isinstance(receipt.outcome, Uncertain)
                lone.outbox.decide(key, did_not_happen=True, expect_version=receipt.version, **ACT)
        assert [request.body for request in peer.requests] == [b"\0\xff"] * 2
        assert {request.header("content-type") for request in peer.requests} == {"a/b"}
    assert isinstance(lone.receipt("refused").outcome, Failed)


@pytest.mark.rule("X10", "X3")
def test_a_peer_that_is_not_there_gets_it_later(lone: Shop) -> None:
    with FaultPeer(Refuse()) as gone:
        http = HTTP("http", base_url=gone.url)
        order(lone, http.post("/x", json={}))
        with Dispatcher(lone.url, [http], terms=quick(attempts=2)) as dispatcher:
            assert dispatcher.run_until_idle(timeout_s=PATIENCE_S)
        receipt = lone.receipt("o1")
        assert isinstance(receipt.outcome, Rejected)
        assert (receipt.outcome.evidence.kind, receipt.attempts) == ("connect-failed", 2)
        with FaultPeer() as peer:
            lone.outbox.redrive("o1", expect_version=receipt.version, **ACT)
            with Dispatcher(lone.url, [HTTP("http", base_url=peer.url)], terms=quick()) as dispatcher:
                dispatcher.run_until_idle(timeout_s=PATIENCE_S)
            # The URL is a part of what was staged: another base does not lead it elsewhere.
            assert peer.requests == []


@pytest.mark.rule("X3")
async def test_the_asyncio_colour_sends_over_http_too(lone: Shop) -> None:
    bank = Bank(loses=1)
    with FaultPeer(bank) as peer:
        payments = HTTP("payments", base_url=peer.url, contract=Contract(**KEYED))
        effect_id = order(lone, payments.post("/charges", json={"cents": 700}))
        async with AsyncDispatcher(lone.url, [payments], terms=quick()) as dispatcher:
            assert await dispatcher.run_until_idle(timeout_s=PATIENCE_S)
        assert [request.key for request in posts(peer)] == [effect_id] * 2
    assert lone.receipt("o1").state == "accepted"


@pytest.mark.rule("B9", "X1")
def test_a_request_with_a_secret_of_its_own_is_not_kept(lone: Shop) -> None:
    http = HTTP("http", base_url="http://127.0.0.1:9")
    with lone.transaction() as connection, pytest.raises(UsageError, match="secret"):
        lone.outbox.stage(connection, http.post("/x", headers={"X-Key": Secret(lambda: "s")}), key="o1")


@pytest.mark.rule("X3")
def test_a_newer_form_and_an_unknown_recipient_wait_with_their_reasons_and_neighbours_are_delivered(
    lone: Shop,
) -> None:
    with FaultPeer() as peer:
        http, other = HTTP("http", base_url=peer.url), HTTP("other", base_url=peer.url)
        for key, operation in (
            ("newer", http.post("/newer", json={})),
            ("foreign", other.post("/foreign", json={})),
            ("plain", http.post("/plain", json={})),
        ):
            order(lone, operation, key)
        lone.sql(
            "UPDATE counterfoil_ready SET format = 2 WHERE intent ="
            " (SELECT seq FROM counterfoil_intent WHERE key = 'newer')"
        )
        with Dispatcher(lone.url, [http], terms=quick()) as dispatcher:
            assert dispatcher.run_until_idle(timeout_s=PATIENCE_S)
        assert [request.target for request in peer.requests] == ["/plain"]
        found = {key: (lone.receipt(key).state, lone.receipt(key).reason) for key in ("newer", "foreign", "plain")}
        assert found == {
            "newer": ("blocked", "newer-format"),
            "foreign": ("blocked", "unknown-recipient"),
            "plain": ("accepted", "status"),
        }
        # Whoever knows it takes it, as it was staged.
        with Dispatcher(lone.url, [other], terms=quick()) as dispatcher:
            assert dispatcher.run_until_idle(timeout_s=PATIENCE_S)
        assert [request.target for request in peer.requests] == ["/plain", "/foreign"]
        assert lone.receipt("foreign").attempts == 1


@pytest.mark.rule("X3")
def test_a_form_inside_that_is_newer_is_for_a_person_and_not_sent(lone: Shop) -> None:
    with FaultPeer() as peer:
        http = HTTP("http", base_url=peer.url)
        order(lone, http.post("/x", json={}))
        if "postgres" in lone.url:
            lone.sql(
                "UPDATE counterfoil_intent SET body = replace(encode(body, 'escape'), 'arguments', 'given')::bytea"
            )
        else:
            lone.sql("UPDATE counterfoil_intent SET body = CAST(replace(body, 'arguments', 'given') AS BLOB)")
        with Dispatcher(lone.url, [http], terms=quick()) as dispatcher:
            assert dispatcher.run_until_idle(timeout_s=PATIENCE_S)
        receipt = lone.receipt("o1")
        assert (receipt.state, receipt.reason) == ("needs-operator", "arguments-do-not-fit")
        assert peer.requests == []


def test_http_and_functions_are_dispatched_side_by_side(lone: Shop) -> None:
    other = Recipient("other")
    calls: list[int] = []

    @other.operation
    def note(ctx: Any, number: int) -> int:
        calls.append(number)
        return number

    with FaultPeer() as peer, Outbox(lone.url) as outbox:
        http = HTTP("http", base_url=peer.url)
        with lone.transaction() as connection:
            outbox.stage_many(connection, [(http.put("/x", json=1), "a"), (note(number=7), "b")])
        with Dispatcher(lone.url, {"http": http, "other": other}, terms=quick()) as dispatcher:
            assert dispatcher.run_until_idle(timeout_s=PATIENCE_S)
        assert [request.method for request in peer.requests] == ["PUT"]
    assert calls == [7]
