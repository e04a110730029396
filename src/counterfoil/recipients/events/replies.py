"""What a reply of JetStream proves (rule V3).

Accepted is an acknowledgement that names the expected stream and a sequence. Failed is that nobody is there to take the
message, that the server denied its subject, or one of the errors in `FAILED`, which a stream makes before it stores
anything. Everything else is uncertain: errors of storage and of the cluster, and replies that cannot be read or name
another stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from counterfoil.outcomes import Outcome
from counterfoil.recipients.events.facts import Facts
from counterfoil.recipients.events.streams import StreamFacts

FAILED: Final = {10054: "too-large", 10097: "headers-too-large", 10060: "wrong-stream", 10109: "sealed"}
NO_RESPONDERS: Final = "503"
_INT_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Answer:
    """What came to a reply's inbox: the status of its head, None where it has none, and its body."""

    status: str | None
    body: bytes


@dataclass(frozen=True, slots=True)
class Denied:
    """The server said that this connection may not publish there."""


@dataclass(frozen=True, slots=True)
class Gone:
    """No reply will come any more: `why` is a kind of evidence."""

    why: str


End = Answer | Denied | Gone


def judge(end: End, facts: Facts, *, stream: str, known: StreamFacts) -> Outcome[Any]:
    """Say what became of a message that was offered."""
    if isinstance(end, Gone):
        return facts.uncertain(end.why)
    facts.reached = "answered"
    if isinstance(end, Denied):
        return facts.failed("denied")
    if end.status is not None:
        if end.status == NO_RESPONDERS and not end.body:
            return facts.failed("no-responders", status=503)
        return facts.uncertain("malformed-reply")
    said = document(end.body)
    if said is None:
        return facts.uncertain("malformed-reply")
    if said.get("error") is not None:
        return _refused(said, facts, stream)
    return _acknowledged(said, facts, stream=stream, known=known)


def document(body: bytes) -> dict[str, Any] | None:
    """Read a reply's body; None if it is no JSON object."""
    try:
        said = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def error_code(said: dict[str, Any]) -> int | None:
    """Return the code of a reply's error, None if it has none that can be read."""
    error = said.get("error")
    code = error.get("err_code") if isinstance(error, dict) else None
    return code if type(code) is int and 0 <= code <= _INT_MAX else None


def _refused(said: dict[str, Any], facts: Facts, stream: str) -> Outcome[Any]:
    code = error_code(said)
    kind = FAILED.get(code) if code is not None else None
    named = said.get("stream")
    # Only the stream that must take it, or that says that it is not this one, knows that it was not taken.
    if kind is None or (kind != "wrong-stream" and named is not None and named != stream):
        return facts.uncertain("broker-error" if code is not None else "malformed-reply", status=code)
    return facts.failed(kind, status=code)


def _acknowledged(said: dict[str, Any], facts: Facts, *, stream: str, known: StreamFacts) -> Outcome[Any]:
    named, sequence, duplicate = said.get("stream"), said.get("seq"), said.get("duplicate", False)
    readable = isinstance(named, str) and type(sequence) is int and 0 < sequence <= _INT_MAX
    if not readable or not isinstance(duplicate, bool):
        return facts.uncertain("malformed-reply")
    if named != stream:
        return facts.uncertain("foreign-reply")
    proof = {"stream": stream, "seq": sequence, "duplicate": duplicate}
    return facts.accepted(proof, promises=known.promises, stream=known.details)
