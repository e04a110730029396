"""HTTP operations as effects of a run: what each class becomes, and how what was lost is settled."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from counterfoil import (
    HTTP,
    UNASKABLE,
    Accepted,
    Contract,
    EffectUnresolved,
    Failed,
    Keyed,
    LookUp,
    NameConflict,
    Rejected,
    Retry,
    Secret,
    Uncertain,
    UsageError,
)
from counterfoil.recipients.proving import Unproved
from counterfoil.testing.peers import Answer, CutBody, Drop, FaultPeer, Refuse
from tests.support import Colour as Life

LOOK_UP = LookUp(
    url="/charges", params={"reference": "{key}"}, items="/data", where={"/reference": "{key}"}, proof="/id"
)
CONTRACT = Contract(
    name="payments-1",
    statuses={402: "failed", 503: "failed"},
    proof="/id",
    idempotency=Keyed(header="Idempotency-Key", horizon_s=86_400),
    look_up=LOOK_UP,
    retryable=[503],
)


class Payments:
    """A payments API: makes a charge for each POST, loses its first answers, and can be asked."""

    def __init__(self, *losing: Any, foreign: bool = False) -> None:
        self.losing = list(losing)
        self.foreign = foreign
        self.charges: list[dict[str, Any]] = []

    def __call__(self, request: Any) -> Any:
        if request.method == "GET":
            reference = request.target.partition("reference=")[2]
            found = [charge for charge in self.charges if charge["reference"] == reference]
            others = [{"id": "ch_other", "reference": "somebody-else"}] if self.foreign else []
            return Answer(200, json={"data": others + found})
        move = self.losing.pop(0) if self.losing else None
        if isinstance(move, Answer) and not move.acting:
            return move
        self.charges.append({"id": f"ch_{len(self.charges) + 1}", "reference": request.key, **request.json()})
        return move or Answer(201, json=self.charges[-1])


@pytest.fixture(params=["memory:", "sqlite"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}" if request.param == "sqlite" else "memory:"


@pytest.fixture
def life(colour, ledger):
    return lambda: Life(colour.name).life(ledger)


@pytest.mark.rule("O6", "E1", "E11")
async def test_what_is_accepted_is_recorded_with_its_evidence(life):
    with FaultPeer(Payments()) as peer:
        charge = HTTP("payments", base_url=peer.url, contract=CONTRACT).post("/charges", json={"cents": 700})
        async with life() as runtime, runtime.run("order-42") as run:
            outcome = await run.effect("charge", charge)
            assert isinstance(outcome, Accepted)
            assert (outcome.proof, outcome.via, outcome.response) == ("ch_1", "run", None)
            evidence = outcome.evidence
            assert (evidence.kind, evidence.phase, evidence.status) == ("status", "acknowledged", 201)
            assert evidence.contract == "payments-1"
            assert evidence.bytes_offered == peer.bytes_received
            assert await run.effect("charge", charge) == outcome
            (view,) = await runtime.effects()
            assert view.outcome == outcome
            assert [request.key for request in peer.requests] == [view.effect_key]


@pytest.mark.rule("E13", "H2")
@pytest.mark.parametrize(
    ("answer", "expected", "kind"),
    [(Answer(402), Failed, "status"), (Answer(400), Failed, "status"), (None, Rejected, "connect-failed")],
)
async def test_what_is_proved_not_to_have_happened_is_an_outcome(life, answer, expected, kind):
    with FaultPeer(answer or Refuse()) as peer:
        http = HTTP("payments", base_url=peer.url, contract=CONTRACT)
        charge = http.post("/charges", json={"cents": 700})
        async with life() as runtime, runtime.run("order-42") as run:
            outcome = await run.effect("charge", charge)
            assert (type(outcome), outcome.evidence.kind) == (expected, kind)
            assert outcome.evidence.contract == "payments-1"
            assert await run.effect("charge", charge) == outcome
        assert len(peer.requests) == (answer is not None)


@pytest.mark.rule("H8", "E2", "E3")
@pytest.mark.parametrize("loss", [Drop(), CutBody(), Answer(503 + 1, acts=True)], ids=["dropped", "cut", "504"])
async def test_what_is_lost_is_settled_by_the_contracts_look_up(life, loss):
    payments = Payments(loss, foreign=True)
    with FaultPeer(payments) as peer:
        charge = HTTP("payments", base_url=peer.url, contract=CONTRACT).post("/charges", json={"cents": 700})
        async with life() as runtime, runtime.run("order-42") as run:
            with pytest.raises(EffectUnresolved) as caught:
                await run.effect("charge", charge)
            assert (caught.value.reason, caught.value.effect_ran) == ("run-failed", "unknown")
            assert isinstance(caught.value.__cause__, Unproved)
            outcome = await run.effect("charge", charge)
            assert isinstance(outcome, Accepted)
            assert (outcome.proof, outcome.via) == ("ch_1", "reconcile")
            assert (outcome.evidence.kind, outcome.evidence.contract) == ("found", "payments-1")
            assert await run.effect("charge", charge) == outcome
        assert [request.method for request in peer.requests] == ["POST", "GET"]
        assert len(payments.charges) == 1


@pytest.mark.rule("E2", "O4")
async def test_what_is_not_found_is_uncertain_and_not_sent_again(life):
    with FaultPeer(
        lambda request: Answer(200, json={"data": []}) if request.method == "GET" else Drop(acts=False)
    ) as peer:
        charge = HTTP("payments", base_url=peer.url, contract=CONTRACT).post("/charges", json={})
        async with life() as runtime, runtime.run("order-42") as run:
            with pytest.raises(EffectUnresolved):
                await run.effect("charge", charge)
            for _ in range(2):
                assert isinstance(await run.effect("charge", charge), Uncertain)
        assert [request.method for request in peer.requests] == ["POST", "GET"]


@pytest.mark.rule("E2")
async def test_without_a_look_up_what_is_lost_is_uncertain(life):
    with FaultPeer(Drop()) as peer:
        charge = HTTP("payments", base_url=peer.url).post("/charges", json={})
        assert charge.reconcile is charge.reconcile_async is UNASKABLE
        async with life() as runtime, runtime.run("order-42") as run:
            with pytest.raises(EffectUnresolved):
                await run.effect("charge", charge)
            outcome = await run.effect("charge", charge)
            assert (type(outcome), outcome.evidence.kind) == (Uncertain, "unaskable")
        assert len(peer.requests) == 1


@pytest.mark.rule("E4", "H8", "O4")
@pytest.mark.parametrize(
    "answer",
    [
        Answer(500),
        Answer(401),
        Answer(302),
        Answer(200, body=b"<html>"),
        Answer(200, json={"data": {}}),
        Answer(200, json={}),
        Drop(),
        CutBody(Answer(200, json={"data": []})),
        Answer(200, json={"data": [{"reference": "KEY"}]}),
    ],
    ids=lambda answer: repr(answer)[:60],
)
async def test_a_look_up_that_does_not_answer_the_question_proves_nothing(life, answer):
    def script(request):
        if request.method == "POST":
            return Drop(acts=False)
        if isinstance(answer, Answer) and answer.json == {"data": [{"reference": "KEY"}]}:
            return Answer(200, json={"data": [{"reference": request.target.partition("=")[2]}]})
        return answer

    with FaultPeer(script) as peer:
        charge = HTTP("payments", base_url=peer.url, contract=CONTRACT).post("/charges", json={})
        async with life() as runtime, runtime.run("order-42") as run:
            for reason in ("run-failed", "reconcile-failed", "reconcile-failed"):
                with pytest.raises(EffectUnresolved) as caught:
                    await run.effect("charge", charge)
                assert caught.value.reason == reason
        assert [request.method for request in peer.requests] == ["POST", "GET", "GET"]


@pytest.mark.rule("H8", "O5")
async def test_of_several_found_none_is_ours_unless_the_contract_says_which(life):
    contract = Contract(name="c", look_up=LookUp(url="/items", items="", proof="/id"))
    found: list[dict[str, int]] = [{"id": 1}, {"id": 2}]
    with FaultPeer(lambda request: Answer(200, json=found) if request.method == "GET" else Drop()) as peer:
        post = HTTP("p", base_url=peer.url, contract=contract).post("/items", json={})
        async with life() as runtime, runtime.run("r") as run:
            for reason in ("run-failed", "reconcile-failed"):
                with pytest.raises(EffectUnresolved) as caught:
                    await run.effect("e", post)
                assert caught.value.reason == reason
            del found[1]
            assert (await run.effect("e", post)).proof == 1


@pytest.mark.rule("H8", "E2")
async def test_a_look_up_may_ask_for_one_thing_by_what_the_request_says(life):
    contract = Contract(
        name="issues-1",
        proof="/number",
        look_up={"url": "/issues/{/slug}", "where": {"/slug": "{/slug}", "/votes": "{/votes}"}, "proof": "/number"},
    )

    def script(request):
        if request.method == "POST":
            return Drop()
        return Answer(200, json={"slug": "a/b ä", "votes": 3, "number": 12})

    with FaultPeer(script) as peer:
        http = HTTP("issues", base_url=peer.url, contract=contract)
        issue = http.post("/issues", json={"slug": "a/b ä", "votes": 3})
        async with life() as runtime, runtime.run("r") as run:
            with pytest.raises(EffectUnresolved):
                await run.effect("issue", issue)
            assert (await run.effect("issue", issue)).proof == 12
        assert peer.requests[1].target == "/issues/a%2Fb%20%C3%A4"
        with pytest.raises(UsageError, match="/votes"):
            http.post("/issues", json={"slug": "a"})


@pytest.mark.rule("H8", "O4")
async def test_a_status_of_the_contract_says_that_there_is_none(life):
    contract = Contract(name="c", look_up=LookUp(url="/by-key/{key}", proof="/id", absent=[404, 410]))
    with FaultPeer(lambda request: Answer(410) if request.method == "GET" else Drop()) as peer:
        put = HTTP("p", base_url=peer.url, contract=contract).put("/x", json={})
        async with life() as runtime, runtime.run("r") as run:
            with pytest.raises(EffectUnresolved):
                await run.effect("put", put)
            assert isinstance(await run.effect("put", put), Uncertain)
            (view,) = await runtime.effects()
        assert peer.requests[1].target == f"/by-key/{view.effect_key}"


@pytest.mark.rule("E14", "E11")
async def test_a_failure_that_the_contract_marks_may_be_tried_again(life):
    with FaultPeer(Payments(Answer(503), Answer(503))) as peer:
        charge = HTTP("payments", base_url=peer.url, contract=CONTRACT).post("/charges", json={"cents": 700})
        async with life() as runtime, runtime.run("order-42") as run:
            outcome = await run.effect("charge", charge, retry=Retry(3))
            assert (type(outcome), outcome.proof) == (Accepted, "ch_1")
        assert len({request.key for request in peer.requests}) == len(peer.requests) == 3
    with FaultPeer(Payments(Answer(402), Answer(402))) as peer:
        charge = HTTP("payments", base_url=peer.url, contract=CONTRACT).post("/charges", json={"cents": 700})
        async with life() as runtime, runtime.run("order-43") as run:
            assert isinstance(await run.effect("charge", charge, retry=Retry(3)), Failed)
        assert len(peer.requests) == 1


@pytest.mark.rule("E12", "B9")
async def test_another_request_under_the_name_is_refused(life, monkeypatch):
    monkeypatch.setenv("ONE", "planted-one")
    monkeypatch.setenv("TWO", "planted-two")
    with FaultPeer(Answer(200)) as peer:
        http = HTTP("p", base_url=peer.url)
        async with life() as runtime, runtime.run("r") as run:
            await run.effect("e", http.post("/a", json={"b": 1}, headers={"x": Secret("env:ONE")}))
            monkeypatch.setenv("ONE", "planted-rotated")
            # A secret that was rotated is the same request; another reference is not.
            assert isinstance(
                await run.effect("e", http.post("/a", json={"b": 1}, headers={"X": Secret("env:ONE")})), Accepted
            )
            for other in (
                http.post("/a", json={"b": 2}, headers={"x": Secret("env:ONE")}),
                http.post("/a", json={"b": 1}, headers={"x": Secret("env:TWO")}),
                http.put("/a", json={"b": 1}, headers={"x": Secret("env:ONE")}),
                http.post("/b", json={"b": 1}, headers={"x": Secret("env:ONE")}),
            ):
                with pytest.raises(NameConflict):
                    await run.effect("e", other)
        assert len(peer.requests) == 1


@pytest.mark.rule("B9", "N6")
async def test_planted_secrets_are_in_no_record_and_no_text(colour, tmp_path, monkeypatch, caplog):
    caplog.set_level("DEBUG")
    monkeypatch.setenv("PLANTED", "planted-secret")
    database = tmp_path / "ledger.db"
    secret = Secret("env:PLANTED")
    seen: list[str] = []
    with FaultPeer([Answer(200), Drop(), Answer(402, json={"echo": "planted-answer"})]) as peer:
        http = HTTP("p", base_url=peer.url, auth=("user", secret), headers={"x-key": secret})
        async with Life(colour.name).life(f"sqlite:///{database}") as runtime, runtime.run("r") as run:
            for name in ("one", "two", "three"):
                operation = http.post(f"/{name}", json={"a": "planted-body"}, params={"q": "planted-query"})
                seen += [repr(operation), repr(http), json.dumps(operation.request)]
                try:
                    seen.append(repr(await run.effect(name, operation)))
                except EffectUnresolved as error:
                    seen += [str(error), repr(error.__cause__), str(error.__cause__)]
            assert peer.requests[0].header("x-key") == "planted-secret"
            assert (peer.requests[0].header("authorization") or "").startswith("Basic ")
            seen += [repr(view) for view in await runtime.effects()]
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert b"p" in kept
    for planted in ("planted-secret", "cGxhbnRlZC1zZWNyZXQ", "planted-answer"):
        assert planted.encode() not in kept
        assert planted not in "".join(seen) + caplog.text
    # Bodies and queries are not secrets by name, and still in no record.
    assert b"planted-body" not in kept
    assert b"planted-query" not in kept
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    connection.close()


@pytest.mark.rule("B9", "H1")
async def test_a_secret_that_cannot_be_read_sends_nothing(life):
    with FaultPeer(Answer(200)) as peer:
        http = HTTP("p", base_url=peer.url, auth=Secret("env:NOT_SET_ANYWHERE"))
        async with life() as runtime, runtime.run("r") as run:
            outcome = await run.effect("e", http.post("/", json={}))
            assert (type(outcome), outcome.evidence.kind) == (Rejected, "secret-unavailable")
        assert not peer.requests


@pytest.mark.rule("H5")
@pytest.mark.parametrize(
    ("options", "url", "open_"),
    [
        ({}, "http://127.0.0.1:{port}/", False),
        ({"base_url": "http://127.0.0.1:{port}"}, "/", True),
        ({"allow_addresses": ("127.0.0.0/8",)}, "http://127.0.0.1:{port}/", True),
        ({"allow_addresses": ("10.0.0.0/8",)}, "http://127.0.0.1:{port}/", False),
        ({"base_url": "http://localhost:{port}"}, "/", True),
        ({"base_url": "http://inside.test:{port}"}, "/", False),
        ({"base_url": "http://[::ffff:127.0.0.1]:{port}"}, "/", True),
    ],
)
async def test_outside_an_activation_the_code_opens_what_it_names(life, options, url, open_):
    with FaultPeer(Answer(200)) as peer:
        if "base_url" in options:
            options = options | {"base_url": options["base_url"].format(port=peer.port)}
        http = HTTP("p", resolve=lambda host, port: ["127.0.0.1"], **options)
        async with life() as runtime, runtime.run("r") as run:
            outcome = await run.effect("e", http.post(url.format(port=peer.port), json={}))
        assert type(outcome) is (Accepted if open_ else Rejected)
        assert len(peer.requests) == open_


# --- after commit


async def test_an_operation_comes_back_from_what_an_outbox_keeps(life):
    with FaultPeer(Answer(200)) as peer:
        http = HTTP("p", base_url=peer.url + "/v1", headers={"x-team": "blue"})
        for made in (
            http.post("/a", json={"b": ["ä", None]}, params={"q": "x y"}, headers={"X-A": "1"}),
            http.put("/a", content=b"\0\xff", headers={"content-type": "image/png"}),
            http.patch("/a", content="text"),
            http.delete("/a"),
        ):
            kept = json.loads(json.dumps(made.serialised()))
            again = HTTP("p", base_url=peer.url + "/v1", headers={"x-team": "blue"}).restore(kept)
            assert again.request == made.request
            assert again.serialised() == kept
            async with life() as runtime, runtime.run("r") as run:
                name = kept["operation"]
                assert isinstance(await run.effect(name, again), Accepted)
                # It is the same request: nothing is sent again.
                assert isinstance(await run.effect(name, made), Accepted)
        assert [request.method for request in peer.requests] == ["POST", "PUT", "PATCH", "DELETE"]
        assert (peer.requests[1].body, peer.requests[2].body) == (b"\0\xff", b"text")
        assert peer.requests[0].target == "/v1/a?q=x+y"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 2}, "format 2"),
        ({"recipient": "other"}, "other"),
        ({"arguments": {}}, "KeyError"),
        ({"arguments": None}, "TypeError|AttributeError"),
        ({"arguments": {"url": "/", "content": "%%"}}, "Error"),
        ({"operation": 5}, "method"),
        ({"arguments": {"url": "/", "headers": [["a"]]}}, "pair"),
    ],
)
def test_what_is_no_serialised_operation_is_refused(change, says):
    http = HTTP("p", base_url="https://api.test")
    with pytest.raises(UsageError, match=says):
        http.restore(http.post("/", json={}).serialised() | change)


@pytest.mark.rule("B9")
def test_a_secret_of_one_operation_is_not_kept_in_an_outbox():
    http = HTTP("p", base_url="https://api.test", auth=Secret("env:X"))
    assert "env" not in json.dumps(http.post("/", json={}).serialised())
    with pytest.raises(UsageError, match="outbox does not keep"):
        http.post("/", headers={"x": Secret("env:X")}).serialised()
    with pytest.raises(UsageError, match="dot-segments"):
        http.post("/../a", json={}).serialised()
