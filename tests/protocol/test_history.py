"""Records, and what one life has read of a run."""

from __future__ import annotations

import msgspec
import pytest

from counterfoil.protocol import codec, records, slots, states
from counterfoil.protocol.history import History, look
from counterfoil.protocol.records import Draft, Record, entry_of, generation_of, record_of


def record(
    slot: str,
    position: int,
    *,
    epoch: str = "3.a",
    phase: str = "result",
    kind: str = records.STEP,
    body: msgspec.Struct | None = None,
) -> Record:
    draft = Draft(slot=slot, kind=kind, phase=phase, body=codec.body_of(body or codec.StepBody()))
    return record_of(entry_of(draft, "n", "r", epoch=epoch, append_id=position, at=1.0), position)


@pytest.mark.parametrize(("epoch", "generation"), [("12.ab", 12), ("0.ff", 0), ("7.1.2", 7), ("", 0)])
def test_an_epoch_begins_with_its_generation(epoch: str, generation: int) -> None:
    assert generation_of(epoch) == generation


@pytest.mark.rule("L6")
def test_reading_goes_on_behind_the_last_position_that_was_read() -> None:
    history = History("n", "r")
    assert history.position == 0
    history.add([record("step/a", 1), record("step/b", 4)])
    # What was learnt by appending may lie behind records of others that were not read yet.
    history.take(record("step/c", 9))
    assert history.position == 4
    history.add([record("step/d", 6), record("step/c", 9)])
    assert history.position == 9
    assert [each.slot for each in history] == ["step/a", "step/b", "step/d", "step/c"]


@pytest.mark.rule("L1")
def test_the_first_record_of_a_slot_stays() -> None:
    history = History("n", "r")
    history.take(record("step/a", 2, epoch="3.a"))
    history.take(record("step/a", 5, epoch="4.b"))
    history.add([record("step/a", 5, epoch="4.b")])
    found = history.get("step/a")
    assert found is not None
    assert found.epoch == "3.a"


@pytest.mark.rule("L1")
def test_what_comes_with_a_record_that_is_known_is_taken_in() -> None:
    history = History("n", "r")
    history.take(record("step/a", 1))
    history.take(record("step/a", 1), record("step/b", 2))
    assert [each.slot for each in history] == ["step/a", "step/b"]


@pytest.mark.rule("L14")
def test_a_run_began_in_the_generation_of_its_first_record_in_whatever_order_they_were_learnt() -> None:
    history = History("n", "r")
    assert [history.began_in] == [None]
    history.take(record("step/b", 7, epoch="5.b"))
    assert history.began_in == 5
    history.add([record("step/a", 3, epoch="2.a"), record("step/c", 9, epoch="9.c")])
    assert history.began_in == 2


def effect_of(*attempts: str) -> History:
    """What is in the slots of the intents of an effect's attempts: an intent, or evidence that closed it."""
    history = History("n", "r")
    bodies = {"intent": codec.IntentBody(), "closed": codec.OutcomeBody(via="evidence", proof=msgspec.Raw(b'"m1"'))}
    for number, phase in enumerate(attempts, 1):
        slot = slots.intent("pay", number)
        history.take(record(slot, number, phase=phase, kind=records.EFFECT, body=bodies[phase]))
    return history


@pytest.mark.rule("E14", "E18")
def test_evidence_that_bars_the_next_attempt_ends_nothing_while_this_one_is_open() -> None:
    seen = look(effect_of("intent", "closed"), "pay")
    assert (seen.state, seen.outcome(), seen.since.slot) == (states.INTENDED, None, slots.intent("pay", 1))
    assert seen.accepted_evidence is not None


@pytest.mark.rule("E14")
def test_no_attempt_counts_that_comes_after_evidence_of_acceptance() -> None:
    seen = look(effect_of("intent", "closed", "intent"), "pay")
    assert (len(seen.attempts), seen.state) == (1, states.INTENDED)


@pytest.mark.rule("L10")
def test_what_was_forgotten_is_read_again_from_the_beginning() -> None:
    history = History("n", "r")
    history.add([record("step/a", 3), record(slots.note("pay", 1), 4, phase="decision", kind=records.NOTE)])
    history.take(record(slots.TOMBSTONE, 5, phase="tombstone", kind=records.RUN))
    assert [history.pruned] == [True]
    history.forget()
    assert [history.pruned] == [False]
    assert (history.position, list(history), history.decisions, history.began_in) == (0, [], [], None)
    history.add([record("step/a", 3)])
    assert [each.slot for each in history] == ["step/a"]
