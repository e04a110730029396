"""Seeded simulation of the real flows: long lives of several processes, with everything that can go wrong.

Exploration is complete and short; simulation is long and random. A seed decides who goes on, what the ledger
and the recipient answer, who is killed and when. First nothing unsafe may happen; then everything heals, and
every body must come to its end. A failure names its seed, and the seed alone replays it.

    print(simulate(7))
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from msgspec.structs import replace

from counterfoil.effects import decide as deciding
from counterfoil.effects import lifetime, park
from counterfoil.effects.effect import UNASKABLE, EffectCall, effect
from counterfoil.effects.evidence import settle
from counterfoil.effects.scope import Scope
from counterfoil.effects.step import StepCall, step
from counterfoil.errors import Conflict, EffectUnresolved, LedgerUnavailable, OwnerRetired, UsageError
from counterfoil.protocol import codec, states
from counterfoil.protocol.checker import Checker, Item
from counterfoil.protocol.history import look
from counterfoil.protocol.keys import effect_key
from counterfoil.protocol.requests import Append, Call, Filled, Pause, Read, Request, Returned
from counterfoil.testing.rules import Rules, Violation, returned
from counterfoil.testing.world import (
    NAMESPACE,
    RUN,
    Faults,
    Options,
    World,
    ask,
    fresh_scope,
    hear,
    perform,
    proof,
    who,
)

Flow = Coroutine[Request[Any], Any, Any]
NAMES: Final = ("charge", "mail", "door")
AGAIN: Final = "charge-again"
STEPS_MAX: Final = 600
HEALING_MAX: Final = 3_000
_GOOD: Final = 0.7


def compute() -> dict[str, int]:
    """Stands for the computation of a step."""
    return {"total": 7}


@dataclass(slots=True)
class Process:
    """A process of the simulation: its script, and its present life."""

    name: str
    script: Callable[[Scope, Simulation], Flow]
    life: int = 0
    flow: Flow | None = None
    scope: Scope | None = None
    request: Request[Any] | None = None
    done: bool = False

    @property
    def epoch(self) -> str:
        """The epoch of its present life."""
        return f"1.{self.name}-{self.life}"


@dataclass(slots=True)
class Simulated:
    """What one seed came to: the violation (None if there is none), and what happened, line by line."""

    seed: int
    violation: str | None = None
    timeline: list[str] = field(default_factory=list)
    sends: int = 0
    crashes: int = 0
    uncertain: int = 0

    def __str__(self) -> str:
        if self.violation is None:
            return f"seed {self.seed}: every rule held ({self.sends} sends, {self.crashes} crashes)"
        return "\n".join([f"seed {self.seed}: {self.violation}", *self.timeline])


class Simulation:
    """One seed's world and processes."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311 - a seed is to be repeated, not kept secret
        self.report = Simulated(seed)
        draw = self.random.randint
        faults = Faults(
            crashes=draw(0, 4), commits=draw(0, 3), replies=draw(0, 3), refusals=draw(0, 2), asks=draw(0, 3),
            steals=draw(0, 1),
        )  # fmt: skip
        self.visibility = draw(0, 3)
        self.retry = codec.RetryBody(attempts=draw(1, 3), backoff_s=float(draw(0, 2)))
        self.options = Options(visibility=self.visibility, closing=self.random.random() < 0.2)
        self.world = World(faults=faults)
        self.rules = Rules([*NAMES, AGAIN])
        self.processes = [Process(f"worker{n}", _body) for n in range(1, draw(1, 3) + 1)]
        self.processes.append(Process("deliverer", _deliver))
        if self.random.random() < 0.5:
            self.processes.append(Process("webhook", _inform))
        self.processes.append(Process("person", _decide))

    def run(self) -> Simulated:
        """Run to the end, or to the first violation."""
        try:
            for process in self.processes:
                self._begin(process)
            for _ in range(STEPS_MAX):
                if not self._step():
                    break
            self._heal()
            self._judge()
        except Violation as broken:
            self.report.violation = str(broken)
        finally:
            for process in self.processes:
                if process.flow is not None:
                    process.flow.close()
        self.report.sends = len(self.world.sent)
        return self.report

    # --- processes

    def _begin(self, process: Process) -> None:
        process.life += 1
        process.scope = fresh_scope(process.epoch)
        process.flow = process.script(process.scope, self)
        process.request = process.flow.send(None)

    def _crash(self, process: Process, why: str) -> None:
        assert process.flow is not None
        process.flow.close()
        self.world = replace(self.world, dead=self.world.dead | {process.epoch})
        self._told(f"{who(process.epoch)} {why}")
        self._begin(process)

    def _told(self, line: str) -> None:
        self.report.timeline.append(f"  t={self.world.time:<3} {line}")

    def _step(self) -> bool:
        ready = [p for p in self.processes if p.request is not None]
        if not ready:
            return False
        moves = list(self.options.moves(self.world)) if self.world.flying or self.world.open_commits else []
        if moves and self.random.random() < 0.1:
            label, self.world = self.random.choice(moves)
            self._told(label)
            self.rules.check(self.world)
            return True
        process = self.random.choice(ready)
        if self.random.random() < 0.03 and (spent := self.world.spend("crashes")) is not None:
            self.world = spent
            self.report.crashes += 1
            self._crash(process, "is killed")
            return True
        self._serve(process, good=_GOOD)
        return True

    def _serve(self, process: Process, *, good: float) -> bool:
        request = process.request
        assert request is not None
        self.rules.may(self.world, process.epoch, request)
        answers = list(self.options.answers(self.world, process.epoch, request))
        if not answers:
            return False
        usual = len(answers) == 1 or self.random.random() < good
        label, answer, after = answers[0] if usual else self.random.choice(answers)
        changed = after.records is not self.world.records
        self.world = after
        self._told(f"{who(process.epoch)} {label}")
        if changed:
            self.rules.check(after)
        self._answer(process, request, answer)
        return True

    def _answer(self, process: Process, request: Request[Any], answer: Any) -> None:
        flow, scope = process.flow, process.scope
        assert flow is not None
        assert scope is not None
        try:
            if isinstance(answer, BaseException):
                answer.__traceback__ = None
                process.request = flow.throw(answer)
                return
            if isinstance(request, Append) and isinstance(answer, Filled):
                scope.history.take(answer.record)
            elif isinstance(request, Read):
                scope.history.add(answer)
                answer = None
            process.request = flow.send(answer)
        except StopIteration:
            process.request, process.done = None, True
        except OwnerRetired:
            self._begin(process)
        except Exception as error:
            raise Violation(f"E20: {process.name} ends with {error!r}") from error

    def given(self, name: str, outcome: Any) -> None:
        """Note what a body was given, and check that all bodies are given the same."""
        self.world = returned(self.world, name, outcome)
        self.rules.check(self.world)

    # --- the end

    def _heal(self) -> None:
        """Nothing goes wrong any more; every body must come to its end."""
        self._told("everything heals")
        self.world = replace(self.world, faults=Faults())
        for _ in range(HEALING_MAX):
            if (move := next(self.options.moves(self.world), None)) is not None:
                self.world = move[1]
                self.rules.check(self.world)
            waiting = [p for p in self.processes if p.request is not None]
            if not any(p.script is _body for p in waiting):
                return
            for process in waiting:
                self._serve(process, good=1.0)
        stuck = ", ".join(p.name for p in self.processes if p.request is not None)
        raise Violation(f"E21: with nothing wrong any more, {stuck} does not come to its end")

    def _judge(self) -> None:
        items = [Item(key, proof(key)) for key, _ in self.world.landed]
        checker = Checker(NAMESPACE, items)
        for finding in [*checker.run(RUN, self.world.records), *checker.rest()]:
            raise Violation(f"{finding.rule}: {finding.text} ({finding.slot})")
        history = self.world.history()
        self.report.uncertain = sum(look(history, name).state == states.UNCERTAIN for name in NAMES)


