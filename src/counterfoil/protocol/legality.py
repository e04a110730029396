"""Whether the records of one run may have come about: each where it belongs, each transition one of the tables'.

What is not said by a table is said here, once for each rule: an attempt after an end, an outcome without what
it rests on, a decision about something that was known.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from counterfoil.errors import LedgerCorrupt
from counterfoil.protocol import codec, records, slots, states
from counterfoil.protocol.history import Effect, History, look
from counterfoil.protocol.records import Record

_NAME: Final = "[^/]+"
_NUMBER: Final = r"(?P<number>[1-9]\d*)"

# What each record's body looks like and which slot it fills.
_FORMS: Final[dict[tuple[str, str], tuple[type[msgspec.Struct], re.Pattern[str]]]] = {
    words: (shape, re.compile(place))
    for words, shape, place in (
        ((records.STEP, "result"), codec.StepBody, f"step/{_NAME}"),
        ((records.STEP, "failed"), codec.StepFailedBody, f"step/{_NAME}/{_NUMBER}/failed"),
        ((records.TRANSACTION, "committed"), codec.TransactionBody, f"transaction/{_NAME}/{_NUMBER}"),
        ((records.TRANSACTION, "aborted"), codec.EmptyBody, f"transaction/{_NAME}/{_NUMBER}"),
        ((records.PARK, "armed"), codec.ArmedBody, f"park/(?:sleep/{_NAME}|wait/{_NAME}/{_NAME})"),
        ((records.PARK, "woken"), codec.EmptyBody, f"park/sleep/{_NAME}/woken"),
        ((records.EVENT, "delivered"), codec.DeliveredBody, f"event/{_NAME}/{_NAME}"),
        ((records.EFFECT, "intent"), codec.IntentBody, f"effect/{_NAME}/{_NUMBER}/intent"),
        ((records.EFFECT, "closed"), codec.OutcomeBody, f"effect/{_NAME}/{_NUMBER}/intent"),
        ((records.EFFECT, "accepted"), codec.OutcomeBody, f"effect/{_NAME}/{_NUMBER}/outcome"),
        ((records.EFFECT, "uncertain"), codec.OutcomeBody, f"effect/{_NAME}/{_NUMBER}/outcome"),
        ((records.EFFECT, "rejected"), codec.OutcomeBody, f"effect/{_NAME}/{_NUMBER}/outcome"),
        ((records.EFFECT, "failed"), codec.OutcomeBody, f"effect/{_NAME}/{_NUMBER}/outcome"),
        ((records.EFFECT, "released"), codec.ReleasedBody, f"effect/{_NAME}/{_NUMBER}/released"),
        ((records.EFFECT, "buried"), codec.BuriedBody, f"effect/{_NAME}/{_NUMBER}/buried"),
        ((records.NOTE, "late"), codec.LateBody, f"effect/{_NAME}/note/{_NUMBER}"),
        ((records.NOTE, "decision"), codec.DecisionBody, f"effect/{_NAME}/note/{_NUMBER}"),
        ((records.RUN, "started"), codec.StartedBody, slots.STARTED),
        ((records.RUN, "claimed"), codec.EmptyBody, f"run/claim/{_NUMBER}"),
        ((records.RUN, "released"), codec.EmptyBody, r"run/claim/(?P<number>0|[1-9]\d*)/released"),
        ((records.RUN, "quarantined"), codec.QuarantinedBody, f"run/quarantine/{_NUMBER}"),
        ((records.RUN, "lifted"), codec.LiftedBody, f"run/quarantine/{_NUMBER}/lifted"),
        ((records.RUN, "finished"), codec.FinishedBody, slots.FINISHED),
        ((records.RUN, "tombstone"), codec.TombstoneBody, slots.TOMBSTONE),
        ((records.LEDGER, "birth"), codec.BirthBody, slots.BIRTH),
        ((records.LEDGER, "accepted-restore"), codec.RestoreBody, f"accepted-restore/{_NUMBER}"),
    )
}
_UNKNOWN: Final = (codec.EmptyBody, re.compile("(?!)"))
_TOO_NEW: Final = "record-too-new"
_DAMAGED: Final = (
    "the record is damaged; nothing is called for its name: restore a backup from before the damage, "
    "and accept it by `counterfoil --ledger URL accept-restore --by YOU --reason WHY`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that must not be.

    Args:
        rule: the rule of the specification that it breaks.
        code: a stable slug: `damaged`, `transition`, `doubled`, `phantom`, `lost` …
        run: the run.
        name: the effect, step, sleep or event that it is about; "" for the run itself.
        slot: the slot of the record; "" where there is none.
        text: what is wrong, in a sentence without names.
    """

    rule: str
    code: str
    run: str
    name: str
    slot: str
    text: str


