"""An outbox opened beside a ledger: what staging, dispatching and looking share."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from counterfoil.errors import UsageError
from counterfoil.ledgers.urls import parse
from counterfoil.outbox.agreed import policy_of_operation
from counterfoil.outbox.intents import Desk, Intent
from counterfoil.ports.outbox_store import HasOutbox, NewIntent, OutboxStore, OutboxView
from counterfoil.ports.transacting import of
from counterfoil.runtime.session import Session


class Opened:
    """One ledger with its outbox; opened when it is first needed.

    Args:
        url_or_runtime: a ledger's URL, or a runtime (either colour), whose ledger is then used while it is open.
        namespace: scope of keys; None: the ledger's own, or the runtime's.
        clock: where the time comes from; None: the system's, or the runtime's.
        create: False: refuse a ledger that has no outbox yet.

    Raises:
        UsageError: the URL is wrong; nothing was opened.
    """

    def __init__(
        self, url_or_runtime: Any, *, namespace: str | None = None, clock: Any = None, create: bool = True
    ) -> None:
        found = getattr(url_or_runtime, "_session", None)
        self._session: Session | None = found if isinstance(found, Session) else None
        self._owned = self._session is None
        if self._session is None:
            if isinstance(url_or_runtime, str):
                parse(url_or_runtime)
            self._session = Session(url_or_runtime, namespace=namespace, owner=None, clock=clock)
        elif namespace is not None or clock is not None:
            raise UsageError("namespace and clock are those of the runtime that was given")
        self._create = create
        self._lock = threading.Lock()
        self._parts: tuple[OutboxStore, OutboxView] | None = None
        self._desk: Desk | None = None

    @property
    def session(self) -> Session:
        """The session; open after `open`."""
        assert self._session is not None
        return self._session

    @property
    def is_open(self) -> bool:
        """Whether `open` has been called."""
        return self._parts is not None

    def open(self, *, create: bool = True) -> None:
        """Open the ledger and the outbox's tables, making them if they are not there.

        Args:
            create: False: refuse where there are none.

        Raises:
            UsageError: the ledger has no database that an application could write to, or has no outbox yet.
            LedgerUnavailable: it cannot be opened or written.
        """
        with self._lock:
            if self._parts is not None:
                return
            session = self.session
            if self._owned:
                session.open()
            try:
                parts = _outbox_of(session, create=self._create and create)
            except BaseException:
                if self._owned:
                    session.close()
                raise
            self._desk = Desk(namespace=session.namespace, stamp=session._fingerprints, policy=policy_of_operation)
            self._parts = parts

    @property
    def store(self) -> OutboxStore:
        """The store, opened if it was not."""
        return self._opened()[0]

    @property
    def view(self) -> OutboxView:
        """The view, opened if it was not."""
        return self._opened()[1]

    def _opened(self) -> tuple[OutboxStore, OutboxView]:
        while (parts := self._parts) is None:
            self.open()
        return parts

    def prepared(
        self, driver: Any, connection: Any, intents: Iterable[Intent], *, trace: str | None = None
    ) -> list[NewIntent]:
        """Check where and what a caller stages, before any SQL that changes something runs.

        Args:
            driver: the module of `counterfoil.staging` for the connection.
            connection: the caller's.
            intents: what it stages. In a transaction of a run of ours one without a key gets one by its ordinal.
            trace: the span that it belongs to, as W3C `traceparent`.

        Raises:
            UsageError: the connection or an intent is wrong, or there is no outbox yet: the caller's transaction may
                hold the lock that making its tables would wait for.
        """
        if self._parts is None:
            self.open(create=False)
        driver.check(connection, self.session.ledger)
        desk = self._desk
        assert desk is not None
        inside = None if driver.is_async(connection) else of(driver.raw(connection))
        if inside is None:
            return desk.validated(intents, trace=trace)
        made = desk.validated(intents, named=lambda at: inside.key(inside.staged + at), trace=trace)
        for _ in made:
            inside.next_ordinal()
        return made

    def close(self) -> None:
        """Let go of the ledger, if it was opened here."""
        with self._lock:
            opened, self._parts = self._parts is not None, None
        if opened and self._owned:
            self.session.close()


def _outbox_of(session: Session, *, create: bool) -> tuple[OutboxStore, OutboxView]:
    ledger = session.ledger
    if not isinstance(ledger, HasOutbox):
        raise UsageError(
            f"{type(ledger).__name__} has no outbox",
            hint="an outbox stands in the application's own database: sqlite:///… or postgresql://…",
        )
    return ledger.outbox(clock=session.clock.time if session.virtual else None, create=create)
