"""Decisions: what a person found out about an effect that nobody else can settle."""

from __future__ import annotations

import msgspec

from counterfoil.effects.effect import over
from counterfoil.effects.record import record
from counterfoil.effects.scope import Scope
from counterfoil.effects.step import ARM_S_MAX
from counterfoil.errors import Conflict, UsageError
from counterfoil.outcomes import Decision
from counterfoil.protocol import codec, records, slots, states
from counterfoil.protocol.history import Effect, decision_of, look
from counterfoil.protocol.records import Draft
from counterfoil.protocol.requests import Now, Pause, Read


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a person says: whether it happened, as what, why, who they are, and what they had seen."""

    happened: bool
    proof: bytes = b"null"
    reason: str
    by: str
    expect_version: int
    new_name: str | None = None


async def decide(scope: Scope, name: str, verdict: Verdict, *, busy: bool = False) -> Decision:
    """Record a decision about an uncertain effect; durable on return. The outcome does not change.

    An effect that has no outcome is ended as `uncertain` first, if its `run` is over.

    Args:
        scope: the run.
        name: the effect.
        verdict: what the person says.
        busy: whether another flow of this life is at this effect right now.

    Raises:
        Conflict: somebody decided already, or the effect changed since it was read.
        UsageError: there is no such effect, it is not uncertain, or its owner is still performing it.
    """
    await Read()
    seen = look(scope.history, name)
    _decidable(scope, seen, verdict)
    if seen.state in (states.INTENDED, states.RELEASED):
        await _end(scope, seen, busy=busy)
    body = codec.DecisionBody(
        happened=verdict.happened,
        proof=msgspec.Raw(verdict.proof),
        reason=verdict.reason,
        by=verdict.by,
        seen_version=verdict.expect_version,
        new_name=verdict.new_name,
    )
    slot = slots.note(name, len(seen.notes) + 1)
    draft = Draft(slot=slot, kind=records.NOTE, phase="decision", body=codec.body_of(body), decision=True)
    filled = await record(draft)
    if not filled.ours:
        await Read()
        raise _changed(look(scope.history, name), verdict)
    return decision_of(filled.record, body)


def _decidable(scope: Scope, seen: Effect, verdict: Verdict) -> None:
    if seen.state == states.ABSENT:
        raise UsageError(f"run {scope.run!r} has no effect {seen.name!r}; nothing was recorded")
    if seen.decision is not None or seen.version != verdict.expect_version:
        raise _changed(seen, verdict)
    if seen.state not in (states.UNCERTAIN, states.INTENDED, states.RELEASED):
        raise UsageError(f"effect {seen.name!r} is {seen.state}; only an uncertain one takes a decision")
    if verdict.new_name is not None and look(scope.history, verdict.new_name).attempts:
        raise UsageError(f"the new name {verdict.new_name!r} is in use already", hint="name one that is not")


def _changed(seen: Effect, verdict: Verdict) -> Conflict:
    if seen.decision is not None:
        record_, body = seen.decision
        return Conflict(
            f"effect {seen.name!r} was decided already by {body.by}",
            by=body.by,
            at=record_.at,
            code="already-decided",
        )
    return Conflict(
        f"effect {seen.name!r} changed: it has version {seen.version}, you saw {verdict.expect_version}",
        hint="look at it again before deciding",
        code="stale-version",
    )


async def _end(scope: Scope, seen: Effect, *, busy: bool) -> None:
    attempt = seen.last
    assert attempt is not None
    performing = busy and attempt.released is None and attempt.intent.epoch in scope.own_epochs
    if performing or not await over(scope, attempt):
        raise UsageError(
            f"the owner of effect {seen.name!r} is alive and performing it; only what is over can be decided",
            code="in-flight",
        )
    evidence = codec.EvidenceBody(kind="ended-by-person", phase="dispatched")
    body = codec.OutcomeBody(via="decision", evidence=evidence)
    draft = Draft(
        slot=slots.outcome(seen.name, attempt.number),
        kind=records.EFFECT,
        phase="uncertain",
        body=codec.body_of(body),
        decision=True,
    )
    if not (await record(draft)).ours:
        raise Conflict(f"effect {seen.name!r} got its outcome meanwhile", hint="look at it again before deciding")


async def decision(scope: Scope, name: str, *, timeout_s: float | None) -> Decision:
    """Wait for the decision about an effect. The first one stands, so a replay takes the same branch.

    Raises:
        TimeoutError: nobody decided in time; nothing was recorded.
    """
    start = await Now()
    while True:
        seen = look(scope.history, name)
        if seen.decision is not None:
            return decision_of(*seen.decision)
        if seen.state == states.ABSENT or (seen.state in states.FINAL and seen.state != states.UNCERTAIN):
            found = "not on record" if seen.state == states.ABSENT else seen.state
            raise UsageError(f"effect {name!r} of run {scope.run!r} is {found}; only an uncertain one is decided about")
        rest = ARM_S_MAX if timeout_s is None else timeout_s - ((await Now()).mono - start.mono)
        if rest <= 0:
            raise TimeoutError(f"nobody decided about effect {name!r} in {timeout_s:g} s")
        await Pause(min(rest, ARM_S_MAX))
        await Read()
