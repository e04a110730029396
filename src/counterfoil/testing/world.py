"""A small world to explore: a ledger, a recipient, owners and a clock, all as immutable values.

The flows of `counterfoil.effects` are the real ones. The world answers what they ask for, and for each request
it lists every answer that the real thing may give: a commit that is done, refused, or unknown with or without
having happened; a request that arrives, is lost, or arrives later; a look-up that finds, finds nothing, or
cannot be made.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from counterfoil.effects.scope import Memory, Scope
from counterfoil.errors import CommitUnknown, LedgerUnavailable, OwnerRetired
from counterfoil.outcomes import Evidence, Failed, Rejected
from counterfoil.protocol.history import History
from counterfoil.protocol.keys import Fingerprints
from counterfoil.protocol.records import Draft, Entry, Record, checksum, entry_of, record_of
from counterfoil.protocol.requests import (
    Append,
    Call,
    Filled,
    Gone,
    Instant,
    Live,
    Now,
    Overran,
    Pause,
    Raised,
    Read,
    Request,
    Returned,
)

NAMESPACE: Final = "world"
RUN: Final = "r"


def fresh_scope(epoch: str) -> Scope:
    """Return the run as a new life knows it that has read nothing yet."""
    return Scope(
        namespace=NAMESPACE,
        run=RUN,
        history=History(NAMESPACE, RUN),
        memory=Memory(),
        fingerprints=Fingerprints({"k": b"key"}, "k"),
        own_epochs={epoch},
        owned=True,
        epoch=epoch,
    )


def perform() -> None:
    """Stands for a handler that sends; the world answers for it."""


def ask() -> None:
    """Stands for a look-up; the world answers for it."""


def hear() -> None:
    """Stands for a side channel that speaks when the recipient has acted."""


class LostReply(Exception):
    """What a handler raises when it cannot know what became of its request."""


class Faults(Struct, frozen=True):
    """What may go wrong in one exploration, and how often at most.

    Args:
        crashes: lives that end without warning, before or after any request.
        commits: appends that are refused or whose end is unknown.
        replies: replies of the recipient that are lost, and requests that arrive late or never.
        refusals: runs that raise a proved `Rejected` or `Failed`.
        asks: look-ups that raise, overrun, or find nothing although it is there.
        steals: owners that are taken for gone while they live.
    """

    crashes: int = 0
    commits: int = 0
    replies: int = 0
    refusals: int = 0
    asks: int = 0
    steals: int = 0


class World(Struct, frozen=True):
    """One state of everything that outlives a process.

    Attributes:
        records: the ledger, in commit order.
        open_commits: entries told to commit whose end is unknown, and which may still become records.
        sent: keys of requests, in the order in which `run` was called.
        landed: keys that the recipient has acted on, and when.
        flying: keys of requests that may still arrive.
        closed: keys that the recipient accepts no more.
        dead: epochs of lives that have ended.
        retired: epochs that may decide nothing.
        returned: what calls were given, as text, by effect.
        time: seconds.
        faults: what may still go wrong.
    """

    records: tuple[Record, ...] = ()
    open_commits: tuple[Entry, ...] = ()
    sent: tuple[str, ...] = ()
    landed: tuple[tuple[str, int], ...] = ()
    flying: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()
    dead: frozenset[str] = frozenset()
    retired: frozenset[str] = frozenset()
    returned: frozenset[tuple[str, str]] = frozenset()
    time: int = 0
    faults: Faults = Faults()

    def slot(self, slot: str) -> Record | None:
        """Return the record in a slot."""
        return next((record for record in self.records if record.slot == slot), None)

    def history(self) -> History:
        """Return the ledger as a life that has read all of it knows it."""
        history = History(NAMESPACE, RUN)
        history.add(self.records)
        return history

    def spend(self, fault: str) -> World | None:
        """Use up one fault, or return None if none of its kind is left."""
        left = getattr(self.faults, fault)
        return replace(self, faults=replace(self.faults, **{fault: left - 1})) if left else None


Step = tuple[str, Any, World]
"""What happened, the answer (an exception is thrown into the flow), and the world after it."""


def proof(key: str) -> str:
    """What the recipient calls what it did for this key."""
    return f"item-{key[-6:]}"


class Options:
    """Every answer that the world may give.

    Args:
        visibility: how long the recipient may take to show an effect.
        closing: a look-up that finds nothing closes the key at the recipient.
    """

    def __init__(self, *, visibility: int = 0, closing: bool = False) -> None:
        self.visibility = visibility
        self.closing = closing

    def answers(self, world: World, epoch: str, request: Request[Any]) -> Iterator[Step]:
        """List the answers to a request of the life with this epoch."""
        match request:
            case Append():
                yield from self._append(world, entry_for(epoch, request, world.time))
            case Read():
                yield "reads", world.records, world
            case Now():
                yield "looks at the clock", Instant(float(world.time), float(world.time)), world
            case Pause():
                yield "pauses", None, replace(world, time=world.time + max(1, round(request.seconds)))
            case Gone():
                yield from self._gone(world, request.epoch)
            case Live():
                yield "asks whether it may decide", epoch not in world.retired, world
            case Call() if request.handler is perform:
                yield from self._perform(world, request.key)
            case Call() if request.handler is ask:
                yield from self._ask(world, request.key)
            case Call() if request.handler is hear:
                if any(key == request.key for key, _ in world.landed):
                    yield f"hears of {request.key[-6:]}", Returned(proof(request.key)), world
            case Call():
                yield "computes", Returned(request.handler(*request.proof)), world
            case _:
                raise TypeError(f"the world does not know {request!r}")

    def moves(self, world: World) -> Iterator[tuple[str, World]]:
        """List what happens without anybody asking: a late request arrives, an open commit ends."""
        for key in sorted(world.flying):
            there = replace(world, flying=world.flying - {key})
            if key not in world.closed:
                there = replace(there, landed=(*there.landed, (key, world.time)))
            yield f"a late request arrives at the recipient ({key[-6:]})", there
        for entry in world.open_commits:
            yield f"a late commit becomes visible: {entry.slot}", _end_commit(world, entry, commit=True)

    # --- the ledger

    def _append(self, world: World, entry: Entry) -> Iterator[Step]:
        mine = [e for e in world.open_commits if e.slot == entry.slot]
        for other in mine:
            # The store's unique key: this append waits for the open one, whichever way that ends.
            for commit in (True, False):
                yield from self._append(_end_commit(world, other, commit=commit), entry)
            return
        standing = world.slot(entry.slot)
        what = f"{entry.phase} → {entry.slot}"
        if standing is not None:
            ours = (standing.epoch, standing.append_id) == (entry.epoch, entry.append_id)
            yield f"{what}: filled by {who(standing.epoch)}", Filled(standing, ours), world
            return
        if entry.decision and entry.epoch in world.retired:
            yield f"{what}: refused, retired", _RETIRED, world
            return
        done = _commit(world, entry)
        yield f"{what}: done", Filled(done.records[-1], ours=True), done
        if (spent := world.spend("commits")) is not None:
            unknown = _unknown(entry)
            yield f"{what}: refused", _UNAVAILABLE, spent
            yield f"{what}: done, the answer lost", unknown, _commit(spent, entry)
            yield f"{what}: open, the answer lost", unknown, replace(spent, open_commits=(*spent.open_commits, entry))

    def _gone(self, world: World, epoch: str) -> Iterator[Step]:
        if epoch in world.dead or epoch in world.retired:
            yield f"finds {who(epoch)} gone", True, replace(world, retired=world.retired | {epoch})
            return
        yield f"finds {who(epoch)} alive", False, world
        if (spent := world.spend("steals")) is not None:
            yield f"takes {who(epoch)} for gone", True, replace(spent, retired=spent.retired | {epoch})

    # --- the recipient

    def _perform(self, world: World, key: str) -> Iterator[Step]:
        there = replace(world, sent=(*world.sent, key))
        short = key[-6:]
        if key in world.closed:
            yield f"sends {short}: refused, the key is closed", Raised(_CLOSED), there
            return
        lands = replace(there, landed=(*there.landed, (key, world.time)))
        yield f"sends {short}: accepted", Returned(proof(key)), lands
        if (spent := there.spend("replies")) is not None:
            lost = Raised(_LOST)
            yield f"sends {short}: accepted, the reply lost", lost, replace(spent, landed=lands.landed)
            yield f"sends {short}: never arrives", lost, spent
            yield f"sends {short}: no reply, arrives later", lost, replace(spent, flying=spent.flying | {key})
        if (spent := there.spend("refusals")) is not None:
            yield f"sends {short}: failed, retryable", Raised(_FAILED), spent
            yield f"sends {short}: rejected before dispatch", Raised(_REJECTED), spent

    def _ask(self, world: World, key: str) -> Iterator[Step]:
        found = next((at for landed, at in world.landed if landed == key), None)
        short = key[-6:]
        shown = found is not None and world.time >= found + self.visibility
        if shown:
            yield f"asks for {short}: found", Returned(proof(key)), world
        elif found is None and self.closing:
            yield f"asks for {short}: closes it", Raised(_CLOSED), replace(world, closed=world.closed | {key})
        else:
            yield f"asks for {short}: nothing to see", Returned(None), world
        if (spent := world.spend("asks")) is not None:
            yield f"asks for {short}: cannot", Raised(_LOST), spent
            yield f"asks for {short}: overdue", Overran(), spent
            if shown:
                yield f"asks for {short}: the listing lies", Returned(None), spent


_LOST = LostReply("no reply")
_FAILED = Failed(Evidence("status", status=503), retryable=True)
_REJECTED = Rejected(Evidence("refused", phase="not-dispatched"))
_CLOSED = Failed(Evidence("closed", details={"how": "cancelled by key"}))


def who(epoch: str) -> str:
    """Name a life for people: the process, and which of its lives."""
    return epoch.partition(".")[2]


_UNAVAILABLE = LedgerUnavailable("refused")
_RETIRED = OwnerRetired("retired")


@lru_cache(100_000)
def _unknown(entry: Entry) -> CommitUnknown:
    # One instance per entry, so that equal answers are equal.
    error = CommitUnknown("unknown")
    error.entry = entry  # type: ignore[attr-defined]
    return error


def entry_for(epoch: str, request: Append, time: int) -> Entry:
    """Make the entry of an append; equal requests of one life make equal entries."""
    if request.settle is not None:
        return request.settle
    draft: Draft = request.draft
    # One life appends to one slot once, except for settling: the slot's checksum serves as append id.
    append_id = checksum(NAMESPACE, RUN, slot=draft.slot, kind="", phase="", body=draft.body, epoch=epoch, append_id=0)
    return entry_of(draft, NAMESPACE, RUN, epoch=epoch, append_id=append_id, at=float(time))


def _commit(world: World, entry: Entry) -> World:
    record = record_of(entry, len(world.records) + 1)
    return replace(world, records=(*world.records, record))


def _end_commit(world: World, entry: Entry, *, commit: bool) -> World:
    rest = replace(world, open_commits=tuple(e for e in world.open_commits if e is not entry))
    fits = world.slot(entry.slot) is None and not (entry.decision and entry.epoch in world.retired)
    return _commit(rest, entry) if commit and fits else rest
