"""One turn of one handler of the user, with what the trial has planned for it.

A handler may be blocking, asynchronous, or a blocking function that returns an awaitable; what is done around
it is written once, as a coroutine. For a blocking handler the coroutine is driven right here. Where it turns out
that there is something to await, the rest of it is handed to whoever called, as an awaitable.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from counterfoil.outcomes import Failed, Rejected
from counterfoil.protocol.requests import Call
from counterfoil.runtime.handlers import arguments, inside, is_async
from counterfoil.testing.notes import Looked, Performed, plain, shown
from counterfoil.testing.recipients.faulty import ReplyLost, calling

if TYPE_CHECKING:
    from counterfoil.testing.lives import Life

_SOON: Final = object()


class Hand:
    """Says whether a coroutine is driven by hand, or by a loop."""

    __slots__ = ("driven",)

    def __init__(self, *, driven: bool = False) -> None:
        self.driven = driven


class _Switch:
    """Awaited where a coroutine that is driven by hand must go on on a loop."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield _SOON


class _Rest:
    """The rest of a coroutine, from where it switched."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield from self._coroutine.__await__())


def kind_of(request: Call) -> str:
    """Say what a handler is called as: `run`, `reconcile`, `verify` or `step`."""
    if request.proof:
        return "verify"
    if not request.key:
        return "step"
    return "run" if request.timeout_s is None else "reconcile"


def wrap(life: Life, request: Call) -> Callable[..., Any]:
    """Return what is called instead of a handler."""
    turn = Turn(life, request)
    if turn.kind == "verify":
        if is_async(request.handler):

            async def check(proof: Any, ctx: Any) -> Any:
                return await turn.take((proof,), ctx, Hand())

            return check
        return lambda proof, ctx: turn.by_hand((proof,), ctx)
    if is_async(request.handler):

        async def call(ctx: Any) -> Any:
            return await turn.take((), ctx, Hand())

        return call
    return lambda ctx: turn.by_hand((), ctx)


class Turn:
    """One call of one handler."""

    def __init__(self, life: Life, request: Call) -> None:
        self._life = life
        self._trial = life.trial
        self._notes = life.trial.notes
        self._handler = request.handler
        self._key = request.key
        self.kind = kind_of(request)
        self._name = self._notes.name_of(self._key) if self._key else ""

    def by_hand(self, given: tuple[Any, ...], ctx: Any) -> Any:
        """Take the turn in this thread; gives an awaitable where the handler did."""
        coroutine = self.take(given, ctx, Hand(driven=True))
        try:
            coroutine.send(None)
        except StopIteration as done:
            return done.value
        return _Rest(coroutine)

    async def take(self, given: tuple[Any, ...], ctx: Any, hand: Hand) -> Any:
        """Call the handler, with what is planned for it."""

        async def invoke(kind: str, hand: Hand = hand) -> Any:
            return await self._invoke(kind, given, ctx, hand=hand)

        if self.kind == "run":
            return await self._run(invoke)
        if self.kind == "reconcile":
            return await self._reconcile(invoke, hand)
        return await invoke(self.kind)

    async def _invoke(self, kind: str, given: tuple[Any, ...], ctx: Any, *, hand: Hand) -> Any:
        before = calling.get()
        calling.set(kind)
        self._trial.seen("body", "")
        try:
            value = self._handler(*arguments(self._handler, given, ctx))
            if inspect.isawaitable(value):
                if hand.driven:
                    await _Switch()
                    hand.driven = False
                    calling.set(kind)
                value = await value
            return value
        finally:
            self._trial.seen(kind, self._name or self._place())
            calling.set(before)

    def _place(self) -> str:
        """Return the name of the step that this handler is called for; a step has no key that tells."""
        chain = inside.get()
        return chain[-1][3] if chain else ""

    def _say(self, what: str) -> None:
        self._notes.say(self._life.who, what)

    # --- run

    async def _run(self, invoke: Callable[..., Awaitable[Any]]) -> Any:
        notes, trial = self._notes, self._trial
        notes.requests += 1
        fault = trial.plan.replies.get(notes.requests)
        performed = Performed(self._key, at=notes.clock.now())
        notes.performed[self._key].append(performed)
        calls = f"calls your run for {self._name!r}"
        if fault == "never":
            self._say(f"{calls}: the request never arrives, and no reply comes")
            raise ReplyLost("planned: the request never arrived")
        if fault == "late":
            notes.late[self._key] = performed, lambda hand: invoke("run", hand)
            self._say(f"{calls}: no reply comes, the request is still under way")
            raise ReplyLost("planned: no reply came")
        for recipient in trial.recipients if fault in ("lost-there", "never-there") else ():
            (recipient.lose_reply if fault == "lost-there" else recipient.drop_request)()
        try:
            value = await self._noted(performed, invoke, calls)
            if fault == "doubled":
                with suppress(Exception):
                    # That reply is lost too.
                    await self._noted(performed, invoke, f"{calls} again, as the network doubles it")
        finally:
            if fault in ("lost-there", "never-there"):
                for recipient in trial.recipients:
                    recipient.behave()
        if fault in ("lost", "doubled"):
            self._say("and the reply is lost")
            raise ReplyLost("planned: the reply was lost")
        return value

    async def _noted(self, performed: Performed, invoke: Callable[..., Awaitable[Any]], calls: str) -> Any:
        performed.at = self._notes.clock.now()
        try:
            value = await invoke("run")
        except BaseException as error:
            performed.error = error
            self._say(f"{calls}: it raises {shown(error)}")
            raise
        self._keep(performed, value)
        self._say(f"{calls}: it returns {shown(value)}")
        return value

    def _keep(self, performed: Performed, value: Any) -> None:
        proof = plain(value)
        if proof is not None and proof not in performed.proofs:
            performed.proofs.append(proof)
            self._trial.case.proofs.setdefault(proof, self._key)

    # --- reconcile

    async def _reconcile(self, invoke: Callable[..., Awaitable[Any]], hand: Hand) -> Any:
        notes = self._notes
        notes.reconcilers[self._key] = self._handler
        calls = f"calls your reconcile for {self._name!r}"
        if self._lags():
            notes.looked[self._key].append(Looked(hidden=True))
            self._say(f"{calls}: the recipient shows nothing yet")
            return None
        looked = Looked()
        notes.looked[self._key].append(looked)
        try:
            value = await invoke("reconcile")
        except BaseException as error:
            looked.error = error
            self._say(f"{calls}: it raises {shown(error)}")
            await self._land(hand)
            raise
        looked.found = None if value is None else plain(value)
        self._say(f"{calls}: it returns {shown(value)}")
        await self._land(hand)
        return value

    def _lags(self) -> bool:
        performed = [each for each in self._notes.performed[self._key] if each.proofs]
        if not performed:
            return False
        lag_s = self._trial.lag_s(self._name)
        return self._notes.clock.now() < performed[-1].at + lag_s

    async def _land(self, hand: Hand) -> None:
        """Let a request that is under way arrive, now that the recipient was asked about it."""
        late = self._notes.late.pop(self._key, None)
        if late is None:
            return
        performed, arrive = late
        performed.at = self._notes.clock.now()
        performed.late = True
        try:
            value = await arrive(hand)
        except (Failed, Rejected) as refused:
            performed.error = refused
            self._say(f"the late request for {self._name!r} arrives and is refused")
        except Exception as error:  # noqa: BLE001 - nobody waits for it any more
            performed.error = error
            self._say(f"the late request for {self._name!r} arrives, and its run raises {shown(error)}")
        else:
            self._keep(performed, value)
            self._say(f"the late request for {self._name!r} arrives: {shown(value)}")
