"""How an effect can end: a closed union of four outcomes, each resting on evidence.

`Accepted` and `Uncertain` are values. `Rejected` and `Failed` are one class each for both roles: handlers
*raise* them to prove a non-effect, and calls *return* them, so they are exceptions that compare by value.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from counterfoil.errors import UsageError

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")

Via = Literal["run", "reconcile", "evidence"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The structured fact on which an outcome rests; never an error text.

    Args:
        kind: a stable slug, for example `acknowledged`, `not-found`, `status`.
        phase: how far the attempt got: `not-dispatched`, `dispatched` or `acknowledged`.
        bytes_offered: bytes of the request offered to the socket, where that is known.
        status: the recipient's status code, where it has one.
        contract: id of the contract that gave the answer its meaning.
        promises: slugs for what an acknowledgement promises and what it leaves open.
        details: further facts, as a JSON object without payloads or secrets.
    """

    kind: str
    _: KW_ONLY
    phase: str | None = None
    bytes_offered: int | None = None
    status: int | None = None
    contract: str | None = None
    promises: tuple[str, ...] = ()
    details: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        _text(self.kind, "kind")
        if self.phase is not None:
            _text(self.phase, "phase")
        if self.contract is not None:
            _text(self.contract, "contract")
        if self.bytes_offered is not None:
            _number(self.bytes_offered, "bytes_offered")
        if self.status is not None:
            _number(self.status, "status")
        if not isinstance(self.promises, (tuple, list)):
            raise UsageError(f"evidence.promises is a tuple of slugs, not {type(self.promises).__name__}")
        for promise in self.promises:
            _text(promise, "promises")
        if type(self.promises) is not tuple:
            object.__setattr__(self, "promises", tuple(self.promises))
        if self.details is not None and not isinstance(self.details, dict):
            raise UsageError(f"evidence.details is a dict, not {type(self.details).__name__}")


def _number(value: Any, what: str) -> None:
    if type(value) is not int or not 0 <= value < 2**63:
        raise UsageError(f"evidence.{what} is an int of 0 or more, not {value!r}")


def _text(value: Any, what: str) -> None:
    if type(value) is str and value and value.isascii():
        return
    if not isinstance(value, str) or not value:
        raise UsageError(f"evidence.{what} is a slug (a str that is not empty), not {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"evidence.{what} has a surrogate: {value!a}") from None


ACKNOWLEDGED: Final = Evidence("acknowledged", phase="acknowledged")
"""What a plain acknowledgement rests on."""


@dataclass(frozen=True, slots=True, init=False)
class Accepted(Generic[T_co]):
    """The recipient's own protocol acknowledged the effect; what happens downstream is not said.

    Args:
        proof: what the recipient named it.
        via: how the proof came: `run`, `reconcile` or `evidence` (a webhook, a side channel).
        evidence: the fact it rests on, with what the acknowledgement promises.
        response: what an immediate operation was answered, where its recipient keeps that; never recorded or compared.
    """

    proof: T_co
    via: Via = "run"
    evidence: Evidence = ACKNOWLEDGED
    _: KW_ONLY
    response: Any = field(default=None, compare=False, repr=False)

    def __init__(
        self, proof: T_co, via: Via = "run", evidence: Evidence = ACKNOWLEDGED, *, response: Any = None
    ) -> None:
        # What a dataclass writes here goes by way of `object.__setattr__`, at four times the price: a replay makes
        # one of these for each effect.
        _set_proof(self, proof)
        _set_via(self, via)
        _set_evidence(self, evidence)
        _set_response(self, response)


_set_proof, _set_via, _set_evidence, _set_response = (
    getattr(Accepted, name).__set__ for name in ("proof", "via", "evidence", "response")
)


@dataclass(frozen=True, slots=True)
class Uncertain:
    """Dispatch may have happened and nothing proves how it ended. Nothing is sent again under this name."""

    evidence: Evidence
    _: KW_ONLY
    response: Any = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        _resting_on(self, self.evidence)


def _resting_on(outcome: object, evidence: Any) -> None:
    if not isinstance(evidence, Evidence):
        raise TypeError(f"{type(outcome).__name__} takes an Evidence, not {type(evidence).__name__}")


class _Settled(Exception):
    """What `Rejected` and `Failed` share: evidence, equality by value, pickling."""

    response: Any = None

    def __init__(self, evidence: Evidence) -> None:
        _resting_on(self, evidence)
        super().__init__(evidence)
        self.evidence = evidence

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__reduce__() == self.__reduce__()

    def __hash__(self) -> int:
        return hash((type(self), self.evidence.kind))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.evidence!r})"

    __str__ = __repr__

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.evidence,)


class Rejected(_Settled):
    """Proved: this attempt was never dispatched, so nothing reached the recipient."""


class Failed(_Settled):
    """Proved by the recipient's own protocol: this attempt did not take effect.

    Args:
        evidence: the proof of that.
        retryable: the recipient's contract says that another attempt is safe.
    """

    def __init__(self, evidence: Evidence, *, retryable: bool = False) -> None:
        super().__init__(evidence)
        self.retryable = retryable

    def __reduce__(self) -> tuple[Any, ...]:
        return _failed, (self.evidence, self.retryable)


def _failed(evidence: Evidence, retryable: Any) -> Failed:
    return Failed(evidence, retryable=retryable)


Outcome: TypeAlias = Accepted[T] | Rejected | Failed | Uncertain


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a person recorded about an uncertain effect. It does not change the outcome.

    Args:
        happened: True if they found that it happened, False if they found that it did not.
        proof: what the recipient named it, when it happened.
        reason: why they are sure.
        by: who they are.
        at: when, in seconds since 1970.
        seen_version: the version of the effect that they had in front of them.
        new_name: the name under which it may be sent again, if they allowed that.
    """

    happened: bool
    proof: Any = None
    reason: str
    by: str
    at: float
    seen_version: int
    new_name: str | None = None


_RANKED = (Accepted, Uncertain, Failed, Rejected)


def combine(outcomes: list[Outcome[Any]]) -> Outcome[Any]:
    """Say how all attempts of one effect ended together: uncertainty is sticky (rule O3).

    Accepted if any attempt was acknowledged; else uncertain if any is uncertain; else failed; else rejected.
    Of several that rank alike the latest speaks.
    """
    latest_first: list[Outcome[Any]] = outcomes[::-1]
    # By type and not by class: a recipient's outcomes may be of classes of their own.
    return min(latest_first, key=lambda outcome: next(i for i, kind in enumerate(_RANKED) if isinstance(outcome, kind)))
