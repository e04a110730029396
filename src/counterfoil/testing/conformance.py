"""What every ledger must do, as a suite to run against your own.

Subclass it where pytest collects it, and make a fresh, empty ledger for each test:

    from counterfoil.testing.conformance import LedgerConformance

    class TestMyLedger(LedgerConformance):
        def make_ledger(self):
            return MyLedger(...)

`append` and `read` must be there. The optional ports (`counterfoil.ports.ledger`) are tested when the ledger has
them and skipped otherwise. Both ways of appending, `append` and `submit`, are held to the same rules. A ledger
that outlives its process has more to prove than one process can test: kill -9, power loss, a lost COMMIT.
"""

from __future__ import annotations

from functools import partial
from queue import SimpleQueue
from typing import Any

from counterfoil.errors import LedgerUnavailable, OwnerRetired, RunPruned, UsageError
from counterfoil.ports.ledger import (
    Batching,
    Catalogue,
    Closing,
    Notifier,
    Owners,
    Reply,
    Retention,
)
from counterfoil.protocol import slots
from counterfoil.protocol.records import EFFECT, KINDS, NOTE, RUN, STEP, Entry, Record
from counterfoil.testing.conforming import TransactionCases
from counterfoil.testing.hostile import ALIKE_NAMES, HOSTILE_BODIES, HOSTILE_NAMES
from counterfoil.testing.suite import NAMESPACE, WAIT_S, Put, expect, in_threads, same


