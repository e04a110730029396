"""What callers give, checked before anything is recorded, and made into what flows take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, cast

from counterfoil.effects.call import RECONCILE_TIMEOUT_S, VISIBILITY_S, WAIT_S, EffectCall, Unaskable
from counterfoil.effects.decide import Verdict
from counterfoil.effects.evidence import proof_of
from counterfoil.effects.scope import Verifier
from counterfoil.effects.step import StepCall
from counterfoil.effects.transaction import TransactionCall
from counterfoil.errors import UsageError
from counterfoil.ports.recipient import Operation
from counterfoil.protocol import codec, keys
from counterfoil.runtime.coding import OF_TRANSACTION, PROOF, RESULT, Coder, canonical, coder
from counterfoil.runtime.handlers import accepts, is_async, required
from counterfoil.runtime.transactions import through_sqlalchemy

ATTEMPTS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry policy: explicit, and bounded in attempts and time.

    Args:
        attempts: attempts in all, 1 or more.
        within_s: no attempt is due later than this many seconds after the first began; None: no such bound.
        backoff_s: seconds before the second attempt; doubled before each further one.
        backoff_max_s: the longest wait between two attempts.
    """

    attempts: int
    _: KW_ONLY
    within_s: float | None = None
    backoff_s: float = 0.0
    backoff_max_s: float = 60.0

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or not 1 <= self.attempts <= ATTEMPTS_MAX:
            raise UsageError(f"attempts must be an int from 1 to {ATTEMPTS_MAX}, not {self.attempts!r}")
        if self.within_s is not None:
            keys.seconds(self.within_s, "within_s", positive=True)
        keys.seconds(self.backoff_s, "backoff_s")
        keys.seconds(self.backoff_max_s, "backoff_max_s")


def recorded_retry(policy: Any) -> codec.RetryBody | None:
    """Check a retry policy and make what is recorded of it; None stays None."""
    if policy is None:
        return None
    if not isinstance(policy, Retry):
        raise UsageError(f"retry takes a Retry, not {type(policy).__name__}")
    return codec.RetryBody(
        attempts=policy.attempts,
        within_s=policy.within_s,
        backoff_s=policy.backoff_s,
        backoff_max_s=policy.backoff_max_s,
    )


def step_call(name: str, body: Any, *, inputs: Any, retry: Any, result_type: Any) -> tuple[StepCall, Coder]:
    """Check a step's arguments."""
    keys.name(name)
    if not callable(body):
        raise UsageError(f"a step's body is a callable, not {type(body).__name__}")
    handler(body, "the step's body")
    coded = coder(result_type, RESULT)
    call = StepCall(
        name=name, body=body, inputs=canonical(inputs, "inputs"), retry=recorded_retry(retry), encode=coded.encode
    )
    return call, coded


def transaction_call(
    name: str, body: Any, *, inputs: Any, result_type: Any, connection: str
) -> tuple[TransactionCall, Coder]:
    """Check a transaction's arguments."""
    keys.name(name)
    if not callable(body):
        raise UsageError(f"a transaction's body is a callable, not {type(body).__name__}")
    if is_async(body):
        raise UsageError(
            "a transaction's body is a plain function of a connection, which blocks",
            hint="under AsyncRuntime it runs in a worker thread",
        )
    positional, keywords = required(body)
    if positional > 1 or keywords > 0:
        raise UsageError("a transaction's body is called with the connection alone; this one requires more")
    if connection not in ("driver", "sqlalchemy"):
        raise UsageError(f"connection is 'driver' or 'sqlalchemy', not {connection!r}")
    coded = coder(result_type, OF_TRANSACTION)
    call = TransactionCall(
        name=name,
        body=body if connection == "driver" else through_sqlalchemy(body),
        inputs=canonical(inputs, "inputs"),
        encode=coded.encode,
    )
    return call, coded


