"""The outbox's store: where staged intents stand, who has claimed them, and what became of them.

It is a part of a ledger whose database the application writes to (`HasOutbox`). Intents, claims (`attempt`),
send-rights (`sending`), ends (`receipt`) and late evidence are only ever appended; `ready` holds what waits for
somebody and is the one table that sees inserts and deletes. Two keys decide races, each filled once:

- the send-right of a claim: its owner's grant, or the revocation by whoever recovers;
- the end of a claim: what its owner records, or what recovery records when the owner is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import msgspec

from counterfoil.protocol.standings import Standing

T = TypeVar("T")

Statement = tuple[str, Sequence[Any]]
Staging = Generator[Statement, Sequence[Sequence[Any]], list[bool]]
Known = Mapping[str, Iterable[str]]

# States in which an intent waits for a person, or for a dispatcher that knows more.
RESTING: Final = frozenset({"needs-operator", "quarantined", "blocked"})


class NewIntent(msgspec.Struct, frozen=True, kw_only=True):
    """An intent to stage, validated.

    Args:
        effect_id: its identity, derived from namespace and key.
        namespace: the scope of keys.
        key: what the caller named it.
        recipient: the recipient's name.
        operation: the operation's name.
        format: version of the stored form.
        body: canonical JSON of the operation.
        fingerprint: keyed digest of the body.
        policy: the narrower policy that the caller gave, or None.
        lane: the ordering key, or None.
        on_stuck: `halt` or `skip`.
        not_before: seconds since 1970, or None.
        expires_at: seconds since 1970, or None.
        trace: the trace that it was staged in, as W3C `traceparent`, or None.
    """

    effect_id: str
    namespace: str
    key: str
    recipient: str
    operation: str
    format: int
    body: bytes
    fingerprint: str
    policy: str | None = None
    lane: str | None = None
    on_stuck: str = "halt"
    not_before: float | None = None
    expires_at: float | None = None
    trace: str | None = None


class Claim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An intent in the hands of one owner.

    Args:
        attempt: the claim's own number, never reused.
        intent: the intent's number: a handle, not an order.
        owner: the epoch of the life that made the claim.
        kind: `send`, or `look` (ask the recipient).
        standing: with this claim counted.
        restored: staged before the ledger went back in time, so it may have been sent in the lost part.
        place: its place in its lane.
    """

    attempt: int
    intent: int
    owner: str
    kind: str
    effect_id: str
    namespace: str
    key: str
    recipient: str
    operation: str
    format: int
    body: bytes
    standing: Standing
    policy: str | None = None
    lane: str | None = None
    place: int | None = None
    on_stuck: str = "halt"
    expires_at: float | None = None
    restored: bool = False
    trace: str | None = None


