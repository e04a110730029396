"""What was measured, as pictures: bars of text for a terminal, and one PNG of everything."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

WIDTH = 24
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar(value: float, *, low: float, high: float, width: int = WIDTH, log: bool = False) -> str:
    """A bar of text as long as a value is between two others."""
    if log:
        value, low, high = math.log(value), math.log(low), math.log(high)
    share = 1.0 if high <= low else min(1.0, max(0.0, (value - low) / (high - low)))
    whole, rest = divmod(round(share * width * 8), 8)
    return ("█" * whole + _EIGHTHS[rest]).rstrip()


def curve(samples: list[dict[str, Any]], *, rows: int = 10) -> Iterator[str]:
    """A long life as lines of text: what an effect costs and what the process holds, as it goes on."""
    high_us = max(sample["cpu_us"] for sample in samples)
    high_mib = max(sample["rss_mib"] for sample in samples)
    yield f"{'runs':>9}{'effects':>11}{'per second':>12}{'CPU µs':>8}  {'':16}{'MiB':>6}"
    for sample in _spread(samples, rows):
        cost = bar(sample["cpu_us"], low=0, high=high_us, width=14)
        held = bar(sample["rss_mib"], low=0, high=high_mib, width=14)
        yield (
            f"{sample['runs']:9,.0f}{sample['effects']:11,.0f}{sample['per_s']:12,.0f}{sample['cpu_us']:8.1f}"
            f"  {cost:16}{sample['rss_mib']:6.1f}  {held}"
        ).rstrip()


def _spread(samples: list[dict[str, Any]], rows: int) -> Iterable[dict[str, Any]]:
    """The first, the last and some between."""
    last = len(samples) - 1
    chosen = sorted({round(number * last / max(1, rows - 1)) for number in range(rows)})
    return [samples[number] for number in chosen]


def draw(found: dict[str, Any], file: str) -> None:
    """Draw the rates of all that were raced, and the curve of a long life."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    races = {
        title: {name: row["per_s"] for name, row in rows.items() if "per_s" in row}
        for title, rows in found["parts"].items()
        if all(isinstance(row, dict) for row in rows.values()) and any("per_s" in row for row in rows.values())
    }
    lives = [rows["samples"] for rows in found["parts"].values() if "samples" in rows]
    if not races and not lives:
        print("nothing of this is drawn")
        return
    heights = [0.9 + 0.32 * len(rows) for rows in races.values()] + [2.6] * len(lives)
    figure, axes = plt.subplots(
        len(heights), 1, figsize=(9, sum(heights)), squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    for axis, (title, rows) in zip(axes[:, 0], races.items(), strict=False):
        _race(axis, title, rows)
    for axis, samples in zip(axes[len(races) :, 0], lives, strict=True):
        _life(axis, samples)
    figure.text(0.01, 0.005, found["machine"], fontsize=7, color="#555555")
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    figure.savefig(file, dpi=110)


def _race(axis: Any, title: str, rows: dict[str, float]) -> None:
    colours = [
        "#8c8c8c" if not number else "#4c72b0" if "counterfoil" in name else "#dd8452"
        for number, name in enumerate(rows)
    ]
    bars = axis.barh(list(rows), list(rows.values()), color=colours)
    axis.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=8)
    axis.set_title(f"{title}: effects per second", loc="left", fontsize=10)
    axis.set_xscale("log")
    axis.margins(x=0.12)
    axis.tick_params(labelsize=8)
    axis.invert_yaxis()


def _life(axis: Any, samples: list[dict[str, Any]]) -> None:
    runs = [sample["runs"] for sample in samples]
    axis.plot(runs, [sample["cpu_us"] for sample in samples], color="#4c72b0", label="processor time for an effect, µs")
    axis.plot(runs, [sample["rss_mib"] for sample in samples], color="#c44e52", label="memory of the process, MiB")
    axis.set_ylim(bottom=0)
    axis.set_title("one process, run after run", loc="left", fontsize=10)
    axis.set_xlabel("runs", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.legend(fontsize=8, loc="lower right")
