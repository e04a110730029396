"""What a flow knows when it starts: the run, and what this life remembers of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from counterfoil.errors import RunPruned, UsageError
from counterfoil.protocol import codec
from counterfoil.protocol.history import History
from counterfoil.protocol.keys import Fingerprints, effect_key
from counterfoil.protocol.records import Draft, Entry
from counterfoil.protocol.requests import Instant

NOTHING = codec.body_of(codec.EmptyBody())


class Memory(msgspec.Struct):
    """What this life remembers of a run beyond its records; lost with the process, and never needed after it.

    Attributes:
        unsent: intents whose append gave no answer, by slot: `run` was not called for them.
        held: facts that could not be recorded, by slot of the outcome: appended again before anything else.
        over: when `run` of an attempt ended in this life, by slot of the intent.
        verifiers: the `verify` of each effect that was called here, by name.
        asked: heads of the slots that the body which is carried here has asked for; None: none is.
    """

    unsent: dict[str, Entry] = {}
    held: dict[str, Held] = {}
    over: dict[str, Instant] = {}
    verifiers: dict[str, Verifier] = {}
    asked: set[str] | None = None


class Verifier(msgspec.Struct, frozen=True):
    """A `verify`, and how to decode a proof for it."""

    check: Callable[..., Any]
    decode: Callable[[bytes], Any]
    timeout_s: float


class Held(msgspec.Struct, frozen=True):
    """A fact that waits for the ledger: the effect, its attempt, the draft, and the entry of a lost append."""

    name: str
    attempt: int
    draft: Draft
    entry: Entry | None
    proof: Any


class Scope(msgspec.Struct):
    """One run as a flow sees it.

    Attributes:
        namespace: scope of run ids.
        run: the run's id.
        history: what has been read of it.
        memory: what this life remembers of it.
        fingerprints: the ledger's keys.
        own_epochs: epochs of this life, the present one and retired ones.
        owned: whether the ledger knows owners; without, an intent without an outcome is reconciled at once.
        accepted_generation: a run begun before it may have lost its tail.
        epoch: the epoch of this handle of the run, None before its first record.
        cancelled: this handle was cancelled; set from any thread.
    """

    namespace: str
    run: str
    history: History
    memory: Memory
    fingerprints: Fingerprints
    own_epochs: set[str]
    owned: bool
    accepted_generation: int = 0
    epoch: str | None = None
    cancelled: bool = False

    def key(self, name: str, attempt: int, *, keep: bool = False) -> str:
        """Derive the key of an attempt."""
        return effect_key(self.namespace, self.run, name, attempt=1 if keep else attempt)

    def asks(self, head: str) -> None:
        """Note that the body has asked for this."""
        if self.memory.asked is not None:
            self.memory.asked.add(head)

    def open_for(self, what: str, name: str = "") -> None:
        """Check that the run takes new names.

        Args:
            what: what is new, for the message: `effect`, `step` …
            name: its name, where that is not said yet.

        Raises:
            UsageError: it is finished.
            RunPruned: only its tombstone is left.
        """
        if self.history.pruned or self.history.finished is not None:
            under = f"it has nothing under {what} {name!r}" if name else f"it has nothing under {what}"
            if self.history.pruned:
                raise RunPruned(f"run {self.run!r} was pruned; {under}")
            raise UsageError(
                f"run {self.run!r} is finished; {under}, and a finished run takes no new names", code="run-finished"
            )

    def older_than_restore(self) -> bool:
        """Say whether the run may have lost its tail: it began before a person accepted a restored ledger."""
        if self.accepted_generation == 0:
            return False
        began = self.history.began_in
        return began is not None and began < self.accepted_generation

    def same_fingerprint(self, canonical: bytes | None, recorded: str | None) -> bool:
        """Compare a call's request with the recorded one; True where either is missing."""
        if canonical is None or recorded is None:
            return True
        return self.fingerprints.matches(canonical, recorded)

    def fingerprint(self, canonical: bytes | None) -> str | None:
        """Fingerprint a request for the record."""
        return None if canonical is None else self.fingerprints.make(canonical)
