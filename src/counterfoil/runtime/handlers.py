"""Handlers of the user: what they are called with, and which calls are inside which."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from types import FunctionType, MethodType
from typing import Any, Final

from counterfoil.errors import UsageError
from counterfoil.ports.transacting import under_way

_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

_NOTHING: Final = (0, 0)

# The calls that the present code runs inside of: (session, run, kind, name) each.
inside: ContextVar[tuple[tuple[int, str, str, str], ...]] = ContextVar("counterfoil_inside", default=())


class Context:
    """What a handler is told.

    Attributes:
        key: the effect's identity, the same in every process: ASCII, at most 64 characters; "" in a step.
        attempt: counts from 1.
        deadline: when a look-up is abandoned, on `time.monotonic()`; None for `run`, which is never cut.
    """

    __slots__ = ("_cancelled", "attempt", "deadline", "key")

    def __init__(self, key: str, attempt: int, deadline: float | None) -> None:
        self.key = key
        self.attempt = attempt
        self.deadline = deadline
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether the handler was told to stop: nobody waits for what it brings any more."""
        return self._cancelled

    def cancel(self) -> None:
        """Tell the handler to stop."""
        self._cancelled = True

    def __repr__(self) -> str:
        return f"Context(key={self.key!r}, attempt={self.attempt}, cancelled={self.cancelled})"


def required(handler: Callable[..., Any]) -> tuple[int, int]:
    """Count what a handler requires: positional parameters, and keywords, which it never gets.

    Nothing is known of callables without a signature: (0, 0).
    """
    if type(handler) is FunctionType and not handler.__dict__:
        # The common case, without `inspect`: a plain function that nothing wraps.
        code = handler.__code__
        if not code.co_argcount and not code.co_kwonlyargcount:
            return _NOTHING
        defaults, keywords = handler.__defaults__, handler.__kwdefaults__
        return code.co_argcount - len(defaults or ()), code.co_kwonlyargcount - len(keywords or ())
    if isinstance(handler, MethodType):
        # What it is bound to is given already.
        positional, named = required(handler.__func__)
        return max(0, positional - 1), named
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):
        return 0, 0
    kinds = [p.kind for p in parameters if p.default is p.empty]
    return sum(kind in _POSITIONAL for kind in kinds), kinds.count(inspect.Parameter.KEYWORD_ONLY)


def accepts(handler: Callable[..., Any], count: int) -> bool:
    """Whether a handler can be given so many positional arguments; True where nothing is known of it."""
    if type(handler) is FunctionType and not handler.__dict__:
        code = handler.__code__
        return code.co_argcount >= count or bool(code.co_flags & inspect.CO_VARARGS)
    if isinstance(handler, MethodType):
        return accepts(handler.__func__, count + 1)
    try:
        kinds = [parameter.kind for parameter in inspect.signature(handler).parameters.values()]
    except (TypeError, ValueError):
        return True
    return inspect.Parameter.VAR_POSITIONAL in kinds or sum(kind in _POSITIONAL for kind in kinds) >= count


def arguments(handler: Callable[..., Any], given: tuple[Any, ...], context: Context) -> tuple[Any, ...]:
    """Say what to call a handler with: what is given, and the context if it requires one more parameter."""
    return (*given, context) if required(handler)[0] > len(given) else given


def is_async(handler: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine."""
    if type(handler) is FunctionType and not handler.__dict__:
        return bool(handler.__code__.co_flags & inspect.CO_COROUTINE)
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def enter(session: int, run: str, *, kind: str, name: str) -> tuple[tuple[int, str, str, str], ...]:
    """Return the chain of calls with one more, refusing a call from inside itself (rule E22).

    Raises:
        UsageError: the present code runs inside a call for the same name.
    """
    chain = inside.get()
    call = (session, run, kind, name)
    if call in chain:
        raise UsageError(
            f"{kind} {name!r} of run {run!r} is called from inside itself; it would wait for itself for ever",
            code="inside-itself",
            hint="give the inner call a name of its own",
        )
    return (*chain, call)


def not_in_transaction() -> None:
    """Refuse a call from inside the body of a transaction (rule T1).

    Raises:
        UsageError: the present code runs inside one.
    """
    transacting = under_way.get()
    if transacting is not None:
        raise UsageError(
            f"called from inside transaction {transacting.name!r} of run {transacting.run!r}; its body may run "
            "more than once, and only what it writes through its connection is undone then",
            code="inside-transaction",
            hint="do it before or after the transaction; stage in it what must follow from it",
        )


def own_flights(session: int) -> set[tuple[str, str, str]]:
    """Return the calls of a session that the present code runs inside of: (run, kind, name) each."""
    return {(run, kind, name) for of, run, kind, name in inside.get() if of == session}
