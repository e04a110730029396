"""The judge: compares what the recipient logged, what callers were told, and what is on record."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

from counterfoil import Runtime
from counterfoil.protocol import codec, slots
from counterfoil.protocol.checker import ACKNOWLEDGED, Checker, Item


@dataclass
class Counts:
    """What a campaign counted, and what must not have been.

    Args:
        kills: processes killed.
        sends: requests that the recipient received.
        acknowledged: effects of which a caller was told that they were accepted.
        lost: records of which a caller was told and that are not there.
        doubled: keys that the recipient received more than once.
        uncertain: effects on record as uncertain.
        problems: one line for each violation.
    """

    kills: int = 0
    sends: int = 0
    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    uncertain: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        """Add what another judgement counted."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def __str__(self) -> str:
        numbers = (f"{getattr(self, each.name)} {each.name}" for each in fields(self) if each.name != "problems")
        return ", ".join(numbers)


def judge(url: str, *, log: list[dict[str, Any]], told: list[dict[str, Any]]) -> Counts:
    """Judge one ledger.

    Args:
        url: the ledger.
        log: what the recipient logged for it.
        told: what callers were told of it.
    """
    counts = Counts()
    received = Counter(line["key"] for line in log if line["what"] == "received")
    counts.sends = received.total()
    for key, number in received.items():
        if number > 1:
            counts.doubled += 1
            counts.problems.append(f"the recipient received {key} {number} times")
    with Runtime(url) as runtime:
        _Comparison(runtime, counts, told).compare(log)
    return counts


class _Comparison:
    def __init__(self, runtime: Runtime, counts: Counts, told: list[dict[str, Any]]) -> None:
        self._runtime = runtime
        self._counts = counts
        self._told = told

    def compare(self, log: list[dict[str, Any]]) -> None:
        runtime, counts = self._runtime, self._counts
        views = {(view.run_id, view.name): view for view in runtime.effects()}
        items = [Item(line["key"], line["item"]) for line in log if line["what"] == "created"]
        accepted = set()
        for line in self._told:
            if "name" not in line:
                continue
            view = views.get((line["run"], line["name"]))
            if view is None or view.state != line["phase"]:
                self._lost(line, "nothing" if view is None else view.state)
            elif line["phase"] == "accepted":
                accepted.add((view.run_id, view.name))
                items.append(Item(view.effect_key, line["proof"], ACKNOWLEDGED))
        counts.acknowledged = len(accepted)
        counts.uncertain = sum(view.state == "uncertain" for view in views.values())
        self._verify(items)
        self._records()

    def _lost(self, line: dict[str, Any], found: str) -> None:
        self._counts.lost += 1
        self._counts.problems.append(f"lost: a caller was told {line}, and on record is {found}")

    def _verify(self, items: list[Item]) -> None:
        ledger = self._runtime.ledger
        checker = Checker(self._runtime.namespace, items)
        findings = checker.ledger(ledger.read(slots.SYSTEM_NAMESPACE, slots.SYSTEM_RUN))
        for row in self._runtime.runs():
            findings += checker.run(row.run_id, ledger.read(self._runtime.namespace, row.run_id))
        self._counts.problems += [str(finding) for finding in findings + checker.rest()]

    def _records(self) -> None:
        held: dict[str, dict[str, Any]] = {}
        for line in self._told:
            run = line["run"]
            if "name" in line:
                continue
            if run not in held:
                held[run] = {view.slot: view.body for view in self._runtime.show(run)}
            if line["slot"] not in held[run]:
                self._lost(line, "nothing")
            elif "value" in line and not _holds(held[run][line["slot"]], line["value"]):
                self._lost(line, str(held[run][line["slot"]]))


def _holds(body: Any, value: Any) -> bool:
    recorded = [body[name] for name in ("result", "payload") if name in body]
    return codec.encode(value, what="it") in [codec.encode(each, what="it") for each in recorded]
