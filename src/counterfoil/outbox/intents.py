"""What callers stage, validated in full before any SQL runs, so that their transaction stays usable."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Protocol, cast

from counterfoil.errors import NotSerializable, UsageError
from counterfoil.outbox.lanes import Lane, lane_of
from counterfoil.outbox.terms import check_narrower
from counterfoil.ports.outbox_store import NewIntent
from counterfoil.protocol import codec, keys

OPERATION_BYTES_MAX: Final = 1_048_576
INTENTS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Intent:
    """One intent for `stage_many`; see `Outbox.stage`."""

    operation: Any
    _: KW_ONLY
    key: str | None = None
    lane: Lane | str | None = None
    not_before: Any = None
    expires_at: Any = None
    policy: str | None = None


@dataclass(frozen=True, slots=True)
class StagedIntent:
    """An intent that commits with the caller's transaction: local intent is durable then. It never says: done.

    Args:
        effect_id: its identity, and the key that its first attempt gives to the recipient.
        key: what the caller named it; in a transaction of a run that named none, what was derived for it.
    """

    effect_id: str
    key: str


class Stamp(Protocol):
    """Makes fingerprints."""

    def make(self, canonical: bytes) -> str:
        """Digest canonical JSON under the ledger's key."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What validating takes from outside.

    Args:
        namespace: the scope of keys.
        stamp: the ledger's fingerprints.
        policy: says what an operation's contract allows.
    """

    namespace: str
    stamp: Stamp
    policy: Callable[[Any], str]

    def validated(
        self, intents: Iterable[Intent], *, named: Callable[[int], str] | None = None, trace: str | None = None
    ) -> list[NewIntent]:
        """Check every intent.

        Args:
            intents: what the caller gave.
            named: gives the n-th of them a key where the caller gave none; None: each needs its own.
            trace: the span that they are staged in, as W3C `traceparent`.

        Raises:
            UsageError: one is wrong, or two have the same key.
        """
        made = [self._validated(intent, named and named(at), trace) for at, intent in enumerate(intents, start=1)]
        if len(made) > INTENTS_MAX:
            raise UsageError(f"{len(made)} intents at once are too many", hint=f"stage at most {INTENTS_MAX}")
        if len({intent.effect_id for intent in made}) < len(made):
            raise UsageError("two of the intents have the same key")
        return made

    def _validated(self, intent: Intent, derived: str | None, trace: str | None) -> NewIntent:
        given = derived if intent.key is None else intent.key
        if given is None:
            raise UsageError("an intent needs a key", hint="name it after what it belongs to: key='order-42'")
        key = keys.name(given, "key")
        stored = stored_form(intent.operation)
        body = codec.encode(stored, what="the operation")
        if b"\\u0000" in body and _has_nul(stored):
            raise NotSerializable("the operation has a NUL character in it", hint="stores differ in what becomes of it")
        if len(body) > OPERATION_BYTES_MAX:
            raise NotSerializable(
                f"the operation has {len(body)} bytes of JSON, {OPERATION_BYTES_MAX} at most",
                hint="stage a reference to what is large, not the thing itself",
            )
        lane = lane_of(intent.lane)
        not_before = _moment(intent.not_before, "not_before")
        expires_at = _moment(intent.expires_at, "expires_at")
        if expires_at is not None and not_before is not None and expires_at <= not_before:
            raise UsageError("expires_at is not after not_before: it would never be sent")
        if intent.policy is not None:
            check_narrower(self.policy(intent.operation), intent.policy)
        return NewIntent(
            effect_id=keys.outbox_key(self.namespace, key),
            namespace=self.namespace,
            key=key,
            recipient=stored["recipient"],
            operation=stored["operation"],
            format=stored["format"],
            body=body,
            fingerprint=self.stamp.make(body),
            policy=intent.policy,
            lane=None if lane is None else lane.name,
            on_stuck="halt" if lane is None else lane.on_stuck,
            not_before=not_before,
            expires_at=expires_at,
            trace=trace,
        )


def stored_form(operation: Any) -> dict[str, Any]:
    """Return an operation as it is stored: recipient, operation, format and arguments.

    Raises:
        UsageError: it is no operation with its arguments, or one that cannot be kept.
    """
    serialised = getattr(operation, "serialised", None)
    if not callable(serialised) or isinstance(operation, type):
        hint = "call it with its arguments: send(to=…)" if callable(operation) else ""
        raise UsageError(f"staging takes an operation with its arguments, not {type(operation).__name__}", hint=hint)
    return cast("dict[str, Any]", serialised())


def intents_of(given: Any) -> list[Intent]:
    """Understand what `stage_many` was given: intents, pairs of operation and key, or mappings."""
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        raise UsageError(f"stage_many takes a list of intents, not {type(given).__name__}")
    return [_intent(item) for item in given]


def _intent(item: Any) -> Intent:
    if isinstance(item, Intent):
        return item
    if isinstance(item, tuple) and len(item) == 2:
        operation, more = item
        return _intent(
            {"operation": operation, **more} if isinstance(more, Mapping) else {"operation": operation, "key": more}
        )
    if isinstance(item, Mapping):
        try:
            return Intent(**item)
        except TypeError as error:
            raise UsageError(
                f"not an intent: {error}", hint="it has what `stage` takes: operation, key, lane …"
            ) from None
    raise UsageError(f"not an intent: {type(item).__name__}", hint="write Intent(operation, key=…)")


def _moment(value: Any, what: str) -> float | None:
    if value is None:
        return None
    stamp = getattr(value, "timestamp", None)
    if callable(stamp):
        if getattr(value, "tzinfo", None) is None:
            raise UsageError(f"{what} is a datetime without a time zone", hint="make it aware, for example with UTC")
        value = stamp()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(f"{what} is a time in seconds since 1970, or an aware datetime, not {type(value).__name__}")
    if not math.isfinite(value) or not 0 <= value < 1e11:
        raise UsageError(f"{what}={value!r} is no time in seconds since 1970")
    return float(value)


def _has_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_has_nul(part) for pair in value.items() for part in pair)
    return isinstance(value, list) and any(_has_nul(part) for part in value)
