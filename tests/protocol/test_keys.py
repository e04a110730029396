"""Keys and fingerprints: what is on record must be recognised for ever, so their forms are pinned."""

from __future__ import annotations

import re

import pytest

from counterfoil.errors import FingerprintKeyUnknown
from counterfoil.protocol.keys import Fingerprints, effect_key, outbox_key

KEYS = {"k": b"k" * 32, "old": b"o" * 32}


@pytest.mark.rule("E11")
def test_an_effects_key_is_what_it_always_was() -> None:
    assert effect_key("shop", "order-42", "mail", attempt=1) == "cf-7e084ffd83238c30d2c8f8e5f2fd7e08ce4186bf"


@pytest.mark.rule("X2")
def test_a_staged_intents_key_is_what_it_always_was() -> None:
    assert outbox_key("shop", "order-42") == "cf-883bf9fe2cec0878fe88d81ab758a1c3f59cd32d"
    assert outbox_key("shop", "order-42", attempt=2) == "cf-e1b909242cdd61913fc7a9e317dd8292f68091bf"
    assert outbox_key("shop", "order-42", place="r/0") == "cf-17695ece25ddda7fc6d4d65343e4254c09b88da6"


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
