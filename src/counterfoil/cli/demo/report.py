"""What the demo ends with: one run's timeline, the recipient's count of both sides, and what nobody can know."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterfoil.cli import shapes, timeline
from counterfoil.cli.demo.body import EFFECTS
from counterfoil.cli.output import Column, line, table
from counterfoil.cli.text import command
from counterfoil.outcomes import Accepted
from counterfoil.protocol.checker import Finding
from counterfoil.runtime.views import EffectView, RecordView


@dataclass(kw_only=True)
class Result:
    """What came out."""

    folder: Path
    seed: int
    kills: int
    naive_kills: int
    orders: list[str]
    naive_orders: list[str]
    unfinished: list[str]
    items: list[dict[str, Any]]
    effects: list[EffectView]
    timelines: dict[str, list[RecordView]]
    findings: list[Finding]
    took_s: float = 0.0
    kept: bool = True

    @property
    def url(self) -> str:
        """The ledger."""
        return f"sqlite:///{self.folder / 'ledger.db'}"

    @property
    def uncertain(self) -> list[EffectView]:
        """What only a person can settle."""
        return [view for view in self.effects if view.state == "uncertain"]

    @property
    def wrong(self) -> bool:
        """Whether ours sent anything twice or lost it."""
        return bool(self.findings or self.unfinished or sum(self.repeats(naive=False).values()))

    def counts(self, *, naive: bool) -> Counter[tuple[str, str]]:
        """How often the recipient made each thing, by kind and order."""
        return Counter((i["kind"], i["order"]) for i in self.items if i["key"].startswith("naive-") is naive)

    def made(self, *, naive: bool) -> Counter[str]:
        """How many things of each kind the recipient made."""
        return sum((Counter({kind: n}) for (kind, _), n in self.counts(naive=naive).items()), Counter())

    def repeats(self, *, naive: bool) -> Counter[str]:
        """How many of them should not have been made, since one was there already."""
        return sum((Counter({kind: n - 1}) for (kind, _), n in self.counts(naive=naive).items()), Counter())

    def interesting(self) -> str:
        """The run that went through most: something uncertain, something found by asking, many lives."""
        puzzled = {view.run_id for view in self.uncertain}
        asked = {
            view.run_id
            for view in self.effects
            if isinstance(view.outcome, Accepted) and view.outcome.via == "reconcile"
        }

        def score(run_id: str) -> tuple[int, int]:
            lives = {record.epoch for record in self.timelines[run_id]}
            return (run_id in puzzled) + (run_id in asked), len(lives)

        return max(self.orders, key=score)

    def shape(self) -> dict[str, Any]:
        """Describe it as a JSON object."""
        sides = {}
        for side, naive in (("ours", False), ("naive", True)):
            orders, kills = (self.naive_orders, self.naive_kills) if naive else (self.orders, self.kills)
            made, repeats = self.made(naive=naive), self.repeats(naive=naive)
            sides[side] = {"orders": len(orders), "kills": kills, "made": dict(made), "repeats": sum(repeats.values())}
        return {
            "seed": self.seed,
            "folder": str(self.folder),
            "ledger": self.url,
            "took_s": round(self.took_s, 1),
            **sides,
            "unfinished": self.unfinished,
            "uncertain": [shapes.effect(view, shown=False) for view in self.uncertain],
            "findings": [shapes.finding(found) for found in self.findings],
        }


def write(result: Result) -> None:
    """Write a result for people."""
    chosen = result.interesting()
    lives = len({record.epoch for record in result.timelines[chosen]})
    line(f"{chosen}, one of {len(result.orders)} orders, as {lives} lives and the packer recorded it", style="bold")
    timeline.write(result.timelines[chosen])
    line()
    line("What the recipient made, by its own log", style="bold")
    _count(result)
    line()
    _uncertain(result)
    line()
    for found in result.findings:
        line(f"{found.rule} {found.code}: {found.run} {found.name}: {found.text}", style="bold red")
    for run_id in result.unfinished:
        line(f"{run_id} was not finished", style="bold red")
    verdict = "something was sent twice or lost"
    if not result.wrong:
        verdict = (
            f"nothing was sent twice, no record was lost, {len(result.uncertain)} uncertain for a person to decide"
        )
    line(f"{result.kills} kills, {result.took_s:.1f} s, seed {result.seed}: {verdict}", style="bold")
    if not result.kept:
        return
    line("To look further:")
    line(f"  {command('--ledger', result.url, 'show', chosen)}")
    line(f"  {command('--ledger', result.url, 'verify', '--recipient-log', str(result.folder / 'payee.jsonl'))}")


def _count(result: Result) -> None:
    columns = [Column(""), *(Column(f"{kind}s", right=True) for kind in EFFECTS.values())]
    columns += [Column("sent again", right=True), Column("kills", right=True)]
    rows = []
    for title, naive, orders, kills in (
        ("with a ledger", False, result.orders, result.kills),
        ("without", True, result.naive_orders, result.naive_kills),
    ):
        made, repeats = result.made(naive=naive), sum(result.repeats(naive=naive).values())
        rows.append(
            [
                f"{title}, {len(orders)} orders",
                *(str(made[kind]) for kind in EFFECTS.values()),
                str(repeats),
                str(kills),
            ]
        )
    table(columns, rows)


def _uncertain(result: Result) -> None:
    if not result.uncertain:
        line("Nothing is uncertain this time.", style="bold")
        return
    line("What is uncertain, and why: a worker was killed between the intent and the outcome", style="bold")
    counts = result.counts(naive=False)
    columns = [
        Column("order"),
        Column("effect"),
        Column("asking", fold=20),
        Column("what the recipient's log would tell a person"),
    ]
    rows = []
    for view in result.uncertain:
        assert view.outcome is not None
        kind = view.outcome.evidence.kind
        made = counts[EFFECTS[view.name], view.run_id]
        rows.append([view.run_id, view.name, _ASKED.get(kind, kind), "it happened" if made else "it did not happen"])
    table(columns, rows)
    if result.kept:
        line(f"To decide about them: {command('--ledger', result.url, 'uncertain')}")


_ASKED = {"not-found": "found nothing, which proves nothing", "unaskable": "is not possible"}