def effect_call(
    name: str,
    operation: Operation[Any] | None,
    *,
    run: Callable[..., Any] | None,
    reconcile: Any,
    request: Any,
    wait: float,
    reconcile_timeout: float,
    visibility: float,
    verify: Callable[..., Any] | None,
    retry: Any,
    proof_type: Any,
    asynchronous: bool = False,
) -> tuple[EffectCall, Coder]:
    """Check an effect's arguments, whichever way they are given."""
    keys.name(name)
    settings = None
    if operation is not None:
        settings = _settings(operation, given=(run, reconcile, request))
        run, reconcile, request = _handlers(operation, asynchronous=asynchronous)
        visibility = max(keys.seconds(visibility, "visibility"), settings.visibility_s)
        verify = verify or operation.verify
        proof_type = proof_type if proof_type is not None else settings.proof_type
    if not callable(run) or not (verify is None or callable(verify)):
        raise _uncallable(name, run, verify)
    told = handler(run, "run of effect", name)
    if not isinstance(reconcile, Unaskable):
        _check_look_up(name, operation, reconcile)
    # Only what is given is looked at and set: most calls leave most of it out.
    call = EffectCall(name=name, run=run, reconcile=reconcile, told=told)
    if settings is not None:
        call.retryable, call.keep_key, call.recipient = settings.retryable, settings.keep_key, settings.recipient
    if request is not None:
        call.request = codec.encode(request, what="request")
    if wait is not WAIT_S:
        call.wait_s = keys.seconds(wait, "wait")
    if reconcile_timeout is not RECONCILE_TIMEOUT_S:
        call.reconcile_timeout_s = keys.seconds(reconcile_timeout, "reconcile_timeout", positive=True)
    if visibility is not VISIBILITY_S:
        call.visibility_s = keys.seconds(visibility, "visibility")
    if retry is not None:
        call.retry = recorded_retry(retry)
    coded = PROOF
    if proof_type is not None:
        coded = coder(proof_type, PROOF)
        call.encode = coded.encode
    if verify is not None:
        handler(verify, "verify of effect", name, given=1)
        call.verifier = Verifier(verify, coded.decode, call.reconcile_timeout_s)
    return call, coded


def handler(function: Callable[..., Any], what: str, name: str = "", *, given: int = 0) -> bool:
    """Check that a handler can be called, now and not when it has become necessary; say whether it takes the context.

    Raises:
        UsageError: it requires more than what it is given and the context, or takes less than what it is given.
    """
    positional, keywords = required(function)
    if given and not accepts(function, given):
        raise UsageError(
            f"{what} {name!r} is called with the proof; this one takes nothing", hint="let it take the proof"
        )
    if positional > given + 1 or keywords > 0:
        takes = "the proof and, if it requires another parameter, the context" if given else "nothing, or the context"
        whose = f"{what} {name!r}" if name else what
        raise UsageError(f"{whose} is called with {takes}; this one requires more", hint="bind it, in a lambda perhaps")
    return positional > given


def _uncallable(name: str, run: Any, verify: Any) -> UsageError:
    if run is None:
        return UsageError(f"effect {name!r} needs an operation, or run= and reconcile=")
    if not callable(run):
        return UsageError(f"run of effect {name!r} is a callable, not {type(run).__name__}", hint="it is called later")
    return UsageError(f"verify takes a callable, not {type(verify).__name__}")


def _check_look_up(name: str, operation: Any, reconcile: Any) -> None:
    if not callable(reconcile):
        raise _without_look_up(name, operation, reconcile)
    handler(reconcile, "reconcile of effect", name)


def _without_look_up(name: str, operation: Any, reconcile: Any) -> UsageError:
    if reconcile is not None:
        return UsageError(
            f"reconcile of effect {name!r} is a callable or UNASKABLE, not {type(reconcile).__name__}",
            hint="it asks the recipient what became of the effect",
        )
    if operation is None:
        return UsageError(
            f"effect {name!r} needs reconcile=, which asks the recipient what became of it",
            hint="say reconcile=UNASKABLE for a recipient that cannot be asked",
        )
    called = getattr(operation.settings, "operation", type(operation).__name__)
    return UsageError(
        f"effect {name!r} needs a look-up, which asks the recipient what became of it; operation {called!r} has none",
        hint=f"write one under @{called}.reconcile, or make the operation with reconcile=UNASKABLE",
    )


