"""A message as it was asked for: checked and copied once, so that what is sent later is what was given."""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from counterfoil.errors import UsageError
from counterfoil.protocol import codec

Headers = tuple[tuple[str, str], ...]

PAYLOAD_BYTES_MAX: Final = 64 << 20
SUBJECT_BYTES_MAX: Final = 255
HEADERS_BYTES_MAX: Final = 32_768
# What a subject is made of: neither white space nor anything else that ends a line or a word of the protocol.
_TOKEN: Final = re.compile(r"[^\s.*>\x00-\x20\x7f-\xa0\u2028\u2029\ud800-\udfff]+")
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]*")
# What tells a broker to do something else with a message is made by us or not at all: ids, expectations, addressees.
_OURS: Final = ("cc", "bcc")
_OURS_BEGIN: Final = "nats-"


@dataclass(frozen=True, slots=True)
class Message:
    """One message to be.

    Attributes:
        subject: where to, without wildcards.
        payload: what is sent.
        headers: names and values, in order.
        json: the payload as a value, where it was given as one; `codec.encode`d into `payload`.
        is_json: whether it was.
    """

    subject: str
    payload: bytes
    headers: Headers
    json: Any = None
    is_json: bool = False

    @property
    def digest(self) -> str:
        """What tells one content from another: payload and headers."""
        digest = hashlib.sha256(self.payload)
        for name, value in self.headers:
            digest.update(f"\n{name.lower()}:{value}".encode())
        return digest.hexdigest()

    def fingerprinted(self) -> dict[str, Any]:
        """Return what tells one message from another, its payload by digest."""
        said: dict[str, Any] = {
            "subject": self.subject,
            "payload": {"bytes": len(self.payload), "sha256": hashlib.sha256(self.payload).hexdigest()},
        }
        if self.headers:
            said["headers"] = [[name.lower(), value] for name, value in self.headers]
        return said

    def serialised(self) -> dict[str, Any]:
        """Return what an outbox keeps; `restored` takes it."""
        said: dict[str, Any] = {"subject": self.subject}
        if self.headers:
            said["headers"] = [list(pair) for pair in self.headers]
        if self.is_json:
            return said | {"json": self.json}
        return said | {"content": b64encode(self.payload).decode()}


def made(subject: Any, payload: Any, headers: Any = None) -> Message:
    """Make a message of what was given.

    Args:
        subject: where to.
        payload: bytes as they are, text in UTF-8, or a JSON value.
        headers: a mapping, or pairs.

    Raises:
        UsageError: a part of it cannot be sent as it is; nothing is repaired.
    """
    where, named = subject_of(subject), _headers(headers)
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return Message(where, _bounded(bytes(payload)), named)
    if isinstance(payload, str):
        try:
            return Message(where, _bounded(payload.encode()), named)
        except UnicodeEncodeError:
            raise UsageError("the payload has a surrogate, which UTF-8 has no word for") from None
    if payload is None:
        raise UsageError("the payload is None", hint='write b"" for an empty one, b"null" for JSON\'s null')
    body = codec.encode(payload, what="the payload")
    # Decoded again, so that what the caller does with his own lists and dicts changes nothing here.
    return Message(where, _bounded(body), named, json=codec.decode(body), is_json=True)


def restored(arguments: Any) -> Message:
    """Make a message of what `Message.serialised` returned."""
    headers = [tuple(pair) for pair in arguments.get("headers", [])]
    if "content" in arguments:
        return made(arguments["subject"], b64decode(arguments["content"], validate=True), headers)
    body = codec.encode(arguments["json"], what="the payload")
    return Message(subject_of(arguments["subject"]), body, _headers(headers), json=arguments["json"], is_json=True)


def subject_of(subject: Any) -> str:
    """Check a subject.

    Raises:
        UsageError: it is none, is for many (wildcards), or belongs to the broker.
    """
    if not isinstance(subject, str):
        raise UsageError(f"a subject is a str, not {type(subject).__name__}")
    for token in subject.split("."):
        if _TOKEN.fullmatch(token) is None:
            raise UsageError(
                f"{subject!a} is no subject that can be published to",
                hint="words joined by dots, without white space, control characters, * and >",
                code="bad-subject",
            )
    if subject.startswith(("$", "_INBOX.")):
        raise UsageError(f"subject {subject!a} is the broker's own", code="bad-subject")
    if len(subject.encode()) > SUBJECT_BYTES_MAX:
        raise UsageError(f"a subject has at most {SUBJECT_BYTES_MAX} bytes", code="bad-subject")
    return subject


def _bounded(payload: bytes) -> bytes:
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise UsageError(f"the payload has {len(payload)} bytes, {PAYLOAD_BYTES_MAX} at most")
    return payload


def _headers(given: Any) -> Headers:
    if given is None:
        return ()
    pairs = list(given.items()) if isinstance(given, Mapping) else given
    if isinstance(pairs, (str, bytes)) or not isinstance(pairs, Iterable):
        raise UsageError(f"headers are a dict, or pairs of names and values, not {type(given).__name__}")
    found: list[tuple[str, str]] = []
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise UsageError("headers are a dict, or pairs of names and values")
        found.append(_header(*pair))
    if len({name.lower() for name, _ in found}) != len(found):
        raise UsageError("a header's name is given twice", code="bad-header")
    if sum(len(name) + len(value.encode()) for name, value in found) > HEADERS_BYTES_MAX:
        raise UsageError(f"headers have at most {HEADERS_BYTES_MAX} bytes", code="bad-header")
    return tuple(found)


def _header(name: Any, value: Any) -> tuple[str, str]:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise UsageError(f"{name!a} is no header's name", code="bad-header")
    if name.lower() in _OURS or name.lower().startswith(_OURS_BEGIN):
        raise UsageError(f"header {name!a} is not yours to set", hint="the library makes it", code="bad-header")
    if not isinstance(value, str) or _VALUE.fullmatch(value) is None or value != value.strip():
        raise UsageError(
            f"the value of header {name!a} cannot be sent as it is",
            hint="a str without control characters, and without white space at its ends",
            code="bad-header",
        )
    return name, value
