"""`Outbox`: staging intents in the application's own transaction, and seeing what became of them."""

from __future__ import annotations

import builtins
import time
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final, Self

from counterfoil.errors import UsageError
from counterfoil.outbox.intents import Intent, StagedIntent, intents_of
from counterfoil.outbox.lanes import Lane
from counterfoil.outbox.receipts import Receipt, receipt_of
from counterfoil.protocol import keys
from counterfoil.protocol.keys import outbox_key
from counterfoil.runtime import nudges, outbox_acts, telemetry, tracing
from counterfoil.runtime.desks import Opened
from counterfoil.runtime.snapshots import OutboxSnapshot, snapshot_of
from counterfoil.staging import driver_module
from counterfoil.threads import when_collected

POLL_FIRST_S: Final = 0.005
POLL_LAST_S: Final = 0.1


class Outbox:
    """Stages intents through the application's own transactions, blocking.

    It opens its ledger when it is first used; `migrate` or a `with` block does so at a time of your choosing.

    Args:
        url_or_runtime: the URL of the application's database, or an open runtime.
        namespace: scope of keys; None: the ledger's own.
        clock: where the time comes from; None: the system's.
        create: False: refuse a ledger that has no outbox yet, instead of making its tables.

    Raises:
        UsageError: the URL is wrong; nothing was opened.
    """

    def __init__(
        self, url_or_runtime: Any, *, namespace: str | None = None, clock: Any = None, create: bool = True
    ) -> None:
        self.opened = Opened(url_or_runtime, namespace=namespace, clock=clock, create=create)
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
        """Make the tables, durably, or bring them up to date.

        Raises:
            LedgerReadOnly: the database cannot be written.
        """
        self.opened.open()

    def stage(
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
        """Write an intent through the caller's own open transaction: it is durable when that commits, and only then.

        Everything is checked before any SQL runs, so that the transaction stays usable. The same key for an equal
        operation gives the same intent.

        Args:
            connection: of `sqlite3`, `apsw`, `psycopg`, SQLAlchemy (Core or ORM) or Django, in an open transaction.
            operation: with its arguments, as JSON values.
            key: names the intent; once, in its namespace, for ever. Inside `Run.transaction` it may be left out: it
                is then derived from the run, the transaction's name, and how many intents that had staged before.
            lane: intents with an equal lane are delivered one after the other, in commit order.
            not_before: seconds since 1970, or an aware datetime.
            expires_at: the same; an intent that was not sent by then is `Rejected`.
            policy: a weaker policy than the contract's.

        Raises:
            UsageError: there is no open transaction, it has read before it wrote, it is another database, there is no
                outbox in it (call `migrate` before), or an argument is wrong.
            NotSerializable: the operation is no lossless JSON value, has a NUL, or is over 1 MiB.
            NameConflict: the key was staged for another operation.
        """
        intent = Intent(operation, key=key, lane=lane, not_before=not_before, expires_at=expires_at, policy=policy)
        return self._stage(connection, [intent])[0]

    def stage_many(self, connection: Any, intents: Iterable[Any]) -> builtins.list[StagedIntent]:
        """Write several intents; all are checked before any SQL runs. Of one call, lanes are taken in sorted order.

        Args:
            connection: see `stage`.
            intents: `Intent(operation, key=…)`, pairs of operation and key, or mappings of what `stage` takes.
        """
        return self._stage(connection, intents_of(intents))

    def _stage(self, connection: Any, intents: builtins.list[Intent]) -> builtins.list[StagedIntent]:
        driver = driver_module(connection)
        if driver.is_async(connection):
            raise UsageError("this connection is one of asyncio", hint="stage through it with AsyncOutbox")
        with telemetry.staging() as staged:
            made = self.opened.prepared(driver, connection, intents, trace=staged.trace)
            driver.stage(connection, self.opened.store.staging(made), self.opened.session.ledger)
            staged.over(made)
        return [StagedIntent(intent.effect_id, intent.key) for intent in made]

    def nudge(self) -> None:
        """Wake the dispatchers of this process: something was committed. Without it they look by themselves."""
        self.opened.open()
        nudges.nudge(self.opened.session.ledger)

    def receipt(self, key: str) -> Receipt | None:
        """Return what became of an intent, None if nothing is staged under the key (or not committed yet)."""
        story = self.opened.view.story(self._effect_id(key))
        return None if story is None else receipt_of(story)

    def wait(self, key: str, *, timeout_s: float) -> Receipt:
        """Return the receipt once the intent has ended or stands for a person.

        Raises:
            TimeoutError: it has not by then. While the server is away this is as late as one look takes to find that
                out, which then raises `LedgerUnavailable`.
        """
        end = time.monotonic() + keys.seconds(timeout_s, "timeout_s")
        pause_s = POLL_FIRST_S
        while True:
            receipt = self.receipt(key)
            if receipt is not None and receipt.settled:
                return receipt
            rest_s = end - time.monotonic()
            if rest_s <= 0:
                raise overdue(key, receipt, timeout_s)
            time.sleep(min(pause_s, rest_s))
            pause_s = min(pause_s * 1.5, POLL_LAST_S)

    # --- looking and acting

    def list(self, *, state: str | None = None, limit: int = 1000) -> builtins.list[Receipt]:
        """Return receipts of one state, or of everything that waits, oldest first."""
        return outbox_acts.listed(self.opened.view, state=state, limit=limit)

    def depth(self) -> builtins.list[tuple[str, str, int, float | None]]:
        """Return (recipient, state, how many, since when the oldest) of what has not ended."""
        return self.opened.view.depth()

    def snapshot(self) -> OutboxSnapshot:
        """Return how much waits, how late it is, and how old the oldest uncertain one: for gauges of any kind."""
        return snapshot_of(self.opened.view)

    def report_gauges(self) -> None:
        """Report `snapshot` through OpenTelemetry from now on, for as long as the outbox is in use.

        One process of an application does so; the numbers are those of the whole outbox.

        Raises:
            UsageError: the application has not loaded OpenTelemetry's metrics.
        """
        if tracing.loaded("metrics") is None:
            raise UsageError(
                "OpenTelemetry's metrics are not loaded",
                code="missing-extra",
                hint="install counterfoil[otel], and set a meter provider before",
            )
        self.opened.open()
        telemetry.gauges(weakref.WeakMethod(self.snapshot))

    def lanes(self) -> builtins.list[tuple[str, int, str | None, float | None, str | None]]:
        """Return (lane, how many wait, why it stands still, since when, effect id of its head)."""
        return self.opened.view.lanes()

    def pause(self, recipient: str | None = None, *, reason: str, by: str) -> None:
        """Let nothing more be sent, to one recipient or at all; durable on return. What was granted may still go."""
        outbox_acts.scoped(self.opened.view, "pause", recipient, reason=reason, by=by)

    def resume(self, recipient: str | None = None, *, reason: str, by: str) -> None:
        """Take back `pause`; also let a restored outbox go on, once its ledger was accepted."""
        outbox_acts.scoped(self.opened.view, "resume", recipient, reason=reason, by=by)
        self.nudge()

    def drain(self, recipient: str | None = None, *, reason: str, by: str, timeout_s: float = 60.0) -> bool:
        """Pause, and wait until no dispatcher has anything in hand; False if that took too long."""
        end = time.monotonic() + keys.seconds(timeout_s, "timeout_s")
        outbox_acts.scoped(self.opened.view, "drain", recipient, reason=reason, by=by)
        while any(state == "dispatching" and recipient in (None, name) for name, state, _, _ in self.depth()):
            if time.monotonic() >= end:
                return False
            time.sleep(POLL_LAST_S)
        return True

    def redrive(self, key: str, *, reason: str, by: str, expect_version: int) -> None:
        """Let an intent be sent again that provably was not sent, or failed; durable on return.

        Raises:
            UsageError: it may have been sent, it was accepted, or it is in somebody's hands.
            Conflict: it has changed since that version.
        """
        what = {"reason": reason, "by": by, "expect_version": expect_version}
        outbox_acts.redrive(self.opened.view, self._effect_id(key), **what)  # type: ignore[arg-type]
        self.nudge()

    def reconcile(self, key: str, *, reason: str, by: str, expect_version: int) -> None:
        """Let the recipient be asked again about an intent that waits for a person; durable on return.

        Raises:
            UsageError: there is nothing to ask about.
            Conflict: it has changed since that version.
        """
        what = {"reason": reason, "by": by, "expect_version": expect_version}
        outbox_acts.reconcile(self.opened.view, self._effect_id(key), **what)  # type: ignore[arg-type]
        self.nudge()

    def decide(
        self,
        key: str,
        *,
        happened: Any = None,
        did_not_happen: bool = False,
        reason: str,
        by: str,
        expect_version: int,
        new_key: str | None = None,
    ) -> None:
        """Record what a person found out about an intent that may have been sent; durable on return.

        It ends as uncertain, if it had not ended yet, and its lane goes on. One that provably was never
        sent is given up.

        Raises:
            Conflict: somebody decided already, or it has changed since that version.
            UsageError: it waits for no person.
        """
        outbox_acts.decide(
            self.opened.view,
            self._effect_id(key),
            happened=happened,
            did_not_happen=did_not_happen,
            reason=reason,
            by=by,
            expect_version=expect_version,
            new_name=new_key,
        )
        self.nudge()

    def prune(self, *, older_than_s: float, reason: str, by: str, limit: int = 1000) -> int:
        """Let go of payloads and attempts of intents that were accepted, rejected or failed so long ago.

        Identities, fingerprints and outcomes stay, so that no key is ever used twice. Returns how many that were.
        """
        outbox_acts.said(reason, by)
        outbox_acts.limited(limit)
        before = self.opened.store.now() - keys.seconds(older_than_s, "older_than_s")
        return len(self.opened.view.prune(before=before, limit=limit))

    def _effect_id(self, key: str) -> str:
        self.opened.open()
        return outbox_key(self.opened.session.namespace, keys.name(key, "key"))


def overdue(key: str, receipt: Receipt | None, timeout_s: float) -> TimeoutError:
    """Make the error of a wait that was too short."""
    found = "nothing is staged under it" if receipt is None else f"it is {receipt.state}"
    return TimeoutError(f"{key!r} has not ended within {timeout_s:g} s: {found}")
