"""What `counterfoil simulate` does: it finds a body and tries it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from counterfoil.errors import UsageError
from counterfoil.runtime.arguments import callable_with
from counterfoil.testing import targets
from counterfoil.testing.crash_points import Report, examine
from counterfoil.testing.recipients.faulty import Faulty

_ALONE: Final = "it is called with a run alone: write a function that takes a run, and gives the body the rest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be tried.

    Args:
        target: `module:body`, or `file.py:body`.
        ledger: `memory`, `sqlite`, `sqlite3` or a ledger's URL.
        seeds: random trials with several faults at once, after all others.
        seed: only this one of them, nothing else; None: everything.
        sent: the name of a function of the module that says how much has reached the recipients; None: none.
        deliver: what others deliver to the run: (event, id, payload).
        lag_s: seconds that the recipients may take to show something; None: as long as `visibility` says.
    """

    target: str
    ledger: str = "memory"
    seeds: int = 100
    seed: int | None = None
    sent: str | None = None
    deliver: Sequence[tuple[str, str, Any]] = ()
    lag_s: float | None = None


def simulate(wanted: Wanted) -> Report:
    """Try a body; recipients of ours that are global names of its module are told to misbehave too.

    Raises:
        UsageError: there is no such body, or it takes more than a run.
    """
    module, body = targets.find(wanted.target, what="body", example="shop.orders:place")
    try:
        callable_with(body, ())
    except UsageError as error:
        raise UsageError(str(error.args[0]), hint=_ALONE) from None
    found = {id(value): value for value in vars(module).values() if isinstance(value, Faulty)}
    report = examine(
        body,
        ledger=wanted.ledger,
        recipients=list(found.values()),
        sent=None if wanted.sent is None else targets.function(module, wanted.sent),
        deliver=wanted.deliver,
        lag_s=wanted.lag_s,
        kinds=None if wanted.seed is None else ["seed"],
        seeds=range(wanted.seeds) if wanted.seed is None else [wanted.seed],
    )
    report.mistakes = [replace(each, hint=each.command_hint or each.hint) for each in report.mistakes]
    if wanted.sent is None:
        others = "" if not found else " to others than the recipients in the module"
        report.remarks.append(
            f"sends in steps and in the body{others} were not watched: name a function that counts them with --sent"
        )
    return report


__all__ = ["Report", "Wanted", "simulate"]