@dataclass(frozen=True, slots=True)
class Placed:
    """A sound record in its place, with its body decoded; `number` is that of the attempt or note, else 0."""

    record: Record
    body: Any
    name: str
    number: int

    @property
    def phase(self) -> str:
        """Which transition it is."""
        return self.record.phase

    @property
    def event(self) -> str:
        """What the tables call it."""
        ending = isinstance(self.body, codec.OutcomeBody) and self.body.due is not None
        return f"{self.record.phase}-due" if ending else self.record.phase


def name_in(slot: str) -> str:
    """Read the name out of a slot, "" for the run's own slots."""
    head, _, rest = slot.partition("/")
    if head == "park":
        _, _, rest = rest.partition("/")
    if head == "event" or slot.startswith("park/wait/"):
        return slots.unescape(rest)
    name, _, _ = rest.partition("/")
    return slots.unescape(name) if head in ("effect", "step", "park", "transaction") else ""


class RunCheck:
    """Checks the records of one run, in the order in which the ledger reads them.

    Attributes:
        findings: what must not be.
        effects: the sound records of each effect, by name.
    """

    def __init__(self, namespace: str, run: str, found: Sequence[Record]) -> None:
        self.namespace = namespace
        self.run = run
        self.findings: list[Finding] = []
        self.effects: dict[str, list[Placed]] = defaultdict(list)
        self._sound: dict[str, Placed] = {}
        self._unsound: set[str] = set()
        self._take(found)
        self._check_run()
        self._check_steps()
        self._check_transactions()
        self._check_parks()
        for name, of_effect in self.effects.items():
            # What is left of an effect with a damaged record says nothing; the damage itself is reported.
            if name not in self._unsound:
                self._check_effect(name, of_effect)

    @property
    def unasked(self) -> tuple[str, ...]:
        """What is on record that the body which ended the run did not ask for."""
        ended = self._sound.get(slots.FINISHED)
        return () if ended is None else ended.body.unasked

    def _say(self, broken: str, record: Record, text: str) -> None:
        """Note a finding; `broken` is the rule and the code."""
        rule, _, code = broken.partition(" ")
        name = name_in(record.slot)
        self.findings.append(Finding(rule=rule, code=code, run=self.run, name=name, slot=record.slot, text=text))

    def _take(self, found: Sequence[Record]) -> None:
        position = 0
        for record in found:
            if record.position <= position:
                self._say("L1 order", record, "its position does not follow the one before it")
            position = record.position
            if record.slot in self._sound:
                self._say("L1 slot-twice", record, "its slot is filled twice")
                continue
            # Words that this version does not know are refused by `parse`, whatever the shape.
            shape, place = _FORMS.get((record.kind, record.phase), _UNKNOWN)
            try:
                body = codec.parse(record, shape, namespace=self.namespace, run=self.run)
            except LedgerCorrupt as error:
                self._unsound.add(name_in(record.slot))
                if error.code == _TOO_NEW:
                    self._say("L4 too-new", record, "a newer version of counterfoil wrote the record; upgrade this one")
                else:
                    self._say("L4 damaged", record, _DAMAGED)
                continue
            match = place.fullmatch(record.slot)
            if match is None:
                self._unsound.add(name_in(record.slot))
                self._say("L1 misplaced", record, f"a record of {record.kind} ({record.phase}) is in this slot")
                continue
            number = match.groupdict().get("number")
            placed = Placed(record, body, name_in(record.slot), int(number or 0))
            self._sound[record.slot] = placed
            if record.kind in (records.EFFECT, records.NOTE):
                self.effects[placed.name].append(placed)

    def _kind(self, *kinds: str) -> list[Placed]:
        return [placed for placed in self._sound.values() if placed.record.kind in kinds]

    def _fold(
        self, table: states.Table, rule: str, group: Sequence[tuple[Placed, str]], *, state: str = states.ABSENT
    ) -> str | None:
        """Fold events through a table; None where one must not follow."""
        for placed, event in group:
            after = table.next(state, event)
            if after is None:
                text = f"it came in a wrong order: {event!r} while {state}"
                self._say(f"{rule} transition", placed.record, text)
                return None
            state = after
        return state

    # --- the run, its steps and parks

    def _check_run(self) -> None:
        stone = self._sound.get(slots.TOMBSTONE)
        if stone is not None and slots.FINISHED not in self._sound:
            self._say("L10 pruned-unfinished", stone.record, "the run was pruned and had not finished")
        for placed in self._kind(records.RUN, records.EFFECT):
            record = placed.record
            if placed.phase == "claimed" and stone is None and slots.STARTED not in self._sound:
                self._say("E8 claimed-unstarted", record, "a life took over a run that nobody had started")
            if placed.phase == "released" and record.kind == records.RUN and not self._claimed(placed.number):
                self._say("E8 released-unclaimed", record, "a claim was released that nobody had made")
            if placed.phase == "lifted" and slots.quarantine(placed.number) not in self._sound and stone is None:
                self._say("E8 lifted-unset", record, "a quarantine was lifted that did not stand")
            if placed.phase == "buried" and stone is None:
                self._say("L10 buried-alive", record, "it is buried, and the run was not pruned")
            if placed.phase == "intent" and stone is not None and record.position > stone.record.position:
                self._say("L10 sent-after-pruning", record, "the right to send was taken after the run was pruned")

    def _claimed(self, number: int) -> bool:
        slot = slots.claim(number) if number else slots.STARTED
        return slot in self._sound or slots.TOMBSTONE in self._sound

    def _check_steps(self) -> None:
        groups: dict[str, list[Placed]] = defaultdict(list)
        for placed in self._kind(records.STEP):
            groups[placed.name].append(placed)
        for group in groups.values():
            self._fold(states.STEP, "S1", [(placed, placed.event) for placed in group])
            self._gapless("S4", [placed for placed in group if placed.number])

    def _check_transactions(self) -> None:
        groups: dict[str, list[Placed]] = defaultdict(list)
        for placed in self._kind(records.TRANSACTION):
            groups[placed.name].append(placed)
        for group in groups.values():
            if self._gapless("T4", group):
                self._fold(states.TRANSACTION, "T1", [(placed, placed.event) for placed in group])

    def _gapless(self, rule: str, group: Sequence[Placed]) -> bool:
        numbers = {placed.number for placed in group}
        missing = [placed for placed in group if placed.number > 1 and placed.number - 1 not in numbers]
        for placed in missing:
            self._say(f"{rule} gap", placed.record, f"number {placed.number - 1} before it is missing")
        return not missing

    def _check_parks(self) -> None:
        groups: dict[tuple[bool, str], list[Placed]] = defaultdict(list)
        for placed in self._kind(records.PARK, records.EVENT):
            sleeps = placed.record.slot.startswith("park/sleep/")
            groups[sleeps, placed.name].append(placed)
        for (sleeps, _), group in groups.items():
            rule = "P1" if sleeps else "P2"
            self._fold(states.PARK, rule, [(placed, placed.event) for placed in group])
            for placed in group:
                if placed.phase == "armed" and (placed.body.deadline is not None) is not sleeps:
                    self._say("P1 deadline", placed.record, "a sleep has a deadline, and a wait has none")

    # --- effects

    def _check_effect(self, name: str, of_effect: list[Placed]) -> None:
        before = len(self.findings)
        attempts: dict[int, list[Placed]] = defaultdict(list)
        notes: list[Placed] = []
        for placed in of_effect:
            if placed.record.kind == records.NOTE:
                notes.append(placed)
            else:
                attempts[placed.number].append(placed)
        heads = [group[0] for group in attempts.values()]
        if self._gapless("E14", heads) and self._gapless("E15", notes):
            self._check_attempts(attempts)
        if len(self.findings) > before:
            return
        for placed in notes:
            self._check_note(name, placed, attempts)
        for placed in heads:
            if placed.phase == "intent":
                self._check_sending(name, placed)
        for placed in of_effect:
            if isinstance(placed.body, codec.OutcomeBody):
                self._check_outcome(name, placed, attempts)

    def _check_attempts(self, attempts: dict[int, list[Placed]]) -> None:
        state = states.ABSENT
        ended = 0
        for number in sorted(attempts):
            group = attempts[number]
            first = group[0]
            if first.phase not in ("intent", "closed", "buried"):
                self._say("E1 no-intent", first.record, f"attempt {number} has this record and no intent before it")
                return
            if first.phase == "closed" and state in states.FINAL:
                # It came too late to say anything.
                return
            if first.phase == "intent" and state in states.FINAL:
                text = f"attempt {number} took the right to send when the effect was {state}"
                self._say("E14 sent-again", first.record, text)
                return
            if first.phase == "intent" and first.record.position < ended:
                text = f"attempt {number} took the right to send before attempt {number - 1} had ended"
                self._say("E14 sent-early", first.record, text)
                return
            after = self._fold(states.EFFECT, "E1", [each for placed in group for each in _events(placed)], state=state)
            if after is None:
                return
            state = after
            ended = max(placed.record.position for placed in group if placed.phase != "released")

    def _check_outcome(self, name: str, placed: Placed, attempts: dict[int, list[Placed]]) -> None:
        record, body = placed.record, placed.body
        if placed.phase in (states.ACCEPTED, "closed"):
            if body.via == "reconcile" and bytes(body.proof) == b"null":
                self._say("E2 no-proof", record, "it was accepted on a look-up that found nothing")
        elif body.evidence is None:
            self._say("O2 no-evidence", record, f"it is {placed.phase}, and no evidence is on record")
        if placed.phase == states.REJECTED and body.via != "run":
            self._say("O4 absence", record, "only its own run can prove that it was never dispatched")
        if body.due is not None and getattr(attempts[1][0].body, "retry", None) is None:
            self._say("E14 no-policy", record, "another attempt was allowed, and no retry policy is on record")
        if placed.event in (states.REJECTED, states.FAILED) and self._link(name, record) is not None:
            text = f"it repeats an uncertain effect and is {placed.phase}; the earlier one is still uncertain"
            self._say("O3 not-sticky", record, text)

    def _check_note(self, name: str, placed: Placed, attempts: dict[int, list[Placed]]) -> None:
        record, body = placed.record, placed.body
        if isinstance(body, codec.LateBody):
            if body.attempt not in attempts:
                self._say("E15 no-attempt", record, f"it speaks of attempt {body.attempt}, which there is not")
            return
        seen = self._seen(name, record)
        last = seen.last
        ended_by_it = last is not None and last.ending is not None and last.ending.via == "decision"
        if seen.decision is not None:
            self._say("E16 decided-twice", record, "a person had decided about it before")
        elif seen.state != states.UNCERTAIN:
            self._say("E16 decided-known", record, f"a person decided about it when it was {seen.state}")
        elif not seen.version - ended_by_it <= body.seen_version <= seen.version:
            text = f"the person had seen version {body.seen_version}, and it had version {seen.version}"
            self._say("N2 stale-decision", record, text)

    def _check_sending(self, name: str, placed: Placed) -> None:
        """Check that nothing was sent when there was evidence that it had been accepted already."""
        seen = self._seen(name, placed.record)
        linked = self._link(name, placed.record)
        if seen.accepted_evidence is not None or (linked is not None and linked.accepted_evidence is not None):
            text = "the right to send was taken when there was evidence that an earlier attempt was accepted"
            rule = "E14" if linked is None else "E16"
            self._say(f"{rule} sent-after-acceptance", placed.record, text)

    def _seen(self, name: str, record: Record) -> Effect:
        """Look at an effect as it was just before a record."""
        history = History(self.namespace, self.run)
        history.add(other.record for other in self._sound.values() if other.record.position < record.position)
        try:
            return look(history, name)
        except LedgerCorrupt:
            # Findings of its own say why; nothing can be drawn from it.
            return Effect(name)

    def _link(self, name: str, record: Record) -> Effect | None:
        """Return the uncertain effect that a person allowed to be repeated as `name`, as it was at a record."""
        for placed in self._kind(records.NOTE):
            if getattr(placed.body, "new_name", None) == name and placed.record.position < record.position:
                return self._seen(placed.name, record)
        return None


def _events(placed: Placed) -> list[tuple[Placed, str]]:
    if isinstance(placed.body, codec.BuriedBody):
        due = "" if placed.body.outcome.due is None else "-due"
        return [(placed, "intent"), (placed, f"{placed.body.phase}{due}")]
    return [(placed, placed.event)]


__all__ = ["Finding", "Placed", "RunCheck", "name_in"]