class Requeue(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where an intent stands after a claim that was not its end.

    Args:
        kind: what to do next: `send` or `look`.
        state: `pending`, `retry-scheduled`, `reconciling`, or `needs-operator`, `quarantined`, `blocked`, which wait
            for a person or for a dispatcher that knows more.
        standing: what is known.
        delay_s: seconds until it is due, on the database's clock; None: not before somebody acts.
        reason: why, as a slug.
    """

    kind: str
    state: str
    standing: Standing
    delay_s: float | None = 0.0
    reason: str | None = None


class Ending(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a claim ended.

    Args:
        claim: the claim.
        phase: `accepted`, `rejected`, `failed`, `uncertain`; or `released`, `revoked`, `drained`, `parked`, `looked`,
            which are no outcomes.
        body: canonical JSON of the outcome, `{}` where there is none.
        fact: it stands whoever records it: accepted with a proof, or rejected or failed proved by its own run.
        requeue: where the intent stands now; None: this is its outcome.
    """

    claim: Claim
    phase: str
    body: bytes = b"{}"
    fact: bool = False
    requeue: Requeue | None = None


class LateFact(msgspec.Struct, frozen=True, kw_only=True):
    """What a dispatcher learnt about a claim beside its end: kept, shown, never an outcome."""

    claim: Claim
    claims: str
    body: bytes


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """What a person did.

    Args:
        name: `pause`, `resume`, `drain`, `redrive`, `reconcile`, `decide` or `prune`.
        scope: an effect id, `recipient:<name>`, or `*` for the whole outbox.
        by: who.
        reason: why.
        expect_version: the version that they saw; None where there is none to see.
        body: canonical JSON of what else they said.
    """

    name: str
    scope: str
    by: str
    reason: str
    expect_version: int | None = None
    body: bytes = b"{}"


Consequence = Requeue | tuple[str, bytes] | None
"""What follows from an act for its intent: it stands elsewhere, or ends as (phase, body), or stays as it is."""


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True):
    """One claim in the story of an intent; `kind` is also `act` or `fact` for an end that needed no claim."""

    attempt: int
    kind: str
    owner: str
    at: float
    standing: Standing
    right: str | None = None
    right_at: float | None = None
    phase: str | None = None
    final: bool = False
    body: bytes = b"{}"
    ended: float | None = None


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """All that is on record about one intent.

    Args:
        version: counts the records about it; an act names the version that it rests on.
        waiting: (kind, state, reason, since, due, standing) of its row among what waits, or None.
        lane_at: the place of its lane's head, None without a lane.
        lane_stuck: why and since when its lane stands still, or None.
        late: (attempt, what it claims, body, at) of each late fact.
        acts: (name, by, reason, at, body) of each act about it.
    """

    effect_id: str
    key: str
    recipient: str
    operation: str
    body: bytes | None
    policy: str | None
    lane: str | None
    place: int | None
    not_before: float | None
    expires_at: float | None
    staged_at: float
    version: int
    intent: int = 0
    waiting: tuple[str, str, str | None, float, float | None, Standing] | None = None
    lane_at: int | None = None
    lane_stuck: tuple[str, float] | None = None
    attempts: tuple[AttemptRow, ...] = ()
    late: tuple[tuple[int, str, bytes, float], ...] = ()
    acts: tuple[tuple[str, str, str, float, bytes], ...] = ()


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the flows of a dispatcher's life ask of the store, to be answered in this order.

    Args:
        endings: how claims ended.
        notes: facts that are no end.
        expiring: claims whose send-right is filled so that nothing is ever sent under them.
        rights: claims whose send-right is taken, so that they are sent.
        sends: how many are claimed for sending at most, of what is due, oldest first.
        looks: how many are claimed for asking the recipient at most.
        known: recipients and operations of which something is claimed, unless they are paused.
    """

    endings: Sequence[Ending] = ()
    notes: Sequence[LateFact] = ()
    expiring: Sequence[Claim] = ()
    rights: Sequence[Claim] = ()
    sends: int = 0
    looks: int = 0
    known: Known = {}


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What the store answers.

    Args:
        recorded: for each end whether it is recorded; False if the claim had ended otherwise before: a fact is then the
            outcome if there is none yet, else late evidence.
        expired: for each claim whether nothing is ever sent under it; False where its right was taken before.
        granted: for each claim when its right was taken, on the database's clock; None where it was revoked, its
            recipient is paused, or the intent has expired.
        claims: what is in the life's hands now.
        live: whether the life may still decide: a retired one claims nothing, is granted nothing, records only facts.
    """

    recorded: Sequence[bool] = ()
    expired: Sequence[bool] = ()
    granted: Sequence[float | None] = ()
    claims: Sequence[Claim] = ()
    live: bool = True


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """What a look over the outbox found.

    Args:
        lives: epochs of other dispatchers that may have left claims behind.
        next_due_s: seconds until something known is due, negative when it is overdue; None: nothing is scheduled.
        unsettled_due_s: the same for what has been claimed before, retries and look-ups, if that was asked for.
        paused: scopes that are paused.
    """

    lives: tuple[str, ...] = ()
    next_due_s: float | None = None
    unsettled_due_s: float | None = None
    paused: frozenset[str] = frozenset()


class Ages(msgspec.Struct, frozen=True, kw_only=True):
    """How old the oldest ones are, and what is paused.

    Args:
        lag_s: how long the oldest one that is due has been due, 0.0 where nothing is. What nobody here knows is not
            counted: it is `blocked`.
        uncertain: how many may have been sent and wait for a person who has not decided yet.
        oldest_uncertain_s: since when the oldest of these does, None where there is none.
        paused: scopes that are paused: `*`, or `recipient:<name>`.
    """

    lag_s: float
    uncertain: int
    oldest_uncertain_s: float | None
    paused: tuple[str, ...] = ()

    @classmethod
    def of(cls, due: float | None, unsure: tuple[int, float | None], *, now: float, paused: Iterable[str] = ()) -> Ages:
        """Make it of moments on the database's clock."""
        count, since = unsure
        return cls(
            lag_s=0.0 if due is None else max(0.0, now - due),
            uncertain=count,
            oldest_uncertain_s=None if since is None else max(0.0, now - since),
            paused=tuple(sorted(paused)),
        )


