"""What all faulty recipients share: a log, and how they are told to misbehave."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from counterfoil.errors import UsageError
from counterfoil.outcomes import Evidence, Failed
from counterfoil.protocol.checker import Item
from counterfoil.runtime.handlers import inside

# Which kind of handler is running, where a trial called it: `run`, `reconcile`, `verify` or `step`.
calling: ContextVar[str] = ContextVar("counterfoil_testing_calling", default="")

WIRE: Final = ("wire", "")

_LOSE: Final = "lose"
_DROP: Final = "drop"
_DELAY: Final = "delay"
_DOUBLE: Final = "double"
_REFUSE: Final = "refuse"
_HIDE: Final = "hide"
_MISLEAD: Final = "mislead"
_FAIL: Final = "fail"


class ReplyLost(ConnectionError):
    """The connection broke before the reply came: nobody here knows what became of the request."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A request that reached a recipient.

    Attributes:
        key: the effect key that it carried, "" where it carried none.
        what: the request, as the recipient read it.
        place: where it was sent from: (`effect`, name) or (`step`, name); ("", "") outside of both;
            (`wire`, "") where it came by a network and nobody can know.
        during: the kind of handler that sent it, where a trial called one: `run`, `reconcile`, `step` …
    """

    key: str
    what: dict[str, Any] = field(hash=False)
    place: tuple[str, str] = ("", "")
    during: str = ""


@dataclass(frozen=True, slots=True)
class Made:
    """A thing that a recipient made.

    Attributes:
        key: the effect key of its request; "" if somebody else asked for it.
        item: what the recipient calls it: the proof.
        what: the request that it was made for.
        at: when, on the recipient's clock.
    """

    key: str
    item: Any = field(hash=False)
    what: dict[str, Any] = field(hash=False)
    at: float = 0.0


class Faulty:
    """A recipient that can be told to misbehave.

    What it is told holds for the next calls, in the order in which it was told; then it behaves again.

    Args:
        lag_s: seconds until a look-up shows what was made.
        deduplicates: a key that was used before makes nothing more, and is answered with what it made then.
        clock: seconds that only grow; a trial puts its own in the place of it.
    """

    def __init__(
        self, *, lag_s: float = 0.0, deduplicates: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.lag_s = lag_s
        self.deduplicates = deduplicates
        self.clock = clock
        self.requests: list[Arrived] = []
        self.items: list[Made] = []
        self.asked: list[str] = []
        self.closed: set[str] = set()
        # One lock for everything: a request is handled as a whole before the next.
        self.lock = threading.RLock()
        self._sends: deque[str] = deque()
        self._looks: deque[str] = deque()
        self._flying: list[Callable[[], Any]] = []
        self._count = 0

    @property
    def awaited(self) -> Any:
        """The same recipient with asynchronous handlers."""
        return _Awaited(self)

    @property
    def sends(self) -> int:
        """How many requests reached it."""
        return len(self.requests)

    def log(self) -> list[Item]:
        """Return what it made, in the form that the history checker and `counterfoil verify` read."""
        with self.lock:
            return [Item(made.key, made.item) for made in self.items if made.key]

    def made_for(self, key: str) -> list[Any]:
        """Return what it made under a key."""
        with self.lock:
            return [made.item for made in self.items if made.key == key]

    # --- how it is told to misbehave

    def lose_reply(self, times: int = 1) -> None:
        """Act on the next requests and lose the replies."""
        self._sends.extend([_LOSE] * times)

    def drop_request(self, times: int = 1) -> None:
        """Never receive the next requests; the sender sees a lost reply."""
        self._sends.extend([_DROP] * times)

    def delay_request(self, times: int = 1) -> None:
        """Receive the next requests only at `land()`; the sender sees a lost reply."""
        self._sends.extend([_DELAY] * times)

    def double_request(self, times: int = 1) -> None:
        """Receive each of the next requests twice, as a network may deliver it."""
        self._sends.extend([_DOUBLE] * times)

    def refuse(self, times: int = 1) -> None:
        """Refuse the next requests with a proof of that: `Failed`."""
        self._sends.extend([_REFUSE] * times)

    def hide(self, times: int = 1) -> None:
        """Show an empty listing to the next look-ups, whatever is there."""
        self._looks.extend([_HIDE] * times)

    def mislead(self, times: int = 1) -> None:
        """Answer the next look-ups with somebody else's item."""
        self._looks.extend([_MISLEAD] * times)

    def fail_looking(self, times: int = 1) -> None:
        """Lose the replies of the next look-ups."""
        self._looks.extend([_FAIL] * times)

    def close(self, key: str) -> None:
        """Close a key for good: whatever comes with it is refused."""
        with self.lock:
            self.closed.add(key)

    def land(self) -> list[Any]:
        """Let every delayed request arrive now; return what was made, and the refusals as exceptions."""
        with self.lock:
            flying, self._flying = self._flying, []
        landed: list[Any] = []
        for arrive in flying:
            try:
                landed.append(arrive())
            except Failed as refused:
                landed.append(refused)
        return landed

    def behave(self) -> None:
        """Forget what it was told and has not done yet; delayed requests stay under way."""
        self._sends.clear()
        self._looks.clear()

    # --- what recipients are made of

    def name_item(self, prefix: str) -> str:
        """Return a name that no other item has."""
        with self.lock:
            self._count += 1
            return f"{prefix}_{self._count}"

    def plant(self, item: Any, **what: Any) -> Made:
        """Make an item as somebody else would have: with no key of ours."""
        with self.lock:
            made = Made("", item, what, self.clock())
            self.items.append(made)
            return made

    def receive(self, ctx: Any, what: dict[str, Any], make: Callable[[], Any]) -> Any:
        """Take one request, as told.

        Args:
            ctx: the handler's context, or a key.
            what: the request, for the log.
            make: makes the item and names it.

        Raises:
            ReplyLost: the reply was lost.
            Failed: it was refused, or its key is closed.
        """
        how = self._sends.popleft() if self._sends else ""
        key = key_of(ctx)
        place, during = (WIRE, "") if isinstance(ctx, str) else (_place(), calling.get())
        arrived = Arrived(key, what, place, during)
        if how == _DROP:
            raise ReplyLost("the request never arrived, and nobody here knows that")
        if how == _DELAY:
            self._flying.append(lambda: self._act(arrived, make))
            raise ReplyLost("no reply came; the request is still under way")
        if how == _REFUSE:
            with self.lock:
                self.requests.append(arrived)
            raise Failed(Evidence("refused", phase="acknowledged", status=422))
        item = self._act(arrived, make)
        if how == _DOUBLE:
            item = self._act(arrived, make)
        if how == _LOSE:
            raise ReplyLost("the reply was lost")
        return item

    def look(self, ctx: Any, find: Callable[[Sequence[Made]], Any]) -> Any:
        """Answer one look-up from what is to be seen by now, as told.

        Raises:
            ReplyLost: the reply was lost.
        """
        how = self._looks.popleft() if self._looks else ""
        with self.lock:
            self.asked.append(key_of(ctx))
            if how == _FAIL:
                raise ReplyLost("the reply was lost")
            if how == _HIDE:
                return find([])
            if how == _MISLEAD:
                return self.somebody_elses(key_of(ctx)).item
            now = self.clock()
            return find([made for made in self.items if now >= made.at + self.lag_s])

    def somebody_elses(self, key: str) -> Made:
        """Return an item that was not made for a key, making one if there is none."""
        other = next((made for made in reversed(self.items) if made.key != key), None)
        return other or self.plant(self.name_item("foreign"))

    def _act(self, arrived: Arrived, make: Callable[[], Any]) -> Any:
        with self.lock:
            self.requests.append(arrived)
            if arrived.key and arrived.key in self.closed:
                raise Failed(Evidence("closed", phase="acknowledged", status=409))
            if self.deduplicates and arrived.key:
                for made in self.items:
                    if made.key == arrived.key:
                        return made.item
            item = make()
            self.items.append(Made(arrived.key, item, arrived.what, self.clock()))
            return item


class _Awaited:
    """A recipient whose handlers are asynchronous; everything else is the recipient's own."""

    def __init__(self, inner: Faulty) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found) or not getattr(found, "is_handler", False):
            return found

        async def call(ctx: Any, /, *args: Any, **kwargs: Any) -> Any:
            return found(ctx, *args, **kwargs)

        return call


def _place() -> tuple[str, str]:
    chain = inside.get()
    return (chain[-1][2], chain[-1][3]) if chain else ("", "")


def handler(function: Any) -> Any:
    """Mark a method as one that an effect may be performed or asked with."""
    function.is_handler = True
    return function


def key_of(ctx: Any) -> str:
    """Return the key of a context; a key stands for itself, None for no key."""
    if ctx is None or isinstance(ctx, str):
        return ctx or ""
    key = getattr(ctx, "key", None)
    if not isinstance(key, str):
        raise UsageError(f"a recipient takes a handler's context or a key, not {type(ctx).__name__}")
    return key


def newest(shown: Sequence[Made], key: str) -> Any:
    """Return the first item that was made under a key, or None."""
    return next((made.item for made in shown if made.key == key), None)
