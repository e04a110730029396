"""A transaction: a body's writes to the application's own database, and the record of its result, in one commit.

A COMMIT whose reply is lost is settled by filling the receipt's own slot with `aborted`. If that is refused, the
receipt is there, and with it the writes; if it wins, the lost COMMIT can no longer succeed, whatever is still
on its way, and the body may run again under the next slot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from counterfoil.effects.record import insist
from counterfoil.effects.scope import NOTHING, Scope
from counterfoil.errors import CommitUnknown, LedgerCorrupt, LedgerError, LedgerUnavailable, NameConflict
from counterfoil.protocol import codec, records, slots, states
from counterfoil.protocol.records import Draft, Record
from counterfoil.protocol.requests import Raised, Transact

ATTEMPTS_MAX: Final = 10
PROMISE: Final = "local-intent-durable"


class TransactionCall(msgspec.Struct):
    """What a caller gave for a transaction.

    Args:
        name: the transaction's name.
        body: writes through the connection that it is given, and returns the result.
        inputs: canonical JSON of its inputs, or None.
        encode: turns a result into canonical JSON.
    """

    name: str
    body: Callable[[Any], Any]
    inputs: bytes | None
    encode: Callable[[Any], bytes]


def recorded(scope: Scope, name: str, inputs: bytes | None) -> bytes | None:
    """Return a transaction's recorded result as JSON, or None.

    Raises:
        NameConflict: it was recorded for other inputs.
        LedgerCorrupt: one of its records cannot be decoded.
    """
    return _folded(scope, name, inputs)[0]


async def transaction(scope: Scope, call: TransactionCall) -> bytes:
    """Return the result as JSON; when it returns, the application's writes and the result are durable together.

    Raises:
        LedgerUnavailable: see its `effect_ran`: `no`, nothing was written; `unknown`, nobody can say.
    """
    first: int | None = None
    while True:
        found, number = _folded(scope, call.name, call.inputs)
        if found is not None:
            return found
        scope.open_for("transaction", call.name)
        first = number if first is None else first
        if number - first >= ATTEMPTS_MAX:
            raise LedgerUnavailable(
                f"transaction {call.name!r}: the reply to its COMMIT was lost {ATTEMPTS_MAX} times, and it is settled "
                "each time that nothing was written",
                code="commit-lost",
                effect_ran="no",
            )
        slot = slots.transaction(call.name, number)
        draft = Draft(slot=slot, kind=records.TRANSACTION, phase="committed", body=b"", decision=True)
        try:
            reply = await Transact(draft, call.body, _receipt(scope, call))
        except CommitUnknown as lost:
            await _settle(slot, lost)
            continue
        if isinstance(reply, Raised):
            raise reply.error


async def _settle(slot: str, lost: CommitUnknown) -> None:
    lost.hint = "call again under this name: what is recorded is returned, and nothing is applied twice"
    try:
        await insist(Draft(slot=slot, kind=records.TRANSACTION, phase="aborted", body=NOTHING), None, lost)
    except LedgerError as error:
        if error is lost:
            raise
        raise lost from error


def _receipt(scope: Scope, call: TransactionCall) -> Callable[[Any, int], bytes]:
    def body_of(value: Any, staged: int) -> bytes:
        return codec.body_of(
            codec.TransactionBody(
                result=msgspec.Raw(call.encode(value)),
                fingerprint=scope.fingerprint(call.inputs),
                staged=staged,
                promise=PROMISE,
            )
        )

    return body_of


def _folded(scope: Scope, name: str, inputs: bytes | None) -> tuple[bytes | None, int]:
    """Return the result, or None and the number of the slot that is still open."""
    number = 1
    state: str | None = states.ABSENT
    while state is not None and (found := scope.history.get(slots.transaction(name, number))) is not None:
        state = None if found.kind != records.TRANSACTION else states.TRANSACTION.next(state, found.phase)
        if state == "done":
            return _result(scope, name, inputs, found=found), number
        scope.history.parse(found, codec.EmptyBody)
        number += 1
    if state is None:
        raise LedgerCorrupt(
            f"a record in a slot of transaction {name!r} must not be there",
            hint="run `counterfoil verify`; the body was not called",
        )
    return None, number


def _result(scope: Scope, name: str, inputs: bytes | None, *, found: Record) -> bytes:
    body = scope.history.parse(found, codec.TransactionBody)
    if not scope.same_fingerprint(inputs, body.fingerprint):
        raise NameConflict(
            f"transaction {name!r} of run {scope.run!r} is recorded for other inputs",
            hint="give different work a different name",
        )
    return bytes(body.result)
