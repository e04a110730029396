"""What the tests of the PostgreSQL ledger are written with: ledgers behind a proxy, appends settled as flows settle."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from counterfoil.errors import CommitUnknown, LedgerUnavailable
from counterfoil.ledgers.urls import parse
from counterfoil.protocol.records import Entry, Record
from tests.servers.proxy import Proxy

PATIENCE_S = 60.0


def through(proxy: Proxy, url: str) -> str:
    """The same database, reached through a proxy."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{parts.username}@127.0.0.1:{proxy.port}").geturl()


def opened(url: str) -> Any:
    """Open the ledger of a URL."""
    return parse(url).open()


def answer(ledger: Any, entry: Entry, *, patience_s: float = PATIENCE_S) -> tuple[Record, int]:
    """Append as a flow does, again where the end is unknown; return the record and how often there was no answer."""
    give_up, unknown = time.monotonic() + patience_s, 0
    while True:
        try:
            return ledger.append(entry, settle=unknown > 0), unknown
        except LedgerUnavailable as error:
            # Once it is unknown, a refusal says nothing about the commit that it was unknown of.
            if not (unknown or isinstance(error, CommitUnknown)) or time.monotonic() > give_up:
                raise
            unknown += 1
            time.sleep(0.02)


class Doing:
    """Something that is done in a thread, so that a test can look at it while it lasts."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._do, daemon=True, name="doing")
        self._thread.start()

    def _do(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def lasts(self, seconds: float) -> bool:
        """Whether it goes on for so long at least."""
        self._thread.join(seconds)
        return self._thread.is_alive()

    def result(self) -> Any:
        """Wait for its end; return what it returned or raise what it raised."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "it does not end"
        if self._error is not None:
            raise self._error
        return self._value


def until(holds: Callable[[], Any], *, patience_s: float = PATIENCE_S) -> None:
    """Wait until something holds that another thread or process brings about."""
    give_up = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < give_up, "it never came about"
        time.sleep(0.005)
