"""`Inbox` and `AsyncInbox`: the consumers' side, where a message is taken once."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self, cast

from counterfoil.errors import UsageError
from counterfoil.ports.outbox_store import InboxStore, Staging
from counterfoil.protocol import keys
from counterfoil.runtime.desks import Opened
from counterfoil.staging import driver_module
from counterfoil.threads import when_collected

DAY_S: Final = 86_400.0


class Inbox:
    """Notes in the consumer's own transaction which messages were taken.

    Args:
        url_or_runtime: the URL of the consumer's database, or an open runtime.
        window_s: how long a message is remembered; a repeat that comes later counts as new.

    Raises:
        UsageError: an argument is wrong; nothing was opened.
    """

    def __init__(self, url_or_runtime: Any, *, window_s: float = 30 * DAY_S) -> None:
        self.opened = Opened(url_or_runtime)
        self._window_s = keys.seconds(window_s, "window_s", positive=True)
        when_collected(self, self.opened.close)

    def __enter__(self) -> Self:
        self.opened.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the ledger; the next use opens it again."""
        self.opened.close()

    def migrate(self) -> None:
        """Make the tables, durably, or bring them up to date."""
        self.opened.open()

    def once(self, connection: Any, source: str, message_id: str) -> bool:
        """Take a message, in the consumer's own open transaction: True if it is new.

        It is taken when that transaction commits; after a rollback it comes as new again. Each new message lets a few
        go that are older than the window.

        Args:
            connection: see `Outbox.stage`.
            source: where the message comes from; ids are unique within it.
            message_id: the message.

        Raises:
            UsageError: there is no open transaction, or an argument is wrong.
        """
        driver = driver_module(connection)
        if driver.is_async(connection):
            raise UsageError("this connection is one of asyncio", hint="use AsyncInbox")
        taking = self.taking(driver, connection, (source, message_id))
        return bool(driver.stage(connection, taking, self.opened.session.ledger)[0])

    def taking(self, driver: Any, connection: Any, what: tuple[str, str]) -> Staging:
        """Check everything, and return the statements that take a message."""
        source, message_id = keys.name(what[0], "source"), keys.name(what[1], "message_id")
        store = cast("InboxStore", self.opened.store)
        driver.check(connection, self.opened.session.ledger)
        return store.taking(source, message_id, window_s=self._window_s)


class AsyncInbox:
    """The same, on the running loop."""

    def __init__(self, url_or_runtime: Any, *, window_s: float = 30 * DAY_S) -> None:
        self._inner = Inbox(url_or_runtime, window_s=window_s)

    async def __aenter__(self) -> Self:
        await self.migrate()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of the ledger; the next use opens it again."""
        await _apart(self._inner.close)

    async def migrate(self) -> None:
        """Make the tables, durably, or bring them up to date."""
        await _apart(self._inner.migrate)

    async def once(self, connection: Any, source: str, message_id: str) -> bool:
        """Take a message, in the consumer's own open transaction; see `Inbox.once`."""
        driver = driver_module(connection)
        if not self._inner.opened.is_open:
            await self.migrate()
        if not driver.is_async(connection):
            return self._inner.once(connection, source, message_id)
        taking = self._inner.taking(driver, connection, (source, message_id))
        return bool((await driver.stage_async(connection, taking, self._inner.opened.session.ledger))[0])


async def _apart(work: Callable[[], None]) -> None:
    # asyncio is imported with the asynchronous colour alone.
    from counterfoil.runtime.async_dispatcher import blocking

    await blocking(work)
