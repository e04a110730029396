"""Names, keys and fingerprints: refused or round-tripped, never guessed, never mixed up."""

import re
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil import UNASKABLE, FingerprintKeyUnknown, NameConflict, UsageError
from counterfoil.protocol import keys, slots
from counterfoil.protocol.keys import Fingerprints
from tests.support import IN_MEMORY, Fault, faulty

REFUSED = {
    "empty": "",
    "NUL": "a\x00b",
    "newline": "a\nb",
    "escape": "\x1b[31mred",
    "delete": "a\x7f",
    "C1": "a\x9b",
    "lone surrogate": "a\ud800",
    "line separator": "a\u2028b",
    "paragraph separator": "a\u2029b",
    "NFD": "e\u0301",
    "Angstrom sign": "\u212b",
    "256 bytes": "x" * 256,
    "256 bytes of two each": "é" * 128,
    "10 kB": "x" * 10_240,
    "number": 3,
    "bytes": b"pay",
    "none": None,
}

KEPT = {
    "path": "../x",
    "slashes": "a/b//c/",
    "looks like a slot": "pay/1/intent",
    "percent": "%s %2F %25",
    "quotes": "'\"`; DROP TABLE run; --",
    "RTL override": "a\u202eb",
    "zero width": "a\u200bb\ufeff",
    "emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "NFC": "é",
    "255 bytes": "x" * 255,
    "255 bytes of many": "é" * 127 + "x",
    "space": " ",
    "markup": "<b>&amp;</b>",
    "backslash": "a\\b",
    "private use": "\ue000",
    "unassigned": "\u0378",
}


@IN_MEMORY
@pytest.mark.rule("L13")
@pytest.mark.parametrize("name", REFUSED.values(), ids=REFUSED.keys())
async def test_what_is_no_name_is_refused_at_the_call(make, colour, payee, name):
    async with make() as life, life.run("r") as run:
        calls: list[Any] = [
            lambda: run.effect(name, run=payee.never, reconcile=UNASKABLE),
            lambda: run.step(name, payee.never),
            lambda: run.sleep(0, name=name),
            lambda: run.wait_for(name, "1"),
            lambda: run.wait_for("paid", name),
            lambda: run.deliver(name, "1"),
            lambda: run.deliver("paid", name),
            lambda: run.settle(name, "x", key="k", source="s"),
            lambda: run.settle("pay", "x", key="k", source=name),
            lambda: run.decision(name),
            lambda: life.decide("r", name, did_not_happen=True, reason="x", by="y", expect_version=1),
        ]
        for call in calls:
            with pytest.raises(UsageError) as raised:
                await call()
            # The error's own text is safe to print.
            assert str(raised.value).isprintable()
        with pytest.raises(UsageError):
            life.run(name)
        assert life.records() == []
    if name is not None:
        with pytest.raises(UsageError):
            colour.life("memory:", namespace=name)
        with pytest.raises(UsageError):
            colour.life("memory:", owner=name)


@pytest.mark.rule("L13")
async def test_hostile_names_round_trip_and_do_not_meet(make, colour):
    names = list(KEPT.values())
    async with make() as life:
        for run_id in names:
            async with life.run(run_id) as run:
                assert await run.step(run_id, lambda: run_id) == run_id  # noqa: B023 - called at once
        async with life.run("r") as run:
            for name in names:
                outcome = await run.effect(name, run=colour.handler(lambda: name), reconcile=UNASKABLE)  # noqa: B023
                assert outcome.proof == name
                await run.deliver(name, name, name)
    async with make() as life, life.run("r") as run:
        assert [row.run_id for row in await life.runs()] == [*names, "r"]
        assert [view.name for view in await life.effects(run_id="r")] == names
        for name in names:
            assert (await run.effect(name, run=print, reconcile=UNASKABLE)).proof == name
            assert await run.wait_for(name, name) == name


@pytest.mark.rule("L13")
async def test_the_default_namespace_is_made_at_the_ledgers_birth(make, colour, payee, tmp_path):
    from tests.support import Store

    seen: list[str] = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        other = Store("sqlite", tmp_path / folder)
        async with colour.life(other.target) as life:
            await life.run("r").effect("pay", run=colour.handler(payee.pay), reconcile=UNASKABLE)
            seen.append(life.inner.namespace)
        async with colour.life(other.target) as life:
            assert life.inner.namespace == seen[-1]
    # Two services with equal names never share a recipient's key.
    assert seen[0] != seen[1]
    assert payee.requests[0] != payee.requests[1]


PARTS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=12)


@pytest.mark.rule("L13")
@given(st.lists(PARTS, min_size=2, max_size=2, unique=True))
def test_no_two_names_share_a_slot(names):
    one, two = names
    made = [
        maker(name)
        for name in (one, two)
        for maker in (
            slots.step,
            slots.sleep,
            slots.woken,
            lambda name: slots.intent(name, 1),
            lambda name: slots.outcome(name, 1),
            lambda name: slots.released(name, 1),
            lambda name: slots.note(name, 1),
            lambda name: slots.event(name, "x"),
            lambda name: slots.event("x", name),
            lambda name: slots.wait(name, "x"),
            lambda name: slots.step_failed(name, 1),
            lambda name: slots.buried(name, 1),
        )
    ]
    # event(name, "x") and event("x", name) are one slot where the name is "x".
    expected = 24 - ("x" in names)
    assert len(set(made)) == expected


