"""Parks: a sleep, a wait for a delivery, and the delivery."""

from __future__ import annotations

import msgspec

from counterfoil.effects.lifetime import not_pruned
from counterfoil.effects.record import record
from counterfoil.effects.scope import NOTHING, Scope
from counterfoil.effects.step import ARM_S_MAX, until
from counterfoil.errors import DeliveryConflict
from counterfoil.protocol import codec, records, slots
from counterfoil.protocol.records import Draft
from counterfoil.protocol.requests import Now, Pause, Read


async def sleep(scope: Scope, name: str, seconds: float) -> None:
    """Return when the deadline, recorded once, has passed; its passing is recorded too.

    That it has passed is durable, so a clock that goes backwards later does not repeat the sleep.
    """
    if slept(scope, name):
        return
    ours = False
    if (armed := scope.history.get(slots.sleep(name))) is None:
        scope.open_for("sleep", name)
        body = codec.ArmedBody(deadline=(await Now()).wall + seconds)
        draft = Draft(slot=slots.sleep(name), kind=records.PARK, phase="armed", body=codec.body_of(body))
        filled = await record(draft)
        armed, ours = filled.record, filled.ours
    deadline = scope.history.parse(armed, codec.ArmedBody).deadline
    assert deadline is not None
    await until(deadline, at_most_s=seconds if ours else max(seconds, deadline - armed.at))
    await record(Draft(slot=slots.woken(name), kind=records.PARK, phase="woken", body=NOTHING))


def slept(scope: Scope, name: str) -> bool:
    """Say whether this sleep has passed once.

    Raises:
        LedgerCorrupt: one of its records cannot be decoded.
    """
    if (woken := scope.history.get(slots.woken(name))) is None:
        return False
    scope.history.parse(woken, codec.EmptyBody)
    if (armed := scope.history.get(slots.sleep(name))) is not None:
        scope.history.parse(armed, codec.ArmedBody)
    return True


def delivered(scope: Scope, event: str, event_id: str) -> bytes | None:
    """Return the payload on record for (event, id) as JSON, or None.

    Raises:
        LedgerCorrupt: the delivery, or the record of the wait, cannot be decoded.
    """
    if (parked := scope.history.get(slots.wait(event, event_id))) is not None:
        scope.history.parse(parked, codec.ArmedBody)
    if (found := scope.history.get(slots.event(event, event_id))) is None:
        return None
    return bytes(scope.history.parse(found, codec.DeliveredBody).payload)


async def wait_for(scope: Scope, event: str, event_id: str, *, timeout_s: float | None) -> bytes:
    """Return the payload delivered under (event, id) as JSON.

    Raises:
        TimeoutError: nothing came in time; nothing was recorded.
    """
    start = await Now()
    refreshed = False
    while True:
        if (found := delivered(scope, event, event_id)) is not None:
            return found
        if not refreshed:
            refreshed = True
            await Read()
            not_pruned(scope)
            if delivered(scope, event, event_id) is None:
                scope.open_for(f"event {event!r}, id {event_id!r}")
            continue
        now = await Now()
        rest = ARM_S_MAX if timeout_s is None else timeout_s - (now.mono - start.mono)
        if rest <= 0:
            raise TimeoutError(f"nothing was delivered for {event!r}, id {event_id!r}, in {timeout_s:g} s")
        if timeout_s is None and scope.history.get(slots.wait(event, event_id)) is None:
            scope.open_for(f"event {event!r}, id {event_id!r}")
            body = codec.body_of(codec.ArmedBody())
            await record(Draft(slot=slots.wait(event, event_id), kind=records.PARK, phase="armed", body=body))
            await Read()
            continue
        await Pause(min(rest, ARM_S_MAX))
        await Read()


async def deliver(scope: Scope, event: str, event_id: str, *, payload: bytes, by: str | None) -> bool:
    """Record a delivery once: True if this one was recorded, False if an equal one was there.

    Raises:
        DeliveryConflict: another payload came first.
        UsageError: the run is finished and nothing was delivered under this id.
    """
    slot = slots.event(event, event_id)
    await Read()
    standing = scope.history.get(slot)
    if standing is None:
        scope.open_for(f"event {event!r}, id {event_id!r}")
        body = codec.DeliveredBody(payload=msgspec.Raw(payload), by=by)
        filled = await record(Draft(slot=slot, kind=records.EVENT, phase="delivered", body=codec.body_of(body)))
        if filled.ours:
            return True
        standing = filled.record
    first = scope.history.parse(standing, codec.DeliveredBody)
    if bytes(first.payload) == payload:
        return False
    raise DeliveryConflict(
        f"another payload was delivered first for {event!r}, id {event_id!r}"
        f", by {first.by or 'an unnamed owner'}; ids are single-use",
        by=first.by,
        at=standing.at,
    )
