"""What becomes of a put to a bucket when something happens to it in each phase: the part of the adversarial matrix.

`PHASES` hold a put where it is, by somebody between it and the endpoint; `CAUSES` happen to it there. `expected` says
what follows, and `play` makes it happen and returns what did.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from counterfoil import AsyncBroker, Blobs, Broker, Grant
from tests.blobs.s3_support import Exchange, Meddler, keys, uploads
from tests.blobs.support import some_bytes
from tests.support import GROWING_S, PATIENCE_S, Colour, Gate, eventually, in_thread

# Endpoints with more scruples want 5 MiB.
PART: Final = 1 << 16
DATA: Final = some_bytes(PART + 9)
CAUSES: Final = ("cancel", "deadline", "reset", "revocation", "shutdown")


@dataclass(frozen=True)
class Phase:
    """Where a put is held.

    Attributes:
        kind: the request that is held.
        number: the how-manyth of its kind.
        done: the endpoint has done it, and its answer is held; else it has not come to the endpoint.
        journal: the last entry of the journal afterwards.
        reset: outcome and kind of evidence where the connection is reset.
        seen: requests that the peer has seen when it is held, by kind, looks not counted.
        aborted: whether an abort follows.
    """

    kind: str
    done: bool
    seen: tuple[str, ...]
    reset: tuple[str, str]
    number: int = 1
    journal: str = "abort"
    aborted: bool = True


_UNKNOWN: Final = "not-known-to-be-sealed"
_PARTS: Final = ("create", "part", "part")
PHASES: Final[dict[str, Phase]] = {
    "reserve": Phase("create", True, ("create",), ("Failed", "not-created"), journal="create", aborted=False),
    "a part": Phase("part", False, ("create", "part"), ("Failed", "part-not-stored")),
    "the last part": Phase("part", True, _PARTS, ("Failed", "part-not-stored"), number=2),
    "complete, on its way": Phase("complete", False, (*_PARTS, "complete"), ("Failed", "not-completed")),
    "complete, done": Phase("complete", True, (*_PARTS, "complete"), ("Accepted", "sealed")),
    "verify": Phase("head", True, (*_PARTS, "complete"), ("Failed", "not-stored")),
    "record, on its way": Phase(
        "record", False, (*_PARTS, "complete", "record"), ("Uncertain", _UNKNOWN),
        journal="record", aborted=False,
    ),
    "record, done": Phase(
        "record", True, (*_PARTS, "complete", "record"), ("Accepted", "sealed"), journal="record", aborted=False
    ),
    "abort": Phase("abort", True, ("create", "part", "abort"), ("Failed", "part-not-stored"), aborted=False),
}  # fmt: skip
KINDS: Final = {"cancel": "cancelled", "deadline": "deadline", "revocation": "revoked", "shutdown": "shutdown"}


@dataclass(frozen=True)
class Expected:
    """What must follow.

    Attributes:
        told: what the caller may be told: class, and what its evidence is called.
        journal: the last entry of the journal; None: there is none any more.
        visible: whether the blob can be seen afterwards.
        restart: what another life makes of it, by the class of its outcome.
        aborts: how often the peer is asked to forget the parts.
        left: uploads that are never cleaned up, as their record may still arrive.
    """

    told: frozenset[tuple[str, str]]
    journal: str | None
    visible: bool
    restart: str
    aborts: int
    left: int


def expected(phase: str, cause: str) -> Expected:
    """Say what must follow where a cause meets a phase."""
    held = PHASES[phase]
    told = {held.reset if cause == "reset" else ("Uncertain", KINDS.get(cause, ""))}
    if cause == "deadline":
        # The recipient has a clock, too, and may be the one to notice first.
        told |= {held.reset, ("Failed", "not-stored")} if held.kind != "record" else {("Uncertain", _UNKNOWN)}
        told.discard(("Accepted", "sealed"))
    accepted = ("Accepted", "sealed") in told
    visible = phase == "record, done" or accepted
    return Expected(
        told=frozenset(told),
        journal=None if accepted else held.journal,
        visible=visible,
        restart="Accepted" if visible else "Uncertain",
        aborts=int(held.kind == "abort" or (held.aborted and not accepted)),
        left=1 if phase == "record, on its way" else 0,
    )


def table() -> list[str]:
    """Return the rows of the table in the docs: one for each phase."""
    rows = []
    for phase, held in PHASES.items():
        found = expected(phase, "kill")
        clean = "nothing" if not found.left else "the bytes, whose record may still arrive: `left`"
        kept = "the blob" if found.visible else clean
        rows.append(
            f"| {phase} | {', '.join(held.seen)} | `Uncertain` | `{held.reset[0]}` (`{held.reset[1]}`) "
            f"| {held.journal} | `{found.restart}`; after `clean`: {kept} |"
        )
    return rows


@dataclass(frozen=True)
class Seen:
    """What did follow.

    Attributes:
        outcome: what the caller was told.
        peer: requests that the peer saw, by kind, looks not counted.
        permits: those that were not given back.
        connections: those that were not given back.
        journal: the last entry of the journal; None: there is none.
    """

    outcome: Any
    peer: Counter[str]
    permits: int
    connections: int
    journal: str | None


class Held:
    """Holds the next put in a phase."""

    def __init__(self, meddler: Meddler, phase: str) -> None:
        self.gate = Gate()
        self.act: str | None = None
        self._phase = PHASES[phase]
        self._left = self._phase.number
        meddler.seen.clear()
        if phase == "abort":
            meddler.before = self._refuse_parts
        if self._phase.done:
            meddler.after = self._come
        else:
            meddler.before = self._come

    def _come(self, seen: Exchange) -> str | None:
        if seen.kind != self._phase.kind or (seen.kind == "head" and seen.status != 200):
            return None
        self._left -= 1
        if self._left:
            return None
        self.gate.stop()
        # What did not come to the endpoint never will, but for a part: that comes after its abort.
        return self.act or (None if self._phase.done or seen.kind == "part" else "drop")

    @staticmethod
    def _refuse_parts(seen: Exchange) -> str | None:
        seen.status = 403
        return "invent" if seen.kind == "part" else None


def deadlines(cause: str) -> tuple[float, ...]:
    """Return what to try one after the other, until a deadline does not come before the phase that it is to meet."""
    return GROWING_S[1:] if cause == "deadline" else (2 * PATIENCE_S,)


async def reached(gate: Gate, call: asyncio.Future[Any]) -> bool:
    """Wait until a call is held, or has ended before that."""
    await eventually(lambda: gate.reached.is_set() or call.done())
    return gate.reached.is_set()


async def play(
    phase: str, cause: str, *, colour: Colour, blobs: Blobs, meddler: Meddler, journal: Path, timeout_s: float
) -> Seen | None:
    """Make a cause meet a phase; the recipient is on the other side of the meddler.

    Returns:
        What followed; None if the deadline came before the phase.
    """
    held = Held(meddler, phase)
    broker: Any = Broker() if colour.blocking else AsyncBroker()
    activation = broker.activation(grants=[grant(blobs)])
    await either(colour, activation.__enter__ if colour.blocking else activation.__aenter__)
    call = asyncio.ensure_future(either(colour, lambda: activation.perform(blobs.put(DATA), timeout_s=timeout_s)))
    early = not await reached(held.gate, call)
    if cause in ("cancel", "revocation"):
        (activation.cancel if cause == "cancel" else activation.revoke)()
    elif cause == "shutdown":
        await either(colour, lambda: broker.close(timeout_s=0.05))
    elif cause == "reset":
        held.act = "reset"
        held.gate.open()
    outcome = await asyncio.wait_for(call, PATIENCE_S)
    if phase != "abort" and not early:
        # Nobody answers, and yet nothing is owned any more.
        await eventually(lambda: broker.report().idle)
    held.gate.open()
    await eventually(lambda: broker.report().idle)
    report = broker.report()
    await either(colour, lambda: broker.close(timeout_s=PATIENCE_S))
    meddler.before = meddler.after = None
    await eventually(lambda: meddler.under_way == 0)
    if early:
        return None
    peer = Counter(kind for kind in meddler.kinds() if kind not in ("get", "head"))
    return Seen(outcome, peer, report.permits, connections_to(meddler.endpoint.port), last_entry(journal))


def grant(blobs: Blobs) -> Grant:
    """Allow puts to a bucket on this machine."""
    target = blobs.store.target
    assert target is not None
    return Grant("blobs", operations=("put",), targets=(target,), allow_addresses=("127.0.0.1/32",))


async def either(colour: Colour, act: Callable[[], Any]) -> Any:
    """Do something in a colour."""
    return await in_thread(act) if colour.blocking else await act()


def connections_to(port: int) -> int:
    """Count this machine's connections to a port that nobody has closed."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text("utf-8").splitlines()[1:]]
    return sum(row[2].endswith(f":{port:04X}") and row[3] in ("01", "02", "08") for row in rows)


