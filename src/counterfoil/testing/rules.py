"""The rules that must hold at every moment of an explored or simulated world."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from msgspec.structs import replace

from counterfoil.outcomes import Accepted
from counterfoil.protocol import codec, slots, states
from counterfoil.protocol.history import Attempt, look
from counterfoil.protocol.keys import effect_key
from counterfoil.protocol.requests import Call, Request
from counterfoil.testing.world import NAMESPACE, RUN, World, ask, perform, proof, who

ATTEMPTS_MAX: Final = 6


class Violation(Exception):
    """A rule that does not hold, in a sentence that begins with its id."""


class Rules:
    """Checks worlds.

    Args:
        names: the effects that may be called.
        visible: whether look-ups are checked against the visibility time (not where clocks are set).
    """

    def __init__(self, names: Iterable[str], *, visible: bool = True) -> None:
        self._names = list(names)
        self._visible = visible
        self._keys = {
            effect_key(NAMESPACE, RUN, name, attempt=number): (name, number)
            for name in self._names
            for number in range(1, ATTEMPTS_MAX + 1)
        }

    def may(self, world: World, life: str, request: Request[Any]) -> None:
        """Check what a life is about to do.

        Raises:
            Violation: it must not.
        """
        if isinstance(request, Call) and request.handler is perform:
            self._may_perform(world, life, request.key)
        elif isinstance(request, Call) and request.handler is ask:
            self._may_ask(world, life, request.key)

    def _may_perform(self, world: World, life: str, key: str) -> None:
        name, number = self._keys[key]
        intent = world.slot(slots.intent(name, number))
        if intent is None or intent.epoch != life:
            raise Violation(f"E1/L3: {who(life)} sends {name} without holding the intent of attempt {number}")
        if key in world.sent:
            raise Violation(f"E2: {who(life)} sends attempt {number} of {name} a second time")
        for earlier in range(1, number):
            before = effect_key(NAMESPACE, RUN, name, attempt=earlier)
            if before in world.flying or any(before == landed for landed, _ in world.landed):
                raise Violation(f"E14: {who(life)} sends {name} again though an earlier attempt happened or still may")

    def _may_ask(self, world: World, life: str, key: str) -> None:
        name, number = self._keys[key]
        intent = world.slot(slots.intent(name, number))
        if intent is None or intent.epoch == life or intent.epoch in world.dead | world.retired:
            return
        if world.slot(slots.released(name, number)) is None:
            raise Violation(f"E8: {who(life)} asks about {name} while its owner {who(intent.epoch)} lives")

    def check(self, world: World) -> None:
        """Check a state of the world.

        Raises:
            Violation: it must not come about.
        """
        if len({name for name, _ in world.returned}) != len(world.returned):
            raise Violation(f"E2: callers were given different outcomes: {sorted(world.returned)}")
        history = world.history()
        for name in self._names:
            for attempt in look(history, name).attempts:
                self._check_attempt(world, name, attempt)

    def _check_attempt(self, world: World, name: str, attempt: Attempt) -> None:
        if attempt.outcome is None or attempt.ending is None:
            return
        key = effect_key(NAMESPACE, RUN, name, attempt=attempt.number)
        what = f"attempt {attempt.number} of {name}"
        phase = attempt.outcome.phase
        landed = any(key == of for of, _ in world.landed)
        if phase == states.ACCEPTED and not (landed and codec.decode(bytes(attempt.ending.proof)) == proof(key)):
            raise Violation(f"O1: {what} is accepted and the recipient has nothing")
        if phase in (states.FAILED, states.REJECTED) and (landed or key in world.flying - world.closed):
            raise Violation(f"O4: {what} is {phase} and it happened, or still may")
        if phase == states.UNCERTAIN:
            self._check_uncertain(world, what, attempt, sent=key in world.sent)

    def _check_uncertain(self, world: World, what: str, attempt: Attempt, *, sent: bool) -> None:
        assert attempt.outcome is not None
        assert attempt.ending is not None
        if not sent and not attempt.body.restored and attempt.intent.epoch not in world.dead | world.retired:
            raise Violation(f"E2: {what} is uncertain, and its living owner knows that it never sent it")
        evidence = attempt.ending.evidence
        visibility = attempt.body.visibility_s
        if not self._visible or not visibility or evidence is None or evidence.kind != "not-found":
            return
        ended = attempt.outcome if attempt.released is None else attempt.released
        if attempt.outcome.at - ended.at < visibility:
            raise Violation(f"E9: {what} is uncertain inside its visibility of {visibility:g} s")


def returned(world: World, name: str, outcome: Any) -> World:
    """Note what a caller was given."""
    if isinstance(outcome, Accepted):
        text = f"accepted {bytes(outcome.proof).decode()}"
    else:
        text = f"{type(outcome).__name__.lower()} {outcome.evidence.kind}"
    return replace(world, returned=world.returned | {(name, text)})
