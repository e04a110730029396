"""Entries and records: what a driver and a store make of a draft, with nothing added and nothing lost."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from counterfoil.protocol import records
from counterfoil.protocol.records import Draft, Entry, checksum, entry_of, record_of, with_body

PLACE = ("shop", "order-42", "effect/mail/1/intent")


def entry(body: bytes = b"{}", **changed: Any) -> Entry:
    words: dict[str, Any] = {"kind": records.EFFECT, "phase": "intent", "epoch": "2.me", "append_id": 7}
    check = checksum(*PLACE, body=body, **words)
    return msgspec.convert(
        {
            **dict(zip(("namespace", "run", "slot"), PLACE, strict=True)),
            **words,
            "body": body,
            "at": 5.0,
            "check": check,
        }
        | changed,
        Entry,
    )


@pytest.mark.rule("L8")
@pytest.mark.parametrize("decision", [True, False])
def test_an_entry_is_its_draft_in_its_place_and_says_whether_a_retired_owner_may_record_it(decision: bool) -> None:
    draft = Draft(slot=PLACE[2], kind=records.EFFECT, phase="intent", body=b"{}", decision=decision)
    made = entry_of(draft, *PLACE[:2], epoch="2.me", append_id=7, at=5.0)
    assert made == entry(decision=decision)


@pytest.mark.rule("L4")
def test_an_entry_that_is_completed_by_its_body_is_as_if_it_had_been_made_with_it() -> None:
    assert with_body(entry(b"", decision=True, format=9), b"[1]") == entry(b"[1]", decision=True, format=9)


@pytest.mark.rule("L1", "L4")
@pytest.mark.parametrize("version", [records.FORMAT, records.FORMAT + 1])
def test_a_record_is_its_entry_at_a_position_in_the_format_that_it_was_written_in(version: int) -> None:
    made = record_of(entry(format=version), 3)
    kept = {
        name: value
        for name, value in msgspec.structs.asdict(entry(format=version)).items()
        if name in made.__struct_fields__
    }
    assert msgspec.structs.asdict(made) == {"position": 3, **kept}
    assert set(made.__struct_fields__) == {"position", *kept}


@pytest.mark.rule("L4")
def test_a_checksum_is_what_it_always_was_and_looks_at_all_that_identifies_a_record() -> None:
    assert entry().check == 3221592602
    words: dict[str, Any] = {"kind": "k", "phase": "p", "body": b"b", "epoch": "e", "append_id": 1}
    plain = checksum("n", "r", "s", **words)
    places = [("N", "r", "s"), ("n", "R", "s"), ("n", "r", "S")]
    others = [checksum(*place, **words) for place in places]
    changes: list[dict[str, Any]] = [{"kind": "K"}, {"phase": "P"}, {"body": b"B"}, {"epoch": "E"}, {"append_id": 2}]
    others += [checksum("n", "r", "s", **{**words, **change}) for change in changes]
    assert len({plain, *others}) == 1 + len(others)
