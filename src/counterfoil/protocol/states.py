"""Transition tables: what each record does to what it speaks of.

An effect goes through attempts. Each attempt is `absent` until its intent fills its slot; from then on the
attempt may have been sent. While `intended` the owner of the intent is performing it (or is gone); once
`released` anybody may ask the recipient. Only a record makes an outcome, the first one stays, and only an
attempt that is `retryable` is followed by another one: everything else is final. A fact that comes after an
outcome is late evidence, which changes nothing here.

The flows fold an effect's records through these tables, the history checker (`counterfoil verify`) accepts
nothing else, and the diagrams of the documentation are generated from them.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Row(msgspec.Struct, frozen=True):
    """One transition: in `state`, `event` leads to `next_state`; `meaning` says what it means."""

    state: str
    event: str
    next_state: str
    meaning: str


class Table:
    """A named transition table."""

    def __init__(self, name: str, *rows: Row) -> None:
        self.name = name
        self.rows = rows
        self._next = {(row.state, row.event): row.next_state for row in rows}

    def next(self, state: str, event: str) -> str | None:
        """Return where `event` leads from `state`, or None if that must not happen."""
        return self._next.get((state, event))


ABSENT: Final = "absent"
INTENDED: Final = "intended"
RELEASED: Final = "released"
RETRYABLE: Final = "retryable"
ACCEPTED: Final = "accepted"
REJECTED: Final = "rejected"
FAILED: Final = "failed"
UNCERTAIN: Final = "uncertain"
FINAL: Final = frozenset({ACCEPTED, REJECTED, FAILED, UNCERTAIN})

EFFECT: Final = Table(
    "effect",
    Row(ABSENT, "intent", INTENDED, "the right to send is taken; the effect may now happen"),
    Row(ABSENT, "closed", ACCEPTED, "evidence that an earlier attempt was accepted came before this intent"),
    Row(INTENDED, "released", RELEASED, "run is over without an outcome, or its owner is gone"),
    Row(INTENDED, "accepted", ACCEPTED, "the recipient named it"),
    Row(INTENDED, "rejected", REJECTED, "proved not dispatched; final"),
    Row(INTENDED, "rejected-due", RETRYABLE, "proved not dispatched; the retry policy allows another attempt"),
    Row(INTENDED, "failed", FAILED, "the recipient's protocol proves that it failed; final"),
    Row(INTENDED, "failed-due", RETRYABLE, "proved failed, and contract and policy allow another attempt"),
    Row(INTENDED, "uncertain", UNCERTAIN, "the owner is gone and a look-up found nothing"),
    Row(RELEASED, "accepted", ACCEPTED, "a look-up or other evidence names it"),
    Row(RELEASED, "rejected", REJECTED, "its own run proved that it was never dispatched; final"),
    Row(RELEASED, "rejected-due", RETRYABLE, "the same, and the retry policy allows another attempt"),
    Row(
        RELEASED,
        "failed",
        FAILED,
        "its own run proves failure, or the key was closed at the recipient; final",
    ),
    Row(RELEASED, "failed-due", RETRYABLE, "the same, and contract and policy allow another attempt"),
    Row(RELEASED, "uncertain", UNCERTAIN, "a look-up found nothing; nobody can know"),
    Row(INTENDED, "closed", INTENDED, "evidence that an earlier attempt was accepted bars the attempt after this"),
    Row(RELEASED, "closed", RELEASED, "evidence that an earlier attempt was accepted bars the attempt after this"),
    Row(RETRYABLE, "intent", INTENDED, "the next attempt takes the right to send"),
    Row(RETRYABLE, "closed", ACCEPTED, "evidence that an attempt was accepted came before the next intent"),
    *(
        Row(state, "released", state, "a release that lost against the outcome says nothing")
        for state in (ACCEPTED, REJECTED, FAILED, UNCERTAIN, RETRYABLE)
    ),
)

STEP: Final = Table(
    "step",
    Row(ABSENT, "failed", RETRYABLE, "an attempt raised; the retry policy allows another one"),
    Row(RETRYABLE, "failed", RETRYABLE, "another attempt raised"),
    Row(ABSENT, "result", "done", "the body's result is recorded"),
    Row(RETRYABLE, "result", "done", "a later attempt brought a result"),
)

TRANSACTION: Final = Table(
    "transaction",
    Row(ABSENT, "committed", "done", "the application's writes and the result were committed together"),
    Row(ABSENT, "aborted", RETRYABLE, "a COMMIT whose reply was lost is settled: it can no longer succeed"),
    Row(RETRYABLE, "committed", "done", "a later attempt was committed"),
    Row(RETRYABLE, "aborted", RETRYABLE, "another COMMIT was lost, and settled"),
)

PARK: Final = Table(
    "park",
    Row(ABSENT, "armed", "parked", "the deadline, or what is waited for, is recorded"),
    Row("parked", "woken", "passed", "the deadline has passed once; no clock brings it back"),
    Row("parked", "delivered", "passed", "the first delivery won"),
    Row(ABSENT, "delivered", "passed", "a delivery came before anybody waited"),
    Row("passed", "armed", "passed", "a wait that lost the race against its delivery"),
)
