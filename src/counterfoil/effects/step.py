"""A step: a computation whose result is recorded after it; it may run again after a crash."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import msgspec

from counterfoil.effects.record import record
from counterfoil.effects.scope import Scope
from counterfoil.errors import NameConflict
from counterfoil.protocol import codec, records, slots
from counterfoil.protocol.records import Draft
from counterfoil.protocol.requests import Call, Now, Pause, Raised, Returned
from counterfoil.protocol.retries import next_due

# Long timers are armed again, so that a suspended machine or a changed clock is noticed.
ARM_S_MAX: Final = 60.0


class StepCall(msgspec.Struct):
    """What a caller gave for a step.

    Args:
        name: the step's name.
        body: computes the result.
        inputs: canonical JSON of its inputs, or None.
        retry: bounds for repeating a body that raised, or None.
        encode: turns a result into canonical JSON.
    """

    name: str
    body: Callable[..., Any]
    inputs: bytes | None
    retry: codec.RetryBody | None
    encode: Callable[[Any], bytes]


def recorded(scope: Scope, name: str, inputs: bytes | None) -> bytes | None:
    """Return a step's recorded result as JSON, or None.

    Raises:
        NameConflict: it was recorded for other inputs.
        LedgerCorrupt: its record cannot be decoded.
    """
    found = scope.history.get(slots.step(name))
    if found is None:
        return None
    body = scope.history.parse(found, codec.StepBody)
    if not scope.same_fingerprint(inputs, body.fingerprint):
        raise NameConflict(
            f"step {name!r} of run {scope.run!r} is recorded for other inputs",
            hint="give different work a different name",
        )
    return bytes(body.result)


async def step(scope: Scope, call: StepCall) -> bytes:
    """Return the step's result as JSON; when it returns, the result is durable.

    The body's exception propagates and records nothing, unless a retry policy allows another attempt.
    """
    while True:
        found = recorded(scope, call.name, call.inputs)
        if found is not None:
            return found
        scope.open_for("step", call.name)
        number = 1
        while (failed := scope.history.get(slots.step_failed(call.name, number))) is not None:
            number += 1
            due = scope.history.parse(failed, codec.StepFailedBody).due
            await until(due, at_most_s=longest(call.retry))
        reply = await Call(call.body)
        if isinstance(reply, Returned):
            body = codec.StepBody(
                result=msgspec.Raw(call.encode(reply.value)), fingerprint=scope.fingerprint(call.inputs)
            )
            await record(Draft(slot=slots.step(call.name), kind=records.STEP, phase="result", body=codec.body_of(body)))
            continue
        assert isinstance(reply, Raised)
        if not await _retry(scope, call, number, error=reply.error):
            raise reply.error


async def _retry(scope: Scope, call: StepCall, number: int, *, error: BaseException) -> bool:
    if call.retry is None or not isinstance(error, Exception):
        return False
    now = (await Now()).wall
    first = scope.history.get(slots.step_failed(call.name, 1))
    due = next_due(call.retry, number, now=now, began=now if first is None else first.at)
    body = codec.StepFailedBody(error=type(error).__name__, due=due)
    await record(
        Draft(
            slot=slots.step_failed(call.name, number),
            kind=records.STEP,
            phase="failed",
            body=codec.body_of(body),
        )
    )
    return due is not None


def longest(retry: codec.RetryBody | None) -> float:
    """Return the longest wait between two attempts, in seconds."""
    return math.inf if retry is None else retry.backoff_max_s


async def until(due: float | None, *, at_most_s: float) -> None:
    """Wait for a moment on the wall clock, which may be set forward and back meanwhile.

    Args:
        due: the moment, in seconds since 1970; None: it has passed.
        at_most_s: the longest wait that there can have been a reason for, on the monotonic clock; a clock that was
            set back before this call does not make it longer.
    """
    if due is None:
        return
    start = now = await Now()
    whole = min(due - start.wall, at_most_s)
    while now.wall < due and (rest := whole - (now.mono - start.mono)) > 0:
        await Pause(min(rest, due - now.wall, ARM_S_MAX), changes=False)
        now = await Now()
