"""What each status proves: the default table row by row, and what a contract says instead."""

from typing import Any

import pytest

from counterfoil import Accepted, Contract, Failed, Uncertain
from counterfoil.recipients.http.facts import Facts
from counterfoil.recipients.http.meaning import judge, retry_after

# The table of the rule, written out once more: it is not made of the code that it checks.
ACCEPTED = {200, 201, 202, 204}
FAILED = {
    *{400, 401, 402, 403, 404, 405, 406, 407, 410, 411, 413, 414, 415, 416, 417, 418, 421, 422, 425, 426, 428},
    *{431, 451, 501, 505, 301, 307, 308},
}
FIRST_ONLY = {409, 412}


def answered(status: int, *, attempt: int = 1, contract: Any = None, method: str = "POST", **facts: Any) -> Any:
    found: dict[str, Any] = {"sent_all": True, "bytes_offered": 100, "peer": "192.0.2.1:443", "reached": "done"} | facts
    return judge(Facts(dispatched=True, status=status, **found), contract, method=method, attempt=attempt)


@pytest.mark.rule("H2")
@pytest.mark.parametrize("status", range(200, 600))
def test_every_status_of_a_mutation_means_what_the_table_says(status):
    expected: Any = Accepted if status in ACCEPTED else Failed if status in FAILED | FIRST_ONLY else Uncertain
    outcome = answered(status)
    assert type(outcome) is expected
    assert (outcome.evidence.kind, outcome.evidence.status) == ("status", status)
    assert outcome.response.status == status
    if isinstance(outcome, Accepted):
        assert outcome.proof == {"status": status}
    if isinstance(outcome, Failed):
        assert not outcome.retryable


@pytest.mark.rule("H2", "O6")
def test_202_leaves_open_whether_it_was_completed():
    assert answered(202).evidence.promises == ("completion-not-established",)
    assert answered(200).evidence.promises == ()


@pytest.mark.rule("H2")
def test_408_proves_something_only_while_the_request_was_being_sent():
    assert type(answered(408, sent_all=False)) is Failed
    assert type(answered(408, sent_all=True)) is Uncertain


@pytest.mark.rule("H2", "O3")
@pytest.mark.parametrize("status", [409, 412])
def test_a_conflict_of_a_later_attempt_may_be_with_the_first_one(status):
    assert type(answered(status, attempt=1)) is Failed
    assert type(answered(status, attempt=2)) is Uncertain
    named = Contract(name="c", statuses={status: "failed"})
    assert type(answered(status, attempt=2, contract=named)) is Failed


@pytest.mark.rule("H2")
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_read_is_accepted_by_any_2xx_and_a_redirect_not_followed_has_failed(method):
    assert all(type(answered(status, method=method)) is Accepted for status in (200, 203, 206, 226))
    assert all(type(answered(status, method=method)) is Failed for status in (301, 302, 303, 304, 307))
    assert type(answered(503, method=method)) is Uncertain


@pytest.mark.rule("H2", "O6")
@pytest.mark.parametrize(("status", "means"), [(503, "failed"), (404, "uncertain"), (226, "accepted"), (200, "failed")])
def test_a_contract_overrides_a_row_by_name(status, means):
    contract = Contract(name="payments-1", statuses={status: means}, retryable=[status], promises=("at-least-queued",))
    outcome = answered(status, contract=contract)
    assert type(outcome).__name__.lower() == means
    assert outcome.evidence.contract == "payments-1"
    if means == "failed":
        assert outcome.retryable
    if means == "accepted":
        assert outcome.evidence.promises == ("at-least-queued",)
    # It speaks of no other row.
    assert type(answered(422, contract=contract)) is Failed