# --- the scripts --------------------------------------------------------------------------------------------


def _calls(simulation: Simulation) -> Iterable[EffectCall]:
    late = float(simulation.visibility)
    yield EffectCall("charge", perform, ask, request=b"1", retry=simulation.retry, wait_s=1.0, visibility_s=late)
    yield EffectCall("mail", perform, ask, request=b"2", wait_s=2.0, visibility_s=late)
    yield EffectCall("door", perform, UNASKABLE, request=b"3", wait_s=1.0)


async def _until(simulation: Simulation, scope: Scope, call: EffectCall) -> Any:
    while True:
        try:
            outcome = await effect(scope, call)
        except EffectUnresolved as error:
            await Pause(error.retry_after_s or 1.0, changes=False)
        except LedgerUnavailable:
            await Pause(1.0, changes=False)
        else:
            simulation.given(call.name, outcome)
            return outcome
        await Read()


async def _tried(attempt: Callable[[], Flow]) -> Any:
    while True:
        try:
            return await attempt()
        except LedgerUnavailable:
            await Pause(1.0, changes=False)


async def _body(scope: Scope, simulation: Simulation) -> None:
    await Read()
    computed = StepCall(name="total", body=compute, inputs=None, retry=None, encode=_encode)
    await _tried(lambda: step(scope, computed))
    for call in _calls(simulation):
        outcome = await _until(simulation, scope, call)
        if call.name == "charge" and type(outcome).__name__ == "Uncertain":
            decision = await deciding.decision(scope, "charge", timeout_s=None)
            if decision.new_name is not None:
                again = EffectCall(AGAIN, perform, ask, wait_s=1.0, visibility_s=float(simulation.visibility))
                try:
                    await _until(simulation, scope, again)
                except Conflict:
                    # Evidence came meanwhile that it was accepted: the repeat is refused, as it must be.
                    await Read()
    await _tried(lambda: park.sleep(scope, "nap", 3.0))
    await _tried(lambda: park.wait_for(scope, "ok", "1", timeout_s=None))
    await _tried(lambda: lifetime.finish(scope, b'"done"'))


def _encode(value: Any) -> bytes:
    return codec.encode(value, what="the result")


async def _deliver(scope: Scope, _simulation: Simulation) -> None:
    await _tried(lambda: park.deliver(scope, "ok", "1", payload=b"true", by="deliverer"))


async def _inform(scope: Scope, _simulation: Simulation) -> None:
    key = effect_key(NAMESPACE, RUN, "charge", attempt=1)
    heard = await Call(hear, key=key)
    assert isinstance(heard, Returned)
    encoded = _encode(heard.value)
    await _tried(lambda: settle(scope, "charge", encoded, key=key, source="webhook", verifier=None))


async def _decide(scope: Scope, simulation: Simulation) -> None:
    while True:
        await Read()
        seen = look(scope.history, "charge")
        if seen.decision is not None:
            return
        if seen.state == states.UNCERTAIN:
            name = AGAIN if simulation.random.random() < 0.7 else None
            verdict = deciding.Verdict(
                happened=False, reason="looked", by="person", expect_version=seen.version, new_name=name
            )
            with suppress(Conflict, UsageError, LedgerUnavailable):
                await deciding.decide(scope, "charge", verdict)
        await Pause(2.0, changes=False)


def simulate(seed: int) -> Simulated:
    """Simulate one seed."""
    return Simulation(seed).run()
