"""What `doctor` looks at: what the ledger says of itself, its birth, its runs, and this machine's clocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from counterfoil.cli.text import age
from counterfoil.errors import LedgerCorrupt
from counterfoil.ports.ledger import Catalogue, Diagnosable, Owners, Restorable
from counterfoil.protocol import codec, slots
from counterfoil.protocol.checker import Checker
from counterfoil.runtime.sync import Runtime

Finding = tuple[str, str, str, str]

# 2024-01-01: no ledger is older, so a clock before it is not set.
_EPOCH_S: Final = 1_704_067_200.0
_SKEW_S: Final = 5.0
_KEY_DIGITS: Final = 64


ACCEPT: Final = ("accept-restore", "--by", "YOU", "--reason", "WHY")
KEY_LOST: Final = "restore the ledger from a backup: without the key no recorded request can be compared"
_DAMAGED: Final = ("damaged", "too-new", "misplaced", "order", "slot-twice")


def examine(runtime: Runtime, *, command: Callable[..., str]) -> list[Finding]:
    """Look at everything now: (level `ok | warning | error`, subject, what was found, how to mend it).

    Args:
        runtime: an open ledger.
        command: writes a command of ours about this ledger, from its words.
    """
    ledger = runtime.ledger
    found: list[Finding] = list(ledger.diagnose()) if isinstance(ledger, Diagnosable) else []
    subjects = {subject for _, subject, _, _ in found}
    if "generation" not in subjects and isinstance(ledger, Restorable):
        why = ledger.restored()
        mend = f"look at what was lost, then run `{command(*ACCEPT)}`"
        found.append(("ok", "generation", "as it was left", "") if why is None else ("error", "generation", why, mend))
    if "owners" not in subjects and isinstance(ledger, Owners):
        found.append(("ok", "owners", f"{sum(owner.alive for owner in ledger.owners())} alive", ""))
    return [*found, _key(runtime), *_records(runtime, command), _clock(runtime), _uncertain(runtime, command)]


def _key(runtime: Runtime) -> Finding:
    records = {r.slot: r for r in runtime.ledger.read(slots.SYSTEM_NAMESPACE, slots.SYSTEM_RUN)}
    record = records.get(slots.BIRTH)
    if record is None:
        return "error", "fingerprint-key", "the ledger has no record of its birth", KEY_LOST
    try:
        birth = codec.parse(record, codec.BirthBody, namespace=slots.SYSTEM_NAMESPACE, run=slots.SYSTEM_RUN)
    except LedgerCorrupt as error:
        return "error", "fingerprint-key", str(error), KEY_LOST
    if len(birth.key) < _KEY_DIGITS:
        return "error", "fingerprint-key", f"key {birth.key_id} is too short", KEY_LOST
    return "ok", "fingerprint-key", f"present, id {birth.key_id}", ""


def _records(runtime: Runtime, command: Callable[..., str]) -> list[Finding]:
    """Read every record, as `verify` does, and say what cannot be acted on."""
    if not isinstance(runtime.ledger, Catalogue):
        return []
    ledger, namespace = runtime.ledger, runtime.namespace
    checker = Checker(namespace)
    unwell = [
        found
        for view in runtime.runs()
        for found in checker.run(view.run_id, ledger.read(namespace, view.run_id))
        if found.code in _DAMAGED
    ]
    if not unwell:
        return [("ok", "records", "every one can be read", "")]
    first = unwell[0]
    more = f", and {len(unwell) - 1} more (`{command('verify')}` lists them)" if len(unwell) > 1 else ""
    what, _, mend = first.text.partition("; ")
    text = f"run {first.run!r}, slot {first.slot!r}: {what}{more}"
    return [("error", "records", text, mend or f"run `{command('verify')}`, and restore a backup from before")]


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


def _uncertain(runtime: Runtime, command: Callable[..., str]) -> Finding:
    found = [view for view in runtime.effects(state="uncertain") if view.decision is None]
    if not found:
        return "ok", "uncertain", "nothing to decide", ""
    return "warning", "uncertain", f"{len(found)} to decide", f"run `{command('uncertain')}`"
