"""The history checker finds each planted fault, and nothing in what the library records by itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from counterfoil import UNASKABLE, EffectUnresolved, Evidence, Failed, Rejected, Retry, RunPruned, Runtime, UsageError
from counterfoil.ledgers.memory import MemoryLedger
from counterfoil.protocol import codec, exported, records, slots
from counterfoil.protocol.checker import ACKNOWLEDGED, Checker, Finding, Item
from counterfoil.protocol.keys import effect_key
from counterfoil.protocol.legality import name_in
from counterfoil.protocol.records import (
    EFFECT,
    EVENT,
    LEDGER,
    NOTE,
    PARK,
    RUN,
    STEP,
    TRANSACTION,
    Entry,
    Record,
    checksum,
)

NAMESPACE = "shop"
RUN_ID = "order-1"

Planted = tuple[str, str, str, msgspec.Struct]


def entry(planted: Planted, number: int) -> Entry:
    slot, kind, phase, body = planted
    raw = codec.body_of(body)
    check = checksum(NAMESPACE, RUN_ID, slot, kind=kind, phase=phase, body=raw, epoch="1.a", append_id=number)
    return Entry(
        namespace=NAMESPACE, run=RUN_ID, slot=slot, kind=kind, phase=phase, body=raw,
        epoch="1.a", append_id=number, at=float(number), check=check,
    )  # fmt: skip


def recorded(*planted: Planted) -> list[Record]:
    """Write records through the ledger port, and read them back."""
    ledger = MemoryLedger()
    for number, each in enumerate(planted, 1):
        try:
            ledger.append(entry(each, number))
        except RunPruned:
            # A ledger takes nothing for a pruned run, except what is buried with it.
            ledger.bury(NAMESPACE, RUN_ID, tombstone=entry(STONE, 0), kept=[entry(each, number)], drop=[])
    return list(ledger.read(NAMESPACE, RUN_ID))


def check(found: list[Record], items: list[Item] | None = None) -> list[Finding]:
    findings = Checker(NAMESPACE, items).run(RUN_ID, found)
    assert all(finding.text and finding.run == RUN_ID for finding in findings)
    return findings


def codes(found: list[Finding]) -> list[str]:
    return [finding.code for finding in found]


# --- records in short


def intent(number: int = 1, name: str = "mail", **body: Any) -> Planted:
    return slots.intent(name, number), EFFECT, "intent", codec.IntentBody(**body)


def outcome(phase: str, number: int = 1, name: str = "mail", **body: Any) -> Planted:
    if phase == "accepted":
        body.setdefault("proof", msgspec.Raw(b'"m1"'))
    else:
        body.setdefault("evidence", codec.EvidenceBody(kind="told"))
    return slots.outcome(name, number), EFFECT, phase, codec.OutcomeBody(**body)


def released(number: int = 1) -> Planted:
    return slots.released("mail", number), EFFECT, "released", codec.ReleasedBody(why="run-raised")


def closed(number: int = 1, name: str = "mail") -> Planted:
    body = codec.OutcomeBody(via="evidence", proof=msgspec.Raw(b'"m1"'))
    return slots.intent(name, number), EFFECT, "closed", body


def late(note: int = 1, attempt: int = 1, claims: str = "accepted", name: str = "mail") -> Planted:
    body = codec.LateBody(attempt=attempt, claims=claims, proof=msgspec.Raw(b'"m1"'))
    return slots.note(name, note), NOTE, "late", body


def decision(note: int = 1, seen: int = 2, new_name: str | None = None) -> Planted:
    body = codec.DecisionBody(happened=False, reason="asked", by="ann", seen_version=seen, new_name=new_name)
    return slots.note("mail", note), NOTE, "decision", body


def buried(phase: str = "accepted", **body: Any) -> Planted:
    _, _, _, ending = outcome(phase, **body)
    return slots.buried("mail", 1), EFFECT, "buried", codec.BuriedBody(phase=phase, at=1.0, outcome=ending)  # type: ignore[arg-type]


def step_failed(number: int) -> Planted:
    return slots.step_failed("price", number), STEP, "failed", codec.StepFailedBody(error="ValueError")


def committed(number: int, name: str = "sale") -> Planted:
    return slots.transaction(name, number), TRANSACTION, "committed", codec.TransactionBody(promise="local")


def aborted(number: int, name: str = "sale") -> Planted:
    return slots.transaction(name, number), TRANSACTION, "aborted", codec.EmptyBody()


def quarantined(number: int) -> Planted:
    return slots.quarantine(number), RUN, "quarantined", codec.QuarantinedBody(deaths=3)


def lifted(number: int) -> Planted:
    return slots.lifted(number), RUN, "lifted", codec.LiftedBody(by="ann", reason="mended")


STEP_DONE: Planted = (slots.step("price"), STEP, "result", codec.StepBody())
ARMED: Planted = (slots.sleep("night"), PARK, "armed", codec.ArmedBody(deadline=5.0))
WOKEN: Planted = (slots.woken("night"), PARK, "woken", codec.EmptyBody())
WAITS: Planted = (slots.wait("paid", "1"), PARK, "armed", codec.ArmedBody())
DELIVERED: Planted = (slots.event("paid", "1"), EVENT, "delivered", codec.DeliveredBody())
STARTED: Planted = (slots.STARTED, RUN, "started", codec.StartedBody(body="m:f"))
CLAIMED: Planted = (slots.claim(1), RUN, "claimed", codec.EmptyBody())
FINISHED: Planted = (slots.FINISHED, RUN, "finished", codec.FinishedBody())
STONE: Planted = (slots.TOMBSTONE, RUN, "tombstone", codec.EmptyBody())
RETRY = codec.RetryBody(attempts=3)
FOUND_NOTHING = outcome("accepted", via="reconcile", proof=msgspec.Raw(b"null"))
UNCERTAIN = (intent(), outcome("uncertain"))
FAILED_DUE = (intent(retry=RETRY), outcome("failed", due=2.0, retryable=True))


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param((intent(), outcome("accepted")), id="plain"),
        pytest.param((intent(), released(), outcome("accepted", via="reconcile")), id="found by asking"),
        pytest.param((intent(), outcome("rejected"), released()), id="a release that came late"),
        pytest.param((*FAILED_DUE, intent(2), outcome("accepted", 2)), id="two attempts"),
        pytest.param((*FAILED_DUE, late(1), closed(2)), id="evidence before the second attempt"),
        pytest.param((intent(), outcome("accepted"), closed(2)), id="evidence after the end"),
        pytest.param((intent(), closed(2), outcome("accepted")), id="evidence just before the end"),
        pytest.param((*FAILED_DUE, late(1, claims="failed"), intent(2)), id="late evidence of failure"),
        pytest.param((*UNCERTAIN, late(), decision(2, seen=3)), id="decided after late evidence"),
        pytest.param(
            (intent(), outcome("uncertain", via="decision"), decision(seen=1)), id="ended by the person who decided"
        ),
        pytest.param(
            (*UNCERTAIN, decision(new_name="again"), intent(name="again"), outcome("uncertain", name="again")),
            id="sent again under a new name",
        ),
        pytest.param((intent(name="other"), *UNCERTAIN, decision(new_name="other")), id="a new name in use"),
        pytest.param((step_failed(1), step_failed(2), STEP_DONE), id="a step that was repeated"),
        pytest.param((*FAILED_DUE, intent(2), released(1)), id="a release that came after the next intent"),
        pytest.param((aborted(1), aborted(2), committed(3), committed(1, "other")), id="lost commits, and the last"),
        pytest.param((quarantined(1), lifted(1), quarantined(2)), id="a quarantine that was lifted"),
        pytest.param((FINISHED, STONE, lifted(1)), id="a quarantine that went with what was pruned"),
        pytest.param((ARMED, WOKEN, WAITS, DELIVERED), id="parks"),
        pytest.param((DELIVERED, WAITS), id="a wait that came second"),
        pytest.param((STARTED, CLAIMED, intent(), outcome("accepted"), FINISHED), id="a run taken over"),
        pytest.param((FINISHED, STONE, buried(), CLAIMED), id="pruned"),
        pytest.param((FINISHED, STONE, buried("failed", due=2.0, retryable=True)), id="pruned, closed by evidence"),
    ],
)  # fmt: skip
def test_what_may_come_about_is_found_clean(planted: tuple[Planted, ...]) -> None:
    assert check(recorded(*planted)) == []


@pytest.mark.parametrize(
    ("planted", "rule", "code"),
    [
        pytest.param((outcome("accepted"),), "E1", "no-intent", id="outcome without intent"),
        pytest.param((outcome("accepted"), intent()), "E1", "no-intent", id="intent after its outcome"),
        pytest.param((released(), intent()), "E1", "no-intent", id="release without intent"),
        pytest.param((intent(), outcome("accepted"), intent(2)), "E14", "sent-again", id="accepted, sent again"),
        pytest.param((*UNCERTAIN, intent(2)), "E14", "sent-again", id="uncertain, sent again"),
        pytest.param(
            (*UNCERTAIN, intent(2), decision(seen=3, new_name="again"), intent(name="again")),
            "E14", "sent-again", id="sent again under both names",
        ),
        pytest.param((intent(retry=RETRY), intent(2), outcome("failed", due=1.0)), "E14", "sent-early", id="early"),
        pytest.param((intent(), intent(2)), "E1", "transition", id="a second attempt while the first is open"),
        pytest.param((intent(), intent(3)), "E14", "gap", id="an attempt is missing"),
        pytest.param((*FAILED_DUE, late(), intent(2)), "E14", "sent-after-acceptance", id="sent though accepted"),
        pytest.param((intent(), outcome("failed", due=2.0)), "E14", "no-policy", id="another attempt without policy"),
        pytest.param((intent(), outcome("uncertain", evidence=None)), "O2", "no-evidence", id="no evidence"),
        pytest.param((intent(), outcome("rejected", via="reconcile")), "O4", "absence", id="not found"),
        pytest.param((intent(), FOUND_NOTHING), "E2", "no-proof", id="accepted without proof"),
        pytest.param((*UNCERTAIN, late(2)), "E15", "gap", id="a note is missing"),
        pytest.param((intent(), late(attempt=2)), "E15", "no-attempt", id="late evidence about nothing"),
        pytest.param((intent(), outcome("accepted"), decision()), "E16", "decided-known", id="decided though known"),
        pytest.param((*UNCERTAIN, decision(), decision(2, seen=3)), "E16", "decided-twice", id="decided twice"),
        pytest.param((*UNCERTAIN, late(), decision(2, seen=2)), "N2", "stale-decision", id="stale"),
        pytest.param((*UNCERTAIN, decision(seen=3)), "N2", "stale-decision", id="a version to come"),
        pytest.param(
            (*UNCERTAIN, late(), decision(2, seen=3, new_name="again"), intent(name="again")),
            "E16", "sent-after-acceptance", id="sent again though accepted",
        ),
        pytest.param(
            (*UNCERTAIN, decision(new_name="again"), intent(name="again"), outcome("failed", name="again")),
            "O3", "not-sticky", id="uncertainty forgotten",
        ),
        pytest.param((STEP_DONE, step_failed(1)), "S1", "transition", id="a step that failed after its result"),
        pytest.param((step_failed(2),), "S4", "gap", id="a failed attempt is missing"),
        pytest.param((step_failed(2), STEP_DONE), "S4", "gap", id="a failed attempt before the result is missing"),
        pytest.param((aborted(1), committed(3)), "T4", "gap", id="a commit that was settled is missing"),
        pytest.param((committed(1), committed(2)), "T1", "transition", id="committed twice"),
        pytest.param((lifted(1),), "E8", "lifted-unset", id="lifted, and there was no quarantine"),
        pytest.param((quarantined(1), lifted(1), lifted(2)), "E8", "lifted-unset", id="lifted twice, quarantined once"),
        pytest.param((closed(1), outcome("failed", 1)), "E1", "transition", id="an outcome after evidence closed it"),
        pytest.param((WOKEN, ARMED), "P1", "transition", id="woken before it slept"),
        pytest.param((WOKEN,), "P1", "transition", id="woken without sleeping"),
        pytest.param(((slots.sleep("a"), PARK, "armed", codec.ArmedBody()),), "P1", "deadline", id="endless sleep"),
        pytest.param(
            ((slots.wait("a", "1"), PARK, "armed", codec.ArmedBody(deadline=1.0)),), "P1", "deadline", id="timed wait"
        ),
        pytest.param((CLAIMED,), "E8", "claimed-unstarted", id="taken over, never started"),
        pytest.param((STONE,), "L10", "pruned-unfinished", id="pruned before its end"),
        pytest.param((buried(),), "L10", "buried-alive", id="buried in a living run"),
        pytest.param((FINISHED, STONE, intent()), "L10", "sent-after-pruning", id="sent after pruning"),
        pytest.param(((slots.step("x"), EFFECT, "intent", codec.IntentBody()),), "L1", "misplaced", id="misplaced"),
    ],
)  # fmt: skip
@pytest.mark.rule("E1", "E14", "E16")
def test_a_planted_fault_is_found(planted: tuple[Planted, ...], rule: str, code: str) -> None:
    found = check(recorded(*planted))
    assert [(finding.rule, finding.code) for finding in found] == [(rule, code)]
    assert found[0].run == RUN_ID
    assert found[0].slot


@pytest.mark.rule("L4")
def test_damage_and_newer_records_are_found_and_hide_nothing_else() -> None:
    good = recorded(intent(), outcome("accepted"), intent(name="other"), intent(2, "other"), DELIVERED)
    flipped = msgspec.structs.replace(good[1], body=good[1].body.replace(b"m1", b"m2"))
    newer = msgspec.structs.replace(good[4], kind="durability/later")
    found = check([good[0], flipped, *good[2:4], newer])
    assert [(each.rule, each.code) for each in found] == [("L4", "damaged"), ("L4", "too-new"), ("E1", "transition")]
    assert [finding.name for finding in found] == ["mail", "paid/1", "other"]


@pytest.mark.rule("L4")
def test_nothing_is_drawn_from_what_is_left_of_an_effect_with_a_damaged_or_misplaced_record() -> None:
    sent, accepted, claimed = recorded(intent(), outcome("accepted"), CLAIMED)
    flipped = msgspec.structs.replace(sent, body=b"[")
    assert codes(check([flipped, accepted, claimed])) == ["damaged", "claimed-unstarted"]
    misplaced = slots.released("mail", 1), EFFECT, "intent", codec.IntentBody()
    assert codes(check(recorded(misplaced, outcome("accepted"), CLAIMED))) == ["misplaced", "claimed-unstarted"]


@pytest.mark.rule("L1")
def test_positions_and_slots_are_checked() -> None:
    first, second = recorded(intent(), outcome("accepted"))
    again = msgspec.structs.replace(first, position=3)
    damaged = msgspec.structs.replace(second, position=4, slot=slots.outcome("other", 1))
    assert codes(check([first, second, again, damaged])) == ["slot-twice", "damaged"]
    assert codes(check([first, msgspec.structs.replace(second, position=1)])) == ["order"]


@pytest.mark.rule("L10", "E14")
def test_a_run_that_was_sent_on_after_its_pruning_is_checked_to_its_end() -> None:
    buried_once = FINISHED, STONE, buried("failed", due=2.0, retryable=True)
    found = check(recorded(*buried_once, intent(2), outcome("failed", 2, due=3.0)))
    assert codes(found) == ["sent-after-pruning", "no-policy"]


def test_names_are_read_out_of_slots() -> None:
    names = {
        slots.step("a/b"): "a/b",
        slots.intent("%", 1): "%",
        slots.woken("n"): "n",
        slots.wait("e/1", "2"): "e/1/2",
        slots.event("e", "2"): "e/2",
        slots.transaction("s/1", 1): "s/1",
        slots.FINISHED: "",
        "?": "",
    }
    assert {slot: name_in(slot) for slot in names} == names


# --- the recipient's log

KEY = effect_key(NAMESPACE, RUN_ID, "mail", attempt=1)
ACCEPTED = (intent(), outcome("accepted"))


@pytest.mark.parametrize(
    ("planted", "items", "found"),
    [
        pytest.param(ACCEPTED, [Item(KEY, "m1")], [], id="it agrees"),
        pytest.param(ACCEPTED, [Item(KEY, "m1"), Item(KEY, "m1")], [], id="a line twice"),
        pytest.param(UNCERTAIN, [], [], id="uncertain, not made"),
        pytest.param(UNCERTAIN, [Item(KEY, "m1")], [], id="uncertain, made"),
        pytest.param(ACCEPTED, [Item(KEY, "m1"), Item(KEY, "m2")], ["doubled"], id="made twice"),
        pytest.param(ACCEPTED, [], ["phantom"], id="never made"),
        pytest.param(ACCEPTED, [Item(KEY, "m2")], ["phantom"], id="something else was made"),
        pytest.param((intent(), outcome("rejected")), [Item(KEY, "m1")], ["rejected-but-made"], id="rejected, made"),
        pytest.param((intent(), outcome("failed")), [Item(KEY, "m1")], ["failed-but-made"], id="failed, made"),
        pytest.param(UNCERTAIN, [Item(KEY, "m1", ACKNOWLEDGED)], ["lost"], id="told, not on record"),
        pytest.param(ACCEPTED, [Item(KEY, "m1"), Item(KEY, "m1", ACKNOWLEDGED)], [], id="told, on record"),
        pytest.param((FINISHED, STONE, buried()), [Item(KEY, "m1")], [], id="pruned, it agrees"),
        pytest.param((FINISHED, STONE, buried()), [], ["phantom"], id="pruned, never made"),
        pytest.param((), [Item("cf-unknown", "m1")], ["lost"], id="nobody knows it"),
        pytest.param(
            (intent(retry=RETRY, keep_key=True), outcome("failed", due=2.0), intent(2, keep_key=True)),
            [Item(KEY, "m1")], [], id="attempts that share a key",
        ),
        pytest.param(
            (*FAILED_DUE, intent(2), outcome("accepted", 2)),
            [Item(effect_key(NAMESPACE, RUN_ID, "mail", attempt=2), "m1")], [], id="attempts with a key each",
        ),
    ],
)  # fmt: skip
@pytest.mark.rule("E1", "E11")
def test_the_recipients_log_is_the_judge(planted: tuple[Planted, ...], items: list[Item], found: list[str]) -> None:
    checker = Checker(NAMESPACE, items)
    assert codes(checker.run(RUN_ID, recorded(*planted)) + checker.rest()) == found


@pytest.mark.parametrize(
    ("planted", "items", "expected"),
    [
        pytest.param(
            (intent(),), [Item(KEY, "m1"), Item(KEY, "m2")],
            ("E1", "doubled", RUN_ID, "mail", slots.intent("mail", 1), "the recipient made 2 things for one attempt"),
            id="made twice, on record as open",
        ),
        pytest.param(
            ACCEPTED, [Item(KEY, "m2")],
            ("E2", "phantom", RUN_ID, "mail", slots.intent("mail", 1),
             "the recipient has <m2> under this key, on record is <m1>"),
            id="something else was made",
        ),
        pytest.param(
            ACCEPTED, [],
            ("E2", "phantom", RUN_ID, "mail", slots.intent("mail", 1),
             "it is on record as accepted, and the recipient does not have it"),
            id="never made",
        ),
        pytest.param(
            UNCERTAIN, [Item(KEY, "m1", ACKNOWLEDGED)],
            ("E21", "lost", RUN_ID, "mail", slots.intent("mail", 1),
             "a caller was told that it was accepted, and that is not on record"),
            id="told, not on record",
        ),
        pytest.param(
            (intent(), outcome("failed")), [Item(KEY, "m1")],
            ("O2", "failed-but-made", RUN_ID, "mail", slots.intent("mail", 1),
             "it is on record as failed, and the recipient made it"),
            id="failed, made",
        ),
        pytest.param(
            (), [Item(KEY, "m1")],
            ("E1", "lost", "", KEY, "",
             "the recipient has this key in its log, and no run of this namespace has a record of it"),
            id="nobody knows it",
        ),
    ],
)  # fmt: skip
@pytest.mark.rule("E1", "E2", "E21", "O2")
def test_what_the_recipients_log_shows_is_said_with_its_place(
    planted: tuple[Planted, ...], items: list[Item], expected: tuple[str, ...]
) -> None:
    checker = Checker(NAMESPACE, items, written=lambda value: f"<{value}>")
    (found,) = checker.run(RUN_ID, recorded(*planted)) + checker.rest()
    assert (found.rule, found.code, found.run, found.name, found.slot, found.text) == expected


@pytest.mark.rule("E2")
def test_all_that_the_recipient_made_instead_is_written() -> None:
    items = [Item(KEY, "m2"), Item(KEY, "m3")]
    doubled, phantom = Checker(NAMESPACE, items, written=lambda value: f"<{value}>").run(RUN_ID, recorded(*ACCEPTED))
    assert (doubled.code, phantom.code) == ("doubled", "phantom")
    assert phantom.text == "the recipient has <m2> and <m3> under this key, on record is <m1>"


def test_what_the_body_no_longer_asked_for_is_known_by_run() -> None:
    ended = slots.FINISHED, RUN, "finished", codec.FinishedBody(unasked=("step/price",))
    checker = Checker(NAMESPACE)
    assert checker.run(RUN_ID, recorded(STEP_DONE, ended)) == []
    assert checker.run(RUN_ID, recorded(STEP_DONE, FINISHED)) == []
    assert checker.unasked == {RUN_ID: ("step/price",)}


# --- what the library does by itself


@dataclass
class Shop:
    """A runtime, and a recipient with a log of its own."""

    runtime: Runtime
    log: list[Item]

    def send(self, ctx: Any) -> str:
        self.log.append(Item(ctx.key, f"m{len(self.log)}"))
        return str(self.log[-1].item)

    def find(self, ctx: Any) -> Any:
        return next((item.item for item in self.log if item.effect_key == ctx.key), None)


@pytest.fixture
def shop() -> Iterator[Shop]:
    with Runtime(MemoryLedger()) as runtime:
        yield Shop(runtime, [])


def tries(*errors: BaseException | None) -> Callable[[], str]:
    left = list(errors)

    def run() -> str:
        if (error := left.pop(0)) is not None:
            raise error
        return "done"

    return run


def live_through_everything(shop: Shop) -> None:
    def sent_and_raised(ctx: Any) -> None:
        shop.send(ctx)
        raise OSError

    refusals = Rejected(Evidence("no-address")), Failed(Evidence("status"), retryable=True), Rejected(Evidence("x"))
    with shop.runtime.run(RUN_ID) as run:
        run.step("price", lambda: 1)
        run.step("flaky", tries(ValueError(), None), retry=Retry(3))
        run.effect("mail", run=shop.send, reconcile=shop.find, request={"to": "ann"})
        for name, find in (("found", shop.find), ("door", UNASKABLE), ("gate", UNASKABLE)):
            with pytest.raises(EffectUnresolved):
                run.effect(name, run=sent_and_raised, reconcile=find)
            run.effect(name, run=sent_and_raised, reconcile=find)
        run.effect("refused", run=tries(*refusals), reconcile=shop.find, retry=Retry(3))
        views = {view.name: view for view in shop.runtime.effects(run_id=RUN_ID)}
        run.settle("door", "m2", key=views["door"].effect_key, source="webhook")
        shop.runtime.decide(
            RUN_ID,
            "gate",
            did_not_happen=True,
            reason="seen",
            by="ann",
            expect_version=views["gate"].version,
            new_name="gate-2",
        )
        run.effect("gate-2", run=tries(Failed(Evidence("status"))), reconcile=UNASKABLE)
        run.sleep(0.001, name="night")
        run.deliver("paid", "1", {"sum": 3})
        run.wait_for("paid", "1")


def all_runs(shop: Shop, items: list[Item] | None) -> list[Finding]:
    checker = Checker(shop.runtime.namespace, items)
    ledger = shop.runtime.ledger
    found = checker.ledger(ledger.read(slots.SYSTEM_NAMESPACE, slots.SYSTEM_RUN))
    for view in shop.runtime.runs():
        found += checker.run(view.run_id, ledger.read(shop.runtime.namespace, view.run_id))
    return found + checker.rest()


@pytest.mark.rule("E1", "E2", "O3")
def test_what_the_library_records_is_clean(shop: Shop) -> None:
    live_through_everything(shop)
    assert all_runs(shop, shop.log) == []


# --- exports


@pytest.mark.parametrize("shown", [True, False])
def test_an_export_is_checked_like_the_ledger(shop: Shop, shown: bool) -> None:
    live_through_everything(shop)
    ledger, namespace = shop.runtime.ledger, shop.runtime.namespace
    head = exported.header(namespace, at=1.0, shown=shown, software="0")
    found = [exported.line(namespace, RUN_ID, record, shown=shown) for record in ledger.read(namespace, RUN_ID)]
    text = [json.dumps(each) for each in (head, *found)]
    assert exported.parse_header(json.loads(text[0])) == namespace
    back = [exported.parse_line(json.loads(each)) for each in text[1:]]
    assert {(scope, run) for scope, run, _ in back} == {(namespace, RUN_ID)}
    read = [record for _, _, record in back]
    assert (read == ledger.read(namespace, RUN_ID)) is shown
    assert Checker(namespace, shop.log if shown else None).run(RUN_ID, read) == []


def test_an_export_says_what_was_redacted() -> None:
    secret = codec.BirthBody(namespace="n", key_id="k", key="5ec4e7")
    (birth,) = recorded((slots.BIRTH, LEDGER, "birth", secret))
    for shown in (True, False):
        found = exported.line("", "ledger", birth, shown=shown)
        assert "5ec4e7" not in json.dumps(found)
        assert found["redacted"] is True
    (stone,) = recorded(buried())
    assert "m1" not in json.dumps(exported.line("n", "r", stone, shown=False))
    assert exported.redact(["proof"]) == ["proof"]


def test_damage_survives_an_export() -> None:
    (good,) = recorded(intent())
    broken = msgspec.structs.replace(good, body=b'{"a": ')
    for shown in (True, False):
        _, _, back = exported.parse_line(exported.line(NAMESPACE, RUN_ID, broken, shown=shown))
        assert codes(check([back])) == ["damaged"]


@pytest.mark.parametrize(
    "found", [None, {}, {"format": "x"}, {"format": "counterfoil-export", "version": 9, "namespace": "n"}]
)
def test_what_is_no_export_is_refused(found: Any) -> None:
    with pytest.raises(UsageError):
        exported.parse_header(found)
    with pytest.raises(UsageError):
        exported.parse_line(found)


def test_every_word_of_the_protocol_is_known_to_the_checker() -> None:
    from counterfoil.protocol import legality

    assert set(legality._FORMS) == set(records.KINDS)
