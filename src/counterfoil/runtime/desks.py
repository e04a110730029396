"""An outbox opened beside a ledger: what staging, dispatching and looking share."""

from __future__ import annotations

import threading
from typing import Any

from counterfoil.errors import UsageError
from counterfoil.ledgers.urls import parse
from counterfoil.outbox.agreed import policy_of_operation
from counterfoil.outbox.intents import Desk
from counterfoil.ports.outbox_store import HasOutbox, OutboxStore, OutboxView
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

    @property
    def session(self) -> Session:
        """The session; open after `open`."""
        assert self._session is not None
        return self._session

    @property
    def is_open(self) -> bool:
        """Whether `open` has been called."""
        return self._parts is not None

    def open(self) -> None:
        """Open the ledger and the outbox's tables, making them if they are not there.

        Raises:
            UsageError: the ledger has no database that an application could write to.
            LedgerUnavailable: it cannot be opened or written.
        """
        with self._lock:
            if self._parts is not None:
                return
            session = self.session
            if self._owned:
                session.open()
            try:
                self._parts = _outbox_of(session, create=self._create)
            except BaseException:
                if self._owned:
                    session.close()
                raise

    @property
    def store(self) -> OutboxStore:
        """The store, opened if it was not."""
        self.open()
        assert self._parts is not None
        return self._parts[0]

    @property
    def view(self) -> OutboxView:
        """The view, opened if it was not."""
        self.open()
        assert self._parts is not None
        return self._parts[1]

    def desk(self, *, place: str = "", trace: str | None = None) -> Desk:
        """Return what validates intents."""
        self.open()
        session = self.session
        return Desk(
            namespace=session.namespace,
            stamp=session._fingerprints,
            policy=policy_of_operation,
            place=place,
            trace=trace,
        )

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