def _handlers(operation: Any, *, asynchronous: bool) -> tuple[Any, Any, Any]:
    run, reconcile = operation.run, operation.reconcile
    if asynchronous:
        run = getattr(operation, "run_async", None) or run
        reconcile = getattr(operation, "reconcile_async", None) or reconcile
    return run, reconcile, operation.request


def _settings(operation: Any, *, given: tuple[Any, ...]) -> Any:
    if any(part is not None for part in given):
        raise UsageError("give an effect either an operation, or run and reconcile")
    settings = getattr(operation, "settings", None)
    if settings is None or not hasattr(operation, "request"):
        hint = "call it with its arguments: send(to=…)" if settings is not None else ""
        if settings is None and callable(operation):
            hint = "give a function as run=, with reconcile="
        raise UsageError(f"an effect takes an operation with its arguments, not {type(operation).__name__}", hint=hint)
    return settings


def verdict(
    *, happened: Any, did_not_happen: bool, reason: str, by: str, expect_version: int, new_name: str | None
) -> Verdict:
    """Check a decision's arguments."""
    if (happened is None) is not bool(did_not_happen):
        raise UsageError("say either happened=<what the recipient named it>, or did_not_happen=True")
    if new_name is not None and not did_not_happen:
        raise UsageError("what happened is not to be sent again: new_name goes with did_not_happen")
    said(reason=reason, by=by)
    if type(expect_version) is not int:
        raise UsageError("expect_version is the version that effects() showed, an int")
    return Verdict(
        happened=not did_not_happen,
        proof=b"null" if did_not_happen else proof_of(PROOF.encode, happened),
        reason=reason,
        by=by,
        expect_version=expect_version,
        new_name=None if new_name is None else keys.name(new_name, "new_name"),
    )


def said(**words: Any) -> None:
    """Check what a person has to say about what they do.

    Raises:
        UsageError: something was left out.
    """
    for what, value in words.items():
        if not isinstance(value, str) or not value.strip():
            raise UsageError(f"a decision needs `{what}`")


def timeout(seconds: float | None) -> float | None:
    """Check a timeout in seconds, None for none."""
    return None if seconds is None else keys.seconds(seconds, "timeout")


def limit(number: int | None, *, least: int = 1) -> None:
    """Check how many are wanted at most; None: all."""
    if number is not None and (type(number) is not int or number < least):
        raise UsageError(f"limit is None or an int of {least} or more, not {number!r}")


def callable_with(body: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Check that `body(run, *args)` is possible, where that can be seen."""
    try:
        signature = inspect.signature(body)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(None, *args)
    except TypeError as error:
        raise UsageError(
            f"the body cannot be called with these arguments: {error}", hint="it is called as body(run, *args)"
        ) from None


def coloured(body: Callable[..., Any], *, asynchronous: bool) -> None:
    """Check that a body is one, and has its runtime's colour, where that can be seen."""
    if not callable(body):
        raise UsageError(f"a body is a function, not {type(body).__name__}")
    if is_async(body) and not asynchronous:
        raise UsageError("the body is an async function", hint="run it with AsyncRuntime")
    if asynchronous and inspect.isfunction(body) and not is_async(body):
        raise UsageError("the body is not an async function", hint="run it with Runtime, or make it async")


def body_name(body: Callable[..., Any]) -> str:
    """Name a durable body: `module:qualname`."""
    module, qualname = getattr(body, "__module__", None), getattr(body, "__qualname__", None)
    if not module or not qualname:
        raise UsageError("a body is a function with a module and a name", hint="it is found by them after a restart")
    return f"{module}:{qualname}"


def body_table(
    bodies: Iterable[Callable[..., Any]] | Mapping[str, Callable[..., Any]],
) -> dict[str, Callable[..., Any]]:
    """Make a table from recorded names to bodies."""
    if isinstance(bodies, Mapping):
        table = dict(cast("Mapping[Any, Callable[..., Any]]", bodies))
        if strange := [name for name in table if not isinstance(name, str)]:
            raise UsageError(f"bodies are found by their names, not by {strange[0]!r}", hint="write 'module:qualname'")
        return table
    if not isinstance(bodies, Iterable):
        raise UsageError(f"bodies are functions, or a mapping from names to them, not {type(bodies).__name__}")
    return {body_name(body): body for body in bodies}
