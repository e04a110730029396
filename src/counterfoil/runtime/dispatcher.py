"""`Dispatcher` and `AsyncDispatcher`: they deliver staged intents until they are told to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from counterfoil import threads
from counterfoil.errors import LedgerError, UsageError
from counterfoil.outbox.terms import Terms
from counterfoil.protocol import keys
from counterfoil.protocol.requests import Raised, Returned
from counterfoil.runtime.crew import PATIENCE_S, Crew
from counterfoil.runtime.desks import Opened
from counterfoil.runtime.dispatching import Engine
from counterfoil.runtime.jobs import Job
from counterfoil.runtime.nudges import listen, unlisten
from counterfoil.runtime.registry import Registry
from counterfoil.runtime.snapshots import DispatcherSnapshot

# What is under way and due within this time is waited for before a dispatcher calls itself idle.
LINGER_S: Final = 10.0
COUNT_MAX: Final = 10_000


class Shell:
    """What both colours share: arguments, opening and the engine."""

    def __init__(
        self,
        url_or_runtime: Any,
        recipients: Iterable[Any] | Mapping[str, Any],
        *,
        batch: int = 100,
        concurrency: int = 64,
        poll_s: float = 0.2,
        timeout_s: float = 60.0,
        drain_timeout_s: float = 30.0,
        owner: str | None = None,
        namespace: str | None = None,
        clock: Any = None,
        terms: Terms | None = None,
    ) -> None:
        self._opened = Opened(url_or_runtime, namespace=namespace, clock=clock)
        self._registry = Registry(recipients)
        self._batch = _count(batch, "batch")
        self._concurrency = _count(concurrency, "concurrency")
        self._poll_s = keys.seconds(poll_s, "poll_s", positive=True)
        self._drain_s = keys.seconds(drain_timeout_s, "drain_timeout_s")
        timeout_s = keys.seconds(timeout_s, "timeout_s", positive=True)
        self._terms = Terms(timeout_s=timeout_s) if terms is None else terms
        self._label = owner and keys.name(owner, "owner")
        self._engine: Engine | None = None
        self._entered = False
        self._stopped = False

    def _open(self) -> Engine:
        if self._engine is None:
            self._opened.open()
            self._engine = Engine(
                self._opened,
                self._registry,
                terms=self._terms,
                label=self._label or f"dispatcher, {self._opened.session.label}",
                batch=self._batch,
                concurrency=self._concurrency,
                poll_s=self._poll_s,
                wake=self._wake,
            )
            self._engine.stopping = self._stopped
            listen(self._opened.session.ledger, self._nudged)
        return self._engine

    def _close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is None:
            return
        unlisten(self._nudged)
        try:
            engine.leave()
        except LedgerError:
            # Others find this life gone by its lock, or by its heart that no longer beats.
            pass
        finally:
            self._opened.close()

    def _wake(self) -> None:
        raise NotImplementedError

    def _nudged(self) -> None:
        if self._engine is not None:
            self._engine.nudged()

    def stop(self) -> None:
        """Tell it to take nothing more and to finish what it has in hand; from any thread, or a signal handler."""
        self._stopped = True
        if self._engine is not None:
            self._engine.stopping = True
            self._wake()

    @property
    def counts(self) -> dict[str, int]:
        """How many claims ended in which way, since it was opened."""
        return {} if self._engine is None else dict(self._engine.ended)

    def snapshot(self) -> DispatcherSnapshot | None:
        """Return what it has done and has in hand; None while it is not open. It does not ask the database."""
        return None if self._engine is None else self._engine.snapshot()


class Dispatcher(Shell):
    """Delivers staged intents, blocking. Any number of dispatchers on any number of machines share the work.

    Args:
        url_or_runtime: the ledger's URL, or an open runtime.
        recipients: the recipients whose operations it dispatches.
        batch: claims in hand at most, where that is more than `concurrency`; while handlers are quick, as many more as
            end at once, twice on a server.
        concurrency: handlers at once, at most; each blocking one has a thread.
        poll_s: seconds between two looks, at most, while idle.
        timeout_s: seconds after which a send counts as of unknown end.
        drain_timeout_s: seconds to wait for handlers when it stops.
        owner: a label for people.
        namespace: scope of keys; None: the ledger's own.
        clock: where the time comes from; None: the system's.
        terms: bounds that hold where no contract says otherwise.

    Raises:
        UsageError: an argument is wrong; nothing was opened.
    """

    def __init__(
        self,
        url_or_runtime: Any,
        recipients: Iterable[Any] | Mapping[str, Any],
        *,
        batch: int = 100,
        concurrency: int = 64,
        poll_s: float = 0.2,
        **more: Any,
    ) -> None:
        super().__init__(url_or_runtime, recipients, batch=batch, concurrency=concurrency, poll_s=poll_s, **more)
        self._event = threading.Event()
        self._crew = Crew(lambda job: job.within(_call), wake=self._wake)

    def __enter__(self) -> Self:
        self._open()
        self._entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered = False
        self._close()

    def run(self) -> None:
        """Deliver until `stop` is called; then finish what is in hand, for `drain_timeout_s` at most.

        Raises:
            CommitUnknown: the store did not say how a commit ended; what was in hand is settled by the next life.
        """
        engine = self._open()
        try:
            while not engine.stopping:
                self._round(engine, None)
            self._drain(engine)
        finally:
            if not self._entered:
                self._close()

    def run_until_idle(self, *, timeout_s: float | None = None) -> bool:
        """Deliver until nothing is in hand and nothing is due.

        Retries and look-ups that are due within 10 seconds are waited for; what is scheduled for later is not. What
        another dispatcher has in hand is not waited for, unless that has fallen silent: what it left becomes due when
        it is found gone, which on PostgreSQL takes as long as its heart may be silent.

        Args:
            timeout_s: seconds to try at most; None: as long as it takes.

        Returns:
            Whether it is idle; False if the time was over, or it was told to stop.
        """
        end = None if timeout_s is None else time.monotonic() + keys.seconds(timeout_s, "timeout_s")
        engine = self._open()
        linger_s = 0.0 if self._opened.session.virtual else LINGER_S
        try:
            while not engine.stopping:
                self._round(engine, end)
                if engine.idle(linger_s):
                    return True
                if end is not None and time.monotonic() >= end:
                    break
            self._drain(engine)
            return False
        finally:
            if not self._entered:
                self._close()

    def _round(self, engine: Engine, end: float | None) -> None:
        self._event.clear()
        jobs, idle_s = engine.turn()
        self._crew.spread()
        self._crew.start(jobs)
        if end is not None:
            idle_s = min(idle_s, max(0.0, end - time.monotonic()))
        if idle_s > PATIENCE_S and self._crew.behind and not self._event.wait(PATIENCE_S):
            self._crew.spread()
        if idle_s > 0:
            self._event.wait(idle_s)

    def _drain(self, engine: Engine) -> None:
        stopping, engine.stopping = engine.stopping, True
        end = time.monotonic() + self._drain_s
        while engine.in_hand and time.monotonic() < end:
            self._round(engine, end)
        if engine.in_hand:
            engine.abandon()
        engine.stopping = stopping

    def _wake(self) -> None:
        self._event.set()


def _call(job: Job) -> None:
    """Call a handler in this worker thread; a coroutine runs on the process's private loop."""
    reply = job.begin()
    if hasattr(reply, "__await__"):
        running = threads.Running(_awaited(reply))
        job.cancelled = running.cancel
        try:
            reply = Returned(running.result())
        except BaseException as error:  # noqa: BLE001 - it is the flow's to judge
            reply = Raised(error)
    job.end(reply)


async def _awaited(value: Any) -> Any:
    return await value


def _count(value: int, what: str) -> int:
    if type(value) is not int or not 1 <= value <= COUNT_MAX:
        raise UsageError(f"{what} is an int from 1 to {COUNT_MAX}, not {value!r}")
    return value
