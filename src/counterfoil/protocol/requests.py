"""What a flow may ask its driver for. A flow awaits these and other flows, and does no I/O itself.

Every `await` of a request is a crash point: the driver may close the flow there instead of answering, and
the records that are already in the ledger must be enough to go on in another life.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

import msgspec

from counterfoil.protocol.records import Draft, Entry, Record

T = TypeVar("T")


class Request(msgspec.Struct, Generic[T]):
    """Awaiting a request hands it to the driver; the value of the await is the driver's answer."""

    def __await__(self) -> Generator[Request[T], T, T]:
        return (yield self)


class Filled(msgspec.Struct, frozen=True, gc=False):
    """Answer to `Append`: the record in the slot, whether it is ours, and whether it took settling to know."""

    record: Record
    ours: bool
    settled: bool = False


class Append(Request[Filled], gc=False):
    """Fill a slot of the run, durably. `settle` is the entry of an earlier append whose end is unknown.

    Thrown in instead of an answer: the errors of `ports.ledger`; `CommitUnknown` has the entry as `entry`.
    """

    draft: Draft
    settle: Entry | None = None


class Read(Request[None]):
    """Bring what this life has read of the run up to date."""


class Returned(msgspec.Struct, frozen=True):
    """A handler returned."""

    value: Any


class Raised(msgspec.Struct, frozen=True):
    """A handler raised; an exception is no evidence unless it is `Rejected` or `Failed`."""

    error: BaseException

    @property
    def interrupts(self) -> bool:
        """Whether the process was told to end, which passes unchanged; a handler's own cancellation does not."""
        return isinstance(self.error, (KeyboardInterrupt, SystemExit))


class Overran(msgspec.Struct, frozen=True):
    """A handler did not end before its deadline and was told to stop."""


Reply = Returned | Raised | Overran


class Call(Request["Reply"]):
    """Call a handler of the user.

    Args:
        handler: the callable.
        key: the effect key for its context, "" for a step.
        attempt: the attempt for its context.
        timeout_s: seconds until it is abandoned; None: it runs to its end, whatever becomes of the caller.
        proof: the proof to check, as the first argument, where the handler is a `verify`; a tuple of one.
        told: False: it is known to take no context.
    """

    handler: Callable[..., Any]
    key: str = ""
    attempt: int = 1
    timeout_s: float | None = None
    proof: tuple[Any, ...] = ()
    told: bool = True


class Transact(Request["Filled | Raised"]):
    """Run a body in a transaction of the ledger's own database, and fill a slot in the same commit.

    The answer is the record in the slot, ours or the one that was first (then the body was not called, or what it wrote
    is rolled back); or what the body raised, with all that it wrote rolled back. Thrown in: the errors of
    `ports.ledger`.

    Args:
        draft: the receipt, without its body.
        body: called with the driver's connection; perhaps more than once.
        receipt: makes the receipt's body of what the body returned and of how many intents it staged.
    """

    draft: Draft
    body: Callable[[Any], Any]
    receipt: Callable[[Any, int], bytes]


class Instant(msgspec.Struct, frozen=True, gc=False):
    """A moment: `wall` in seconds since 1970, `mono` on this life's monotonic clock."""

    wall: float
    mono: float


class Now(Request[Instant]):
    """Ask for the time."""


class Pause(Request[None]):
    """Wait until `seconds` have passed, or, with `changes`, until the run may have new records.

    It may end early; whoever pauses looks again. A flow that pauses `idle` owes nothing to anybody: with no
    caller left it may be closed here.
    """

    seconds: float
    changes: bool = True
    idle: bool = True


class Gone(Request[bool]):
    """Ask whether the life with this epoch is proved to be over (it is retired then)."""

    epoch: str


class Live(Request[bool]):
    """Ask whether our own life may still decide."""
