"""A recipient written as functions: how to perform an effect, and how to ask about it, said once."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Generic, ParamSpec, Protocol, TypeVar, overload

from counterfoil.errors import UsageError
from counterfoil.ports.recipient import Operation
from counterfoil.protocol import keys

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Function = TypeVar("Function", bound=Callable[..., Any])

_CONTEXT_NAMES = ("ctx", "context")
# Version of the form in which an outbox keeps operations.
FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for an operation whatever its arguments are; see `Recipient.operation`."""

    recipient: str
    operation: str
    _: KW_ONLY
    visibility_s: float = 0.0
    retryable: bool = False
    keep_key: bool = False
    proof_type: Any = None


class Decorator(Protocol):
    """What `Recipient.operation(...)` gives: it makes an operation of a function."""

    @overload
    def __call__(self, function: Callable[P, Awaitable[T]], /) -> OperationFunction[P, T]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> OperationFunction[P, T]: ...
    def __call__(self, function: Any, /) -> Any:
        """Make the operation."""
        ...


class Recipient:
    """Another system, by name.

    Args:
        name: what people call it; it is part of each request's fingerprint.
        contract: what its answers prove and which retries it supports (`counterfoil.Contract`), or None.
    """

    def __init__(self, name: str, *, contract: Any = None) -> None:
        self.name = keys.name(name, "the recipient's name")
        self.contract = contract
        self.operations: dict[str, OperationFunction[..., Any]] = {}

    def __repr__(self) -> str:
        return f"Recipient({self.name!r})"

    @overload
    def operation(self, function: Callable[P, Awaitable[T]], /) -> OperationFunction[P, T]: ...
    @overload
    def operation(self, function: Callable[P, T], /) -> OperationFunction[P, T]: ...
    @overload
    def operation(
        self,
        function: None = None,
        /,
        *,
        visibility: float = 0.0,
        retryable: bool = False,
        keep_key: bool = False,
        reconcile: Any = None,
        proof_type: Any = None,
    ) -> Decorator: ...

    def operation(
        self,
        function: Any = None,
        /,
        *,
        visibility: float = 0.0,
        retryable: bool = False,
        keep_key: bool = False,
        reconcile: Any = None,
        proof_type: Any = None,
    ) -> Any:
        """Make an operation of a function; use it as a decorator, with or without arguments.

        The function performs the effect and returns what the recipient named it. Its first parameter gets the
        context if it is called `ctx` or `context`; the others are the request, and must be JSON values.

        Args:
            function: performs the effect, blocking or asynchronous.
            visibility: seconds that the recipient may take to show an effect.
            retryable: a `Failed` attempt may be followed by another, where the call gives a retry policy.
            keep_key: all attempts share one key.
            reconcile: `UNASKABLE` for a recipient that cannot be asked; else decorate a look-up with
                `@operation.reconcile`.
            proof_type: the type that proofs are decoded into.
        """

        def decorate(performed: Callable[..., Any]) -> OperationFunction[..., Any]:
            name = performed.__name__
            if name in self.operations:
                raise UsageError(f"recipient {self.name!r} has an operation {name!r} already")
            settings = Settings(
                self.name,
                name,
                visibility_s=keys.seconds(visibility, "visibility"),
                retryable=retryable,
                keep_key=keep_key,
                proof_type=proof_type,
            )
            made: OperationFunction[..., Any] = OperationFunction(performed, settings, reconcile)
            made.contract = self.contract
            self.operations[name] = made
            return made

        return decorate if function is None else decorate(function)

    def restore(self, serialised: Mapping[str, Any]) -> BoundOperation[Any]:
        """Make an operation of what `BoundOperation.serialised` returned, perhaps in another process.

        Raises:
            UsageError: it belongs to another recipient, was made by a newer version, there is no such operation here,
                or its arguments do not fit any more.
        """
        try:
            name, operation = serialised["recipient"], serialised["operation"]
            form, arguments = serialised["format"], serialised["arguments"]
        except (KeyError, TypeError) as error:
            raise UsageError(f"this is no serialised operation: {type(error).__name__}", code="bad-operation") from None
        if form != FORMAT:
            raise UsageError(
                f"the operation has format {form!r}, this version knows {FORMAT}",
                hint="upgrade counterfoil; it was not sent",
                code="operation-too-new",
            )
        if name != self.name or operation not in self.operations:
            raise UsageError(f"{self!r} has no operation {operation!r} of recipient {name!r}", code="unknown-operation")
        return self.operations[operation].restored(arguments)


