"""What `show` writes: a run's records in order, and each effect with all that is known about it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from counterfoil.cli.output import STYLES, Column, line, table
from counterfoil.cli.places import Place
from counterfoil.cli.text import clock, command, escaped, operands, since, value, when
from counterfoil.outcomes import Accepted, Evidence
from counterfoil.ports.ledger import Ledger, Owners
from counterfoil.protocol import slots
from counterfoil.runtime.views import EffectView, RecordView

KNOWN: Final = {
    "not-found": "the recipient was asked and found nothing, which proves nothing: it may come to light yet",
    "unaskable": "the recipient cannot be asked, and nothing is on record of how its run ended",
    "ended-by-person": "a person ended it, since nothing could settle it",
    "earlier-attempt-uncertain": "it repeats an uncertain effect: this one did not happen, the earlier one may have",
}
RELEASED: Final = {
    "run-raised": "its run raised; nobody knows whether it arrived",
    "proof-rejected": "what its run returned was refused as a proof, and only its digest is kept",
    "verify-raised": "its run returned something, and checking it failed",
    "owner-gone": "the life that performed it is gone; nobody knows whether it arrived",
}
RESTORED: Final = (
    "the ledger had gone back in time and was accepted, so this may have been performed in the lost time: "
    "it was not sent, the recipient was asked instead"
)
_DAY_S: Final = 86_400.0


def lives(ledger: Ledger) -> dict[str, tuple[str, bool]]:
    """Return label and liveness of the lives that are not known to be over, by epoch."""
    if not isinstance(ledger, Owners):
        return {}
    return {owner.epoch: (owner.label, owner.alive) for owner in ledger.owners()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Last:
    """What is on record of an effect's latest attempt.

    Args:
        epoch: the life that recorded the intent; "" if there is none.
        released: why the attempt was released, None if it was not.
        restored: whether it had to be asked about, since the ledger had gone back in time.
    """

    epoch: str
    released: str | None
    restored: bool


def last_attempt(records: Sequence[RecordView], view: EffectView) -> Last:
    """Look up what is on record of an effect's latest attempt."""
    bodies: dict[str, dict[str, Any]] = {}
    epoch = ""
    for record in records:
        if record.name != view.name or record.attempt != view.attempt:
            continue
        if record.phase == "intent":
            epoch = record.epoch
        bodies.setdefault(record.phase, record.body if isinstance(record.body, dict) else {})
    return Last(
        epoch=epoch,
        released=bodies.get("released", {}).get("why"),
        restored=bool(bodies.get("intent", {}).get("restored")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What is on record of a run's body beside what it did.

    Args:
        deaths: of a quarantine that stands: lives in a row that ended with it; None: none stands.
        unasked: what is on record that the body which ended the run did not ask for.
    """

    deaths: int | None
    unasked: tuple[str, ...]


def carried(records: Sequence[RecordView]) -> Carried:
    """Look up what is on record of a run's body."""
    deaths: int | None = None
    unasked: tuple[str, ...] = ()
    for record in records:
        body: dict[str, Any] = record.body if isinstance(record.body, dict) else {}
        if record.slot == slots.FINISHED:
            unasked = tuple(body.get("unasked", ()))
        elif record.slot.startswith("run/quarantine/"):
            deaths = None if record.phase == "lifted" else body.get("deaths", 0)
    return Carried(deaths=deaths, unasked=unasked)


def said(head: str) -> str:
    """Say what a head of slots is: `effect charge`, `sleep nap`, `wait paid, 1`."""
    what = head.split("/")[1 if head.startswith("park/") else 0]
    return f"{what} {', '.join(escaped(name) for name in slots.names_in(head))}"


def write_carried(place: Place, run_id: str, found: Carried) -> None:
    """Write what a person should know about a run's body."""
    if found.deaths is not None:
        line(f"quarantined: {found.deaths} lives in a row ended while they carried its body", style=STYLES["error"])
        words = ["lift", "--by", "YOU", "--reason", "WHY", *operands(run_id)]
        line(f"  when that is mended: {command(*place.options(), *words)}")
    for head in found.unasked:
        line(f"no longer asked for by the body that ended the run: {said(head)}")


def short(epoch: str) -> str:
    """Shorten an epoch: its generation, and the beginning of what makes it unique."""
    generation, _, unique = epoch.partition(".")
    return f"{generation}.{unique[:4]}" if unique else epoch


def write(records: Sequence[RecordView]) -> None:
    """Write a timeline."""
    one_day = records[-1].at - records[0].at < _DAY_S
    columns = [
        Column("#", right=True),
        Column("time"),
        Column("what"),
        Column("name"),
        Column("try", right=True),
        Column("record"),
        Column("via", fold=12),
        Column("life"),
    ]
    rows = [
        [
            str(record.position),
            clock(record.at) if one_day else when(record.at),
            _what(record),
            escaped(record.name),
            "" if record.attempt is None else str(record.attempt),
            record.phase if record.body is not None else "corrupt",
            _via(record),
            escaped(short(record.epoch)),
        ]
        for record in records
    ]
    table(columns, rows)


def _what(record: RecordView) -> str:
    if record.slot.startswith("park/"):
        return "wait" if record.slot.startswith("park/wait/") else "sleep"
    return escaped(record.kind.rpartition("/")[2])


def _via(record: RecordView) -> str:
    body: Any = record.body if isinstance(record.body, dict) else {}
    if record.kind == "durability/effect" and record.phase in ("accepted", "rejected", "failed", "uncertain", "closed"):
        # Bodies leave out what has its default.
        said = body.get("via", "run")
    elif record.phase == "started":
        said = str(body.get("body", "")).rpartition(":")[2]
    else:
        said = body.get("by") or body.get("why") or body.get("recipient") or body.get("claims") or ""
    return escaped(str(said))


def write_effect(place: Place, view: EffectView, *, last: Last, lives: Mapping[str, tuple[str, bool]]) -> None:
    """Write all that is known about an effect, and what a person can do."""
    now = time.time()
    tries = "" if view.attempt == 1 else f", attempt {view.attempt}"
    line(
        f"effect {escaped(view.name)}: {view.state}{tries}, since {since(view.since, now)}",
        style=STYLES.get(view.state),
    )
    line(f"  key: {view.effect_key}")
    if last.restored:
        line(f"  restored: {RESTORED}")
    if isinstance(view.outcome, Accepted):
        line(f"  proof: {value(view.outcome.proof, shown=place.shown)}, via {view.outcome.via}")
    if view.outcome is not None:
        line(f"  evidence: {_evidence(view.outcome.evidence)}")
    elif view.state == "unresolved":
        line(f"  known: {_unresolved(last, lives)}")
        if last.released is not None or not lives.get(last.epoch, ("", False))[1]:
            line("  to end it, if nothing will ever settle it:")
            _decide(place, view)
    elif view.state == "corrupt":
        line(f"  known: a record of it is damaged or must not be there; `{_verify(place, view)}` says which")
    if view.state == "uncertain" and view.outcome is not None:
        line(f"  known: {_uncertain(view.outcome.evidence.kind, last)}")
    for late in view.late_evidence:
        claims = f"{late.claims} (attempt {late.attempt}), via {late.via}"
        source = "" if late.source is None else f" from {escaped(late.source)}"
        line(f"  late evidence: {claims}{source}: {value(late.proof, shown=place.shown)}, {since(late.at, now)}")
    if view.decision is not None:
        decided = view.decision
        verdict = f"it happened: {value(decided.proof, shown=place.shown)}" if decided.happened else "it did not happen"
        line(f"  decided by {escaped(decided.by)}, {since(decided.at, now)}: {verdict}")
        line(f"  because: {escaped(decided.reason)}")
        if decided.new_name is not None:
            line(f"  it may be sent again as {escaped(decided.new_name)}")
    elif view.state == "uncertain":
        line("  to decide, after looking at the recipient's own records:")
        _decide(place, view)


def _evidence(found: Evidence) -> str:
    said = [escaped(found.kind)]
    said += [
        f"{name} {escaped(str(part))}" for name in ("phase", "status", "contract") if (part := getattr(found, name))
    ]
    if found.bytes_offered is not None:
        said.append(f"{found.bytes_offered} bytes offered")
    said += [escaped(promise) for promise in found.promises]
    return ", ".join(said)


def _uncertain(kind: str, last: Last) -> str:
    """Say what is known of an effect that is uncertain."""
    if last.released is None or kind not in ("unaskable", "not-found"):
        return KNOWN.get(kind, "it may have been sent, and nothing proves how that ended")
    ended = RELEASED.get(last.released, "its run is over, and nobody knows whether it arrived")
    return f"{ended}; {_ASKED[kind]}"


_ASKED: Final = {
    "unaskable": "the recipient cannot be asked",
    "not-found": "the recipient was asked and found nothing, which proves nothing: it may come to light yet",
}


def _unresolved(last: Last, lives: Mapping[str, tuple[str, bool]]) -> str:
    if last.restored:
        return "its intent is on record, and nothing was sent under it in this ledger's time; the next call asks"
    if last.released is not None:
        ended = RELEASED.get(last.released, f"its run is over without an outcome ({escaped(last.released)})")
        return f"its intent is on record; {ended}; the next call of the run asks the recipient"
    label, alive = lives.get(last.epoch, ("", False))
    if alive:
        return f"life {short(last.epoch)} ({escaped(label)}) is alive and may be performing it"
    return f"its intent is on record, and life {short(last.epoch)} is gone; the next call of the run asks the recipient"


def _verify(place: Place, view: EffectView) -> str:
    return command(*place.options(), "verify", *operands(view.run_id))


def _decide(place: Place, view: EffectView) -> None:
    names = operands(view.run_id, view.name)
    for verdict in (["--happened", "PROOF"], ["--did-not-happen"]):
        said = ["--expect-version", str(view.version), "--by", "YOU", "--reason", "WHY", *verdict]
        # Names that look like options come last.
        words = [*said, *names] if names[0] == "--" else [*names, *said]
        line(f"    {command(*place.options(), 'decide', *words)}")
    line("    (the second with --new-name NAME: it may be sent again, under that name)")
