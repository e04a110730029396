"""What was measured, as lines of a table beside what is aimed at."""

from __future__ import annotations

from typing import Any

from benchmarks import plots
from benchmarks.measure import Contender, Result, race


def compared(contenders: list[Contender], *, base: str, aims: dict[str, float], rounds: int) -> Any:
    """A part that races contenders against its first one."""

    def part(folder: str, *, hurried: bool) -> dict[str, Any]:
        slice_s = 0.03 if hurried else 0.06
        return raced(contenders, folder, base=base, aims=aims, rounds=4 if hurried else rounds, slice_s=slice_s)

    return part


def raced(
    contenders: list[Contender], folder: str, *, base: str, aims: dict[str, float], rounds: int, slice_s: float
) -> dict[str, Any]:
    """Race contenders against the first one, print what came out, and return it."""
    results = race(contenders, folder, rounds=rounds, slice_s=slice_s)
    print(f"  {'':38}{'per second':>12}{'of ' + base:>19}{'aim':>6}{'CPU µs':>8}  ")
    rates = [result.rate for result in results if result.trouble is None]
    for result in results:
        print(_line(result, results[0], aim=aims.get(result.name), among=rates))
    return {result.name: _found(result, results[0]) for result in results}


def show(what: str, value: str, aim: str = "") -> None:
    """Print one figure."""
    print(f"  {what:50}{value:>14}{aim:>16}")


def ratio(found: dict[str, Any], name: str, base: str) -> float | None:
    """The median of the ratios of two contenders within each round; None if one of them did not run."""
    own, other = found[name].get("rates"), found[base].get("rates")
    return Result(name, own).ratio(Result(base, other)) if own and other else None


def _found(result: Result, base: Result) -> dict[str, Any]:
    if result.trouble is not None:
        return {"trouble": result.trouble}
    return {
        "per_s": result.rate,
        "ratio": None if base.trouble else result.ratio(base),
        "rates": result.rates,
        "cpu_us": result.cost_us,
    }


def _line(result: Result, base: Result, *, aim: float | None, among: list[float]) -> str:
    if result.trouble is not None:
        return f"  {result.name:38}{result.trouble}"
    aimed = "" if aim is None else f"{aim:.2f}"
    of_base = "" if base.trouble else f"{result.ratio(base):.3f}"
    cost = "" if result.cost_us is None else f"{result.cost_us:.0f}"
    # From a third of the slowest, so that it has a bar too; each doubling is as long as any other.
    drawn = plots.bar(result.rate, low=min(among) / 3, high=max(among), log=True)
    return f"  {result.name:38}{result.rate:12,.0f}{of_base:>19}{aimed:>6}{cost:>8}  {drawn}"
