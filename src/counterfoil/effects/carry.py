"""Who carries a run's body: one life at a time, and none any more once it has taken too many lives with it.

A life claims a run before it calls the body, so an attempt is on record before it begins. A life that stops of its own
accord (a worker that is told to end) releases its claim: the next one need not wait until it is gone, and nothing
is held against the body. Deaths are counted in a row: a life that recorded something new before it died begins the
count again, and while the run stands at a park its deaths say nothing about its body.
"""

from __future__ import annotations

from typing import Final

import msgspec

from counterfoil.effects.record import record
from counterfoil.effects.scope import NOTHING, Scope
from counterfoil.errors import Conflict, UsageError
from counterfoil.protocol import codec, records, slots
from counterfoil.protocol.history import History
from counterfoil.protocol.records import Draft, Record
from counterfoil.protocol.requests import Gone, Live, Read

DEATHS_MAX: Final = 5
UNASKED_MAX: Final = 1000
_OF_THE_BODY: Final = (records.STEP, records.TRANSACTION, records.EFFECT, records.PARK)


class Carrier(msgspec.Struct):
    """What the records say about who carries a run.

    Attributes:
        epoch: the life that claimed it last.
        number: of that claim; 0: the life that started the run.
        free: that life released it.
        deaths: how many lives in a row have died with it, if that life has.
        quarantine: number of the quarantine that stands, 0 if none does.
    """

    epoch: str = ""
    number: int = 0
    free: bool = False
    deaths: int = 0
    quarantine: int = 0


def carrier_of(history: History) -> Carrier | None:
    """Say who carries a run; None for one that was not started by `execute`.

    Raises:
        LedgerCorrupt: a record of the run's own cannot be decoded.
    """
    if history.get(slots.STARTED) is None:
        return None
    found = Carrier()
    for each in history:
        if each.kind == records.RUN or each.slot.startswith("run/"):
            history.parse(each, codec.EmptyBody)
            _add(found, each)
        elif each.kind in _OF_THE_BODY and each.epoch == found.epoch and not found.free:
            found.deaths = 1
    return found


def _add(found: Carrier, each: Record) -> None:
    if each.phase in ("started", "claimed"):
        found.number += each.phase == "claimed"
        found.epoch, found.free = each.epoch, False
        found.deaths += 1
    elif each.phase == "released":
        found.free, found.deaths = True, 0
    elif each.phase == "quarantined":
        found.quarantine = _number_of(each)
    elif each.phase == "lifted":
        found.quarantine = found.deaths = 0


def _number_of(each: Record) -> int:
    return int(each.slot.split("/")[2])


def parked(history: History) -> bool:
    """Say whether the run waits for a moment or for a delivery."""
    for each in history:
        if each.kind == records.PARK and each.phase == "armed":
            names = slots.names_in(each.slot)
            passed = slots.woken(names[0]) if len(names) == 1 else slots.event(*names)
            if history.get(passed) is None:
                return True
    return False


async def claim(scope: Scope, *, deaths_max: int | None = None) -> bool:
    """Take a run that nobody carries; False if somebody does, or if nobody shall.

    Args:
        scope: the run.
        deaths_max: quarantine it instead when so many lives in a row have died with it; None: never.
    """
    await Read()
    history = scope.history
    carrier = carrier_of(history)
    if carrier is None or carrier.quarantine or history.finished is not None or history.pruned:
        return False
    if not carrier.free:
        if await _ours(scope, carrier):
            return True
        if not await Gone(carrier.epoch):
            return False
    if deaths_max is not None and carrier.deaths >= deaths_max and not parked(history):
        await _quarantine(scope, carrier)
        return False
    slot = slots.claim(carrier.number + 1)
    return (await record(Draft(slot=slot, kind=records.RUN, phase="claimed", body=NOTHING, decision=True))).ours


async def _ours(scope: Scope, carrier: Carrier) -> bool:
    if carrier.epoch not in scope.own_epochs:
        return False
    # A life that was taken for gone has a fresh epoch since, and what it had claimed is anybody's.
    return not scope.owned or carrier.epoch == scope.epoch or (await Live() and carrier.epoch == scope.epoch)


async def _quarantine(scope: Scope, carrier: Carrier) -> None:
    number = 1
    while scope.history.get(slots.quarantine(number)) is not None:
        number += 1
    body = codec.body_of(codec.QuarantinedBody(deaths=carrier.deaths))
    slot = slots.quarantine(number)
    await record(Draft(slot=slot, kind=records.RUN, phase="quarantined", body=body, decision=True))


async def let_go(scope: Scope) -> None:
    """Release the own claim, durably: another life may take it at once, and no death is counted."""
    await Read()
    carrier = carrier_of(scope.history)
    if carrier is None or carrier.free or scope.history.finished is not None or not await _ours(scope, carrier):
        return
    slot = slots.claim_released(carrier.number)
    await record(Draft(slot=slot, kind=records.RUN, phase="released", body=NOTHING))


async def lift(scope: Scope, *, by: str, reason: str) -> None:
    """Lift a quarantine, durably; the count of deaths begins anew.

    Raises:
        UsageError: the run is not quarantined.
        Conflict: somebody else lifted it first.
    """
    await Read()
    carrier = carrier_of(scope.history)
    if carrier is None or not carrier.quarantine:
        raise UsageError(f"run {scope.run!r} is not quarantined")
    body = codec.body_of(codec.LiftedBody(by=by, reason=reason))
    slot = slots.lifted(carrier.quarantine)
    filled = await record(Draft(slot=slot, kind=records.RUN, phase="lifted", body=body, decision=True))
    if not filled.ours:
        first = scope.history.parse(filled.record, codec.LiftedBody)
        raise Conflict(f"somebody lifted the quarantine of run {scope.run!r} first", by=first.by, at=filled.record.at)


def unasked(history: History, asked: set[str]) -> tuple[str, ...]:
    """Return what is on record of a body that this execution of it did not ask for, in order of the first record."""
    heads = dict.fromkeys(slots.head(each.slot) for each in history if each.kind in _OF_THE_BODY)
    return tuple(head for head in heads if head not in asked)[:UNASKED_MAX]
