"""The history checker: whether what is on record may have come about, and whether a recipient's log agrees.

It reads records and calls nothing. `counterfoil verify`, the demo and the tests use the same checker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from counterfoil.protocol import codec, slots, states
from counterfoil.protocol.exported import hidden
from counterfoil.protocol.keys import effect_key
from counterfoil.protocol.legality import Finding, Placed, RunCheck
from counterfoil.protocol.records import Record

CREATED: Final = "created"
ACKNOWLEDGED: Final = "acknowledged"


@dataclass(frozen=True, slots=True)
class Item:
    """One line of a recipient's log.

    Args:
        effect_key: the key that the request carried.
        item: what the recipient named the thing, a JSON value: it must equal the proof that `run` returned.
        what: `created` for a thing that the recipient made; `acknowledged` for one that a caller was told of
            as accepted (written after the call had returned).
    """

    effect_key: str
    item: Any
    what: str = CREATED


@dataclass(frozen=True, slots=True)
class Claim:
    """What the records of a run say of one attempt: its phase (None while it has no outcome) and its proof."""

    head: Placed
    phase: str | None
    proof: Any


class Checker:
    """Checks runs one by one and, at the end, what the recipient has that no run knows of.

    Args:
        namespace: the scope that effect keys are derived from.
        items: the recipient's log, or None.
        written: how a finding writes an item or a proof; redacted by default.

    Attributes:
        unasked: by run, heads of slots that the body which ended it no longer asked for: no finding, but worth knowing.
    """

    def __init__(
        self, namespace: str, items: Iterable[Item] | None = None, *, written: Callable[[Any], str] = hidden
    ) -> None:
        self._written = written
        self.namespace = namespace
        self._judged = items is not None
        self._created: dict[str, list[Any]] = defaultdict(list)
        self._told: dict[str, list[Any]] = defaultdict(list)
        for item in items or ():
            of_key = (self._told if item.what == ACKNOWLEDGED else self._created)[item.effect_key]
            if item.item not in of_key:
                of_key.append(item.item)
        self._known: set[str] = set()
        self.unasked: dict[str, tuple[str, ...]] = {}

    def ledger(self, found: Sequence[Record]) -> list[Finding]:
        """Check the ledger's own records."""
        return RunCheck(slots.SYSTEM_NAMESPACE, slots.SYSTEM_RUN, found).findings

    def run(self, run: str, found: Sequence[Record]) -> list[Finding]:
        """Check the records of one run, as the ledger reads them."""
        checked = RunCheck(self.namespace, run, found)
        findings = checked.findings
        if checked.unasked:
            self.unasked[run] = checked.unasked
        if self._judged:
            for key, claims in self._claims(checked).items():
                self._known.add(key)
                findings.extend(self._judge(run, key, claims))
        return findings

    def rest(self) -> list[Finding]:
        """Say what the recipient has under keys that no run knows; for when all runs were checked."""
        text = "the recipient has this key in its log, and no run of this namespace has a record of it"
        unknown = [key for key in {**self._created, **self._told} if key not in self._known]
        return [Finding(rule="E1", code="lost", run="", name=key, slot="", text=text) for key in unknown]

    def _claims(self, checked: RunCheck) -> dict[str, list[Claim]]:
        claims: dict[str, list[Claim]] = defaultdict(list)
        for name, of_effect in checked.effects.items():
            ended = {p.number: p for p in of_effect if p.record.slot == slots.outcome(name, p.number)}
            for head in of_effect:
                if isinstance(head.body, codec.BuriedBody):
                    claim = Claim(head, head.body.phase, codec.decode(bytes(head.body.outcome.proof)))
                elif isinstance(head.body, codec.IntentBody):
                    claim = _claim(head, ended.get(head.number))
                else:
                    continue
                number = 1 if head.body.keep_key else head.number
                claims[effect_key(self.namespace, checked.run, name, attempt=number)].append(claim)
        return claims

    def _judge(self, run: str, key: str, claims: list[Claim]) -> Iterable[Finding]:
        created, told = self._created.get(key, []), self._told.get(key, [])
        accepted = [claim for claim in claims if claim.phase == states.ACCEPTED]
        last = claims[-1]

        def finding(rule: str, code: str, text: str) -> Finding:
            slot = last.head.record.slot
            return Finding(rule=rule, code=code, run=run, name=last.head.name, slot=slot, text=text)

        if len(created) > 1:
            yield finding("E1", "doubled", f"the recipient made {len(created)} things for one attempt")
        missing = [claim.proof for claim in accepted if claim.proof not in created]
        if missing and created:
            has = " and ".join(self._written(item) for item in created)
            text = f"the recipient has {has} under this key, on record is {self._written(missing[0])}"
            yield finding("E2", "phantom", text)
        elif missing:
            yield finding("E2", "phantom", "it is on record as accepted, and the recipient does not have it")
        if created and all(claim.phase in (states.REJECTED, states.FAILED) for claim in claims):
            yield finding("O2", f"{last.phase}-but-made", f"it is on record as {last.phase}, and the recipient made it")
        if any(proof not in [claim.proof for claim in accepted] for proof in told):
            yield finding("E21", "lost", "a caller was told that it was accepted, and that is not on record")


def _claim(head: Placed, outcome: Placed | None) -> Claim:
    if outcome is None:
        return Claim(head, None, None)
    return Claim(head, outcome.phase, codec.decode(bytes(outcome.body.proof)))


__all__ = ["ACKNOWLEDGED", "CREATED", "Checker", "Claim", "Finding", "Item"]