def last_entry(journal: Path) -> str | None:
    """Return what the journal says last of the only upload that it knows."""
    logs = list((journal / "uploads").glob("*/log"))
    assert len(logs) <= 1
    return json.loads(logs[0].read_text("utf-8").splitlines()[-1])["what"] if logs else None


@dataclass(frozen=True)
class Restarted:
    """What another life found, and left.

    Attributes:
        visible: whether the blob could be seen.
        left: uploads that it did not clean up.
        clean: whether the bucket holds nothing else.
    """

    visible: bool
    left: int
    clean: bool


def restart(blobs: Blobs) -> Restarted:
    """Begin another life with the same journal, and clean up."""
    visible = list(blobs.references()) == [blobs.put(DATA).reference]
    # What was found the first time might have had company.
    cleaned = [blobs.clean() for _ in range(4)][-1]
    assert cleaned.in_flight == 0
    whole = 2 if visible else cleaned.left
    return Restarted(visible, cleaned.left, len(keys(blobs)) == whole and uploads(blobs) == [])


__all__ = [
    "CAUSES", "DATA", "PART", "PHASES", "Expected", "Held", "Phase", "Restarted", "Seen",
    "connections_to", "deadlines", "either", "expected", "grant", "last_entry", "play", "reached", "restart", "table",
]  # fmt: skip
