"""Owners: a life publishes its beats on a subject of its own, each behind the last, and its retirement ends the chain.

The counter that others watch is the sequence of the last beat. A retirement is published behind the last beat that was
seen, so a life that has beaten meanwhile is not retired; and behind a retirement no beat is taken any more.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Final

import msgspec

from counterfoil.errors import CounterfoilError, LedgerUnavailable, UsageError
from counterfoil.ledgers.jetstream import troubles
from counterfoil.ledgers.jetstream.messages import (
    LIVE,
    RETIRED,
    Message,
    OwnerState,
    encode,
    generation_of,
    owner_state,
)
from counterfoil.ledgers.jetstream.store import Put, Store
from counterfoil.ledgers.rows import OwnerRow
from counterfoil.ledgers.watch import BEATS, Watch

_PAGE: Final = 512
# Whoever leaves waits no longer for servers that are gone; his silence says the same.
_LEAVE_S: Final = 2.0
# Beats of one life are given back now and then: only the last one counts.
_SWEEP: Final = 32
_log: Final = logging.getLogger("counterfoil")


class _Own:
    """A life of this process."""

    __slots__ = ("beats", "lock", "sequence", "state")

    def __init__(self, state: OwnerState) -> None:
        self.state = state
        self.sequence = 0
        self.beats = 0
        self.lock = asyncio.Lock()


class Lives:
    """Registers, retires and observes owners. All methods run on the store's loop, but for `own`.

    Args:
        store: the stream.
        timeout_s: how long to wait for an answer, in seconds.
        beat_s: seconds between two beats of the lives that register here.
    """

    def __init__(self, store: Store, *, timeout_s: float, beat_s: float) -> None:
        self._store = store
        self._subjects = store.subjects
        self._timeout_s = timeout_s
        self._beat_s = beat_s
        self._own: dict[str, _Own] = {}
        self._watch = Watch()
        self._heart: asyncio.Task[None] | None = None
        # The last word of each life that is not over, as of `_tail`.
        self._last: dict[str, tuple[int, OwnerState]] = {}
        self._tail = 0

    def own(self, epoch: str) -> bool:
        """Return whether a life is one of this process that was not found retired."""
        return epoch in self._own

    async def register(self, label: str) -> str:
        """Register a life, durably, and return its fresh epoch; its heart beats from now on."""
        if not label.isprintable():
            raise UsageError(f"{label!r} is no label for an owner", hint="use printable text")
        deadline = time.monotonic() + self._timeout_s
        found = await self._store.snapshot([], deadline=deadline)
        generation = generation_of(found[self._subjects.generation]).generation
        epoch = f"{generation}.{os.urandom(8).hex()}"
        life = _Own(OwnerState(epoch=epoch, label=label, since=time.time(), beat_s=self._beat_s))
        said = await self._publish(epoch, life.state, expected=0, deadline=deadline)
        if said.taken:
            # Ours, by an answer that was lost: nobody else has this name.
            found = await self._store.snapshot([self._subjects.owner(epoch)], floor=self._store.seen, deadline=deadline)
            life.sequence = found[self._subjects.owner(epoch)].sequence
        else:
            life.sequence = said.sequence
        self._own[epoch] = life
        self._beat_on()
        return epoch

    async def retire(self, epoch: str, *, timeout_s: float | None = None) -> None:
        """End an own life, durably; those of others are left alone."""
        life = self._own.pop(epoch, None)
        if life is not None:
            deadline = time.monotonic() + min(_LEAVE_S, timeout_s or self._timeout_s)
            async with life.lock:
                while not await self._retired_at(epoch, life.sequence, deadline=deadline, state=life.state):
                    state = await self._state(epoch, deadline)
                    if state is None or state[1].state == RETIRED:
                        return
                    life.sequence = state[0]

    async def gone(self, epoch: str) -> bool:
        """Return True only if a life is proved to be over; it is then retired durably.

        `""` is no life. An epoch that was never registered here is not proved to be over.
        """
        if epoch == "":
            return True
        deadline = time.monotonic() + self._timeout_s
        found = await self._state(epoch, deadline)
        if found is None:
            return False
        sequence, state = found
        if state.state == RETIRED:
            return True
        if epoch in self._own:
            return False
        self._beat_on()
        if not self._watch.look(epoch, sequence, state.beat_s):
            return False
        return await self._retired_at(epoch, sequence, deadline=deadline, state=state)

    async def live(self, epoch: str) -> bool:
        """Return whether an own life may still decide."""
        if epoch not in self._own:
            return False
        found = await self._state(epoch, time.monotonic() + self._timeout_s)
        if found is not None and found[1].state == LIVE:
            return True
        self._over(epoch, known=found is not None)
        return False

    def _over(self, epoch: str, *, known: bool) -> None:
        """Note that the stream has retired an own life, or does not know it any more."""
        if self._own.pop(epoch, None) is not None and not known:
            self._store.forgot(epoch)

    async def owners(self) -> list[OwnerRow]:
        """Return the lives that are not known to be over, oldest first.

        Whether one is alive is said for people: it has not been silent for as long as this process has looked.
        """
        await self._look(time.monotonic() + self._timeout_s)
        rows = [
            OwnerRow(
                epoch=epoch,
                label=state.label,
                since=state.since,
                alive=epoch in self._own or self._watch.silent_s(epoch) < BEATS * state.beat_s,
            )
            for epoch, (_, state) in self._last.items()
        ]
        return sorted(rows, key=lambda row: (row.since, row.epoch))

    async def retire_all(self, *, deadline: float) -> None:
        """End all lives: a person has accepted a ledger that went back."""
        await self._look(deadline)
        for epoch in list(self._last):
            while (found := await self._state(epoch, deadline)) is not None and found[1].state == LIVE:
                if await self._retired_at(epoch, found[0], deadline=deadline, state=found[1]):
                    break
        self._own.clear()

    async def let_go(self) -> None:
        """End all own lives, if the servers can be reached: others then find them gone at once."""
        if self._heart is not None:
            self._heart.cancel()
        for epoch in list(self._own):
            try:
                await self.retire(epoch, timeout_s=_LEAVE_S)
            except LedgerUnavailable:
                return

    async def _retired_at(self, epoch: str, sequence: int, *, deadline: float, state: OwnerState) -> bool:
        """Retire a life if its last word is still the one at a sequence."""
        over = msgspec.structs.replace(state, state=RETIRED)
        if (await self._publish(epoch, over, expected=sequence, deadline=deadline)).sequence:
            return True
        found = await self._state(epoch, deadline)
        return found is not None and found[1].state == RETIRED

    async def _state(self, epoch: str, deadline: float) -> tuple[int, OwnerState] | None:
        subject = self._subjects.owner(epoch)
        found = await self._store.snapshot([subject], floor=self._store.seen, deadline=deadline)
        message = found.get(subject)
        return None if message is None else (message.sequence, owner_state(message))

    async def _publish(self, epoch: str, state: OwnerState, *, expected: int, deadline: float) -> troubles.Said:
        put = Put(subject=self._subjects.owner(epoch), data=encode(state), expected=expected)
        return await self._store.put(put, deadline=deadline)

    def _beat_on(self) -> None:
        if self._heart is None:
            self._heart = asyncio.get_running_loop().create_task(self._beats())

    async def _beats(self) -> None:
        missed = 0
        while True:
            await asyncio.sleep(self._beat_s)
            deadline = time.monotonic() + max(_LEAVE_S, self._beat_s)
            try:
                for epoch, life in list(self._own.items()):
                    await self._beat(epoch, life, deadline)
                await self._look(deadline)
                missed = 0
            except CounterfoilError as error:
                missed += 1
                if missed == 1:
                    _log.warning("a beat of this process's owner failed, others may take it for gone: %s", error)

    async def _beat(self, epoch: str, life: _Own, deadline: float) -> None:
        async with life.lock:
            if epoch not in self._own:
                return
            said = await self._publish(epoch, life.state, expected=life.sequence, deadline=deadline)
            if said.sequence:
                life.sequence = said.sequence
                life.beats += 1
            else:
                # An earlier beat whose answer was lost, or somebody has retired this life.
                found = await self._state(epoch, deadline)
                if found is None or found[1].state == RETIRED:
                    self._over(epoch, known=found is not None)
                    return
                life.sequence = found[0]
            if life.beats % _SWEEP == _SWEEP - 1:
                question = {"filter": self._subjects.owner(epoch), "keep": 1}
                await self._store.api(f"STREAM.PURGE.{self._subjects.stream}", question, deadline=deadline)

    async def _look(self, deadline: float) -> None:
        """Take note of what other lives have published since the last look."""
        while page := await self._store.page(self._subjects.owners, self._tail, limit=_PAGE, deadline=deadline):
            for message in page:
                self._note(message)
            self._tail = page[-1].sequence
        for epoch, (sequence, state) in self._last.items():
            if epoch not in self._own:
                self._watch.look(epoch, sequence, state.beat_s)
        self._watch.keep_only(set(self._last))

    def _note(self, message: Message) -> None:
        state = owner_state(message)
        if state.state == RETIRED:
            self._last.pop(state.epoch, None)
        else:
            self._last[state.epoch] = (message.sequence, state)
