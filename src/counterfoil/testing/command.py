"""What `counterfoil simulate` does: it finds a body and tries it."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from counterfoil.errors import UsageError
from counterfoil.testing.crash_points import Report, examine
from counterfoil.testing.notes import innermost
from counterfoil.testing.recipients.faulty import Faulty


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
        UsageError: there is no such body.
    """
    module, body = _find(wanted.target)
    found = {id(value): value for value in vars(module).values() if isinstance(value, Faulty)}
    report = examine(
        body,
        ledger=wanted.ledger,
        recipients=list(found.values()),
        sent=None if wanted.sent is None else _function(module, wanted.sent),
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


def _find(target: str) -> tuple[ModuleType, Callable[..., Any]]:
    name, colon, qualname = target.rpartition(":")
    if not name or not colon or not qualname:
        raise UsageError(f"a body is named module:body, not {target!r}", hint="for example shop.orders:place")
    folder = Path.cwd()
    if name.endswith(".py"):
        folder, name = Path(name).resolve().parent, Path(name).stem
    if str(folder) not in sys.path:
        # As `python -m` does: what is here can be imported.
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise UsageError(f"module {name!r} cannot be imported: {_why(error, name)}") from error
    return module, _function(module, qualname)


def _why(error: BaseException, name: str) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
        return str(error)
    if isinstance(error, SyntaxError):
        places = [(error.filename or "", error.lineno or 0)]
        said = error.msg
    else:
        places = [(at.filename, at.lineno or 0) for at in traceback.extract_tb(error.__traceback__)]
        said = str(error)
    where = innermost(places)
    return f"{f'{where}: ' if where else ''}{type(error).__name__}{f': {said}' if said else ''}"


def _function(module: ModuleType, qualname: str) -> Callable[..., Any]:
    found: Any = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise UsageError(f"{module.__name__!r} has no function {qualname!r}")
    return found  # type: ignore[no-any-return]


__all__ = ["Report", "Wanted", "simulate"]
