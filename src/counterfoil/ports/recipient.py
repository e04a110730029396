"""The recipient port: an operation that is bound to its arguments, and what the broker and it say to each other.

`Operation` is all that an operation must have. The rest is optional and found by attribute: `target` and
`bytes_out` (`Addressed`), halves for asyncio (`AsyncHalves`), and `perform` of operations that know their own
dispatch line (`Dispatching`). For the others the broker takes the dispatch gate just before it calls `run`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from counterfoil.outcomes import Outcome

T_co = TypeVar("T_co", covariant=True)


class Operation(Protocol[T_co]):
    """How to perform an effect, how to ask the recipient about it, and what each answer proves."""

    @property
    def settings(self) -> Settings:
        """What holds for the operation whatever its arguments are."""
        ...

    @property
    def request(self) -> Any:
        """The request as a JSON value, for its fingerprint."""
        ...

    def run(self, context: Any) -> T_co | Any:
        """Perform it; may return an awaitable."""
        ...

    @property
    def verify(self) -> Callable[..., Any] | None:
        """Checks a proof, or None."""
        ...

    @property
    def reconcile(self) -> Any:
        """Ask the recipient: a callable that takes the context, or `UNASKABLE`."""
        ...


class Settings(Protocol):
    """What an operation says about its recipient, until contracts say it."""

    @property
    def recipient(self) -> str:
        """What the recipient is called."""
        ...

    @property
    def operation(self) -> str:
        """The verb that grants name: `POST`, `send`."""
        ...

    @property
    def visibility_s(self) -> float:
        """Seconds that the recipient may take to show an effect."""
        ...

    @property
    def retryable(self) -> bool:
        """Whether a failed attempt may be followed by another one, where the call has a retry policy."""
        ...

    @property
    def keep_key(self) -> bool:
        """Whether all attempts share one key."""
        ...

    @property
    def proof_type(self) -> Any:
        """The type that proofs are decoded into, or None for plain JSON."""
        ...


class Addressed(Protocol):
    """An operation that says where it goes and how much it sends; both optional, None where absent."""

    @property
    def target(self) -> str | None:
        """The absolute URL that grants are compared with; None: the recipient has no addresses."""
        ...

    @property
    def bytes_out(self) -> int | None:
        """Bytes that `Permit.offered` will count in all (the request, without TLS); None: not known before."""
        ...


class AsyncHalves(Protocol):
    """An operation that serves both colours: asyncio drivers prefer these to `run` and `reconcile`."""

    async def run_async(self, context: Any) -> Any:
        """Perform it on the running loop."""
        ...

    @property
    def reconcile_async(self) -> Any:
        """Ask the recipient: an async callable that takes the context, or `UNASKABLE`; None: use `reconcile`."""
        ...


class Dispatching(Protocol):
    """An operation that knows its own dispatch line, and takes the gate there itself.

    Both methods return an outcome, or raise `Rejected` or `Failed`; the outcome may be of a subclass that also has
    a `.response`, which nobody records. Any other exception counts by the gate: `Rejected` if it was not won,
    else `Uncertain`. The permit is given back when the method has returned and nothing is held any more
    (`Permit.hold`).
    """

    def perform(self, context: Any, permit: Permit) -> Outcome[Any]:
        """Perform it now, blocking, in a worker thread; it is told to stop by `Permit.on_cancel` alone."""
        ...

    async def perform_async(self, context: Any, permit: Permit) -> Outcome[Any]:
        """Perform it now on the running loop; its task is cancelled too, after `Permit.on_cancel` was served."""
        ...


class Permit(Protocol):
    """The right to perform one operation once, which lives until the physical work has retired.

    Every method may be called from any thread. A permit says no by raising `Rejected` before the gate is won, and
    by returning False after it: what was dispatched is never `Rejected` again.
    """

    @property
    def deadline(self) -> float:
        """When the caller goes away, on `time.monotonic()`."""
        ...

    def authorise(self, target: str) -> bool:
        """Check that grants and policy still allow the verb at a URL; ask for the target and each redirect hop.

        Returns True. A refusal raises `Rejected` before the gate is won, and is False after it. After it, each
        call is a hop and is charged as one more call.
        """
        ...

    def allows_address(self, address: str) -> bool:
        """Say whether the grants for this operation open a special address (loopback, private, …) by its range."""
        ...

    def dispatch(self, *, peer: str | None = None, contract: str | None = None) -> None:
        """Win the one-shot gate; call it last, before the first byte is offered, and call it once.

        Args:
            peer: the address on the other end, for the evidence of whoever ends the call from here on.
            contract: id of the contract that the answers are read by, likewise.

        Raises:
            Rejected: deadline, cancellation or revocation came first, or the grants no longer allow it: nothing
                may be sent any more.
            RecipientError: it was won before; one operation makes one attempt.
        """
        ...

    def offered(self, count: int) -> bool:
        """Charge bytes that are about to be offered to the socket; False: the budget is used up, do not offer them."""
        ...

    def received(self, count: int) -> bool:
        """Charge bytes that arrived; False: the budget is used up, read no further."""
        ...

    def on_cancel(self, stop: Callable[[], None]) -> None:
        """Have `stop` called once when nobody waits any more: abort hard, before dispatch as after it.

        Called at once if that is so already. It must not block, and may be called from any thread.
        """
        ...

    def hold(self) -> Callable[[], None]:
        """Keep the permit when `perform` has returned, for work that outlives it (a thread in a resolver).

        Call what it returns when that work is gone; more than once does no harm.
        """
        ...
