"""A transaction's receipt: what it holds, which slot it takes, and how a lost COMMIT is settled."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from counterfoil import NameConflict, UsageError
from counterfoil.effects.transaction import ATTEMPTS_MAX, TransactionCall, recorded, transaction
from counterfoil.errors import CommitUnknown, LedgerCorrupt, LedgerUnavailable
from counterfoil.protocol import codec, records, slots
from counterfoil.protocol.records import Draft
from counterfoil.protocol.requests import Append
from tests.protocol.play import Play, never


def book(**more: Any) -> TransactionCall:
    given: dict[str, Any] = {"name": "book", "body": lambda cursor: 7, "inputs": b"[1]", "encode": msgspec.json.encode}
    return TransactionCall(**{**given, **more})


def lost() -> CommitUnknown:
    error = CommitUnknown("no answer")
    error.entry = None  # type: ignore[attr-defined]
    return error


def aborted(play: Play, number: int) -> None:
    play.known(slots.transaction("book", number), "aborted", codec.EmptyBody(), kind=records.TRANSACTION)


@pytest.mark.rule("T1")
def test_a_receipt_says_what_was_written_and_promises_nothing_else() -> None:
    play = Play()
    play.staged = 2
    assert play.run(transaction(play.scope, book())) == b"7"
    (request,) = play.requests
    draft: Draft = request.draft  # type: ignore[attr-defined]
    assert draft == Draft(
        slot=slots.transaction("book", 1), kind=records.TRANSACTION, phase="committed", body=b"", decision=True
    )
    assert play.body(draft.slot, codec.TransactionBody) == codec.TransactionBody(
        result=msgspec.Raw(b"7"), fingerprint=play.scope.fingerprint(b"[1]"), staged=2, promise="local-intent-durable"
    )
    # It is answered from the record from now on.
    assert recorded(play.scope, "book", b"[1]") == recorded(play.scope, "book", None) == b"7"
    assert play.run(transaction(play.scope, book(body=never))) == b"7"
    assert recorded(play.scope, "other", None) is None
    flow = transaction(play.scope, book(inputs=b"[2]"))
    for again in (lambda: recorded(play.scope, "book", b"[2]"), lambda: play.run(flow)):
        with pytest.raises(NameConflict, match="'book'"):
            again()


@pytest.mark.rule("T1")
def test_what_a_body_raises_passes_and_records_nothing() -> None:
    play = Play()
    failure = ConnectionError()

    def body(cursor: Any) -> Any:
        raise failure

    with pytest.raises(ConnectionError) as raised:
        play.run(transaction(play.scope, book(body=body)))
    assert raised.value is failure
    assert play.records == []


@pytest.mark.rule("T4")
def test_a_lost_commit_that_did_not_land_is_settled_as_aborted_and_the_next_number_is_tried() -> None:
    play = Play()
    errors = iter([lost()])
    play.refusing = lambda draft: next(errors, None)
    assert play.run(transaction(play.scope, book())) == b"7"
    assert [(record.slot, record.kind, record.phase, record.body) for record in play.records[:1]] == [
        (slots.transaction("book", 1), records.TRANSACTION, "aborted", b"{}")
    ]
    assert play.body(slots.transaction("book", 2), codec.TransactionBody).result == msgspec.Raw(b"7")
    # It stands in the way of the lost commit, whatever its own append's end: nothing is settled but the slot.
    (settling,) = [each for each in play.requests if isinstance(each, Append)]
    assert settling.settle is None


@pytest.mark.rule("T4")
def test_a_lost_commit_that_landed_is_found_and_the_body_is_not_called_again() -> None:
    play = Play()
    calls: list[int] = []

    def body(cursor: Any) -> int:
        calls.append(1)
        return 7

    def refuse(draft: Draft) -> BaseException | None:
        if draft.phase != "committed":
            return None
        play._fill(play._entry(draft, "2.me"))
        return lost()

    play.refusing = refuse
    assert play.run(transaction(play.scope, book(body=body))) == b"7"
    assert (calls, len(play.records)) == ([1], 1)


@pytest.mark.rule("T4")
def test_a_lost_commit_that_cannot_be_settled_leaves_it_unknown_and_says_to_call_again() -> None:
    play = Play()
    refusals = [lost()]
    play.refusing = lambda draft: refusals[0] if draft.phase == "committed" else LedgerUnavailable("no")
    with pytest.raises(CommitUnknown) as raised:
        play.run(transaction(play.scope, book()))
    assert raised.value is refusals[0]
    assert raised.value.effect_ran == "unknown"
    assert "call again" in str(raised.value.hint)


@pytest.mark.rule("T4")
def test_only_the_losses_of_this_call_are_counted_and_after_ten_nothing_was_written() -> None:
    play = Play()
    for number in range(1, 15):
        aborted(play, number)
    play.refusing = lambda draft: lost() if draft.phase == "committed" else None
    with pytest.raises(LedgerUnavailable) as raised:
        play.run(transaction(play.scope, book()))
    assert (raised.value.code, raised.value.effect_ran) == ("commit-lost", "no")
    assert len(play.records) == 14 + ATTEMPTS_MAX
    play.refusing = lambda draft: None
    assert play.run(transaction(play.scope, book())) == b"7"


@pytest.mark.rule("L4", "T1")
def test_a_record_that_must_not_be_in_a_transactions_slot_keeps_its_body_from_being_called() -> None:
    for kind, phase in ((records.STEP, "result"), (records.TRANSACTION, "result"), (records.STEP, "aborted")):
        play = Play()
        play.known(slots.transaction("book", 1), phase, codec.EmptyBody(), kind=kind)
        with pytest.raises(LedgerCorrupt):
            play.run(transaction(play.scope, book(body=never)))
    play = Play()
    aborted(play, 1)
    play.known(slots.transaction("book", 2), "aborted", codec.EmptyBody(), kind=records.STEP)
    with pytest.raises(LedgerCorrupt):
        recorded(play.scope, "book", None)


@pytest.mark.rule("T1")
def test_a_finished_run_says_which_transaction_it_does_not_take() -> None:
    play = Play()
    play.known(slots.FINISHED, "finished", codec.FinishedBody(), kind=records.RUN)
    with pytest.raises(UsageError, match="transaction 'book'"):
        play.run(transaction(play.scope, book(body=never)))
