"""Lossless JSON or nothing (rule L5), and the bodies of records.

A value is lossless when decoding what was encoded gives an equal value; that round trip is also how it is
checked. Everything is canonical: sorted keys, no white space.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final, TypeVar

import msgspec

from counterfoil.errors import LedgerCorrupt, NotSerializable
from counterfoil.protocol.records import FORMAT, KINDS, Record, checksum
from counterfoil.protocol.unfit import unfit

T = TypeVar("T", bound=msgspec.Struct)

PROOF_BYTES_MAX: Final = 65_536
DEPTH_MAX: Final = 100

_encoder = msgspec.json.Encoder(order="sorted")
decode: Final[Callable[[bytes], Any]] = msgspec.json.Decoder().decode
"""Decodes canonical JSON that `encode` made."""
_LONG = 19
_LONG_NUMBER = re.compile(rb"\d{19}")
_OPENING = re.compile(rb"[\[{]")
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1


def encode(value: Any, *, what: str) -> bytes:
    """Encode a value as canonical JSON.

    Raises:
        NotSerializable: decoding would not give an equal value back; `what` names it in the message.
    """
    try:
        body = _encoder.encode(value)
        same = decode(body) == value
    except RecursionError:
        raise _refused(what, "it is nested too deeply or contains itself") from None
    except Exception as error:
        raise _refused(what, unfit(value) or f"{type(error).__name__} while encoding it") from error
    if not same:
        raise _refused(what, unfit(value) or "decoding it would give another value")
    if len(body) > DEPTH_MAX and len(_OPENING.findall(body)) > DEPTH_MAX and _depth(value) > DEPTH_MAX:
        raise _refused(what, f"it is nested deeper than {DEPTH_MAX}")
    if len(body) >= _LONG and _LONG_NUMBER.search(body) and not _integers_fit(value):
        raise _refused(what, "it has an integer outside -2**63 … 2**63-1")
    return body


def _refused(what: str, why: str) -> NotSerializable:
    return NotSerializable(
        f"{what} is not a lossless JSON value: {why}",
        hint="use dict with string keys, list, str, int within 64 bits, finite float, bool and None",
    )


def _children(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _depth(value: Any) -> int:
    """Count how many lists and dicts are inside one another."""
    level, depth = [value], 0
    while level := [item for item in level if isinstance(item, (dict, list))]:
        level = [child for item in level for child in _children(item)]
        depth += 1
    return depth


def _integers_fit(value: Any) -> bool:
    if isinstance(value, int):
        return _INT_MIN <= value <= _INT_MAX
    return all(_integers_fit(child) for child in _children(value))


def plain(details: Any) -> dict[str, Any] | None:
    """Make evidence's details recordable: what JSON has no word for becomes the nearest thing that it has.

    Details are for people; losing all of them over a tuple or a date would serve nobody.
    """
    if details is None:
        return None
    try:
        made: Any = decode(_encoder.encode(details))
        encode(made, what="evidence.details")
    except Exception:  # noqa: BLE001 - anything may be in there, and the outcome matters more
        return {"unrecordable": type(details).__name__}
    return made if isinstance(made, dict) else {"details": made}


def digest(body: bytes) -> str:
    """Digest of a body, for telling two apart without keeping either."""
    return blake2b(body, digest_size=16).hexdigest()


class RetryBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A retry policy as it is recorded with the first intent."""

    attempts: int
    within_s: float | None = None
    backoff_s: float = 0.0
    backoff_max_s: float = 60.0


class IntentBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of an intent.

    Args:
        fingerprint: keyed digest of the request, None if the call gave none.
        visibility_s: how long the recipient may take to show the effect.
        retry: the policy, in the first intent of an effect that has one.
        keep_key: every attempt uses the key of the first.
        verified: the call had a `verify`, so proofs from elsewhere must wait for it.
        restored: made in an accepted generation for a run begun before it: reconcile first, never run.
        recipient: what the operation calls its recipient, for people.
    """

    fingerprint: str | None = None
    visibility_s: float | None = None
    retry: RetryBody | None = None
    keep_key: bool = False
    verified: bool = False
    restored: bool = False
    recipient: str | None = None


class EvidenceBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Evidence as it is recorded."""

    kind: str
    phase: str | None = None
    bytes_offered: int | None = None
    status: int | None = None
    contract: str | None = None
    promises: tuple[str, ...] = ()
    details: dict[str, Any] | None = None


class OutcomeBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of an outcome (and of the `closed` record that stands for one).

    Args:
        via: `run`, `reconcile`, `evidence` or, for an uncertain one that a person ended, `decision`.
        proof: what the recipient named it.
        evidence: None stands for the plain acknowledgement.
        due: when the next attempt is due, in seconds since 1970; None: final.
        retryable: the recipient's contract allows another attempt.
        source: where evidence came from.
    """

    via: str = "run"
    proof: msgspec.Raw = msgspec.Raw(b"null")
    evidence: EvidenceBody | None = None
    due: float | None = None
    retryable: bool = False
    source: str | None = None


class ReleasedBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of a release.

    Args:
        why: why `run` of the attempt is over (`run-raised`, `proof-rejected`, `owner-gone` …).
        evidence: what its error told of how far it got, None if it told nothing.
    """

    why: str
    evidence: EvidenceBody | None = None


class LateBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of late evidence: a fact that is kept and shown, and never an outcome.

    Args:
        attempt: the attempt it speaks of.
        claims: what it would have been: `accepted`, `rejected`, `failed`, or `refused` for a proof that was
            too large, no JSON, or refused by `verify`.
        via: how it came.
        proof: the proof, where it may be kept.
        digest: digest of what was refused.
        pending: it waits for a call that brings the effect's `verify`.
    """

    attempt: int
    claims: str
    via: str = "run"
    proof: msgspec.Raw = msgspec.Raw(b"null")
    evidence: EvidenceBody | None = None
    digest: str | None = None
    source: str | None = None
    pending: bool = False


class DecisionBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of a person's decision."""

    happened: bool
    reason: str
    by: str
    seen_version: int
    proof: msgspec.Raw = msgspec.Raw(b"null")
    new_name: str | None = None


class BuriedBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a pruned run keeps of one attempt: identity, fingerprint and outcome."""

    fingerprint: str | None = None
    keep_key: bool = False
    phase: str
    at: float
    outcome: OutcomeBody


class StepBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of a step's result."""

    result: msgspec.Raw = msgspec.Raw(b"null")
    fingerprint: str | None = None


class StepFailedBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of one failed attempt of a step: the exception's type, never its text."""

    error: str
    due: float | None = None


class TransactionBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of a commit receipt. It says that what is local is durable, and never that anything else is done.

    Args:
        result: what the body returned.
        fingerprint: keyed digest of its inputs, None if the call gave none.
        staged: how many intents were staged in it; each has a receipt of its own.
        promise: all that the receipt says.
    """

    result: msgspec.Raw = msgspec.Raw(b"null")
    fingerprint: str | None = None
    staged: int = 0
    promise: str


class ArmedBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of a park: the deadline of a sleep, or None for a wait."""

    deadline: float | None = None


class DeliveredBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of a delivery."""

    payload: msgspec.Raw = msgspec.Raw(b"null")
    by: str | None = None


class StartedBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of a run's start: the body's name and its arguments."""

    body: str
    args: msgspec.Raw = msgspec.Raw(b"[]")


class FinishedBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of a run's end.

    Args:
        result: what the body returned.
        unasked: slots on record that the body which ended the run did not ask for: it was changed since.
    """

    result: msgspec.Raw = msgspec.Raw(b"null")
    unasked: tuple[str, ...] = ()


class QuarantinedBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of a quarantine: how many lives in a row ended while they carried the run's body."""

    deaths: int


class LiftedBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of a quarantine's end: who lifted it, and why."""

    by: str
    reason: str


class TombstoneBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of a tombstone: why the run was pruned, and by whom."""

    reason: str = ""
    by: str = ""


class EmptyBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of a record whose being there says it all."""


class BirthBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of a ledger's birth: its default namespace and the key of its fingerprints (hexadecimal)."""

    namespace: str
    key_id: str
    key: str


class RestoreBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of an accepted restore."""

    by: str
    reason: str
    generation: int


def body_of(value: msgspec.Struct) -> bytes:
    """Encode a record's body."""
    return _encoder.encode(value)


_decoders: dict[type, msgspec.json.Decoder[Any]] = {}
_KNOWN = frozenset(KINDS)


def parse(record: Record, shape: type[T], *, namespace: str, run: str) -> T:
    """Decode a record's body, or fail closed (rule L4).

    Raises:
        LedgerCorrupt: the record is damaged, or was written by a newer version.
    """
    if record.format != FORMAT or (record.kind, record.phase) not in _KNOWN:
        raise LedgerCorrupt(
            f"the record in slot {record.slot!r} of run {run!r} has format {record.format}, kind {record.kind!r}: "
            "a newer version of counterfoil wrote it",
            hint="upgrade counterfoil; nothing was called for this name",
            code="record-too-new",
        )
    check = checksum(
        namespace,
        run,
        record.slot,
        kind=record.kind,
        phase=record.phase,
        body=record.body,
        epoch=record.epoch,
        append_id=record.append_id,
    )
    if record.check != check:
        raise _damaged(record, run, "its checksum does not match")
    decoder = _decoders.get(shape)
    if decoder is None:
        decoder = _decoders[shape] = msgspec.json.Decoder(shape)
    try:
        found: T = decoder.decode(record.body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _damaged(record, run, "its body cannot be decoded") from error
    return found


def checksum_of(record: Record, *, namespace: str, run: str) -> int:
    """Compute what a record's checksum should be."""
    return checksum(
        namespace,
        run,
        record.slot,
        kind=record.kind,
        phase=record.phase,
        body=record.body,
        epoch=record.epoch,
        append_id=record.append_id,
    )


def _damaged(record: Record, run: str, why: str) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"the record in slot {record.slot!r} of run {run!r} is damaged: {why}",
        hint="restore the ledger from a backup, or decide this name by hand; nothing was called for it",
    )