@pytest.mark.rule("H2")
@pytest.mark.parametrize(
    ("proof", "found"),
    [
        ("/data/0/id", "ch_1"),
        ("/data/1/a~1b", {"~": 1}),
        ("", {"data": [{"id": "ch_1"}, {"a/b": {"~": 1}}]}),
        ("Location", "/c/1"),
    ],
)
def test_the_proof_is_where_the_contract_points(proof, found):
    outcome = answered(
        201,
        contract=Contract(name="c", proof=proof),
        headers=(("location", "/c/1"),),
        content=b'{"data": [{"id": "ch_1"}, {"a/b": {"~": 1}}]}',
    )
    assert outcome.proof == found


@pytest.mark.rule("O5", "H2")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"id": null}',
        b'{"ID": 1}',
        b"\xff",
        b'{"id": NaN}',
        b'{"id": "' + b"x" * 70_000 + b'"}',
        b"[" * 100_000,
    ],
)
def test_an_acknowledgement_without_its_proof_is_uncertain(content):
    outcome = answered(201, contract=Contract(name="c", proof="/id"), content=content)
    assert type(outcome) is Uncertain
    assert (outcome.evidence.kind, outcome.evidence.status) == ("no-proof", 201)
    assert type(answered(201, contract=Contract(name="c", proof="Location"))) is Uncertain


@pytest.mark.rule("H2")
def test_a_body_that_is_cut_takes_only_what_was_to_be_in_it():
    cut: dict[str, Any] = {"cut": "reset", "content": b'{"id": 1}', "headers": (("location", "/c/1"),)}
    assert answered(201, **cut).proof == {"status": 201}
    assert answered(201, contract=Contract(name="c", proof="Location"), **cut).proof == "/c/1"
    outcome = answered(201, contract=Contract(name="c", proof="/id"), **cut)
    assert (type(outcome), outcome.evidence.kind) == (Uncertain, "cut-response")
    assert outcome.evidence.details["cut"] == "reset"
    assert type(answered(402, contract=Contract(name="c", proof="/id"), **cut)) is Failed


@pytest.mark.rule("H2", "O5")
def test_a_contract_may_look_into_the_body():
    when = [
        {"status": 200, "pointer": "/error", "equals": "rate_limited", "means": "failed"},
        {"status": 200, "pointer": "/ok", "equals": False, "means": "uncertain"},
    ]
    contract = Contract.of({"name": "chat-1", "when": when, "proof": "/ts", "retryable": [200]})
    assert answered(200, contract=contract, content=b'{"ok": true, "ts": "1.2"}').proof == "1.2"
    failed = answered(200, contract=contract, content=b'{"ok": false, "error": "rate_limited"}')
    assert (type(failed), failed.retryable) == (Failed, True)
    assert type(answered(200, contract=contract, content=b'{"ok": false, "error": "other"}')) is Uncertain
    # 0 is not false.
    assert type(answered(200, contract=contract, content=b'{"ok": 0, "ts": "1"}')) is Accepted
    # What it wants to see and cannot: nothing is known.
    unread = answered(200, contract=contract, content=b"<html>")
    assert (type(unread), unread.evidence.kind) == (Uncertain, "unreadable-answer")
    cut = answered(200, contract=contract, content=b'{"ok"', cut="cut-response")
    assert (type(cut), cut.evidence.kind) == (Uncertain, "cut-response")


@pytest.mark.rule("X10")
def test_retry_after_is_told_as_seconds():
    assert answered(429, headers=(("Retry-After", "120"),)).evidence.details["retry_after_s"] == 120.0
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert (retry_after("Fri, 31 Dec 2199 23:59:59 GMT") or 0) > 1e9
    assert [retry_after(text) for text in (None, "", "soon", "-5", "1e9", "9" * 40)] == [None] * 6


@pytest.mark.rule("O6")
def test_what_was_answered_is_neither_shown_nor_compared():
    one, two = answered(200, content=b"secret"), answered(200, content=b"other")
    assert one == two
    assert one.response.content == b"secret"
    assert "secret" not in repr(one) + repr(one.response)
    failed = answered(402, content=b'{"why": 1}')
    assert failed.response.json() == {"why": 1}
    assert failed == answered(402)
