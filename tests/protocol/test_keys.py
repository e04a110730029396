"""Keys and fingerprints: what is on record must be recognised for ever, so their forms are pinned."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from counterfoil.errors import FingerprintKeyUnknown, UsageError
from counterfoil.protocol import keys
from counterfoil.protocol.keys import DURATION_S_MAX, Fingerprints, effect_key, outbox_key, staged_key

KEYS = {"k": b"k" * 32, "old": b"o" * 32}


@pytest.mark.rule("E11")
def test_an_effects_key_is_what_it_always_was() -> None:
    assert effect_key("shop", "order-42", "mail", attempt=1) == "cf-7e084ffd83238c30d2c8f8e5f2fd7e08ce4186bf"


@pytest.mark.rule("X2")
def test_a_staged_intents_key_is_what_it_always_was() -> None:
    assert outbox_key("shop", "order-42") == "cf-883bf9fe2cec0878fe88d81ab758a1c3f59cd32d"
    assert outbox_key("shop", "order-42", attempt=2) == "cf-e1b909242cdd61913fc7a9e317dd8292f68091bf"
    assert outbox_key("shop", "order-42", place="r/0") == "cf-17695ece25ddda7fc6d4d65343e4254c09b88da6"


@pytest.mark.rule("X2")
def test_the_key_of_what_a_transaction_stages_is_what_it_always_was() -> None:
    assert staged_key("shop", "order-42", ("sale", 1)) == "tx-4dacab3ce1d911b432bec358130fd9d834f5aa2d"
    assert staged_key("shop", "order-42", ("sale", 2)) == "tx-c8dcc40ab2fea59b396d3a6d9d0d3d25b4b07149"


@pytest.mark.rule("X2", "E11")
def test_no_two_staged_intents_and_no_effect_share_a_key() -> None:
    places = [("a", "b", "", 1), ("ab", "", "", 1), ("", "ab", "", 1), ("a", "", "b", 1), ("a", "b", "", 2)]
    keys = {outbox_key(namespace, key, place=place, attempt=attempt) for namespace, key, place, attempt in places}
    keys |= {effect_key("a", "", "b", attempt=1), effect_key("a", "b", "", attempt=1)}
    assert len(keys) == len(places) + 2


@pytest.mark.rule("L15")
def test_a_fingerprint_is_what_it_always_was_and_safe_in_any_text() -> None:
    # One whose digest has both of the characters that differ between the alphabets of base64.
    assert Fingerprints(KEYS, "k").make(b"26") == "v1.k.-0Pv_fxz0WXlr-bjwtjaZg"
    made = [Fingerprints(KEYS, "k").make(b"%d" % number) for number in range(200)]
    assert all(re.fullmatch(r"v1\.k\.[A-Za-z0-9_-]{22}", each) for each in made)
    assert len(set(made)) == 200


@pytest.mark.rule("L15")
def test_a_fingerprint_of_an_older_key_is_compared_under_that_key() -> None:
    prints = Fingerprints(KEYS, "k")
    assert prints.matches(b"1", "v1.old.mmxLAIKyvUMDgK7ojPyQhg")
    assert not prints.matches(b"2", "v1.old.mmxLAIKyvUMDgK7ojPyQhg")
    assert prints.make(b"1") != "v1.old.mmxLAIKyvUMDgK7ojPyQhg"


@pytest.mark.rule("L15")
@pytest.mark.parametrize(
    "recorded", ["v2.k.-0Pv_fxz0WXlr-bjwtjaZg", "v1.gone.-0Pv_fxz0WXlr-bjwtjaZg", "v1", "", "k.v1.x"]
)
def test_a_fingerprint_in_an_unknown_form_or_under_an_unknown_key_is_an_error_of_its_own(recorded: str) -> None:
    with pytest.raises(FingerprintKeyUnknown):
        Fingerprints(KEYS, "k").matches(b"26", recorded)


@pytest.mark.rule("L13")
@pytest.mark.parametrize("name", ["a", "a b", "x" * 255, "\u00e9", "\u00e9" * 127 + "x", "a/b", "a\u202eb", "\ue000"])
def test_a_name_is_kept_as_it_is(name: str) -> None:
    assert keys.name(name) is name


@pytest.mark.rule("L13")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "name must not be empty"),
        (b"a", "name must be a str, not bytes"),
        (None, "name must be a str, not NoneType"),
        ("a\n", "name 'a\\n' has a control character ('\\n')"),
        ("a\ud800", "name 'a\\ud800' has a surrogate ('\\ud800')"),
        ("\u2028", "name '\\u2028' has a line separator ('\\u2028')"),
        ("\u2029", "name '\\u2029' has a paragraph separator ('\\u2029')"),
        ("x" * 256, "name '" + "x" * 40 + "'… has 256 bytes of UTF-8, 255 at most"),
        ("\u00e9" * 128, "name '" + "\\xe9" * 40 + "'… has 256 bytes of UTF-8, 255 at most"),
        ("e\u0301", "name 'e\\u0301' is not in Unicode form NFC (use unicodedata.normalize('NFC', …))"),
    ],
)
def test_what_is_no_name_is_refused_with_its_reason(name: Any, why: str) -> None:
    with pytest.raises(UsageError) as raised:
        keys.name(name)
    assert str(raised.value) == why


def test_what_is_refused_is_called_what_its_caller_calls_it() -> None:
    with pytest.raises(UsageError, match=r"^run id must not be empty$"):
        keys.name("", "run id")
    with pytest.raises(UsageError, match=r"^wait must be a number of seconds, not str$"):
        keys.seconds("1", "wait")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0.5, 1, 1.0, 30, DURATION_S_MAX, int(DURATION_S_MAX), 0, 0.0, -0.0])
@pytest.mark.parametrize("positive", [False, True])
def test_a_duration_is_a_float_and_zero_where_it_may_be(value: float, positive: bool) -> None:
    if value == 0 and positive:
        with pytest.raises(UsageError, match="must be finite, above 0 and at most 100 years"):
            keys.seconds(value, "seconds", positive=True)
        return
    kept = keys.seconds(value, "seconds", positive=positive)
    assert kept == value
    assert type(kept) is float


@pytest.mark.parametrize(
    "value",
    [-1, -0.5, math.nan, math.inf, -math.inf, 10**400, -(10**400), DURATION_S_MAX + 1, int(DURATION_S_MAX) + 1],
)
@pytest.mark.parametrize("positive", [False, True])
def test_what_is_no_duration_is_refused(value: float, positive: bool) -> None:
    least = "above 0" if positive else "0 or more"
    with pytest.raises(UsageError, match=f"^seconds must be finite, {least} and at most 100 years, not "):
        keys.seconds(value, "seconds", positive=positive)


@pytest.mark.parametrize("value", [True, False, None, "1", 1j])
def test_what_is_no_number_is_no_duration(value: Any) -> None:
    with pytest.raises(UsageError, match=f"^seconds must be a number of seconds, not {type(value).__name__}$"):
        keys.seconds(value, "seconds")
