"""Effects that must not happen twice: recorded before they run, settled only by the recipient's own record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from counterfoil.effects.effect import UNASKABLE
from counterfoil.errors import (
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
from counterfoil.outcomes import Accepted, Decision, Evidence, Failed, Outcome, Rejected, Uncertain
from counterfoil.recipients.function import Recipient
from counterfoil.runtime.arguments import Retry
from counterfoil.runtime.handlers import Context
from counterfoil.runtime.run import Run
from counterfoil.runtime.sync import Runtime

if TYPE_CHECKING:
    from counterfoil.runtime.aio import AsyncRun, AsyncRuntime
    from counterfoil.runtime.views import EffectView

__version__ = "0.1.0"

__all__ = [
    "UNASKABLE",
    "Accepted",
    "AsyncRun",
    "AsyncRuntime",
    "Conflict",
    "Context",
    "CounterfoilError",
    "Decision",
    "DeliveryConflict",
    "Denied",
    "EffectError",
    "EffectUnresolved",
    "EffectView",
    "Evidence",
    "Failed",
    "FingerprintKeyUnknown",
    "ForkedLedger",
    "LedgerCorrupt",
    "LedgerError",
    "LedgerReadOnly",
    "LedgerUnavailable",
    "NameConflict",
    "NotSerializable",
    "Outcome",
    "OwnerRetired",
    "Recipient",
    "RecipientError",
    "Rejected",
    "Retry",
    "Run",
    "RunCancelled",
    "RunPruned",
    "Runtime",
    "Uncertain",
    "UsageError",
]


_LATER = {
    # asyncio is imported with the first use of the asynchronous colour, not before.
    "AsyncRuntime": "counterfoil.runtime.aio",
    "AsyncRun": "counterfoil.runtime.aio",
    "EffectView": "counterfoil.runtime.views",
}


def __getattr__(name: str) -> Any:
    if (module := _LATER.get(name)) is None:
        raise AttributeError(f"module 'counterfoil' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
