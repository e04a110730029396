"""The example contracts, each against a recipient that behaves as the documentation of its API says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from counterfoil import Accepted, EffectUnresolved, Failed, Rejected, Retry, Uncertain, UsageError
from counterfoil.testing.peers import Answer, CutBody, Drop
from tests.contracts.files import CONTRACTS, contract
from tests.contracts.servers import LOSE, GitHub, Postmark, Slack, Stripe, form, said
from tests.contracts.support import SECRET, World, token, world

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def stripe() -> Iterator[World]:
    with world("stripe", Stripe(), below="/v1/", auth=token()) as found:
        yield found


@pytest.fixture
def slack() -> Iterator[World]:
    with world("slack", Slack(), below="/api/", auth=token()) as found:
        yield found


@pytest.fixture
def postmark() -> Iterator[World]:
    with world("postmark", Postmark(), below="/", headers={"X-Postmark-Server-Token": token()}) as found:
        yield found


@pytest.fixture
def github() -> Iterator[World]:
    with world("github", GitHub(), below="/repos/ada/shop/", auth=token()) as found:
        yield found


def payment(stripe: World, **fields: Any) -> Any:
    body = form(amount=4200, currency="eur", confirm="true", **fields)
    return stripe.http.post("payment_intents", content=body, headers=FORM)


def message(slack: World, effect: str = "order-42", channel: str = "C1") -> Any:
    metadata = {"event_type": "order", "event_payload": {"effect": effect}}
    return slack.http.post("chat.postMessage", json={"channel": channel, "text": "paid", "metadata": metadata})


def mail(postmark: World, effect: str = "order-42", to: str = "ada@example.com") -> Any:
    body = {"From": "shop@example.com", "To": to, "Subject": "Paid", "TextBody": "Thanks", "Tag": effect}
    return postmark.http.post("email", json=body)


def issue(github: World, effect: str = "order-42", title: str = "It broke") -> Any:
    body = {"title": title, "body": f"At noon.\n\n<!-- effect: {effect} -->"}
    return github.http.post("issues", json=body)


CASES = [
    ("stripe", payment, "pi_1", "Bearer"),
    ("slack", message, "1700000000.000001", "Bearer"),
    ("postmark", mail, "mail-1", ""),
    ("github", issue, "https://github.com/ada/shop/issues/1", "Bearer"),
]
ASKABLE = CASES[1:]


def test_each_contract_names_the_source_of_what_it_says() -> None:
    for path in sorted(CONTRACTS.glob("*.toml")):
        text = path.read_text(encoding="utf-8")
        for block in text.split("\n\n"):
            states = [line for line in block.splitlines() if line and not line.startswith(("#", "["))]
            told = "https://" in block or "of ours" in block or block.startswith("name = ")
            assert told or not states, f"{path.name}: where does this come from?\n{block}"


@pytest.mark.rule("H2", "O6", "B9")
@pytest.mark.parametrize(("name", "make", "proof", "scheme"), CASES)
def test_an_acknowledgement_brings_the_proof_of_the_contract(
    name: str, make: Any, proof: str, scheme: str, colour: str, request: pytest.FixtureRequest
) -> None:
    there = request.getfixturevalue(name)
    outcome = there.now(make(there), colour)
    assert isinstance(outcome, Accepted)
    assert outcome.proof == proof
    assert outcome.evidence.contract == there.contract.name
    assert set(there.contract.promises) <= set(outcome.evidence.promises)
    assert there.server.secrets == [f"{scheme} {SECRET}".strip()]
    assert SECRET not in repr(outcome)


@pytest.mark.rule("H8", "E2")
@pytest.mark.parametrize(("name", "make", "proof", "scheme"), ASKABLE)
def test_a_lost_reply_is_settled_by_the_look_up_of_the_contract(
    name: str, make: Any, proof: str, scheme: str, colour: str, url: str, request: pytest.FixtureRequest
) -> None:
    there = request.getfixturevalue(name)
    there.server.faults.append(LOSE)
    with pytest.raises(EffectUnresolved) as unresolved:
        there.once(url, "tell", make(there), colour)
    assert (unresolved.value.reason, unresolved.value.effect_ran) == ("run-failed", "unknown")
    outcome = there.once(url, "tell", make(there), colour)
    assert (outcome.proof, outcome.via) == (proof, "reconcile")
    assert (there.sends, len(there.server.made)) == (1, 1)


@pytest.mark.rule("H8", "O4", "E9")
@pytest.mark.parametrize(("name", "make", "proof", "scheme"), ASKABLE)
def test_somebody_elses_thing_is_not_taken_for_ours(
    name: str, make: Any, proof: str, scheme: str, colour: str, url: str, request: pytest.FixtureRequest
) -> None:
    there = request.getfixturevalue(name)
    there.now(make(there, effect="order-41"), colour)
    there.server.faults.append(Drop(acts=False))
    with pytest.raises(EffectUnresolved):
        there.once(url, "tell", make(there), colour)
    # Nothing of ours is there, and it is too early to say that nothing will be.
    with pytest.raises(EffectUnresolved) as early:
        there.once(url, "tell", make(there), colour)
    assert early.value.reason == "too-early"
    assert 0 < (early.value.retry_after_s or 0) <= there.contract.visibility_s
    assert there.sends == 2


@pytest.mark.rule("H2", "O5")
@pytest.mark.parametrize(("name", "make", "proof", "scheme"), CASES)
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (CutBody(Answer(200, json={"id": "half"}), sent_bytes=4), "cut-response"),
        (Answer(200, body=b"<html>"), None),
        (Answer(500), "status"),
        (Answer(502), "status"),
    ],
)
def test_what_proves_nothing_is_uncertain(
    name: str, make: Any, proof: str, scheme: str, fault: Any, kind: str, request: pytest.FixtureRequest
) -> None:
    there = request.getfixturevalue(name)
    there.server.faults.append(fault)
    outcome = there.now(make(there), "sync")
    assert isinstance(outcome, Uncertain)
    assert outcome.evidence.kind == kind or kind is None
    assert there.sends == 1


@pytest.mark.rule("E14", "X10")
@pytest.mark.parametrize(("name", "make", "proof", "scheme"), CASES)
def test_a_refusal_for_the_rate_may_be_tried_again(
    name: str, make: Any, proof: str, scheme: str, colour: str, url: str, request: pytest.FixtureRequest
) -> None:
    there = request.getfixturevalue(name)
    limited = said(429, {"ok": False, "error": "ratelimited"})
    there.server.faults.extend([limited, limited])
    assert isinstance(refused := there.now(make(there), colour), Failed)
    assert refused.retryable
    outcome = there.once(url, "tell", make(there), colour, retry=Retry(attempts=2))
    assert outcome.proof == proof
    assert (there.sends, len(there.server.made)) == (3, 1)


@pytest.mark.parametrize(
    ("name", "make", "more", "status"),
    [
        ("stripe", payment, {"payment_method": "pm_card_declined"}, 402),
        ("slack", message, {"channel": "C9"}, 200),
        ("postmark", mail, {"to": "ada"}, 422),
        ("github", issue, {"title": ""}, 422),
    ],
)
@pytest.mark.rule("H2", "E13")
def test_a_refusal_is_final(
    name: str, make: Any, more: Any, status: int, colour: str, url: str, request: pytest.FixtureRequest
) -> None:
    there = request.getfixturevalue(name)
    for _ in range(2):
        outcome = there.once(url, "tell", make(there, **more), colour, retry=Retry(attempts=3))
        assert isinstance(outcome, Failed)
        assert (outcome.evidence.status, outcome.retryable) == (status, False)
    assert (there.sends, there.server.made) == (1, [])


# --- what only one of them has


@pytest.mark.parametrize("error", ["internal_error", "fatal_error", "service_unavailable"])
def test_slack_may_have_posted_what_it_calls_an_error(slack: World, error: str) -> None:
    slack.server.faults.append(said(200, {"ok": False, "error": error}))
    assert isinstance(slack.now(message(slack), "sync"), Uncertain)


@pytest.mark.rule("H8", "O4", "E4")
def test_a_look_up_that_is_refused_is_no_answer(slack: World, url: str) -> None:
    slack.server.faults.append(LOSE)
    with pytest.raises(EffectUnresolved):
        slack.once(url, "tell", message(slack, channel="C1"), "sync")
    slack.server.look_up = lambda path, asked: said(200, {"ok": False, "error": "invalid_auth"})  # type: ignore[method-assign]
    with pytest.raises(EffectUnresolved) as refused:
        slack.once(url, "tell", message(slack, channel="C1"), "sync")
    assert refused.value.reason == "reconcile-failed"


def test_a_request_that_the_look_up_could_not_find_again_is_refused_at_once(slack: World, postmark: World) -> None:
    with pytest.raises(UsageError, match="/metadata/event_payload/effect"):
        slack.http.post("chat.postMessage", json={"channel": "C1", "text": "paid"})
    with pytest.raises(UsageError, match="/Tag"):
        postmark.http.post("email", json={"To": "ada@example.com"})


@pytest.mark.rule("E11", "E14")
def test_stripe_gets_one_key_for_all_attempts(stripe: World, url: str) -> None:
    stripe.server.faults.append(said(429, {}))
    stripe.once(url, "pay", payment(stripe), "sync", retry=Retry(attempts=2))
    keys = {request.key for request in stripe.peer.requests}
    assert len(keys) == 1
    assert keys.pop().startswith("cf-")


def test_what_stripe_says_about_another_request_says_nothing_about_ours(stripe: World) -> None:
    for answer in (said(409, {}), said(400, {"error": {"type": "idempotency_error"}})):
        stripe.server.faults.append(answer)
        assert isinstance(stripe.now(payment(stripe), "sync"), Uncertain)
    stripe.server.faults.append(said(400, {"error": {"type": "invalid_request_error"}}))
    assert isinstance(stripe.now(payment(stripe), "sync"), Failed)


def test_stripe_cannot_be_asked_so_a_lost_reply_stays_uncertain(stripe: World, url: str) -> None:
    stripe.server.faults.append(LOSE)
    with pytest.raises(EffectUnresolved):
        stripe.once(url, "pay", payment(stripe), "sync")
    assert isinstance(stripe.once(url, "pay", payment(stripe), "sync"), Uncertain)
    assert (stripe.sends, len(stripe.server.made)) == (1, 1)


def test_what_the_outbox_may_do_is_in_the_contract() -> None:
    assert contract("stripe").strongest_policy == "at-least-once-keyed"
    assert {contract(name).strongest_policy for name in ("slack", "postmark", "github")} == {"reconcile-first"}


@pytest.mark.rule("B3", "H5")
def test_nothing_leaves_without_a_grant_for_the_address(github: World) -> None:
    github.grant = github.grant.attenuate(allow_addresses=())
    assert isinstance(github.now(issue(github), "sync"), Rejected)
    assert github.peer.connections == []
