"""The export's format: what is in it, what is hidden, and what damage looks like."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from counterfoil.errors import UsageError
from counterfoil.protocol import codec, exported, records, slots
from counterfoil.protocol.records import Draft, Record, entry_of, record_of

PLACE = ("shop", "order-1")


def record(body: msgspec.Struct, *, slot: str = "step/sum", kind: str = records.STEP, phase: str = "result") -> Record:
    draft = Draft(slot=slot, kind=kind, phase=phase, body=codec.body_of(body))
    return record_of(entry_of(draft, *PLACE, epoch="1.a", append_id=1, at=2.5), 7)


def test_the_header_says_who_wrote_what_and_when() -> None:
    for shown, payloads in ((True, "shown"), (False, "redacted")):
        assert exported.header("shop", at=12.5, shown=shown, software="0.1") == {
            "format": "counterfoil-export",
            "version": 1,
            "counterfoil": "0.1",
            "namespace": "shop",
            "at": 12.5,
            "payloads": payloads,
        }


def test_a_line_says_everything_about_its_record() -> None:
    made = record(codec.StepBody(result=msgspec.Raw(b"[1,2]")))
    line = exported.line(*PLACE, made, shown=True)
    assert line == {
        "namespace": "shop",
        "run": "order-1",
        "position": 7,
        "slot": "step/sum",
        "kind": records.STEP,
        "phase": "result",
        "epoch": "1.a",
        "append_id": 1,
        "at": 2.5,
        "check": made.check,
        "format": 1,
        "body": {"result": [1, 2]},
        "redacted": False,
    }
    assert exported.parse_line(line) == (*PLACE, made)


def test_a_redacted_value_says_how_large_it_is() -> None:
    made = record(codec.StepBody(result=msgspec.Raw(b'"0123456789"')))
    line = exported.line(*PLACE, made, shown=False)
    assert line["body"] == {"result": "‹redacted 12 bytes›"}  # noqa: RUF001 - no HTML tag
    assert line["redacted"] is True


def test_what_is_not_the_users_is_never_hidden() -> None:
    body = {"fingerprint": "f", "evidence": {"kind": "status"}, "args": [1], "payload": 2, "result": 3, "proof": 4}
    hidden = exported.redact(body)
    assert {name for name in body if hidden[name] != body[name]} == {"args", "payload", "result", "proof"}
    assert exported.redact(body, shown=True) == body


@pytest.mark.parametrize("happened", [True, False])
def test_a_decision_that_it_did_not_happen_has_no_proof_that_could_be_hidden(happened: bool) -> None:
    proof = msgspec.Raw(b'"m1"' if happened else b"null")
    body = codec.DecisionBody(happened=happened, reason="looked", by="ann", seen_version=2, proof=proof)
    made = record(body, slot=slots.note("mail", 1), kind=records.NOTE, phase="decision")
    line = exported.line(*PLACE, made, shown=False)
    assert (line["body"]["proof"] is None) is not happened
    assert line["redacted"] is happened
    assert exported.redact({"happened": False, "proof": "m1"})["proof"] != "m1"


@pytest.mark.parametrize(("shown", "expected"), [(True, "m1"), (False, "‹redacted 4 bytes›")])  # noqa: RUF001
def test_what_pruning_kept_of_an_outcome_is_redacted_like_an_outcome(shown: bool, expected: str) -> None:
    ending = codec.OutcomeBody(proof=msgspec.Raw(b'"m1"'), source="webhook")
    body = codec.BuriedBody(phase="accepted", at=1.0, outcome=ending)
    made = record(body, slot=slots.buried("mail", 1), kind=records.EFFECT, phase="buried")
    assert exported.line(*PLACE, made, shown=shown)["body"]["outcome"] == {"proof": expected, "source": "webhook"}


@pytest.mark.parametrize("damaged", [b'{"result": 1', b'{"result": 1}', b'{"b":1,"a":2}', b"\xff"])
def test_a_body_that_is_not_what_was_written_is_kept_byte_for_byte_where_it_may_be_shown(damaged: bytes) -> None:
    made = msgspec.structs.replace(record(codec.StepBody()), body=damaged)
    shown = exported.line(*PLACE, made, shown=True)
    assert base64.b64decode(shown["damaged"]) == damaged
    assert exported.line(*PLACE, made, shown=False)["damaged"] is None
    assert {"body", "redacted"}.isdisjoint(shown)
    # Read back, it still says which bytes were there, and still fits no checksum.
    assert exported.parse_line(shown)[2].body == shown["damaged"].encode()


@pytest.mark.parametrize("lacking", ["namespace", "run", "body", "slot", "check"])
def test_a_line_that_lacks_something_is_refused(lacking: str) -> None:
    line: dict[str, Any] = exported.line(*PLACE, record(codec.StepBody()), shown=True)
    del line[lacking]
    with pytest.raises(UsageError):
        exported.parse_line(line)


@pytest.mark.rule("N6")
def test_no_placeholder_stands_for_a_proof_where_a_person_says_that_there_is_none() -> None:
    assert exported.redact({"happened": False, "proof": None})["proof"] is None
    assert exported.redact({"happened": True, "proof": "m1"})["proof"] != "m1"
