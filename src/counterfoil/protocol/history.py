"""What one life has read of one run, and what it says about an effect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from counterfoil.errors import LedgerCorrupt
from counterfoil.outcomes import Accepted, Decision, Evidence, Failed, Outcome, Rejected, Uncertain, combine
from counterfoil.protocol import codec, records, slots, states
from counterfoil.protocol.records import Record, generation_of

_OF_ONE_ATTEMPT = ("/1/intent", "/1/outcome")


class History:
    """The records of one run by slot, as far as this life has read them.

    Attributes:
        position: of the last record that was read.
        decisions: the records of people's decisions.
        pruned: whether only a tombstone is left.
        finished: the record of the run's end, or None.
    """

    __slots__ = ("_beyond", "_first", "_records", "decisions", "finished", "namespace", "position", "pruned", "run")

    def __init__(self, namespace: str, run: str) -> None:
        self.namespace = namespace
        self.run = run
        self.position = 0
        self.decisions: list[Record] = []
        self.pruned = False
        self.finished: Record | None = None
        self._records: dict[str, Record] = {}
        self._first: Record | None = None
        # Effects with more than a first intent and its outcome.
        self._beyond: set[str] = set()

    def add(self, found: Iterable[Record]) -> None:
        """Take in what was read, in order of position; known records are ignored."""
        read = tuple(found)
        self.take(*read)
        if read:
            self.position = max(self.position, read[-1].position)

    def take(self, *found: Record) -> None:
        """Take in what was learnt by appending; reading goes on from where it was."""
        put, first = self._records.setdefault, self._first
        for record in found:
            slot = record.slot
            if put(slot, record) is not record:
                continue
            if first is None or record.position < first.position:
                first = self._first = record
            if not slot.endswith(_OF_ONE_ATTEMPT):
                self._note(record)

    def _note(self, record: Record) -> None:
        """Keep what is asked about often and is rarely there."""
        if (parts := slots.effect_of(record.slot)) is not None:
            self._beyond.add(parts[0])
            if record.phase == "decision":
                self.decisions.append(record)
        elif record.slot == slots.TOMBSTONE:
            self.pruned = True
        elif record.slot == slots.FINISHED:
            self.finished = record

    def forget(self) -> None:
        """Start again from nothing: most of what was read has been pruned since."""
        self.position = 0
        self.decisions.clear()
        self.pruned = False
        self.finished = self._first = None
        self._records.clear()
        self._beyond.clear()

    def get(self, slot: str) -> Record | None:
        """Return the record in a slot, or None."""
        return self._records.get(slot)

    def __iter__(self) -> Iterator[Record]:
        return iter(sorted(self._records.values(), key=lambda record: record.position))

    def has_effect(self, name: str) -> bool:
        """Whether there is anything about an effect."""
        return slots.intent(name, 1) in self._records or name in self._beyond

    def has_more(self, name: str) -> bool:
        """Whether there is more about an effect than a first intent and its outcome."""
        return name in self._beyond

    def first_attempt(self, name: str) -> tuple[Record | None, Record | None]:
        """Return the first intent of an effect and its outcome."""
        intent, outcome = slots.of_first_attempt(name)
        records_ = self._records
        return records_.get(intent), records_.get(outcome)

    def parse(self, record: Record, shape: type[codec.T]) -> codec.T:
        """Decode a record of this run, or fail closed."""
        return codec.parse(record, shape, namespace=self.namespace, run=self.run)

    @property
    def began_in(self) -> int | None:
        """The ledger's generation in which the run began, None for a run without records."""
        return None if self._first is None else generation_of(self._first.epoch)

    def effect_names(self) -> list[str]:
        """Names of all effects, in order of their first record."""
        found: dict[str, None] = {}
        for record in self:
            if (parts := slots.effect_of(record.slot)) is not None:
                found.setdefault(parts[0])
        return list(found)


class Attempt(msgspec.Struct):
    """One attempt of an effect as the records show it."""

    number: int
    intent: Record
    body: codec.IntentBody
    outcome: Record | None = None
    ending: codec.OutcomeBody | None = None
    released: Record | None = None

    @property
    def result(self) -> Outcome[msgspec.Raw] | None:
        """The attempt's own outcome."""
        if self.outcome is None or self.ending is None:
            return None
        return outcome_of(self.outcome.phase, self.ending)


