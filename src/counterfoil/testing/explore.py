"""Exhaustive exploration of the real flows: every interleaving of a few processes, with every fault in bounds.

A flow is deterministic: what it asks for next depends only on the answers that it has got. So a process is
its life and its answers so far, a state is the world and its processes, and equal states are explored once.
Coroutines cannot be copied: the first answer to a state of a process goes on with its coroutine, and for every other
one it is made again from its answers.

    report = explore([sender("p1"), sender("p2")], faults=Faults(crashes=1, replies=1))
    print(report)                # how many states; or a counterexample, as a timeline
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from counterfoil.effects.effect import EffectCall, effect
from counterfoil.effects.evidence import settle
from counterfoil.effects.scope import Scope
from counterfoil.errors import EffectUnresolved, LedgerUnavailable, OwnerRetired
from counterfoil.protocol import codec
from counterfoil.protocol.keys import effect_key
from counterfoil.protocol.requests import Append, Call, Filled, Now, Pause, Read, Request, Returned
from counterfoil.testing.rules import Rules, Violation, returned
from counterfoil.testing.world import NAMESPACE, RUN, Faults, Options, World, ask, fresh_scope, hear, perform, who

Flow = Coroutine[Request[Any], Any, Any]
NAME: Final = "charge"
_RETIRED: Final = "retired"
_CALLS_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class Actor:
    """A process: its name, and the flow that each of its lives runs."""

    name: str
    script: Callable[[Scope], Flow]


def sender(name: str, **settings: Any) -> Actor:
    """A process that calls the effect until it has an outcome; settings are those of `EffectCall`."""
    given: dict[str, Any] = {"run": perform, "reconcile": ask, "wait_s": 0.0, "request": b'{"amount":1}'} | settings
    call = EffectCall(name=NAME, **given)

    async def script(scope: Scope) -> Any:
        await Read()
        for _ in range(_CALLS_MAX):
            try:
                return await effect(scope, call)
            except EffectUnresolved as error:
                if error.retry_after_s is not None:
                    await Pause(error.retry_after_s, changes=False)
            except OwnerRetired:
                return _RETIRED
            except LedgerUnavailable:
                pass
            await Read()
        return None

    return Actor(name, script)


def informant(name: str, attempt: int = 1) -> Actor:
    """A side channel (a webhook) that tells of an attempt once the recipient has acted on it."""
    key = effect_key(NAMESPACE, RUN, NAME, attempt=attempt)

    async def script(scope: Scope) -> Any:
        heard = await Call(hear, key=key)
        assert isinstance(heard, Returned)
        encoded = codec.encode(heard.value, what="the proof")
        for _ in range(_CALLS_MAX):
            try:
                await settle(scope, NAME, encoded, key=key, source="webhook", verifier=None)
            except LedgerUnavailable:
                continue
            return "told"
        return None

    return Actor(name, script)


class _Local:
    """One distinct state of one process: who it is, what it was answered, and what it asks for now."""

    __slots__ = ("_going", "answers", "broken", "children", "life", "request", "result", "script")

    def __init__(
        self, script: Callable[[Scope], Flow], life: str, *, answers: tuple[Any, ...] = (), going: _Going | None = None
    ) -> None:
        self.script = script
        self.life = life
        self.answers = answers
        self.children: dict[Any, _Local] = {}
        self.request: Request[Any] | None = None
        self.result: Any = None
        self.broken: Exception | None = None
        # Its coroutine after all answers, until a child goes on with it.
        self._going: _Going | None = None
        try:
            if going is None:
                going = _Going(script, life)
                for answer in answers:
                    going.give(answer)
            else:
                going.give(answers[-1])
        except StopIteration as done:
            self.result = done.value
        except Exception as error:  # noqa: BLE001 - it is what the exploration has found
            self.broken = error
        else:
            self.request, self._going = going.request, going

    def child(self, answer: Any) -> _Local:
        """Return the state after one more answer."""
        known = self.children.get(answer)
        if known is None:
            going, self._going = self._going, None
            known = _Local(self.script, self.life, answers=(*self.answers, answer), going=going)
            self.children[answer] = known
        return known


class _Going:
    """A flow that has begun, and what it asks for."""

    __slots__ = ("_flow", "_scope", "request")

    def __init__(self, script: Callable[[Scope], Flow], life: str) -> None:
        self._scope = fresh_scope(life)
        self._flow = script(self._scope)
        self.request: Request[Any] = self._flow.send(None)

    def give(self, answer: Any) -> None:
        """Answer it; it asks for something else then, or ends."""
        request = self.request
        if isinstance(answer, BaseException):
            answer.__traceback__ = None
            self.request = self._flow.throw(answer)
            return
        if isinstance(request, Append) and isinstance(answer, Filled):
            self._scope.history.take(answer.record)
        elif isinstance(request, Read):
            self._scope.history.add(answer)
            answer = None
        self.request = self._flow.send(answer)


@dataclass(slots=True)
class Report:
    """What an exploration found.

    Attributes:
        states: distinct states that were reached.
        ends: distinct worlds in which every process had ended.
        violation: the rule that broke, in a sentence; None if none did.
        timeline: what led there, one line per event.
        complete: False if `states_max` cut it short.
    """

    states: int = 0
    ends: int = 0
    violation: str | None = None
    timeline: list[str] = field(default_factory=list)
    complete: bool = True

    def __str__(self) -> str:
        if self.violation is None:
            bounds = "" if self.complete else " (cut short)"
            return f"{self.states:,} states, {self.ends:,} ends{bounds}: every rule held"
        return "\n".join([f"after {self.states:,} states: {self.violation}", *self.timeline])


State = tuple[World, tuple[_Local, ...]]


class Explorer:
    """Explores one scenario.

    Args:
        actors: the processes.
        faults: what may go wrong, and how often.
        options: how the recipient behaves.
        states_max: distinct states at most.
    """

    def __init__(
        self, actors: Sequence[Actor], *, faults: Faults, options: Options | None = None, states_max: int = 1_000_000
    ) -> None:
        self._actors = actors
        self._options = options or Options()
        self._rules = Rules([NAME])
        self._states_max = states_max
        self._starts: dict[tuple[int, int], _Local] = {}
        self._begin: State = (World(faults=faults), tuple(self._start(i, 1) for i in range(len(actors))))
        self._healed: dict[Any, str | None] = {}
        self._checked: set[World] = set()

    def _start(self, index: int, life: int) -> _Local:
        known = self._starts.get((index, life))
        if known is None:
            actor = self._actors[index]
            known = self._starts[index, life] = _Local(actor.script, f"1.{actor.name}-{life}")
        return known

    def run(self) -> Report:
        """Explore everything within the bounds, or until a rule breaks."""
        report = Report()
        came: dict[State, tuple[State | None, str]] = {self._begin: (None, "")}
        ends: set[World] = set()
        stack = [self._begin]
        while stack:
            state = stack.pop()
            try:
                for label, after in self._steps(state):
                    if after not in came:
                        came[after] = (state, label)
                        stack.append(after)
                if all(local.request is None for local in state[1]) and state[0] not in ends:
                    ends.add(state[0])
                    self._heal(state[0])
            except Violation as broken:
                report.violation = str(broken)
                report.timeline = _timeline(came, state)
                break
            if len(came) >= self._states_max:
                report.complete = False
                break
        report.states, report.ends = len(came), len(ends)
        return report

    # --- steps

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        world, locals_ = state
        for index, local in enumerate(locals_):
            if local.request is None:
                if local.result == _RETIRED:
                    yield self._restart(state, index, "registers afresh")
                continue
            if (spent := world.spend("crashes")) is not None:
                dead = replace(spent, dead=world.dead | {local.life})
                yield self._restart((dead, locals_), index, "is killed")
            yield from self._served(state, index)
        for label, after in self._options.moves(world):
            self._check(after)
            yield label, (after, locals_)

    def _restart(self, state: State, index: int, why: str) -> tuple[str, State]:
        world, locals_ = state
        life = locals_[index].life
        fresh = self._start(index, int(life.rpartition("-")[2]) + 1)
        return f"{who(life)} {why}", (world, _with(locals_, index, fresh))

    def _served(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        world, locals_ = state
        local = locals_[index]
        request = local.request
        assert request is not None
        self._rules.may(world, local.life, request)
        for label, answer, after in self._options.answers(world, local.life, request):
            following = local.child(answer)
            there = after
            if following.broken is not None:
                raise Violation(f"{who(local.life)} {label}, and its call raises {following.broken!r}")
            while isinstance(following.request, Now):
                # Looking at the clock touches nothing that others see: no interleaving there.
                for _, instant, _ in self._options.answers(there, local.life, following.request):
                    following = following.child(instant)
            if following.request is None:
                there = _returned(there, following.result)
            self._check(there)
            yield f"{who(local.life)} {label}", (there, _with(locals_, index, following))

    def _check(self, world: World) -> None:
        if world not in self._checked:
            self._rules.check(world)
            self._checked.add(world)

    def _heal(self, world: World) -> None:
        """Demand progress: one more life, without any fault, must end with an outcome."""
        key = (world.records, world.landed, world.closed, world.dead, world.retired, world.time)
        if key not in self._healed:
            self._healed[key] = self._alone(replace(world, faults=Faults(), dead=world.dead | _lives(world)))
        if (stuck := self._healed[key]) is not None:
            raise Violation(stuck)

    def _alone(self, world: World) -> str | None:
        local = _Local(sender("healer").script, "1.healer-1")
        for _ in range(200):
            if local.request is None:
                break
            _, answer, world = next(iter(self._options.answers(world, local.life, local.request)))
            local = local.child(answer)
        if local.request is not None or local.result is None:
            return "with nothing wrong any more, a call still gives no outcome"
        self._check(_returned(world, local.result))
        return None


def _with(locals_: tuple[_Local, ...], index: int, local: _Local) -> tuple[_Local, ...]:
    return (*locals_[:index], local, *locals_[index + 1 :])


def _lives(world: World) -> frozenset[str]:
    return frozenset(record.epoch for record in world.records)


def _returned(world: World, result: Any) -> World:
    return world if result is None or isinstance(result, str) else returned(world, NAME, result)


def _timeline(came: dict[State, tuple[State | None, str]], state: State) -> list[str]:
    lines: list[str] = []
    at: State | None = state
    while at is not None:
        before, label = came[at]
        if label:
            lines.append(f"  t={at[0].time:<3} {label}")
        at = before
    return lines[::-1]


def explore(
    actors: Sequence[Actor], *, faults: Faults, options: Options | None = None, states_max: int = 1_000_000
) -> Report:
    """Explore a scenario; see `Explorer`."""
    return Explorer(actors, faults=faults, options=options, states_max=states_max).run()
