"""A run's own records: its start, its end, and what pruning keeps."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from counterfoil.effects.carry import carrier_of, claim
from counterfoil.effects.record import record
from counterfoil.effects.scope import Scope
from counterfoil.errors import Conflict, Denied, NameConflict, RunPruned, UsageError
from counterfoil.protocol import codec, records, slots, states
from counterfoil.protocol.history import History, look
from counterfoil.protocol.records import Draft
from counterfoil.protocol.requests import Read


async def start(scope: Scope, body_name: str, args: bytes, *, check: Callable[[], None] | None = None) -> bytes | None:
    """Record a run's start; return the recorded result as JSON if it is finished already.

    Args:
        scope: the run.
        body_name: what its body is found by.
        args: the body's arguments as JSON.
        check: raises UsageError if the body cannot be called with them; asked before a start is recorded.

    Raises:
        NameConflict: the run was started with another body or other arguments.
        Denied: it is quarantined.
    """
    await Read()
    not_pruned(scope)
    standing = scope.history.get(slots.STARTED)
    if standing is None:
        if (result := result_of(scope.history)) is not None:
            return result
        if check is not None:
            check()
        body = codec.StartedBody(body=body_name, args=msgspec.Raw(args))
        draft = Draft(slot=slots.STARTED, kind=records.RUN, phase="started", body=codec.body_of(body), decision=True)
        standing = (await record(draft)).record
    first = scope.history.parse(standing, codec.StartedBody)
    if first.body != body_name or bytes(first.args) != args:
        raise NameConflict(
            f"run {scope.run!r} was started with {first.body} and its own arguments; this call has another body "
            "or other arguments",
            hint="give a different run a different id",
        )
    if (result := result_of(scope.history)) is None:
        not_quarantined(scope)
        # So that a scan for what was left behind sees who carries it now.
        await claim(scope)
    return result


def started(history: History) -> codec.StartedBody | None:
    """Return what a run was started with, or None if it was not started by `execute`."""
    found = history.get(slots.STARTED)
    return None if found is None else history.parse(found, codec.StartedBody)


def not_quarantined(scope: Scope) -> None:
    """Refuse a run that nobody shall carry.

    Raises:
        Denied: with the code `quarantined`.
    """
    carrier = carrier_of(scope.history)
    if carrier is not None and carrier.quarantine:
        raise Denied(
            f"run {scope.run!r} is quarantined: {carrier.deaths} lives in a row ended while they carried its body",
            code="quarantined",
            hint="find out why, then `counterfoil lift` it",
        )


def not_pruned(scope: Scope) -> None:
    """Refuse a pruned run.

    Raises:
        RunPruned: with the run's recorded result as its `outcome`.
    """
    if scope.history.pruned:
        result = codec.decode(result_of(scope.history) or b"null")
        raise RunPruned(f"run {scope.run!r} was pruned; its tombstone keeps its result", outcome=result)


async def finish(scope: Scope, result: bytes, *, unasked: tuple[str, ...] = ()) -> None:
    """Record a run's end and its result, and what the body no longer asked for; durable on return.

    Raises:
        Conflict: it was finished with another result.
        OwnerRetired: this owner was taken for gone; ending a run is a decision.
    """
    not_pruned(scope)
    standing = scope.history.finished
    if standing is None:
        body = codec.body_of(codec.FinishedBody(result=msgspec.Raw(result), unasked=unasked))
        draft = Draft(slot=slots.FINISHED, kind=records.RUN, phase="finished", body=body, decision=True)
        standing = (await record(draft)).record
    if bytes(scope.history.parse(standing, codec.FinishedBody).result) != result:
        raise Conflict(f"run {scope.run!r} was finished with another result", at=standing.at)


def result_of(history: History) -> bytes | None:
    """Return a finished run's result as JSON, or None."""
    found = history.finished
    return None if found is None else bytes(history.parse(found, codec.FinishedBody).result)


def keepers(history: History) -> tuple[list[Draft], list[str]]:
    """Say what pruning keeps of a finished run (identities, fingerprints, outcomes, notes) and what it drops.

    Raises:
        UsageError: the run is not finished, or an effect of it is unresolved or uncertain.
    """
    if history.finished is None:
        raise UsageError(f"run {history.run!r} is not finished; only finished runs are pruned")
    kept: list[Draft] = []
    for name in history.effect_names():
        seen = look(history, name)
        if seen.state not in states.FINAL or seen.state == states.UNCERTAIN:
            raise UsageError(f"effect {name!r} of run {history.run!r} is {seen.state}; it is never pruned")
        for attempt in seen.attempts:
            if attempt.outcome is None or attempt.ending is None or attempt.intent.phase == "buried":
                continue
            body = codec.BuriedBody(
                fingerprint=attempt.body.fingerprint,
                keep_key=attempt.body.keep_key,
                phase=attempt.outcome.phase,
                at=attempt.outcome.at,
                outcome=attempt.ending,
            )
            slot = slots.buried(name, attempt.number)
            kept.append(Draft(slot=slot, kind=records.EFFECT, phase="buried", body=codec.body_of(body)))
    # "closed" stands for the outcome where late evidence took the place of another attempt.
    stays = ("tombstone", "buried", "finished", "closed")
    dropped = [record.slot for record in history if record.kind != records.NOTE and record.phase not in stays]
    return kept, dropped
