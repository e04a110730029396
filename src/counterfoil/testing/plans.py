"""What is to go wrong in one trial of a body, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal

ReplyFault = Literal["lost", "never", "late", "doubled", "lost-there", "never-there"]
LedgerFault = Literal["full", "unknown", "committed", "late"]

HERE: Final[tuple[ReplyFault, ...]] = ("lost", "never", "late", "doubled")
THERE: Final[tuple[ReplyFault, ...]] = ("lost-there", "never-there")
LEDGER: Final[tuple[LedgerFault, ...]] = ("full", "unknown", "committed", "late")

_REPLIES: Final[dict[ReplyFault, str]] = {
    "lost": "its reply lost",
    "never": "lost on its way",
    "late": "arriving late",
    "doubled": "arriving twice, the reply lost",
    "lost-there": "its reply lost by the recipient",
    "never-there": "lost before the recipient",
}
_LEDGER: Final[dict[LedgerFault, str]] = {
    "full": "refused, as by a full disk",
    "unknown": "without an answer, and not recorded",
    "committed": "recorded, the answer lost",
    "late": "without an answer, and recorded only after the next look at the run",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What goes wrong in one trial. Everything counts from 1; an event is a moment before or after a request.

    Args:
        kind: what the trial is called in counts: `crash`, `reply`, `ledger` …
        crashes: for each life that dies, the event at which it does.
        cancels: events of a life at which its caller is cancelled.
        replies: for requests to recipients, by their number in the trial, what becomes of them.
        ledger: for calls of the ledger, by their number in the trial, what becomes of them.
        ledger_times: how many calls one after the other have the same end.
        lag_s: seconds that look-ups lag; None: as long as the effect's `visibility` allows.
        second: the event at which the first process stops until a second one has done what it can.
        seed: the seed that drew it, where one did.
    """

    kind: str
    crashes: tuple[int, ...] = ()
    cancels: tuple[int, ...] = ()
    replies: Mapping[int, ReplyFault] = field(default_factory=dict)
    ledger: Mapping[int, LedgerFault] = field(default_factory=dict)
    ledger_times: int = 1
    lag_s: float | None = 0.0
    second: int | None = None
    seed: int | None = None

    def __str__(self) -> str:
        said = [f"a crash at event {event}" for event in self.crashes]
        said += [f"the caller cancelled at event {event}" for event in self.cancels]
        said += [f"request {number} to a recipient {_REPLIES[fault]}" for number, fault in self.replies.items()]
        said += [f"call {number} of the ledger {_LEDGER[fault]}" for number, fault in self.ledger.items()]
        if self.ledger and self.ledger_times > 1:
            said.append(f"{self.ledger_times} times in a row")
        if self.lag_s is None:
            said.append("look-ups that lag as long as `visibility` allows")
        elif self.lag_s:
            said.append(f"look-ups that lag {self.lag_s:g} s")
        if self.second is not None:
            said.append(f"a second process at event {self.second}")
        text = ", ".join(said) or "nothing going wrong"
        return text if self.seed is None else f"seed {self.seed}: {text}"

    @property
    def disturbs(self) -> bool:
        """Whether anything goes wrong at all."""
        return bool(
            self.crashes or self.cancels or self.replies or self.ledger or self.lag_s is None or self.lag_s
        ) or (self.second is not None)


def drawn(seed: int, *, events: int, requests: int, ledger_calls: int, there: bool, owned: bool = True) -> Plan:
    """Draw a plan with several faults at once.

    Args:
        seed: the same seed draws the same plan for the same body.
        events: events of an undisturbed life.
        requests: requests to recipients in it.
        ledger_calls: calls of the ledger in it.
        there: whether the recipients can be told to misbehave.
        owned: whether the ledger knows who lives, so that a second process may come.
    """
    random = Random(seed)  # noqa: S311 - a seed is to be repeated, not kept secret
    kinds = HERE + THERE if there else HERE

    def some(most: int, bound: int) -> list[int]:
        return sorted({random.randint(1, bound) for _ in range(random.randint(0, most))}) if bound else []

    return Plan(
        kind="seed",
        crashes=tuple(random.randint(1, max(1, events)) for _ in range(random.randint(0, 3))),
        cancels=tuple(some(1, events)),
        replies={number: random.choice(kinds) for number in some(2, requests)},
        ledger={number: random.choice(LEDGER) for number in some(2, ledger_calls)},
        ledger_times=random.randint(1, 2),
        lag_s=None if random.random() < 0.3 else 0.0,
        second=random.randint(1, max(1, events)) if random.random() < 0.3 and owned else None,
        seed=seed,
    )
