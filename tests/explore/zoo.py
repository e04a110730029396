"""Wrong variants of the protocol, each a mistake that somebody has made; the explorer must catch every one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from counterfoil.effects import asking, conclude
from counterfoil.effects import effect as effects
from counterfoil.effects import record as recording
from counterfoil.errors import CommitUnknown, LedgerUnavailable
from counterfoil.outcomes import Evidence
from counterfoil.protocol import codec
from counterfoil.protocol.history import evidence_body, look
from counterfoil.protocol.records import record_of
from counterfoil.protocol.requests import Append, Filled, Read

Patch = Callable[[Any], None]


@contextmanager
def patched(module: Any, **names: Any) -> Iterator[None]:
    """Replace functions of a module for a while."""
    kept = {name: getattr(module, name) for name in names}
    for name, value in names.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(module, name, value)


async def _run_again(scope: Any, call: Any, attempt: Any, *, kind: str) -> None:
    await effects._perform(scope, call, attempt)


async def _call_it_failed(scope: Any, call: Any, attempt: Any, *, kind: str) -> None:
    body = codec.OutcomeBody(via="reconcile", evidence=evidence_body(Evidence("not-found")))
    await conclude.conclude(scope, call, attempt.number, phase="failed", body=body, ran="no", decision=True)


async def _assume_it_worked(draft: Any, *, settle: Any = None) -> Filled:
    try:
        return await Append(draft, settle)
    except CommitUnknown as lost:
        return Filled(record_of(recording.entry_of(lost), 1_000_000), ours=True)


async def _settle_by_reading(draft: Any, *, settle: Any = None) -> Filled:
    try:
        return await Append(draft, settle)
    except CommitUnknown as lost:
        # "A reader would see it": but an open commit is invisible to a reader.
        await Read()
        raise LedgerUnavailable("not there, so it did not commit") from lost


async def _outside_the_slot(scope: Any, call: Any, number: int, *, draft: Any, **_: Any) -> None:
    # Look first, then send, whoever filled the slot meanwhile.
    try:
        await recording.record(draft)
    except CommitUnknown as error:
        raise LedgerUnavailable("unknown", effect_ran="no") from error
    await effects._perform(scope, call, look(scope.history, call.name).attempts[number - 1])


async def _nobody_lives(scope: Any, attempt: Any) -> bool:
    return True


def _long_ago(scope: Any, attempt: Any, *, ended: Any, started: Any) -> float:
    return 1e9


ZOO: dict[str, Callable[[], Any]] = {
    "run again on not found": lambda: patched(asking, _not_found=_run_again),
    "failed on not found": lambda: patched(asking, _not_found=_call_it_failed),
    "assume the commit worked": lambda: patched(effects, record=_assume_it_worked),
    "settle a commit by reading": lambda: patched(effects, record=_settle_by_reading),
    "claim outside the slot": lambda: patched(effects, _claim=_outside_the_slot),
    "reconcile while the owner lives": lambda: patched(effects, over=_nobody_lives),
    "uncertain inside the visibility time": lambda: patched(asking, _elapsed=_long_ago),
}
