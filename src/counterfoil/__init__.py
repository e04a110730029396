"""Effects that must not happen twice: recorded before they run, settled only by the recipient's own record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Names are imported when they are first used: a program that only mentions counterfoil does not pay for it,
# and asyncio comes with the asynchronous colour alone.
if TYPE_CHECKING:
    from counterfoil.broker.budgets import Budget
    from counterfoil.broker.contracts import Keyed, LookUp, Proof, When
    from counterfoil.broker.grants import Grant
    from counterfoil.effects.effect import UNASKABLE
    from counterfoil.errors import (
        BlobDamaged,
        BlobMissing,
        Conflict,
        CounterfoilError,
        DeliveryConflict,
        Denied,
        EffectError,
        EffectUnresolved,
        FingerprintKeyUnknown,
        ForkedLedger,
        LedgerCorrupt,
        LedgerError,
        LedgerReadOnly,
        LedgerUnavailable,
        NameConflict,
        NotSerializable,
        OwnerRetired,
        RecipientError,
        RunCancelled,
        RunPruned,
        UsageError,
    )
    from counterfoil.outbox.intents import Intent, StagedIntent
    from counterfoil.outbox.lanes import Lane
    from counterfoil.outbox.receipts import Receipt
    from counterfoil.outcomes import Accepted, Decision, Evidence, Failed, Outcome, Rejected, Uncertain
    from counterfoil.recipients.blobs.looped import AsyncBlobs
    from counterfoil.recipients.blobs.recipient import Blobs
    from counterfoil.recipients.events.recipient import Events
    from counterfoil.recipients.function import Recipient
    from counterfoil.recipients.http.recipient import HTTP
    from counterfoil.recipients.secret import Secret
    from counterfoil.runtime.aio import AsyncRuntime
    from counterfoil.runtime.arguments import Retry
    from counterfoil.runtime.async_broker import AsyncActivation, AsyncBroker
    from counterfoil.runtime.async_dispatcher import AsyncDispatcher
    from counterfoil.runtime.async_outbox import AsyncOutbox
    from counterfoil.runtime.async_run import AsyncRun
    from counterfoil.runtime.broker import Activation, Broker
    from counterfoil.runtime.contracts import Contract
    from counterfoil.runtime.dispatcher import Dispatcher
    from counterfoil.runtime.handlers import Context
    from counterfoil.runtime.inbox import AsyncInbox, Inbox
    from counterfoil.runtime.outbox import Outbox
    from counterfoil.runtime.run import Run
    from counterfoil.runtime.sync import Runtime
    from counterfoil.runtime.views import EffectView

__version__ = "0.1.0"

__all__ = [
    "HTTP",
    "UNASKABLE",
    "Accepted",
    "Activation",
    "AsyncActivation",
    "AsyncBlobs",
    "AsyncBroker",
    "AsyncDispatcher",
    "AsyncInbox",
    "AsyncOutbox",
    "AsyncRun",
    "AsyncRuntime",
    "BlobDamaged",
    "BlobMissing",
    "Blobs",
    "Broker",
    "Budget",
    "Conflict",
    "Context",
    "Contract",
    "CounterfoilError",
    "Decision",
    "DeliveryConflict",
    "Denied",
    "Dispatcher",
    "EffectError",
    "EffectUnresolved",
    "EffectView",
    "Events",
    "Evidence",
    "Failed",
    "FingerprintKeyUnknown",
    "ForkedLedger",
    "Grant",
    "Inbox",
    "Intent",
    "Keyed",
    "Lane",
    "LedgerCorrupt",
    "LedgerError",
    "LedgerReadOnly",
    "LedgerUnavailable",
    "LookUp",
    "NameConflict",
    "NotSerializable",
    "Outbox",
    "Outcome",
    "OwnerRetired",
    "Proof",
    "Receipt",
    "Recipient",
    "RecipientError",
    "Rejected",
    "Retry",
    "Run",
    "RunCancelled",
    "RunPruned",
    "Runtime",
    "Secret",
    "StagedIntent",
    "Uncertain",
    "UsageError",
    "When",
]

_HOMES: dict[str, tuple[str, ...]] = {
    "counterfoil.effects.effect": ("UNASKABLE",),
    "counterfoil.errors": (
        "BlobDamaged",
        "BlobMissing",
        "Conflict",
        "CounterfoilError",
        "DeliveryConflict",
        "Denied",
        "EffectError",
        "EffectUnresolved",
        "FingerprintKeyUnknown",
        "ForkedLedger",
        "LedgerCorrupt",
        "LedgerError",
        "LedgerReadOnly",
        "LedgerUnavailable",
        "NameConflict",
        "NotSerializable",
        "OwnerRetired",
        "RecipientError",
        "RunCancelled",
        "RunPruned",
        "UsageError",
    ),
    "counterfoil.outcomes": (
        "Accepted",
        "Decision",
        "Evidence",
        "Failed",
        "Outcome",
        "Rejected",
        "Uncertain",
    ),
    "counterfoil.recipients.events.recipient": ("Events",),
    "counterfoil.recipients.blobs.looped": ("AsyncBlobs",),
    "counterfoil.recipients.blobs.recipient": ("Blobs",),
    "counterfoil.recipients.function": ("Recipient",),
    "counterfoil.recipients.http.recipient": ("HTTP",),
    "counterfoil.runtime.contracts": ("Contract",),
    "counterfoil.broker.contracts": ("Keyed", "LookUp", "Proof", "When"),
    "counterfoil.runtime.broker": (
        "Activation",
        "Broker",
    ),
    "counterfoil.runtime.async_broker": (
        "AsyncActivation",
        "AsyncBroker",
    ),
    "counterfoil.broker.budgets": ("Budget",),
    "counterfoil.broker.grants": ("Grant",),
    "counterfoil.recipients.secret": ("Secret",),
    "counterfoil.runtime.aio": ("AsyncRuntime",),
    "counterfoil.runtime.async_run": ("AsyncRun",),
    "counterfoil.runtime.arguments": ("Retry",),
    "counterfoil.runtime.handlers": ("Context",),
    "counterfoil.runtime.run": ("Run",),
    "counterfoil.outbox.intents": (
        "Intent",
        "StagedIntent",
    ),
    "counterfoil.outbox.lanes": ("Lane",),
    "counterfoil.outbox.receipts": ("Receipt",),
    "counterfoil.runtime.async_dispatcher": ("AsyncDispatcher",),
    "counterfoil.runtime.async_outbox": ("AsyncOutbox",),
    "counterfoil.runtime.dispatcher": ("Dispatcher",),
    "counterfoil.runtime.inbox": (
        "AsyncInbox",
        "Inbox",
    ),
    "counterfoil.runtime.outbox": ("Outbox",),
    "counterfoil.runtime.sync": ("Runtime",),
    "counterfoil.runtime.views": ("EffectView",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_ROOMS = (
    "broker",
    "effects",
    "errors",
    "ledgers",
    "outbox",
    "outcomes",
    "ports",
    "protocol",
    "recipients",
    "runtime",
    "staging",
    "testing",
    "threads",
)


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _ROOMS:
        return import_module(f"counterfoil.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'counterfoil' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS, "__version__"])
