"""One trial of a user's body: lives that go wrong as planned, one that does not, a replay, and a judgement."""

# pyright: reportPrivateUsage=false
# A life is killed as a process is, which no public face offers.

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Iterator, Sized
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from typing import Any, Final

from counterfoil import threads
from counterfoil.ports.ledger import Ledger, Owners
from counterfoil.protocol import states
from counterfoil.protocol.records import Record
from counterfoil.protocol.requests import Call, Raised, Returned
from counterfoil.runtime.sync import Runtime
from counterfoil.runtime.views import EffectView
from counterfoil.testing.lives import SECOND, Ended, Life, Sequence, live
from counterfoil.testing.notes import EffectSettings, Notes, Sight, plain
from counterfoil.testing.plans import Plan
from counterfoil.testing.recipients.faulty import Arrived, Faulty
from counterfoil.testing.stage import Clock, LedgerFaults, Store, faulty

FAR_S: Final = 86_400.0

Delivery = tuple[str, str, Any]


@dataclass(slots=True, kw_only=True)
class Case:
    """What is tried: a body, and what it works with.

    Attributes:
        body: called as `body(run, *args)`.
        args: its further arguments.
        store: where its ledgers come from.
        recipients: recipients that keep a log and can be told to misbehave.
        sent: says how much has reached other recipients.
        deliveries: what others deliver to the run: (event, id, payload).
        lag_s: how long the recipients may take to show something, None: as long as `visibility` says.
        proofs: every proof that a run has returned, with its key: who finds it for another key is wrong.
        usual: what an undisturbed trial saw; empty before that.
    """

    body: Callable[..., Any]
    args: tuple[Any, ...] = ()
    store: Store
    recipients: list[Faulty] = field(default_factory=list)
    sent: Callable[[], int | Sized] | None = None
    deliveries: Several[Delivery] = ()
    lag_s: float | None = None
    namespace: str = field(default_factory=lambda: f"trial-{secrets.token_hex(6)}")
    clock: Clock = field(default_factory=Clock)
    proofs: dict[bytes, str] = field(default_factory=dict)
    usual: Usual | None = None
    count: int = 0

    @property
    def owned(self) -> bool:
        """Whether the ledger knows the lives of processes."""
        ledger = self.store.open()
        try:
            return isinstance(ledger, Owners)
        finally:
            self.store.leave(ledger)

    @property
    def asynchronous(self) -> bool:
        """Whether the body is an asynchronous function."""
        return inspect.iscoroutinefunction(self.body) or inspect.iscoroutinefunction(
            getattr(self.body, "__call__", None)  # noqa: B004 - the method, for objects that are called
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """What an undisturbed trial saw.

    Attributes:
        asked: what the body asked for, in order.
        events: events of its life.
        requests: requests to recipients.
        ledger_calls: calls of the ledger.
        sights: what reached the recipients, by where it was sent from.
        result: what the body returned.
    """

    asked: tuple[tuple[str, str], ...]
    events: int
    requests: int
    ledger_calls: int
    sights: dict[tuple[str, str], int]
    result: Any

    @property
    def effects(self) -> set[str]:
        """The names of the effects that it asked for."""
        return {name for kind, name in self.asked if kind == "effect"}


class Trial:
    """One trial.

    Args:
        case: what is tried.
        plan: what goes wrong.
    """

    def __init__(self, case: Case, plan: Plan) -> None:
        case.count += 1
        self.case = case
        self.plan = plan
        self.run_id = f"trial-{case.count}"
        self.recipients = case.recipients
        self.notes = Notes(case.clock)
        self.faults = LedgerFaults(self.run_id, plan.ledger, plan.ledger_times)
        self.lives: list[Life] = []
        self.sequences: list[Sequence] = []
        self.ended = Ended("raised")
        self.replayed: Ended | None = None
        self.views: list[EffectView] = []
        self.records: Several[Record] = ()
        self.found_later: dict[str, bytes | None] = {}
        self.quiet = False
        self.finished = True
        self._sight = Sight(case.recipients, case.sent)
        self._since = [len(recipient.requests) for recipient in case.recipients]

    def run(self) -> None:
        """Carry the body through what is planned, to its end, and once more."""
        self._deliver()
        plan = self.plan
        for number, crash in enumerate(plan.crashes, start=1):
            second = plan.second if number == 1 else None
            ended = self._life(f"life {number}", crash=crash, cancels=plan.cancels, second=second)
            if ended.how != "died":
                self.finished = False
                self.ended = ended
                break
        else:
            cancels = () if plan.crashes else plan.cancels
            second = None if plan.crashes else plan.second
            self.ended = self._life(f"life {len(plan.crashes) + 1}", cancels=cancels, second=second)
            self.finished = self._all_came()
        self.faults.healed = True
        if self.ended.how == "returned" and not self.notes.mistakes:
            self.replayed = self._life("a replay")
        self._look()

    def _all_came(self) -> bool:
        """Whether everything that was planned for the last life did come."""
        last = self.lives[-1]
        plan = self.plan
        return (
            all(event <= last.events for event in (plan.cancels if not plan.crashes else ()))
            and (plan.second is None or plan.crashes != () or plan.second <= last.events)
            and all(number <= self.faults.calls for number in plan.ledger)
        )

    def _life(self, who: str, **planned: Any) -> Ended:
        life = Life(self, who, **planned)
        self.lives.append(life)
        ended = live(life)
        self.seen("body", "")
        return ended

    def second_process(self) -> None:
        """Let a second process do what it can while the first one stands still."""
        live(Life(self, SECOND))

    def _deliver(self) -> None:
        for event, event_id, payload in self.case.deliveries:
            ledger = self.case.store.open()
            with Runtime(ledger, namespace=self.case.namespace, clock=self.case.clock) as runtime:
                runtime.deliver(self.run_id, event, event_id, payload)
            self.case.store.leave(ledger)

    def _look(self) -> None:
        """See what the ledger holds, and ask again about what stayed uncertain."""
        self.case.clock.advance(FAR_S)
        ledger = self.case.store.open()
        self.faults.land(ledger)
        with Runtime(ledger, namespace=self.case.namespace, clock=self.case.clock) as runtime:
            self.views = runtime.effects(run_id=self.run_id)
            self.records = runtime.ledger.read(self.case.namespace, self.run_id)
        self.case.store.leave(ledger)
        for view in self.views:
            if view.state == states.UNCERTAIN and self.notes.made(view.name):
                self._ask_again(view)

    def _ask_again(self, view: EffectView) -> None:
        handler = self.notes.reconcilers.get(view.effect_key)
        if handler is None:
            return
        flow = _ask(handler, view, self.found_later)
        self.quiet = True
        if self.case.asynchronous:
            threads.run_apart(self._flow_async(flow))
        else:
            ledger = self.case.store.open()
            with Runtime(ledger, namespace=self.case.namespace, clock=self.case.clock) as runtime:
                runtime.run("asking")._drive(lambda _scope: flow)  # noqa: SLF001 - a flow of our own
            self.case.store.leave(ledger)

    async def _flow_async(self, flow: Any) -> None:
        from counterfoil.runtime.aio import AsyncRuntime

        ledger = self.case.store.open()
        async with AsyncRuntime(ledger, namespace=self.case.namespace, clock=self.case.clock) as runtime:
            await runtime.run("asking")._drive(lambda _scope: flow)  # noqa: SLF001 - a flow of our own
        self.case.store.leave(ledger)

    # --- for its lives

    def open(self) -> Ledger:
        """Open the ledger of one life, with what is planned for it."""
        self._inner = self.case.store.open()
        opened: Ledger = faulty(self._inner, self.faults)
        opened.inner = self._inner  # type: ignore[attr-defined]
        return opened

    def leave(self, ledger: Any) -> None:
        """Close the ledger of one life."""
        self.case.store.leave(ledger.inner)

    def kill(self, ledger: Any, epochs: set[str]) -> None:
        """End a life as its process would."""
        self.case.store.kill(ledger.inner, epochs)

    def lag_s(self, name: str) -> float:
        """Return how long look-ups for an effect lag in this trial, in seconds."""
        if self.plan.lag_s is not None:
            return self.plan.lag_s
        if self.case.lag_s is not None:
            return self.case.lag_s
        settings = self.notes.settings.get(name, EffectSettings())
        return max(0.0, settings.visibility_s - 0.001)

    def seen(self, kind: str, name: str) -> None:
        """Count what has reached the recipients that only `sent` knows of since the last look."""
        if more := self._sight.since():
            self.notes.sights[kind, name] += more

    def before_effect(self, name: str, settings: EffectSettings) -> None:
        """Check whether an effect repeats, under a name of its own, one of which nobody knows the end."""
        usual = self.case.usual
        if usual is None or name in usual.effects:
            return
        for other, known in self.notes.settings.items():
            open_ended = self.notes.states.get(other) in ("unresolved", "uncertain")
            same = known.handler is not None and known.handler == settings.handler and known.request == settings.request
            if other != name and open_ended and same:
                self.notes.mistake(
                    "sent-again",
                    other,
                    f"your body sends {other!r} again as {name!r} while it is {self.notes.states[other]}: "
                    "it may happen twice",
                    hint="let EffectUnresolved pass and call again; leave Uncertain to a person (`decision`)",
                )

    def check_order(self, asked: Sequence) -> None:
        """Check that a call of the body asks for what an earlier one had asked for after the same answers."""
        if self.notes.overlapping:
            return
        index = len(asked.pairs) - 1
        before, here = asked.pairs[:index], asked.pairs[index]
        if not asked.returned.issuperset(before):
            return
        for earlier in self.sequences:
            if earlier is asked or len(earlier.pairs) <= index or earlier.pairs[:index] != before:
                continue
            there = earlier.pairs[index]
            if there != here and earlier.returned.issuperset(before):
                self.not_deterministic(here, there)
                return

    def not_deterministic(self, here: tuple[str, str], there: tuple[str, str] | None) -> None:
        """Note that a body asked for something else than before."""
        instead = ", which it had not asked for before"
        if there is not None:
            instead = f" where it had asked for {there[0]} {there[1]!r}"
        self.notes.mistake(
            "not-deterministic",
            here[1],
            f"your body is not deterministic: after a restart it asked for {here[0]} {here[1]!r}{instead}",
            hint="take what it branches on (time, random values, what it reads) from a step",
        )

    # --- for the judge

    def arrived(self) -> Iterator[Arrived]:
        """Yield the requests of this trial that reached recipients with a log."""
        for recipient, since in zip(self.recipients, self._since, strict=True):
            yield from recipient.requests[since:]

    @property
    def keys(self) -> set[str]:
        """The keys of the effects of this trial."""
        return set(self.notes.names)


async def _ask(handler: Callable[..., Any], view: EffectView, found: dict[str, bytes | None]) -> None:
    reply = await Call(handler, key=view.effect_key, attempt=view.attempt, timeout_s=30.0)
    if isinstance(reply, Returned):
        found[view.name] = None if reply.value is None else plain(reply.value)
    elif isinstance(reply, Raised):
        found[view.name] = None


__all__ = ["Case", "Trial", "Usual"]