class OperationFunction(Generic[P, T]):
    """An operation without arguments yet; calling it binds them and performs nothing."""

    def __init__(self, function: Callable[..., Any], settings: Settings, look_up: Any) -> None:
        self.function = function
        self.settings = settings
        self.look_up: Any = look_up
        self.check: Callable[..., Any] | None = None
        self.contract: Any = None
        self._shapes: tuple[_Shape, ...] = ()
        self.__doc__ = function.__doc__
        self.__name__ = settings.operation

    def __call__(self, *args: Any, **kwargs: Any) -> BoundOperation[T]:
        """Bind the request's arguments.

        Raises:
            UsageError: they do not fit the function's signature.
        """
        shape = self.shape_of(self.function)
        names = shape.names
        if names is not None and not args and kwargs.keys() == names.keys() and self._looks_up_alike(names):
            # As it would be bound below, but for the time it takes.
            given = {name: kwargs[name] for name in names}
            return BoundOperation(self, tuple(given.values()), {}, _as_json(given))
        try:
            bound = shape.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise UsageError(f"operation {self.__name__!r}: {error}") from None
        bound.apply_defaults()
        self._fits_look_up(bound)
        return BoundOperation(self, bound.args, bound.kwargs, _as_json(bound.arguments))

    def restored(self, arguments: Any) -> BoundOperation[T]:
        """Bind arguments as they were recorded: by name, what `*args` gathered as a list."""
        if not isinstance(arguments, dict):
            raise UsageError(f"operation {self.__name__!r} has arguments by name", code="bad-operation")
        shape = self.shape_of(self.function)
        if shape.names is not None and arguments.keys() == shape.names.keys():
            # As `__call__` would bind them, but for the time it takes.
            return BoundOperation(self, tuple(arguments[name] for name in shape.names), {}, arguments)
        given, positional, named = dict(arguments), [], {}
        for parameter in shape.signature.parameters.values():
            if parameter.name not in given:
                continue
            value = given.pop(parameter.name)
            if parameter.kind is parameter.VAR_POSITIONAL:
                positional.extend(value)
            elif parameter.kind is parameter.VAR_KEYWORD:
                named.update(value)
            elif parameter.kind is parameter.KEYWORD_ONLY:
                named[parameter.name] = value
            else:
                positional.append(value)
        return self(*positional, **named, **given)

    def shape_of(self, function: Callable[..., Any]) -> _Shape:
        """Return what is known of one of its functions."""
        for shape in self._shapes:
            if shape.function is function:
                return shape
        shape = _Shape(function)
        self._shapes = (*self._shapes[-2:], shape)
        return shape

    def _looks_up_alike(self, names: Mapping[str, None]) -> bool:
        # By position, as the handlers are called: as many parameters take as many arguments.
        if not callable(self.look_up):
            return True
        asked = self.shape_of(self.look_up).names
        return asked is not None and len(asked) == len(names)

    def _fits_look_up(self, bound: inspect.BoundArguments) -> None:
        # Found out now, not when a crash has made the look-up necessary.
        if not callable(self.look_up):
            return
        try:
            self.shape_of(self.look_up).signature.bind(*bound.args, **bound.kwargs)
        except TypeError as error:
            raise UsageError(
                f"the reconcile of operation {self.__name__!r} does not take what the operation takes: {error}",
                hint="give both functions the same parameters",
            ) from None

    def reconcile(self, function: Function) -> Function:
        """Say how to ask the recipient; a decorator for a function with the same parameters.

        It returns what the recipient named the effect, or None where it finds nothing.
        """
        self.look_up = function
        return function

    def verify(self, function: Function) -> Function:
        """Say how to check a proof; a decorator for a function that takes the proof (and the context)."""
        self.check = function
        return function


@dataclass(frozen=True, slots=True)
class BoundOperation(Operation[T_co]):
    """One effect to be: an operation with its arguments."""

    operation: OperationFunction[..., T_co]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    arguments: dict[str, Any]

    @property
    def settings(self) -> Settings:
        """What holds for the operation whatever its arguments are."""
        return self.operation.settings

    @property
    def request(self) -> Any:
        """The request as a JSON value, for its fingerprint."""
        settings = self.settings
        return {"recipient": settings.recipient, "operation": settings.operation, "arguments": self.arguments}

    @property
    def contract(self) -> Any:
        """The recipient's contract, None if it has none."""
        return self.operation.contract

    def serialised(self) -> dict[str, Any]:
        """Return what an outbox keeps: a JSON value that `Recipient.restore` of a recipient of the same name takes."""
        return {**self.request, "format": FORMAT}

    @property
    def verify(self) -> Callable[..., Any] | None:
        """Checks a proof, or None."""
        return self.operation.check

    def run(self, context: Any) -> Any:
        """Perform it; gives an awaitable where the function is asynchronous."""
        return self._call(self.operation.function, context)

    @property
    def run_async(self) -> Callable[[Any], Awaitable[Any]] | None:
        """Performs it on the running loop; None where the function is synchronous."""
        function = self.operation.function
        if not inspect.iscoroutinefunction(function):
            return None

        async def performed(context: Any) -> Any:
            return await self._call(function, context)

        return performed

    @property
    def reconcile(self) -> Any:
        """Asks the recipient: a callable that takes the context, or `UNASKABLE`; None if nobody said."""
        look_up = self.operation.look_up
        if look_up is None or not callable(look_up):
            return look_up

        def ask(context: Any) -> Any:
            return self._call(look_up, context)

        return ask

    def _call(self, function: Callable[..., Any], context: Any) -> Any:
        if self.operation.shape_of(function).context:
            return function(context, *self.args, **self.kwargs)
        return function(*self.args, **self.kwargs)


def _as_json(arguments: Mapping[str, Any]) -> dict[str, Any]:
    # What `*args` gathered is a list in it.
    return {name: list(given) if isinstance(given, tuple) else given for name, given in arguments.items()}


def takes_context(function: Callable[..., Any]) -> bool:
    """Whether a function's first parameter is for the context."""
    return next(iter(inspect.signature(function).parameters), None) in _CONTEXT_NAMES


class _Shape:
    """What is learnt once about a function of the user.

    Attributes:
        function: the function.
        context: whether its first parameter is for the context.
        signature: without that parameter.
        names: of the request, in order, where all are plain parameters; else None.
    """

    __slots__ = ("context", "function", "names", "signature")

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.context = takes_context(function)
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())[self.context :]
        self.signature = signature.replace(parameters=parameters)
        plain = all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)
        self.names = {parameter.name: None for parameter in parameters} if plain else None