class LedgerConformance(TransactionCases):
    """Tests for one ledger; see the module's text. Each test gets a ledger of its own."""

    # --- append and read

    def test_a_record_is_what_was_appended(self) -> None:
        """Every field of an entry comes back, from `append` and from `read`."""
        for way, put in self.ways():
            entry = self.entry("effect/a/1/intent", run=way, kind=EFFECT, phase="intent", body=b'{"x":1}')
            record = put(entry)
            assert same(record, entry)
            assert list(self.ledger.read(NAMESPACE, way)) == [record]

    def test_the_first_record_wins(self) -> None:
        """Appending to a filled slot returns the earlier record and changes nothing."""
        for way, put in self.ways():
            first = put(self.entry("slot", run=way, body=b"1"))
            second = put(self.entry("slot", run=way, body=b"2"))
            assert second == first
            assert list(self.ledger.read(NAMESPACE, way)) == [first]

    def test_an_append_id_appended_again_finds_its_own_record(self) -> None:
        """Settling is idempotent: the answer is the record that the first append made."""
        for way, put in self.ways():
            entry = self.entry("slot", run=way)
            first = put(entry)
            for settle in (False, True):
                assert put(entry, settle=settle) == first
            assert self.slots_of(way) == ["slot"]

    def test_settling_what_was_never_recorded_records_it(self) -> None:
        """Settling appends: it never just looks."""
        for way, put in self.ways():
            entry = self.entry("slot", run=way)
            assert same(put(entry, settle=True), entry)

    def test_settling_finds_somebody_elses_record(self) -> None:
        """Settling a slot that somebody else has filled returns theirs."""
        for way, put in self.ways():
            theirs = put(self.entry("slot", run=way, body=b'"theirs"'))
            assert put(self.entry("slot", run=way, body=b'"ours"'), settle=True) == theirs

    def test_positions_grow(self) -> None:
        """Within a run, positions grow in the order of commit."""
        for way, put in self.ways():
            positions = [put(self.entry(f"slot/{n}", run=way)).position for n in range(20)]
            assert positions == sorted(set(positions))
            assert all(position > 0 for position in positions)

    def test_a_read_returns_what_is_behind_a_position(self) -> None:
        """Reads are incremental; at the end they are empty, or overlap what was open."""
        records = [self.ledger.append(self.entry(f"slot/{n}")) for n in range(10)]
        for n, record in enumerate(records):
            behind = self.slots_of(after=record.position)
            assert behind[-9 + n :] == [f"slot/{m}" for m in range(n + 1, 10)] or n == 9
        assert self.ledger.read(NAMESPACE, "nothing here") == []

    def test_namespaces_and_runs_are_apart(self) -> None:
        """One slot can be filled once in each run of each namespace, the ledger's own included."""
        places = [(space, run) for space in ("", "a", "b") for run in ("r", "ledger", "a")]
        for space, run in places:
            entry = self.entry("slot", namespace=space, run=run)
            assert same(self.ledger.append(entry), entry)
        for space, run in places:
            assert self.slots_of(run, space) == ["slot"]

    def test_hostile_names_round_trip(self) -> None:
        """Names are kept byte for byte, and no two of them meet."""
        for way, put in self.ways():
            for name in HOSTILE_NAMES:
                for slot in (slots.step(name), slots.intent(name, 1), slots.event(name, name)):
                    entry = self.entry(slot, run=f"{name[:200]}{way}", namespace=name)
                    assert same(put(entry), entry)
            for name in HOSTILE_NAMES:
                found = self.slots_of(f"{name[:200]}{way}", name)
                assert found == [slots.step(name), slots.intent(name, 1), slots.event(name, name)]

    def test_names_that_look_alike_stay_apart(self) -> None:
        """Runs, slots and namespaces that differ in case, in spaces or in how a letter is composed never meet."""
        for way, put in self.ways():
            for name in ALIKE_NAMES:
                alike = f"{way}/{name}"
                for entry in (
                    self.entry("slot", run=alike),
                    self.entry(slots.step(name), run=way),
                    self.entry("slot", namespace=alike),
                ):
                    assert same(put(entry), entry)
                    assert put(entry, settle=True).append_id == entry.append_id
            assert self.slots_of(way) == [slots.step(name) for name in ALIKE_NAMES]
            for alike in (f"{way}/{name}" for name in ALIKE_NAMES):
                assert self.slots_of(alike) == ["slot"]
                assert self.slots_of("run", alike) == ["slot"]

    def test_hostile_bodies_round_trip(self) -> None:
        """Bodies are bytes: NUL escapes, emoji, 64-bit integers and long ones come back as they were."""
        for way, put in self.ways():
            for n, body in enumerate(HOSTILE_BODIES):
                assert put(self.entry(f"slot/{n}", run=way, body=body)).body == body
            assert [record.body for record in self.ledger.read(NAMESPACE, way)] == list(HOSTILE_BODIES)

    def test_every_kind_round_trips(self) -> None:
        """All kinds and phases of the protocol are kept."""
        for kind, phase in KINDS:
            if (kind, phase) != (RUN, "tombstone"):
                entry = self.entry(f"{kind}/{phase}", kind=kind, phase=phase)
                assert same(self.ledger.append(entry), entry)
        assert [(record.kind, record.phase) for record in self.ledger.read(NAMESPACE, "run")] == [
            pair for pair in KINDS if pair != (RUN, "tombstone")
        ]

    def test_of_many_threads_one_fills_a_slot(self) -> None:
        """Threads that fill the same slots at once all get the same records."""
        for way, put in self.ways():
            entries = [
                [self.entry(f"slot/{n}", run=way, body=str(thread).encode()) for n in range(10)] for thread in range(16)
            ]
            told = in_threads([partial(_each, put, mine) for mine in entries])
            recorded = list(self.ledger.read(NAMESPACE, way))
            assert len(recorded) == 10
            by_slot = {record.slot: record for record in recorded}
            for mine in told:
                assert mine == [by_slot[record.slot] for record in mine]

    def test_a_batch_keeps_the_order_of_submission(self) -> None:
        """What is submitted for a run in an order is committed and told in that order."""
        ledger: Batching = self.having(Batching)
        told: SimpleQueue[list[tuple[object, Reply]]] = SimpleQueue()
        for n in range(300):
            entry = self.entry(f"slot/{n}", run=f"run/{n % 3}")
            ledger.submit(entry, settle=False, token=n, deliver=told.put)
        tokens: list[Any] = []
        while len(tokens) < 300:
            for token, reply in told.get(timeout=WAIT_S):
                assert isinstance(reply, Record)
                tokens.append(token)
        for run in range(3):
            assert [token for token in tokens if token % 3 == run] == list(range(run, 300, 3))
            assert self.slots_of(f"run/{run}") == [f"slot/{n}" for n in range(run, 300, 3)]

    # --- owners

    def test_epochs_are_fresh_and_carry_their_generation(self) -> None:
        """An epoch is `<generation>.<random>`, and no two are equal."""
        ledger: Owners = self.having(Owners)
        epochs = [ledger.register("again") for _ in range(5)]
        assert len({self.epoch, *epochs}) == 6
        for epoch in epochs:
            generation, dot, random = epoch.partition(".")
            assert dot
            assert generation.isdigit()
            assert random

    def test_a_life_is_alive_until_it_is_retired(self) -> None:
        """`owners`, `live` and `gone` agree about an own life before and after its end."""
        ledger: Owners = self.having(Owners)
        epoch = ledger.register("the label")
        (row,) = [owner for owner in ledger.owners() if owner.epoch == epoch]
        assert (row.label, row.alive) == ("the label", True)
        assert ledger.live(epoch)
        assert not ledger.gone(epoch)
        ledger.retire(epoch)
        assert not ledger.live(epoch)
        assert ledger.gone(epoch)
        assert epoch not in {owner.epoch for owner in ledger.owners()}

    def test_an_unknown_life_is_not_proved_to_be_over(self) -> None:
        """An epoch from elsewhere is neither gone nor alive."""
        ledger: Owners = self.having(Owners)
        assert not ledger.gone("1.00000000")
        assert not ledger.live("1.00000000")

    def test_a_fence_stops_decisions_and_never_facts(self) -> None:
        """A retired or unknown epoch decides nothing; its facts are recorded."""
        ledger: Owners = self.having(Owners)
        retired = ledger.register("soon gone")
        ledger.retire(retired)
        for way, put in self.ways():
            for n, epoch in enumerate((retired, "77.0badc0de")):
                refused = self.entry(f"d/{n}", run=way, epoch=epoch, decision=True)
                expect(OwnerRetired, partial(put, refused))
                expect(OwnerRetired, partial(put, refused, settle=True))
                fact = self.entry(f"f/{n}", run=way, epoch=epoch)
                assert same(put(fact), fact)
            assert self.slots_of(way) == ["f/0", "f/1"]
            allowed = self.entry("d/0", run=way, decision=True)
            assert same(put(allowed), allowed)

    def test_a_filled_slot_answers_a_fenced_life_too(self) -> None:
        """A retired owner learns who filled the slot it wants."""
        ledger: Owners = self.having(Owners)
        retired = ledger.register("soon gone")
        mine = self.entry("mine", epoch=retired, decision=True)
        first = self.ledger.append(mine)
        theirs = self.ledger.append(self.entry("theirs"))
        ledger.retire(retired)
        for _, put in self.ways():
            assert put(mine, settle=True) == first
            assert put(self.entry("theirs", epoch=retired, decision=True)) == theirs

    def test_no_owner_is_never_fenced(self) -> None:
        """The epoch `""` belongs to no life: the ledger's own records, and hosts without owners."""
        for way, put in self.ways():
            entry = self.entry("slot", run=way, epoch="", decision=True)
            assert same(put(entry), entry)

    # --- what else a ledger may have

    def test_changes_name_the_runs_with_new_records(self) -> None:
        """`changes` tells each run with a record since the last look, and nothing when there is none."""
        ledger: Notifier = self.having(Notifier)
        nothing, seen = ledger.changes(-1)
        assert nothing == set()
        self.ledger.append(self.entry("slot", run="a"))
        self.ledger.append(self.entry("slot", run="b", namespace="other"))
        changed, later = ledger.changes(seen)
        assert changed == {(NAMESPACE, "a"), ("other", "b")}
        assert ledger.changes(later) == (set(), later)
        self.ledger.append(self.entry("slot", run="a"))  # filled already
        assert ledger.changes(later) == (set(), later)
        self.ledger.append(self.entry("slot/2", run="a"))
        assert ledger.changes(later)[0] == {(NAMESPACE, "a")}

    def test_runs_are_listed_oldest_first_in_pages(self) -> None:
        """Pages hang together, and finished runs can be told from others."""
        ledger: Catalogue = self.having(Catalogue)
        for n in range(7):
            self.ledger.append(self.entry("slot", run=f"run/{n}"))
        self.ledger.append(self.entry("slot/2", run="run/0"))
        end = self.entry(slots.FINISHED, run="run/2", kind=RUN, phase="finished")
        self.ledger.append(end)
        names: list[str] = []
        after = 0
        while page := ledger.runs(NAMESPACE, after=after, limit=3):
            assert len(page) <= 3
            names += [row.run for row in page]
            after = page[-1].position
        assert names == [f"run/{n}" for n in range(7)]
        (row,) = ledger.runs(NAMESPACE, finished=True)
        assert (row.run, row.finished, row.pruned) == ("run/2", end.at, False)
        assert "run/2" not in {row.run for row in ledger.runs(NAMESPACE, finished=False)}
        assert ledger.runs("another") == []

    def test_runs_are_found_by_what_they_hold(self) -> None:
        """A listing can be narrowed to runs that hold a record of given kinds."""
        ledger: Catalogue = self.having(Catalogue)
        for phase in ("intent", "uncertain", "released"):
            self.ledger.append(self.entry("slot", run=phase, kind=EFFECT, phase=phase))
        self.ledger.append(self.entry("slot", run="step"))

        def holding(*pairs: tuple[str, str]) -> list[str]:
            return [row.run for row in ledger.runs(NAMESPACE, holding=pairs)]

        assert holding((EFFECT, "uncertain")) == ["uncertain"]
        assert holding((EFFECT, "intent"), (EFFECT, "released")) == ["intent", "released"]
        assert holding((STEP, "result")) == ["step"]
        assert holding((NOTE, "late")) == []

    def test_a_pruned_run_keeps_its_tombstone_and_refuses_the_rest(self) -> None:
        """Pruning drops records, keeps what is named, and checks the tombstone inside every append."""
        ledger: Retention = self.having(Retention)
        for n in range(5):
            self.ledger.append(self.entry(f"slot/{n}"))
        self.ledger.append(self.entry(slots.FINISHED, kind=RUN, phase="finished"))
        last = self._bury(ledger, [f"slot/{n}" for n in range(4)])
        assert self.slots_of() == ["slot/4", slots.FINISHED, slots.TOMBSTONE, "kept"]
        for _, put in self.ways():
            expect(RunPruned, partial(put, self.entry("new")))
            expect(RunPruned, partial(put, self.entry("slot/4")))
        note = self.entry(slots.note("a", 1), kind=NOTE, phase="late")
        assert same(self.ledger.append(note), note)
        assert note.slot in self.slots_of(after=last)
        self._bury(ledger, ["slot/4", note.slot, slots.TOMBSTONE])
        assert self.slots_of() == [slots.FINISHED, slots.TOMBSTONE, "kept"]
        if isinstance(self.ledger, Catalogue):
            (row,) = self.ledger.runs(NAMESPACE, finished=True)
            assert row.pruned

    def test_positions_are_never_given_out_twice(self) -> None:
        """A reader that has seen a record which is then pruned misses nothing that comes later."""
        ledger: Retention = self.having(Retention)
        self.ledger.append(self.entry(slots.FINISHED, kind=RUN, phase="finished"))
        self._bury(ledger, [])
        note = self.ledger.append(self.entry(slots.note("a", 1), kind=NOTE, phase="late"))
        self._bury(ledger, [note.slot])
        later = self.ledger.append(self.entry(slots.note("a", 2), kind=NOTE, phase="late"))
        assert later.position > note.position
        assert self.slots_of(after=note.position) == [later.slot]

    def test_an_unfinished_run_is_not_pruned(self) -> None:
        """Only finished runs are pruned; the refusal records nothing."""
        ledger: Retention = self.having(Retention)
        self.ledger.append(self.entry("slot"))
        expect(UsageError, lambda: self._bury(ledger, ["slot"]))
        assert self.slots_of() == ["slot"]

    def test_a_closed_ledger_says_so(self) -> None:
        """Use after closing is `LedgerUnavailable`, and definite."""
        ledger: Closing = self.having(Closing)
        ledger.close()
        for use in (
            lambda: self.ledger.append(self.entry("slot")),
            lambda: self.ledger.read(NAMESPACE, "run"),
        ):
            assert expect(LedgerUnavailable, use).effect_ran == "no"
        ledger.close()

    def _bury(self, ledger: Retention, drop: list[str]) -> int:
        tombstone = self.entry(slots.TOMBSTONE, kind=RUN, phase="tombstone")
        kept = self.entry("kept", kind=EFFECT, phase="buried")
        ledger.bury(NAMESPACE, "run", tombstone=tombstone, kept=[kept], drop=drop)
        return self.ledger.read(NAMESPACE, "run")[-1].position


def _each(put: Put, entries: list[Entry]) -> list[Record]:
    return [put(entry) for entry in entries]
