"""A handle of a run that notes what a body asks of it; for the body it is an ordinary handle."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from counterfoil.effects.effect import Unaskable
from counterfoil.errors import EffectUnresolved, LedgerUnavailable, NameConflict, NotSerializable
from counterfoil.outcomes import Accepted
from counterfoil.testing.notes import EffectSettings, Notes, shown, whole

if TYPE_CHECKING:
    from counterfoil.testing.lives import Life

_TRACED: Final = ("step", "effect", "sleep", "wait_for", "decision", "deliver", "settle")


def trace(life: Life, run: Any, *, asynchronous: bool) -> Any:
    """Let a handle note every call that goes through it."""
    for method in _TRACED:
        inner = getattr(run, method)
        setattr(run, method, _awaited(life, method, inner) if asynchronous else _blocking(life, method, inner))
    return run


def _blocking(life: Life, method: str, inner: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        asked = Asked(life, method, args=args, kwargs=kwargs)
        try:
            return asked.returned(inner(*args, **kwargs))
        except BaseException as error:
            asked.raised(error)
            raise

    return call


def _awaited(life: Life, method: str, inner: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        asked = Asked(life, method, args=args, kwargs=kwargs)
        try:
            return asked.returned(await inner(*args, **kwargs))
        except BaseException as error:
            asked.raised(error)
            raise

    return call


class Asked:
    """One call of a body: it is noted when it is made, and when it is answered."""

    def __init__(self, life: Life, method: str, *, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._life = life
        self._notes: Notes = life.trial.notes
        self._method = method
        named: tuple[Any, ...] = args[:1]
        if method == "sleep":
            named = (kwargs.get("name", ""),)
        elif method in ("wait_for", "deliver"):
            named = (*args, *(kwargs[part] for part in ("event", "id") if part in kwargs), "", "")[:2]
        elif not named:
            named = (kwargs.get("name", ""),)
        self._name = "/".join(str(part) for part in named)
        if method == "wait_for":
            self._notes.awaited[self._name] = str(named[0]), str(named[1])
        self._request: Any = None
        if method == "effect":
            self._effect(args, kwargs)
        elif method == "step":
            self._request = kwargs.get("inputs")
        life.ask(method, self._name)
        if self._request is not None:
            self._notes.requested.setdefault((method, self._name), self._request)

    def _effect(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        operation = args[1] if len(args) > 1 else kwargs.get("operation")
        run, reconcile = kwargs.get("run"), kwargs.get("reconcile")
        visibility = kwargs.get("visibility", 0.0)
        request = kwargs.get("request")
        verify = kwargs.get("verify")
        if operation is not None and hasattr(operation, "settings"):
            visibility = max(visibility, operation.settings.visibility_s)
            reconcile, request = operation.reconcile, operation.request
            verify = verify or operation.verify
            run = getattr(operation, "operation", None)
        self._request = request
        handler = getattr(run, "__func__", run)
        settings = EffectSettings(
            visibility_s=float(visibility),
            askable=not isinstance(reconcile, Unaskable),
            request=request,
            verified=verify is not None,
            handler=getattr(handler, "__code__", handler),
        )
        self._life.trial.before_effect(self._name, settings)
        self._notes.settings.setdefault(self._name, settings)

    def returned(self, value: Any) -> Any:
        """Note the answer."""
        if self._method == "effect":
            self._notes.states[self._name] = type(value).__name__.lower()
            proof = f" {shown(value.proof)}, via {value.via}" if isinstance(value, Accepted) else ""
            self._notes.say(self._life.who, f"effect {self._name!r} is {type(value).__name__.lower()}{proof}")
        self._life.answered(self._method, self._name, returned=True)
        return value

    def raised(self, error: BaseException) -> None:
        """Note the error."""
        self._life.answered(self._method, self._name, returned=False)
        if self._life.dead:
            return
        if isinstance(error, (EffectUnresolved, LedgerUnavailable)):
            if self._method == "effect":
                self._notes.states[self._name] = "unresolved"
            why = error.reason if isinstance(error, EffectUnresolved) else error.code
            self._notes.say(self._life.who, f"{self._method} {self._name!r} is unresolved: {why}")
            if isinstance(error, EffectUnresolved) and error.reason == "proof-rejected":
                self._refused(error)
        elif isinstance(error, NameConflict):
            self._conflict()
        if isinstance(error, NotSerializable) and self._method == "step":
            self._notes.mistake(
                "not-json",
                self._name,
                f"your step {self._name!r} returns something that is no JSON: {error.args[0]}",
                hint="return plain JSON values, or give result_type=",
            )

    def _refused(self, error: EffectUnresolved) -> None:
        asked = any(looked for key, looked in self._notes.looked.items() if self._notes.name_of(key) == self._name)
        which = "reconcile" if asked else "run"
        if isinstance(error.__cause__, NotSerializable):
            self._notes.mistake(
                "not-json",
                self._name,
                f"your {which} for {self._name!r} returns something that is no JSON: {error.__cause__.args[0]}",
                hint="return the recipient's id, or give proof_type=",
            )
        elif not asked:
            self._notes.mistake(
                "verify-refuses",
                self._name,
                f"your verify for {self._name!r} refuses what your run returns",
                hint="verify must hold for every proof of this effect",
            )

    def _conflict(self) -> None:
        first = self._notes.requested.get((self._method, self._name))
        same_life = self._life.asked.pairs.count((self._method, self._name)) > 1
        what, several = ("request", "requests") if self._method == "effect" else ("inputs", "inputs")
        changed = difference(first, self._request)
        if same_life:
            self._notes.mistake(
                "name-used-twice",
                self._name,
                f"your body uses the name {self._name!r} for two different {several}{changed}: the second is refused",
                hint="put what differs into the name, for example an id",
            )
        else:
            self._notes.mistake(
                "request-changes",
                self._name,
                f"your {what} for {self._name!r} changes between runs{changed}: NameConflict after a restart",
                hint="take a time stamp or a random value from a step, or leave it out",
            )


def difference(first: Any, second: Any, path: str = "") -> str:
    """Say where two JSON values differ: the first place, with both values."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in [*first, *(key for key in second if key not in first)]:
            if first.get(key) != second.get(key):
                return difference(first.get(key), second.get(key), f"{path}.{key}" if path else str(key))
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, (one, other) in enumerate(zip(first, second, strict=True)):
            if one != other:
                return difference(one, other, f"{path}[{index}]")
    if first == second:
        return ""
    return f" ({path + ' was ' if path else ''}{whole(first)}, then {whole(second)})"
