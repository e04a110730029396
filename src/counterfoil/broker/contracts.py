"""Contracts: data, approved by the operator, saying what one recipient's answers prove and what it supports.

A contract is checked when it is made, so that a mistake in it shows at the start and not at the first answer.
Reading one from a file is `counterfoil.runtime.contracts`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self, TypeVar, get_args

from counterfoil.errors import NotSerializable, UsageError
from counterfoil.protocol import codec, keys
from counterfoil.protocol.pointers import pointer
from counterfoil.recipients.http.headers import OWNED, is_token

T = TypeVar("T")

Meaning = Literal["accepted", "failed", "uncertain"]
Policy = Literal["operator-only", "at-most-once", "reconcile-first", "at-least-once-keyed"]

MEANINGS: Final = get_args(Meaning)
POLICIES: Final = get_args(Policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyed:
    """The recipient tells repeats from new requests by a key that we send.

    Args:
        header: the header that carries the effect key.
        horizon_s: seconds after the first send during which a repeat is still recognised; 0: nobody knows.
        concurrent: whether it also recognises a repeat while the first is still being processed.
    """

    header: str
    horizon_s: float = 0.0
    concurrent: bool = False

    def __post_init__(self) -> None:
        _header(self.header, "idempotency.header")
        keys.seconds(self.horizon_s, "idempotency.horizon_s")
        _flag(self.concurrent, "idempotency.concurrent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Where an answer has the recipient's name for the effect: a JSON pointer into its body, or a header."""

    pointer: str | None = None
    header: str | None = None

    def __post_init__(self) -> None:
        if (self.pointer is None) is (self.header is None):
            raise UsageError("proof says either pointer or header")
        if self.pointer is not None:
            pointer(self.pointer, "proof.pointer")
        else:
            _header(self.header, "proof.header")


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """A meaning that depends on the body: an answer with this status whose body has this value at this place."""

    status: int
    pointer: str
    equals: Any
    means: Meaning

    def __post_init__(self) -> None:
        status(self.status, "when.status")
        pointer(self.pointer, "when.pointer")
        _json(self.equals, "when.equals")
        _one_of(self.means, MEANINGS, "when.means")


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUp:
    """A read that says what became of an effect.

    In `url`, in the values of `params` and in those of `where`, `{key}` stands for the effect key and
    `{/pointer}` for a value of the request's JSON body.

    Args:
        url: where to ask, relative to the recipient's base URL.
        params: the query.
        headers: headers of the look-up alone.
        items: pointer to a list in the body, when the answer is one; then the first item that fits is meant.
        where: what the body, or an item, must have: values by pointer. Without it, `items` must have one item
            at most, because nothing tells ours from somebody else's.
        proof: pointer to the recipient's name for the effect, within the body or the item.
        absent: statuses that say that there is none.
    """

    url: str
    params: Mapping[str, str] = field(default_factory=dict[str, str])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    items: str | None = None
    where: Mapping[str, Any] = field(default_factory=dict[str, Any])
    proof: str = ""
    absent: Collection[int] = (404,)

    def __post_init__(self) -> None:
        _text(self.url, "look_up.url")
        for what in ("params", "headers"):
            _texts(getattr(self, what), f"look_up.{what}")
        for name in self.headers:
            _header(name, "look_up.headers")
        if self.items is not None:
            pointer(self.items, "look_up.items")
        for at, wanted in _mapping(self.where, "look_up.where").items():
            pointer(at, "look_up.where")
            _json(wanted, f"look_up.where[{at!r}]")
        pointer(self.proof, "look_up.proof")
        object.__setattr__(self, "absent", _statuses(self.absent, "look_up.absent"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a contract says; see `counterfoil.Contract`."""

    name: str
    statuses: Mapping[int, Meaning] = field(default_factory=dict[int, Meaning])
    when: tuple[When, ...] = ()
    proof: Proof | None = None
    promises: tuple[str, ...] = ()
    idempotency: Keyed | None = None
    keep_key: bool = False
    visibility_s: float = 0.0
    look_up: LookUp | None = None
    retryable: bool | Collection[int] = False
    policy: Policy | None = None
    resends: int = 0

    def __post_init__(self) -> None:
        keys.name(self.name, "the contract's name")
        for code, means in _mapping(self.statuses, "statuses").items():
            status(code, "statuses")
            _one_of(means, MEANINGS, f"statuses[{code}]")
        proof: Any = self.proof
        if isinstance(proof, str):
            object.__setattr__(self, "proof", {"header" if proof and not proof.startswith("/") else "pointer": proof})
        for what, shape in (("proof", Proof), ("idempotency", Keyed), ("look_up", LookUp)):
            given = getattr(self, what)
            if given is not None and not isinstance(given, shape):
                object.__setattr__(self, what, _made(shape, given, what))
        rows: Any = self.when
        if isinstance(rows, (tuple, list)):
            made = [row if isinstance(row, When) else _made(When, row, "when") for row in rows]
            object.__setattr__(self, "when", made)
        object.__setattr__(self, "when", _all(self.when, When, "when"))
        object.__setattr__(self, "promises", _all(self.promises, str, "promises"))
        for promise in self.promises:
            _text(promise, "promises")
        _flag(self.keep_key, "keep_key")
        keys.seconds(self.visibility_s, "visibility_s")
        if not isinstance(self.retryable, bool):
            object.__setattr__(self, "retryable", _statuses(self.retryable, "retryable"))
        if self.policy is not None:
            _one_of(self.policy, POLICIES, "policy")
        if type(self.resends) is not int or not 0 <= self.resends <= 100:
            raise UsageError(f"resends is an int from 0 to 100, not {self.resends!r}")
        self._agrees()

    def _agrees(self) -> None:
        if self.policy == "at-least-once-keyed" and self.idempotency is None:
            raise UsageError(
                "policy at-least-once-keyed needs idempotency", hint="say idempotency=Keyed(header=…, horizon_s=…)"
            )
        if self.policy == "reconcile-first" and self.look_up is None:
            raise UsageError("policy reconcile-first needs look_up", hint="say look_up=LookUp(url=…, proof=…)")
        if self.resends and self.policy != "at-least-once-keyed":
            raise UsageError("resends goes with policy at-least-once-keyed alone")

    def retries(self, code: int) -> bool:
        """Whether another attempt may follow one that failed with this status."""
        return self.retryable if isinstance(self.retryable, bool) else code in self.retryable

    @property
    def strongest_policy(self) -> Policy:
        """The policy that the outbox starts from: what is said, else what can be asked, else at most once."""
        if self.policy is not None:
            return self.policy
        return "at-most-once" if self.look_up is None else "reconcile-first"

    @classmethod
    def of(cls, data: Mapping[str, Any], *, where: str = "the contract") -> Self:
        """Make a contract of plain data, as TOML or JSON has it.

        Raises:
            UsageError: something in it is unknown, missing or wrong; `where` says in what.
        """
        try:
            given = dict(_mapping(data, where))
            if isinstance(given.get("statuses"), Mapping):
                given["statuses"] = {_code(code): means for code, means in given["statuses"].items()}
            return _made(cls, given, "a contract")
        except UsageError as error:
            raise UsageError(f"{where}: {error.args[0]}", hint=error.hint, code="bad-contract") from None


def _made(shape: Callable[..., T], data: Any, what: str) -> T:
    fields = {f.name: f for f in dataclasses.fields(shape)}  # type: ignore[arg-type]
    given = _mapping(data, what)
    if unknown := sorted(set(map(str, given)) - set(fields)):
        raise UsageError(f"{what} has no {', '.join(unknown)}", hint=f"it has {', '.join(fields)}")
    required = {n for n, f in fields.items() if f.default is f.default_factory is dataclasses.MISSING}
    if missing := sorted(required - set(given)):
        raise UsageError(f"{what} needs {', '.join(missing)}")
    return shape(**given)


def _code(code: Any) -> Any:
    # Names of a TOML table are texts.
    return int(code) if isinstance(code, str) and code.isascii() and code.isdigit() else code


def status(code: Any, what: str) -> int:
    """Check a final status code."""
    if type(code) is not int or not 200 <= code <= 599:
        raise UsageError(f"{what} has status codes from 200 to 599, not {code!r}")
    return code


def _statuses(codes: Any, what: str) -> frozenset[int]:
    if isinstance(codes, (str, bytes)) or not isinstance(codes, Collection):
        raise UsageError(f"{what} is a list of status codes, not {type(codes).__name__}")
    return frozenset(status(code, what) for code in codes)


def _all(items: Any, shape: type[T], what: str) -> tuple[T, ...]:
    if not isinstance(items, (tuple, list)) or not all(isinstance(item, shape) for item in items):
        raise UsageError(f"{what} is a list of {shape.__name__}")
    return tuple(items)


def _mapping(data: Any, what: str) -> Mapping[Any, Any]:
    if not isinstance(data, Mapping):
        raise UsageError(f"{what} is a table of names and values, not {type(data).__name__}")
    return data


def _texts(data: Any, what: str) -> None:
    for name, value in _mapping(data, what).items():
        _text(name, what)
        _text(value, f"{what}[{name!r}]")


def _text(value: Any, what: str) -> None:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{what} is a text, not {value!r}")


def _flag(value: Any, what: str) -> None:
    if not isinstance(value, bool):
        raise UsageError(f"{what} is true or false, not {value!r}")


def _one_of(value: Any, words: tuple[str, ...], what: str) -> None:
    if value not in words:
        raise UsageError(f"{what} is one of {', '.join(words)}, not {value!r}")


def _json(value: Any, what: str) -> None:
    try:
        codec.encode(value, what=what)
    except NotSerializable as error:
        raise UsageError(str(error)) from None


def _header(name: Any, what: str) -> None:
    if not isinstance(name, str) or not is_token(name):
        raise UsageError(f"{what} is the name of a header, not {name!r}")
    if name.lower() in OWNED:
        raise UsageError(f"{what} cannot be {name}: the connection itself sets that header")
