"""Try a body of your own: at every crash point, with lost, late and doubled replies, and beside a second process.

    from counterfoil.testing.crash_points import crash_points

    def test_orders():
        crash_points(order, recipients=[payee])      # raises an AssertionError that names what breaks

A trial is a fresh run of the body, on one ledger, in which one thing goes wrong; then the body is called again
in a fresh life until it ends, and once more as a replay. Handlers are called as ever, and what they return is
noted, so nothing has to be known of the recipients. A planned loss of a reply lets `run` act and raises instead of
returning. Time passes as soon as somebody waits for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, Final

from counterfoil.errors import UsageError
from counterfoil.ports.ledger import Ledger
from counterfoil.testing.judge import judge, outside_sends
from counterfoil.testing.notes import Mistake, folded
from counterfoil.testing.plans import HERE, LEDGER, THERE, Plan, ReplyFault, drawn
from counterfoil.testing.recipients.faulty import Faulty
from counterfoil.testing.stage import Store
from counterfoil.testing.trials import Case, Delivery, Trial, Usual

POINTS_MAX: Final = 5_000


class BrokenBody(AssertionError):
    """A body breaks; the text says how, and `report` has everything."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


@dataclass(slots=True)
class Report:
    """What an examination found.

    Attributes:
        body: what the body is called.
        ledger: which ledger it ran on.
        trials: how many trials there were, by kind: `clean`, `crash`, `reply`, `lag`, `ledger`, `cancel`,
            `second`, `seed`.
        mistakes: what breaks, the first trial's only; empty if nothing does.
        plan: what went wrong in that trial, in words.
        seed: the seed of that trial, if one drew it.
        timeline: what happened in it, one line per event; what came again and again is folded.
        remarks: what was not looked at.
    """

    body: str
    ledger: str
    trials: dict[str, int] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)
    plan: str = ""
    seed: int | None = None
    timeline: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing breaks."""
        return not self.mistakes

    @property
    def counts(self) -> str:
        """How much was tried, in words."""
        total = sum(self.trials.values())
        said = f"{total} trial{'' if total == 1 else 's'}"
        parts = [f"{count} {_KINDS[kind][count != 1]}" for kind, count in self.trials.items() if kind in _KINDS]
        return f"{said}: {', '.join(parts)}" if parts else said

    def __str__(self) -> str:
        if self.ok:
            said = f"{self.body} on {self.ledger}: nothing broke in {self.counts}"
            return "\n".join([said, *(f"  {remark}" for remark in self.remarks)])
        first, *others = self.mistakes
        lines = [str(first), f"  in {self.body}, with {self.plan}", *(f"  also: {each}" for each in others)]
        return "\n".join([*lines, *self.timeline, f"  ({self.counts})"])

    def shape(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "body": self.body,
            "ledger": self.ledger,
            "ok": self.ok,
            "trials": self.trials,
            "plan": self.plan or None,
            "seed": self.seed,
            "mistakes": [
                {"code": each.code, "name": each.name, "text": each.text, "hint": each.hint} for each in self.mistakes
            ],
            "timeline": [line.strip() for line in self.timeline],
            "remarks": self.remarks,
        }


_KINDS: Final = {
    "crash": ("crash point", "crash points"),
    "reply": ("lost, late or doubled reply", "lost, late or doubled replies"),
    "lag": ("lagging look-up", "lagging look-ups"),
    "ledger": ("failing ledger call", "failing ledger calls"),
    "cancel": ("cancellation", "cancellations"),
    "second": ("point of a second process", "points of a second process"),
    "seed": ("seed", "seeds"),
}


class Examination:
    """Tries one body in one trial after the other, until something breaks.

    Args:
        case: what is tried.
        kinds: which kinds of trials; None: all.
    """

    def __init__(self, case: Case, *, kinds: Iterable[str] | None = None) -> None:
        self._case = case
        self._kinds = set(_KINDS if kinds is None else kinds)
        if unknown := self._kinds - set(_KINDS):
            raise UsageError(f"there are no trials of kind {min(unknown)!r}", hint=f"one of {', '.join(_KINDS)}")
        self._counts: Counter[str] = Counter()
        name = getattr(case.body, "__qualname__", type(case.body).__name__)
        self.report = Report(name, case.store.name)

    def run(self, seeds: Sequence[int]) -> Report:
        """Try everything, and then the plans that the seeds draw."""
        first = self._try(Plan(kind="clean"))
        if not self.report.mistakes:
            self._case.usual = _usual(first)
            for plans in (self._crashes, self._replies, self._ledger, self._cancels, self._second):
                if not self.report.mistakes:
                    plans()
            if not self.report.mistakes:
                self._seeds(seeds)
        self.report.trials = dict(self._counts)
        return self.report

    def _try(self, plan: Plan) -> Trial:
        trial = Trial(self._case, plan)
        trial.run()
        judge(trial)
        self._counts[plan.kind] += 1
        if trial.notes.mistakes:
            self.report.mistakes = trial.notes.mistakes
            self.report.plan = str(plan)
            self.report.seed = plan.seed
            self.report.timeline = folded(trial.notes.timeline)
        return trial

    def _growing(self, kind: str, plan: Callable[[int], Plan]) -> None:
        """Try a fault at the first point, the second, and so on, until it does not come any more."""
        if kind not in self._kinds:
            return
        for number in range(1, POINTS_MAX):
            trial = self._try(plan(number))
            if not self.report.ok:
                return
            if not trial.finished:
                # The body had ended before that point: it was a clean run.
                self._counts[kind] -= 1
                return

    @property
    def _usual(self) -> Usual:
        assert self._case.usual is not None
        return self._case.usual

    def _crashes(self) -> None:
        self._growing("crash", lambda n: Plan(kind="crash", crashes=(n,)))

    def _replies(self) -> None:
        faults = HERE + THERE if self._case.recipients else HERE
        trials: list[tuple[str, ReplyFault, float | None]] = [("reply", fault, 0.0) for fault in faults]
        trials.append(("lag", "lost", None))
        plans = [
            Plan(kind=kind, replies={number: fault}, lag_s=lag_s)
            for number in range(1, self._usual.requests + 1)
            for kind, fault, lag_s in trials
        ]
        self._each(plans)

    def _ledger(self) -> None:
        for fault in LEDGER:
            for times in (1, 2):
                if self.report.ok:
                    self._growing(
                        "ledger",
                        lambda n, fault=fault, times=times: Plan(  # type: ignore[misc]
                            kind="ledger", ledger={n: fault}, ledger_times=times
                        ),
                    )

    def _cancels(self) -> None:
        self._growing("cancel", lambda n: Plan(kind="cancel", cancels=(n,)))
        if self.report.ok:
            self._growing("cancel", lambda n: Plan(kind="cancel", cancels=(n, n + 1)))

    def _second(self) -> None:
        # Without owners nobody can tell that a process stands still and lives: it is taken for gone at once.
        if self._case.owned:
            self._growing("second", lambda n: Plan(kind="second", second=n))

    def _seeds(self, seeds: Sequence[int]) -> None:
        usual = self._usual
        bounds = {"events": usual.events, "requests": usual.requests, "ledger_calls": usual.ledger_calls}
        there, owned = bool(self._case.recipients), self._case.owned
        self._each(drawn(seed, **bounds, there=there, owned=owned) for seed in seeds)

    def _each(self, plans: Iterable[Plan]) -> None:
        for plan in plans:
            if plan.kind in self._kinds:
                self._try(plan)
                if not self.report.ok:
                    return


def _usual(trial: Trial) -> Usual:
    return Usual(
        asked=tuple(trial.sequences[0].pairs),
        events=trial.lives[0].events,
        requests=trial.notes.requests,
        ledger_calls=trial.faults.calls,
        sights=outside_sends(trial),
        result=trial.ended.value,
    )


def examine(
    body: Callable[..., Any],
    *args: Any,
    ledger: str | Ledger = "memory",
    recipients: Sequence[Faulty] = (),
    sent: Callable[[], int | Sized] | None = None,
    deliver: Sequence[Delivery] = (),
    lag_s: float | None = None,
    kinds: Iterable[str] | None = None,
    seeds: Sequence[int] = (),
) -> Report:
    """Try a body, and report what breaks first.

    Args:
        body: a function, blocking or asynchronous, called as `body(run, *args)`; it is called many times.
        args: its further arguments.
        ledger: `memory`, `sqlite` (a file of its own), a ledger's URL, or a ledger.
        recipients: recipients of `counterfoil.testing.recipients` that the body's handlers send to: then more
            can go wrong there, and their log is a judge too.
        sent: says how much has reached other recipients so far: a number, or a collection.
        deliver: what others deliver to the run: (event, id, payload) each.
        lag_s: seconds that your recipients may take to show something; None: as long as `visibility` says.
        kinds: which trials: `crash`, `reply`, `lag`, `ledger`, `cancel`, `second`, `seed`; None: all.
        seeds: seeds of random trials with several faults at once, after all others.
    """
    with Store(ledger) as store, _on_the_stage(recipients) as clock_of:
        case = Case(
            body=body,
            args=args,
            store=store,
            recipients=list(recipients),
            sent=sent,
            deliveries=deliver,
            lag_s=lag_s,
        )
        clock_of(case)
        return Examination(case, kinds=kinds).run(seeds)


class _on_the_stage:  # noqa: N801 - used as a `with` block
    """Recipients live by the clock of the trials, for a while."""

    def __init__(self, recipients: Sequence[Faulty]) -> None:
        self._kept = [(recipient, recipient.clock) for recipient in recipients]

    def __enter__(self) -> Callable[[Case], None]:
        return self._set

    def _set(self, case: Case) -> None:
        for recipient, _ in self._kept:
            recipient.clock = case.clock.now

    def __exit__(self, *_: object) -> None:
        for recipient, clock in self._kept:
            recipient.clock = clock


def crash_points(body: Callable[..., Any], *args: Any, **settings: Any) -> Report:
    """Try a body as `examine` does, with the same arguments, and raise if something breaks.

    Raises:
        BrokenBody: an `AssertionError` that says what breaks, in the words of the body, and how it came about.
    """
    __tracebackhide__ = True
    report = examine(body, *args, **settings)
    if not report.ok:
        raise BrokenBody(report)
    return report


__all__ = ["BrokenBody", "Examination", "Mistake", "Report", "crash_points", "examine"]
