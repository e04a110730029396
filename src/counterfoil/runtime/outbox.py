"""`Outbox`: staging intents in the application's own transaction, and seeing what became of them."""

from __future__ import annotations

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
from counterfoil.runtime import nudges
from counterfoil.runtime.desks import Opened
from counterfoil.staging import driver_of

POLL_FIRST_S: Final = 0.005
POLL_LAST_S: Final = 0.1


class Outbox:
    """Stages intents through the application's own transactions, blocking.

    It opens its ledger when it is first used; `migrate` or a `with` block does so at a time of your choosing.

    Args:
        url_or_runtime: the URL of the application's database, or an open runtime.
        namespace: scope of keys; None: the ledger's own.
        clock: where the time comes from; None: the system's.

    Raises:
        UsageError: the URL is wrong; nothing was opened.
    """

    def __init__(self, url_or_runtime: Any, *, namespace: str | None = None, clock: Any = None) -> None:
        self._opened = Opened(url_or_runtime, namespace=namespace, clock=clock)
        self._finalize = weakref.finalize(self, self._opened.close)

    def __enter__(self) -> Self:
        self._opened.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the ledger; the next use opens it again."""
        self._opened.close()

    def migrate(self) -> None:
        """Make the tables, durably, or bring them up to date.

        Raises:
            LedgerReadOnly: the database cannot be written.
        """
        self._opened.open()

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
            key: names the intent; once, in its namespace, for ever.
            lane: intents with an equal lane are delivered one after the other, in commit order.
            not_before: seconds since 1970, or an aware datetime.
            expires_at: the same; an intent that was not sent by then is `Rejected`.
            policy: a weaker policy than the contract's.

        Raises:
            UsageError: there is no open transaction, it has read before it wrote, it is another database, or an
                argument is wrong.
            NotSerializable: the operation is no lossless JSON value, has a NUL, or is over 1 MiB.
            NameConflict: the key was staged for another operation.
        """
        intent = Intent(operation, key=key, lane=lane, not_before=not_before, expires_at=expires_at, policy=policy)
        return self._stage(connection, [intent])[0]

    def stage_many(self, connection: Any, intents: Iterable[Any]) -> list[StagedIntent]:
        """Write several intents; all are checked before any SQL runs. Of one call, lanes are taken in sorted order.

        Args:
            connection: see `stage`.
            intents: `Intent(operation, key=…)`, pairs of operation and key, or mappings of what `stage` takes.
        """
        return self._stage(connection, intents_of(intents))

    def _stage(self, connection: Any, intents: list[Intent]) -> list[StagedIntent]:
        driver = driver_of(connection)
        desk = self._opened.desk()
        made = desk.validated(intents)
        driver.check(connection, self._opened.session.ledger)
        driver.stage(connection, self._opened.store.staging(made))
        return [StagedIntent(intent.effect_id, intent.key) for intent in made]

    def nudge(self) -> None:
        """Wake the dispatchers of this process: something was committed. Without it they look by themselves."""
        self._opened.open()
        nudges.nudge(self._opened.session.ledger)

    def receipt(self, key: str) -> Receipt | None:
        """Return what became of an intent, None if nothing is staged under the key (or not committed yet)."""
        self._opened.open()
        story = self._opened.view.story(self._effect_id(key))
        return None if story is None else receipt_of(story)

    def wait(self, key: str, *, timeout_s: float) -> Receipt:
        """Return the receipt once the intent has ended or stands for a person.

        Raises:
            TimeoutError: it has not by then.
        """
        end = time.monotonic() + keys.seconds(timeout_s, "timeout_s")
        pause_s = POLL_FIRST_S
        while True:
            receipt = self.receipt(key)
            if receipt is not None and receipt.settled:
                return receipt
            rest_s = end - time.monotonic()
            if rest_s <= 0:
                found = "nothing is staged under it" if receipt is None else f"it is {receipt.state}"
                raise TimeoutError(f"{key!r} has not ended within {timeout_s:g} s: {found}")
            time.sleep(min(pause_s, rest_s))
            pause_s = min(pause_s * 1.5, POLL_LAST_S)

    def _effect_id(self, key: str) -> str:
        return outbox_key(self._opened.session.namespace, keys.name(key, "key"))


__all__ = ["Intent", "Lane", "Outbox", "Receipt", "StagedIntent", "UsageError"]
