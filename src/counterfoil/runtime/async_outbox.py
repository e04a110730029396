"""`AsyncOutbox`: the asyncio colour. Every name means what it means in `Outbox`, awaited."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from counterfoil.outbox.intents import Intent, StagedIntent, intents_of
from counterfoil.outbox.lanes import Lane
from counterfoil.outbox.receipts import Receipt
from counterfoil.protocol import keys
from counterfoil.runtime import telemetry
from counterfoil.runtime.async_dispatcher import blocking
from counterfoil.runtime.outbox import POLL_FIRST_S, POLL_LAST_S, Outbox, overdue
from counterfoil.runtime.snapshots import OutboxSnapshot
from counterfoil.staging import driver_module


class AsyncOutbox:
    """Stages intents through the application's own transactions, on the running loop; see `Outbox`.

    Connections may be those of `asyncpg`, `psycopg.AsyncConnection`, SQLAlchemy's asyncio, and the blocking ones.
    """

    def __init__(self, url_or_runtime: Any, *, namespace: str | None = None, clock: Any = None) -> None:
        self._inner = Outbox(url_or_runtime, namespace=namespace, clock=clock)

    async def __aenter__(self) -> Self:
        await self.migrate()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of the ledger; the next use opens it again."""
        await blocking(self._inner.close)

    async def migrate(self) -> None:
        """Make the tables, durably, or bring them up to date."""
        await blocking(self._inner.migrate)

    async def stage(
        self,
        connection: Any,
        operation: Any,
        *,
        key: str | None = None,
        lane: Lane | str | None = None,
        not_before: Any = None,
        expires_at: Any = None,
        policy: str | None = None,
    ) -> StagedIntent:
        """Write an intent through the caller's own open transaction; see `Outbox.stage`."""
        intent = Intent(operation, key=key, lane=lane, not_before=not_before, expires_at=expires_at, policy=policy)
        return (await self._stage(connection, [intent]))[0]

    async def stage_many(self, connection: Any, intents: Iterable[Any]) -> builtins.list[StagedIntent]:
        """Write several intents; see `Outbox.stage_many`."""
        return await self._stage(connection, intents_of(intents))

    async def _stage(self, connection: Any, intents: builtins.list[Intent]) -> builtins.list[StagedIntent]:
        driver = driver_module(connection)
        opened = self._inner.opened
        if not opened.is_open:
            await blocking(lambda: opened.open(create=False))
        if not driver.is_async(connection):
            return self._inner.stage_many(connection, intents)
        with telemetry.staging() as staged:
            made = opened.prepared(driver, connection, intents, trace=staged.trace)
            await driver.stage_async(connection, opened.store.staging(made), opened.session.ledger)
            staged.over(made)
        return [StagedIntent(intent.effect_id, intent.key) for intent in made]

    async def nudge(self) -> None:
        """Wake the dispatchers of this process."""
        await blocking(self._inner.nudge)

    async def receipt(self, key: str) -> Receipt | None:
        """Return what became of an intent; see `Outbox.receipt`."""
        return await blocking(lambda: self._inner.receipt(key))

    async def wait(self, key: str, *, timeout_s: float) -> Receipt:
        """Return the receipt once the intent has ended or stands for a person; see `Outbox.wait`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + keys.seconds(timeout_s, "timeout_s")
        pause_s = POLL_FIRST_S
        while True:
            receipt = await self.receipt(key)
            if receipt is not None and receipt.settled:
                return receipt
            rest_s = end - loop.time()
            if rest_s <= 0:
                raise overdue(key, receipt, timeout_s)
            await asyncio.sleep(min(pause_s, rest_s))
            pause_s = min(pause_s * 1.5, POLL_LAST_S)

    async def list(self, *, state: str | None = None, limit: int = 1000) -> builtins.list[Receipt]:
        """Return receipts; see `Outbox.list`."""
        return await blocking(lambda: self._inner.list(state=state, limit=limit))

    async def depth(self) -> builtins.list[tuple[str, str, int, float | None]]:
        """Return what has not ended; see `Outbox.depth`."""
        return await blocking(self._inner.depth)

    async def snapshot(self) -> OutboxSnapshot:
        """Return how much waits and how late it is; see `Outbox.snapshot`."""
        return await blocking(self._inner.snapshot)

    async def report_gauges(self) -> None:
        """Report `snapshot` through OpenTelemetry; see `Outbox.report_gauges`."""
        await blocking(self._inner.report_gauges)

    async def lanes(self) -> builtins.list[tuple[str, int, str | None, float | None, str | None]]:
        """Return the lanes; see `Outbox.lanes`."""
        return await blocking(self._inner.lanes)

    async def pause(self, recipient: str | None = None, *, reason: str, by: str) -> None:
        """Let nothing more be sent; see `Outbox.pause`."""
        await blocking(lambda: self._inner.pause(recipient, reason=reason, by=by))

    async def resume(self, recipient: str | None = None, *, reason: str, by: str) -> None:
        """Take back `pause`; see `Outbox.resume`."""
        await blocking(lambda: self._inner.resume(recipient, reason=reason, by=by))

    async def drain(self, recipient: str | None = None, *, reason: str, by: str, timeout_s: float = 60.0) -> bool:
        """Pause, and wait until nothing is in hand; see `Outbox.drain`."""
        return await blocking(lambda: self._inner.drain(recipient, reason=reason, by=by, timeout_s=timeout_s))

    async def redrive(self, key: str, *, reason: str, by: str, expect_version: int) -> None:
        """Let an intent be sent again; see `Outbox.redrive`."""
        await blocking(lambda: self._inner.redrive(key, reason=reason, by=by, expect_version=expect_version))

    async def reconcile(self, key: str, *, reason: str, by: str, expect_version: int) -> None:
        """Let the recipient be asked again; see `Outbox.reconcile`."""
        await blocking(lambda: self._inner.reconcile(key, reason=reason, by=by, expect_version=expect_version))

    async def decide(self, key: str, **given: Any) -> None:
        """Record what a person found out; the arguments are those of `Outbox.decide`."""
        await blocking(lambda: self._inner.decide(key, **given))

    async def prune(self, *, older_than_s: float, reason: str, by: str, limit: int = 1000) -> int:
        """Let go of payloads and attempts of ended intents; see `Outbox.prune`."""
        return await blocking(lambda: self._inner.prune(older_than_s=older_than_s, reason=reason, by=by, limit=limit))
