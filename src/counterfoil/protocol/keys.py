"""Names, effect keys and fingerprints: who is who, the same in every process."""

from __future__ import annotations

import math
import unicodedata
from binascii import b2a_base64
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from counterfoil.errors import FingerprintKeyUnknown, UsageError

NAME_BYTES_MAX: Final = 255
DURATION_S_MAX: Final = 100 * 366 * 86_400.0
_REFUSED = {
    "Cc": "a control character",
    "Cs": "a surrogate",
    "Zl": "a line separator",
    "Zp": "a paragraph separator",
}
_VERSION = "v1"
# 16 bytes in URL-safe base64, without the padding.
_DIGEST_LENGTH: Final = 22
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")


def name(value: str, what: str = "name") -> str:
    """Check a name (rule L13) and return it unchanged.

    Raises:
        UsageError: it is empty, over 255 bytes of UTF-8, not NFC, or has control characters, surrogates or
            line separators.
    """
    if type(value) is str and value.isascii() and value.isprintable() and 0 < len(value) <= NAME_BYTES_MAX:
        return value
    if not isinstance(value, str):
        raise UsageError(f"{what} must be a str, not {type(value).__name__}")
    if not value:
        raise UsageError(f"{what} must not be empty")
    for character in value:
        if refused := _REFUSED.get(unicodedata.category(character)):
            raise UsageError(f"{what} {value!a} has {refused} ({character!a})")
    if len(value.encode()) > NAME_BYTES_MAX:
        raise UsageError(f"{what} {value[:40]!a}… has {len(value.encode())} bytes of UTF-8, {NAME_BYTES_MAX} at most")
    if not unicodedata.is_normalized("NFC", value):
        raise UsageError(f"{what} {value!a} is not in Unicode form NFC", hint="use unicodedata.normalize('NFC', …)")
    return value


def seconds(value: float, what: str, *, positive: bool = False) -> float:
    """Check a duration in seconds and return it as a float.

    Raises:
        UsageError: it is no number, negative (or zero where `positive`), not finite, or over 100 years.
    """
    if type(value) is float and (0.0 < value <= DURATION_S_MAX or (value == 0.0 and not positive)):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(f"{what} must be a number of seconds, not {type(value).__name__}")
    try:
        value = float(value)
    except OverflowError:
        # An int that no float can hold is too large, whatever it is.
        value = math.inf
    if not math.isfinite(value) or value < 0 or value > DURATION_S_MAX or (positive and value == 0):
        least = "above 0" if positive else "0 or more"
        raise UsageError(f"{what} must be finite, {least} and at most 100 years, not {value!r}")
    return float(value)


def effect_key(namespace: str, run: str, name: str, *, attempt: int) -> str:
    """Derive an effect's identity (rule E11): 43 ASCII characters, the same in every process.

    Usable as idempotency key or message id. Each part is length-prefixed, so that no two names meet.
    """
    state = _place(namespace, run).copy()
    state.update(_sized(name) + attempt.to_bytes(8, "big"))
    return f"cf-{state.hexdigest()}"


def outbox_key(namespace: str, key: str, *, attempt: int = 1, place: str = "") -> str:
    """Derive the identity of a staged intent (rule X2), which meets no key of a run's effect: 43 ASCII characters.

    Args:
        namespace: the scope of keys.
        key: what the caller named the intent.
        attempt: 1 is the intent's effect id, and the key of its first attempt.
        place: the intent's effect id, for the key of a later attempt; "" otherwise.
    """
    parts = _sized(namespace) + _sized(place) + _sized(key) + attempt.to_bytes(8, "big")
    return f"cf-{blake2b(parts, digest_size=20, person=b'counterfoil-out1').hexdigest()}"


def staged_key(namespace: str, run: str, place: tuple[str, int]) -> str:
    """Derive the key of an intent that a transaction of a run stages without one (rule X2): 43 ASCII characters.

    Args:
        namespace: the scope of the run's id.
        run: the run.
        place: the transaction's name, and how many intents it has staged, with this one.
    """
    name, ordinal = place
    parts = _sized(namespace) + _sized(run) + _sized(name) + ordinal.to_bytes(8, "big")
    return f"tx-{blake2b(parts, digest_size=20, person=b'counterfoil-stg1').hexdigest()}"


@lru_cache(1024)
def _place(namespace: str, run: str) -> blake2b:
    return blake2b(_sized(namespace) + _sized(run), digest_size=20, person=b"counterfoil-key1")


def _sized(text: str) -> bytes:
    raw = text.encode()
    return len(raw).to_bytes(4, "big") + raw


class Fingerprints:
    """Keyed digests of requests, so that a low-entropy secret cannot be guessed from one (rule L15).

    Args:
        keys: key id to key; the ledger's.
        current: id of the key for new digests.
    """

    def __init__(self, keys: dict[str, bytes], current: str) -> None:
        # Keyed already: each digest starts from a copy.
        self._states = {
            key_id: blake2b(digest_size=16, key=key, person=b"counterfoil-fpr1") for key_id, key in keys.items()
        }
        self._current = current

    def make(self, canonical: bytes) -> str:
        """Digest canonical JSON under the current key: `version.key-id.digest`."""
        return self._digest(canonical, self._current)

    def matches(self, canonical: bytes, recorded: str) -> bool:
        """Compare with a recorded digest.

        Raises:
            FingerprintKeyUnknown: the digest was made with a key, or in a form, that this ledger does not know.
        """
        version, _, rest = recorded.partition(".")
        key_id, _, _ = rest.partition(".")
        if version != _VERSION or key_id not in self._states:
            raise FingerprintKeyUnknown(
                f"a recorded fingerprint needs key {key_id!r} in form {version!r}, which this ledger does not hold",
                hint="the record came from another ledger; nothing was sent",
            )
        return self._digest(canonical, key_id) == recorded

    def _digest(self, canonical: bytes, key_id: str) -> str:
        state = self._states[key_id].copy()
        state.update(canonical)
        digest = b2a_base64(state.digest(), newline=False)[:_DIGEST_LENGTH].translate(_URL_SAFE)
        return f"{_VERSION}.{key_id}.{digest.decode()}"
