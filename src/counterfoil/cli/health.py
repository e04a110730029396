"""What `doctor` looks at: what the ledger says of itself, its birth, its runs, and this machine's clocks."""

from __future__ import annotations

import time
from typing import Final

from counterfoil.cli.text import age
from counterfoil.errors import LedgerCorrupt
from counterfoil.ports.ledger import Catalogue, Diagnosable, Owners, Restorable
from counterfoil.protocol import codec, slots
from counterfoil.runtime.sync import Runtime

Finding = tuple[str, str, str, str]

# 2024-01-01: no ledger is older, so a clock before it is not set.
_EPOCH_S: Final = 1_704_067_200.0
_SKEW_S: Final = 5.0
_KEY_DIGITS: Final = 64


def examine(runtime: Runtime) -> list[Finding]:
    """Look at everything now: (level `ok | warning | error`, subject, what was found, how to mend it)."""
    ledger = runtime.ledger
    found: list[Finding] = list(ledger.diagnose()) if isinstance(ledger, Diagnosable) else []
    subjects = {subject for _, subject, _, _ in found}
    if "generation" not in subjects and isinstance(ledger, Restorable):
        why = ledger.restored()
        mend = "look at what was lost, then run `counterfoil accept-restore`"
        found.append(("ok", "generation", "as it was left", "") if why is None else ("error", "generation", why, mend))
    if "owners" not in subjects and isinstance(ledger, Owners):
        found.append(("ok", "owners", f"{sum(owner.alive for owner in ledger.owners())} alive", ""))
    return [*found, _key(runtime), _clock(runtime), _uncertain(runtime)]


def _key(runtime: Runtime) -> Finding:
    mend = "restore the ledger's own records from a backup: without the key no recorded request can be compared"
    records = {r.slot: r for r in runtime.ledger.read(slots.SYSTEM_NAMESPACE, slots.SYSTEM_RUN)}
    record = records.get(slots.BIRTH)
    if record is None:
        return "error", "fingerprint-key", "the ledger has no record of its birth", mend
    try:
        birth = codec.parse(record, codec.BirthBody, namespace=slots.SYSTEM_NAMESPACE, run=slots.SYSTEM_RUN)
    except LedgerCorrupt as error:
        return "error", "fingerprint-key", str(error), mend
    if len(birth.key) < _KEY_DIGITS:
        return "error", "fingerprint-key", f"key {birth.key_id} is too short", mend
    return "ok", "fingerprint-key", f"present, id {birth.key_id}", ""


def _clock(runtime: Runtime) -> Finding:
    now = time.time()
    mend = "set the clock, and keep it set with NTP: deadlines of sleeps and retries are on it"
    if now < _EPOCH_S:
        return "error", "clock", "this machine's clock is not set", mend
    rows = runtime.runs() if isinstance(runtime.ledger, Catalogue) else []
    newest = max((row.finished or row.began for row in rows), default=now)
    if newest > now + _SKEW_S:
        text = f"the newest run is {age(newest - now)} in the future"
        return "warning", "clock", f"{text}: this clock, or that of another machine, is wrong", mend
    return "ok", "clock", "no run is in the future", ""


def _uncertain(runtime: Runtime) -> Finding:
    found = [view for view in runtime.effects(state="uncertain") if view.decision is None]
    if not found:
        return "ok", "uncertain", "nothing to decide", ""
    return "warning", "uncertain", f"{len(found)} to decide", "run `counterfoil uncertain`"
