"""Names, effect keys and fingerprints: who is who, the same in every process."""

from __future__ import annotations

import base64
import math
import unicodedata
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
    parts = _place(namespace, run) + _sized(name) + attempt.to_bytes(8, "big")
    state = blake2b(parts, digest_size=20, person=b"counterfoil-key1")
    return f"cf-{state.hexdigest()}"


@lru_cache(1024)
def _place(namespace: str, run: str) -> bytes:
    return _sized(namespace) + _sized(run)


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
        self._keys = keys
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
        if version != _VERSION or key_id not in self._keys:
            raise FingerprintKeyUnknown(
                f"a recorded fingerprint needs key {key_id!r} in form {version!r}, which this ledger does not hold",
                hint="the record came from another ledger; nothing was sent",
            )
        return self._digest(canonical, key_id) == recorded

    def _digest(self, canonical: bytes, key_id: str) -> str:
        made = blake2b(canonical, digest_size=16, key=self._keys[key_id], person=b"counterfoil-fpr1").digest()
        return f"{_VERSION}.{key_id}.{base64.urlsafe_b64encode(made).decode().rstrip('=')}"
