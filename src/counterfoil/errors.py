"""Every exception of Counterfoil, in one tree that branches by who must act.

`UsageError`: the calling code. `Denied`: a person or a policy decided. `EffectError`: the recipient must be
asked. `LedgerError`: whoever runs the ledger. Each carries a stable `code`, a `hint` that says how to mend it,
and `effect_ran`: whether the effect may have reached its recipient (`"yes"`, `"no"` or `"unknown"`).
"""

from __future__ import annotations

from typing import Any, Literal, Self

EffectRan = Literal["yes", "no", "unknown"]

UnresolvedReason = Literal[
    "run-failed", "reconcile-failed", "reconcile-timeout", "proof-rejected", "in-flight", "too-early"
]


def _rebuild(cls: type[CounterfoilError], args: tuple[Any, ...], state: dict[str, Any]) -> CounterfoilError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class CounterfoilError(Exception):
    """The root of the tree.

    Attributes:
        code: a stable slug for programs.
        hint: what mends it, in a sentence; empty where there is nothing to say.
        effect_ran: whether something may have been sent: `"yes"`, `"no"` or `"unknown"`.
    """

    code: str = "error"
    hint: str = ""
    effect_ran: EffectRan = "no"

    def __init__(
        self,
        message: str = "",
        *,
        code: str | None = None,
        hint: str | None = None,
        effect_ran: EffectRan | None = None,
    ) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        if hint is not None:
            self.hint = hint
        if effect_ran is not None:
            self.effect_ran = effect_ran

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} ({self.hint})" if self.hint else message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))

    def again(self) -> Self:
        """Make an equal error for another caller: one instance raised twice would mix their tracebacks."""
        twin = _rebuild(type(self), self.args, dict(self.__dict__))
        twin.__cause__ = self.__cause__
        twin.__suppress_context__ = True
        return twin  # type: ignore[return-value]


class UsageError(CounterfoilError, ValueError):
    """The calling code is wrong; nothing was recorded and nothing was sent."""

    code = "usage"


class NotSerializable(UsageError):
    """A step result, request, input or payload is not a lossless JSON value."""

    code = "not-serializable"


class NameConflict(UsageError):
    """A recorded name was used again with another request, or with other inputs."""

    code = "name-conflict"


class Denied(CounterfoilError):
    """Somebody decided otherwise."""

    code = "denied"


class Conflict(Denied):
    """Somebody else decided first, or what the decision rests on has changed since it was read.

    Attributes:
        by: who decided, where that is known.
        at: when, in seconds since 1970, where that is known.
    """

    code = "conflict"
    by: str | None = None
    at: float | None = None

    def __init__(self, message: str = "", *, by: str | None = None, at: float | None = None, **more: Any) -> None:
        super().__init__(message, **more)
        self.by = by
        self.at = at


class RunCancelled(Denied):
    """The run was cancelled in this process; nothing was started and nothing was recorded."""

    code = "run-cancelled"


class DeliveryConflict(Conflict):
    """Another payload was delivered first under this event and id."""

    code = "delivery-conflict"


class EffectError(CounterfoilError):
    """Something about an effect that only its recipient can answer."""

    code = "effect"
    effect_ran: EffectRan = "unknown"


class EffectUnresolved(EffectError):
    """The effect has an intent and no outcome yet. It is not known to have failed; calling again asks again.

    Attributes:
        reason: one of `run-failed`, `reconcile-failed`, `reconcile-timeout`, `proof-rejected`, `in-flight`,
            `too-early`.
        name: the effect.
        retry_after_s: seconds until asking again can be conclusive (`too-early` only), else None.
    """

    code = "effect-unresolved"

    def __init__(
        self,
        message: str = "",
        *,
        reason: UnresolvedReason,
        name: str = "",
        retry_after_s: float | None = None,
        **more: Any,
    ) -> None:
        super().__init__(message or f"effect {name!r} is unresolved: {reason}", **more)
        self.reason: UnresolvedReason = reason
        self.name = name
        self.retry_after_s = retry_after_s


class LedgerError(CounterfoilError):
    """The ledger could not do its part."""

    code = "ledger"
    effect_ran: EffectRan = "no"


class LedgerUnavailable(LedgerError):
    """The ledger gave no durable answer.

    Attributes:
        proof: what the recipient returned when the outcome could not be recorded; None otherwise. With
            `effect_ran == "yes"` the effect happened: do not send it again.
    """

    code = "ledger-unavailable"
    effect_ran: EffectRan = "unknown"
    proof: Any = None

    def __init__(self, message: str = "", *, proof: Any = None, **more: Any) -> None:
        super().__init__(message, **more)
        self.proof = proof


class LedgerReadOnly(LedgerUnavailable):
    """The ledger may be read but takes no new records: a read-only file, or one that went back in time."""

    code = "ledger-read-only"
    effect_ran: EffectRan = "no"


class CommitUnknown(LedgerUnavailable):
    """The store was told to commit and did not say how that ended. Ledgers raise it, the flows settle it."""

    code = "commit-unknown"


class LedgerCorrupt(LedgerError):
    """A record cannot be decoded, or was written by a newer version. Nothing was called for its name."""

    code = "ledger-corrupt"
    effect_ran: EffectRan = "unknown"


class FingerprintKeyUnknown(LedgerError):
    """A recorded fingerprint was made with a key that this ledger does not hold; nothing was sent."""

    code = "fingerprint-key-unknown"


class OwnerRetired(LedgerError):
    """This owner was taken for gone: it may record facts but decide nothing. Open the run again to go on."""

    code = "owner-retired"


class RunPruned(LedgerError):
    """The run was pruned. `outcome` is what its tombstone keeps for the name asked for (None if nothing)."""

    code = "run-pruned"
    outcome: Any = None

    def __init__(self, message: str = "", *, outcome: Any = None, **more: Any) -> None:
        super().__init__(message, **more)
        self.outcome = outcome


class ForkedLedger(LedgerError):
    """The ledger was opened before `fork()` and used in the child. Open a runtime after the fork."""

    code = "forked-ledger"


class RecipientError(CounterfoilError):
    """A recipient adapter could not do its part."""

    code = "recipient"
    effect_ran: EffectRan = "unknown"


class BlobMissing(RecipientError):
    """No sealed blob has this reference; nothing was returned."""

    code = "blob-missing"
    effect_ran: EffectRan = "no"


class BlobDamaged(RecipientError):
    """What is stored is not what its reference says; nothing was returned that was not verified.

    Attributes:
        fault: a stable slug: `bad-record`, `truncated`, `swapped`, `wrong-digest`.
    """

    code = "blob-damaged"
    effect_ran: EffectRan = "no"

    def __init__(self, message: str = "", *, fault: str, **more: Any) -> None:
        super().__init__(message, **more)
        self.fault = fault