class Effect(msgspec.Struct):
    """What the records of a run say about one effect.

    Attributes:
        state: one of `protocol.states`.
        attempts: oldest first; empty while absent.
        closed: evidence of acceptance that stands where the next intent would.
        notes: late evidence and decisions, oldest first.
        late: the late evidence among the notes, decoded.
        decision: the first decision among the notes, decoded.
        ending: body of `closed` where it is what ended the effect.
    """

    name: str
    state: str = states.ABSENT
    attempts: list[Attempt] = []
    closed: Record | None = None
    notes: list[Record] = []
    late: list[tuple[Record, codec.LateBody]] = []
    decision: tuple[Record, codec.DecisionBody] | None = None
    ending: codec.OutcomeBody | None = None

    @property
    def last(self) -> Attempt | None:
        """The latest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def first_fingerprint(self) -> str | None:
        """The first recorded fingerprint of the request."""
        for attempt in self.attempts:
            if attempt.body.fingerprint:
                return attempt.body.fingerprint
        return None

    @property
    def since(self) -> Record:
        """The record that made the present state; not for an absent effect."""
        last = self.last
        if self.ending is not None or last is None:
            assert self.closed is not None
            return self.closed
        return last.outcome or last.released or last.intent

    @property
    def version(self) -> int:
        """Grows with every intent, outcome, late evidence and decision."""
        return len(self.attempts) + sum(a.outcome is not None for a in self.attempts) + len(self.notes)

    @property
    def accepted_evidence(self) -> Record | None:
        """A record which is evidence that some attempt was accepted."""
        for attempt in self.attempts:
            if attempt.outcome is not None and attempt.outcome.phase == states.ACCEPTED:
                return attempt.outcome
        if self.closed is not None:
            return self.closed
        return next((record for record, body in self.late if body.claims == "accepted" and not body.pending), None)

    def outcome(self) -> Outcome[msgspec.Raw] | None:
        """How all attempts ended together; None unless that is final."""
        if self.state not in states.FINAL:
            return None
        results = [result for attempt in self.attempts if (result := attempt.result) is not None]
        if self.ending is not None:
            results.append(outcome_of(states.ACCEPTED, self.ending))
        return combine(list(results))


def plainly_accepted(
    history: History, intent: Record, outcome: Record
) -> tuple[str | None, Outcome[msgspec.Raw]] | None:
    """Return request's fingerprint and outcome where the two records are all there is; None: `look` at the effect.

    It says what `look` would say, for the effects that most of a replay consists of, at a third of the price.

    Raises:
        LedgerCorrupt: one of the two cannot be decoded.
    """
    if (intent.kind, intent.phase, outcome.kind, outcome.phase) != _PLAIN:
        return None
    ending = codec.parse(outcome, codec.OutcomeBody, namespace=history.namespace, run=history.run)
    if ending.due is not None:
        return None
    body = codec.parse(intent, codec.IntentBody, namespace=history.namespace, run=history.run)
    return body.fingerprint, outcome_of(states.ACCEPTED, ending)


_PLAIN = (records.EFFECT, "intent", records.EFFECT, states.ACCEPTED)


def look(history: History, name: str) -> Effect:
    """Fold the records of one effect through the transition table.

    Raises:
        LedgerCorrupt: one of its records cannot be decoded, or must not be where it is.
    """
    effect = Effect(name)
    if not history.has_effect(name):
        return effect
    number = 1
    while (record := history.get(slots.buried(name, number)) or history.get(slots.intent(name, number))) is not None:
        if not _add_attempt(history, effect, number, record=record):
            break
        number += 1
    count = 1
    while (record := history.get(slots.note(name, count))) is not None:
        _add_note(history, effect, record)
        count += 1
    return effect


def _add_attempt(history: History, effect: Effect, number: int, *, record: Record) -> bool:
    if record.phase == "closed":
        effect.closed = record
        body = history.parse(record, codec.OutcomeBody)
        if effect.state not in states.FINAL:
            _advance(effect, record, "closed")
            effect.ending = body if effect.state == states.ACCEPTED else None
        return False
    if record.phase == "buried":
        buried = history.parse(record, codec.BuriedBody)
        intent = codec.IntentBody(fingerprint=buried.fingerprint, keep_key=buried.keep_key)
        ending = msgspec.structs.replace(record, phase=buried.phase, at=buried.at)
        attempt = Attempt(number, record, intent, ending, buried.outcome)
        _advance(effect, record, "intent")
        effect.attempts.append(attempt)
        _advance(effect, record, _event(buried.phase, buried.outcome))
        return True
    attempt = Attempt(number, record, history.parse(record, codec.IntentBody))
    _advance(effect, record, record.phase)
    effect.attempts.append(attempt)
    if (released := history.get(slots.released(effect.name, number))) is not None:
        history.parse(released, codec.ReleasedBody)
        attempt.released = released
        _advance(effect, released, released.phase)
    if (outcome := history.get(slots.outcome(effect.name, number))) is not None:
        attempt.outcome = outcome
        attempt.ending = history.parse(outcome, codec.OutcomeBody)
        _advance(effect, outcome, _event(outcome.phase, attempt.ending))
    return True


def _event(phase: str, ending: codec.OutcomeBody) -> str:
    return phase if ending.due is None else f"{phase}-due"


def _advance(effect: Effect, record: Record, event: str) -> None:
    state = states.EFFECT.next(effect.state, event)
    if record.kind != records.EFFECT or state is None:
        raise LedgerCorrupt(
            f"the record in slot {record.slot!r} must not be there: {event!r} while {effect.state}",
            hint="run `counterfoil verify`; nothing was called for this name",
        )
    effect.state = state


def _add_note(history: History, effect: Effect, record: Record) -> None:
    effect.notes.append(record)
    if record.phase == "decision":
        body = history.parse(record, codec.DecisionBody)
        effect.decision = effect.decision or (record, body)
    else:
        effect.late.append((record, history.parse(record, codec.LateBody)))


def outcome_of(phase: str, body: codec.OutcomeBody) -> Outcome[msgspec.Raw]:
    """Build an outcome from its record; the proof stays encoded."""
    evidence = None if body.evidence is None else evidence_of(body.evidence)
    if phase == states.ACCEPTED:
        if evidence is None:
            return Accepted(body.proof, body.via)  # type: ignore[arg-type]
        return Accepted(body.proof, body.via, evidence)  # type: ignore[arg-type]
    assert evidence is not None
    if phase == states.REJECTED:
        return Rejected(evidence)
    if phase == states.FAILED:
        return Failed(evidence, retryable=body.retryable)
    return Uncertain(evidence)


def evidence_of(body: codec.EvidenceBody) -> Evidence:
    """Build evidence from its record."""
    return Evidence(**{name: getattr(body, name) for name in body.__struct_fields__})


def evidence_body(evidence: Evidence) -> codec.EvidenceBody:
    """Turn evidence into what is recorded; details that are no JSON are replaced by their type's name."""
    details = codec.plain(evidence.details)
    return codec.EvidenceBody(
        kind=evidence.kind,
        phase=evidence.phase,
        bytes_offered=evidence.bytes_offered,
        status=evidence.status,
        contract=evidence.contract,
        promises=tuple(evidence.promises),
        details=details,
    )


def decision_of(record: Record, body: codec.DecisionBody) -> Decision:
    """Build a decision from its record."""
    return Decision(
        happened=body.happened,
        proof=codec.decode(bytes(body.proof)),
        reason=body.reason,
        by=body.by,
        at=record.at,
        seen_version=body.seen_version,
        new_name=body.new_name,
    )


def link_of(history: History, name: str) -> Effect | None:
    """Return the uncertain effect whose decision names `name` as its retry, or None."""
    for record in history.decisions:
        parts = slots.effect_of(record.slot)
        if parts is not None and history.parse(record, codec.DecisionBody).new_name == name:
            return look(history, parts[0])
    return None