@pytest.mark.rule("L13")
@given(PARTS, PARTS, st.integers(1, 999))
def test_names_come_back_out_of_their_slots(name, other, number):
    assert slots.unescape(slots.escape(name)) == name
    for kind in ("intent", "outcome", "released", "buried"):
        assert slots.effect_of(getattr(slots, kind)(name, number)) == (name, number, kind)
    assert slots.effect_of(slots.note(name, number)) == (name, number, "note")
    assert slots.effect_of(slots.step(name)) is None
    for slot in (
        slots.intent(name, 1),
        slots.step(name),
        slots.step_failed(name, 2),
        slots.sleep(name),
        slots.woken(name),
    ):
        assert slots.names_in(slot) == [name]
    assert slots.names_in(slots.wait(name, other)) == slots.names_in(slots.event(name, other)) == [name, other]
    assert slots.names_in(slots.FINISHED) == slots.names_in(slots.claim(1)) == slots.names_in(slots.BIRTH) == []


@pytest.mark.rule("L13")
@given(st.text(max_size=20))
def test_a_name_is_kept_as_it_is_or_refused(text):
    try:
        kept = keys.name(text)
    except UsageError:
        bad = any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in text)
        assert bad or not text or not unicodedata.is_normalized("NFC", text)
    else:
        assert kept == text


@pytest.mark.rule("E11", "L13")
@given(st.lists(st.tuples(PARTS, PARTS, PARTS, st.integers(1, 5)), min_size=2, max_size=2, unique=True))
def test_no_two_attempts_share_a_key(identities):
    one, two = (keys.effect_key(*identity[:3], attempt=identity[3]) for identity in identities)
    assert one != two
    assert all(re.fullmatch(r"cf-[0-9a-f]{40}", key) for key in (one, two))


@pytest.mark.rule("E11")
def test_a_key_is_the_same_in_every_version():
    # Written down once: a later version that derives another one would send again.
    assert keys.effect_key("shop", "order-42", "pay", attempt=1) == keys.effect_key(
        "shop", "order-42", "pay", attempt=1
    )
    assert keys.effect_key("a", "bc", "d", attempt=1) != keys.effect_key("ab", "c", "d", attempt=1)
    assert keys.effect_key("shop", "order-42", "pay", attempt=1) == GOLDEN_KEY


GOLDEN_KEY = "cf-a4ff2724570fcc73918882320ec0d4faa9e03368"


# --- L15


@pytest.mark.rule("L15", "E12")
async def test_a_request_cannot_be_guessed_from_its_fingerprint(make, store, colour, payee):
    async with make() as life, life.run("r") as run:
        await run.effect("pay", request={"pin": "1234"}, run=colour.handler(payee.pay), reconcile=UNASKABLE)
        intent = next(r for r in life.records() if r.phase == "intent")
        assert b"1234" not in intent.body
        found = re.search(rb'"fingerprint":"([^"]+)"', intent.body)
        assert found is not None
        version, key_id, digest = found[1].decode().split(".")
        assert version == "v1"
        # Another ledger's key makes another digest of the same request.
        others = {Fingerprints({"k": bytes([n]) * 32}, "k").make(b'{"pin":"1234"}').split(".")[2] for n in range(8)}
        assert digest not in others
        assert len(others) == 8
        assert key_id


@pytest.mark.rule("L15")
async def test_a_digest_under_an_unknown_key_is_an_error_of_its_own_and_nothing_is_sent(make, store, colour, payee):
    async with make() as life, life.run("r") as run:
        await run.effect("pay", request=1, run=colour.handler(payee.pay), reconcile=UNASKABLE)
        await run.step("sum", lambda: 1, inputs=1)
    async with make() as life:
        life.session._fingerprints = Fingerprints({"other": b"x" * 32}, "other")
        run = life.run("r")
        with pytest.raises(FingerprintKeyUnknown) as raised:
            await run.effect("pay", request=1, run=payee.never, reconcile=payee.never)
        assert raised.value.effect_ran == "no"
        assert not isinstance(raised.value, NameConflict)
        with pytest.raises(FingerprintKeyUnknown):
            await run.step("sum", payee.never, inputs=1)


@pytest.mark.rule("L15")
def test_the_canonical_form_is_versioned():
    made = Fingerprints({"k": b"x" * 32}, "k")
    assert made.matches(b"1", made.make(b"1"))
    assert not made.matches(b"2", made.make(b"1"))
    with pytest.raises(FingerprintKeyUnknown):
        made.matches(b"1", made.make(b"1").replace("v1.", "v2."))


@pytest.mark.rule("L15", "L2")
async def test_two_lives_that_open_a_new_ledger_at_once_agree_on_its_birth(store, colour):
    fault = Fault()
    ledger = faulty(store.open(), fault)
    # The first one's append of the birth gives no answer, and is settled.
    from counterfoil.errors import CommitUnknown

    fault.refuse("birth", error=lambda: CommitUnknown("?"), commits=True, times=1)
    async with colour.life(ledger) as one, colour.life(ledger) as two:
        assert one.inner.namespace == two.inner.namespace
        assert one.session._fingerprints.make(b"1") == two.session._fingerprints.make(b"1")