def nothing() -> None:
    """Do nothing while a store works."""


class OutboxStore(Protocol):
    """What staging and dispatching need.

    Attributes:
        elsewhere: another process works while `exchange` waits for it.
    """

    elsewhere: bool

    def staging(self, intents: Sequence[NewIntent], *, now: float | None = None) -> Staging:
        """Write intents, as statements that the caller's own connection runs: True for each that is new.

        Raises:
            NameConflict: a key was staged for another operation; nothing of that intent was written.
        """
        ...

    def enlist(self, epoch: str, label: str) -> None:
        """Register a dispatcher's life, durably, before it claims anything."""
        ...

    def dismiss(self, epoch: str) -> None:
        """Note that a life has nothing in hand any more and takes nothing."""
        ...

    def exchange(self, epoch: str, wanted: Wanted, *, meanwhile: Callable[[], None] = nothing) -> Given:
        """Answer what a life's flows ask in one transaction, durable on return.

        Args:
            epoch: of the life.
            wanted: what its flows ask.
            meanwhile: called in this thread, once or more often, while the answer is waited for, where another process
                gives it; it raises nothing and asks nothing of the store.

        Raises:
            CommitUnknown: the store did not say how the commit ended.
            LedgerError: anything else; nothing was recorded.
        """
        ...

    def sweep(self, epoch: str, known: Known, *, unsettled: bool = False) -> Sweep:
        """Look over the outbox: mark what nobody here knows, take back what is known now, and say what there is."""
        ...

    def recover(self, gone: str, *, by: str) -> int:
        """Take back what a life that is gone had in hand, durably; return how many claims that were."""
        ...

    def changed(self) -> bool:
        """Say, cheaply, whether somebody may have committed something since the last call."""
        ...

    def now(self) -> float:
        """Return the database's clock, in seconds since 1970."""
        ...


class InboxStore(Protocol):
    """What the consumers' side needs."""

    def taking(self, source: str, message: str, *, window_s: float) -> Staging:
        """Note that a message is taken, as statements that the caller's own connection runs: [whether it is new]."""
        ...


class OutboxView(Protocol):
    """What looking and acting need."""

    def story(self, effect_id: str) -> Story | None:
        """Return all that is on record about an intent."""
        ...

    def waiting(self, *, state: str | None = None, limit: int = 1000) -> list[str]:
        """Return effect ids of what waits or is in hand, oldest first; of one state, as its receipt shows it."""
        ...

    def ended(self, phase: str, *, limit: int = 1000) -> list[str]:
        """Return effect ids of intents with this outcome, newest first."""
        ...

    def depth(self) -> list[tuple[str, str, int, float | None]]:
        """Return (recipient, state, how many, since when the oldest) of what waits and what is being dispatched."""
        ...

    def lanes(self) -> list[tuple[str, int, str | None, float | None, str | None]]:
        """Return (lane, how many wait, why it stands still, since when, effect id of its head)."""
        ...

    def ages(self) -> Ages:
        """Return how long the oldest ones wait, on the database's clock."""
        ...

    def act(self, act: Act, work: Callable[[Story | None], Consequence]) -> None:
        """Record what a person did, with what follows from it, in one transaction.

        Args:
            act: what they did.
            work: decides what follows, given the story as it is now (None for an act on a whole scope); it may raise.

        Raises:
            Conflict: the version is not the one that they saw.
        """
        ...

    def prune(self, *, before: float, limit: int) -> list[str]:
        """Let go of payloads and attempts of accepted, rejected and failed intents that ended before a time.

        Identities, fingerprints and outcomes stay. Returns the effect ids.
        """
        ...


@runtime_checkable
class HasOutbox(Protocol):
    """A ledger in a database that the application writes to."""

    def outbox(
        self, *, clock: Callable[[], float] | None = None, create: bool = True
    ) -> tuple[OutboxStore, OutboxView]:
        """Open the outbox beside the ledger, making its tables if they are not there.

        Args:
            clock: seconds since 1970; None: the database's own.
            create: False: refuse where there are none, or older ones.
        """
        ...
