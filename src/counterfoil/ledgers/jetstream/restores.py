"""A ledger that went back in time, and a person's acceptance of it.

What can be seen: the stream has another time of creation than the one that is written in it (it was restored or
copied), or than the one that this process knows (it was deleted and made again); it has had messages and lacks the
first one (it was purged); it gave out a position a second time, or does not know a life of this process any more.
"""

from __future__ import annotations

import time
from typing import Final

import msgspec

from counterfoil.errors import LedgerReadOnly
from counterfoil.ledgers.jetstream import troubles
from counterfoil.ledgers.jetstream.lives import Lives
from counterfoil.ledgers.jetstream.messages import PURGED, Generation, encode, generation_of
from counterfoil.ledgers.jetstream.store import Put, Store
from counterfoil.ledgers.jetstream.writer import Writer
from counterfoil.protocol import slots
from counterfoil.protocol.records import LEDGER, Draft, entry_of

_PHASE: Final = "accepted-restore"


class Restores:
    """Tells whether a ledger went back in time, and records that a person accepts it.

    Args:
        store: the stream.
        lives: its owners.
        timeout_s: how long to wait for an answer, in seconds.
    """

    def __init__(self, store: Store, *, lives: Lives, timeout_s: float) -> None:
        self._store = store
        self._lives = lives
        self._timeout_s = timeout_s
        self._moved: str | None = None

    def fault(self) -> LedgerReadOnly | None:
        """Return why nothing may be recorded now, as far as this process knows."""
        why = self._moved or self._store.went_back
        return troubles.went_back(why) if why is not None else None

    async def restored(self) -> str | None:
        """Look, and return why this ledger takes no records, or None."""
        deadline = time.monotonic() + self._timeout_s
        sequence, generation = await self._generation(deadline)
        created = await self._created(deadline)
        store, self._moved = self._store, None
        if generation.created == PURGED:
            self._moved = "its stream was purged"
        elif created != generation.created:
            self._moved = f"its stream was made at {created}, and this ledger's at {generation.created}"
        elif sequence == 0:
            self._moved = "its stream is empty"
        elif store.created not in ("", created) and generation.accepted <= store.accepted:
            self._moved = f"its stream was made again at {created}; this process knows one that was at {store.created}"
        else:
            store.created, store.accepted = created, generation.accepted
        return self._moved or self._store.went_back

    async def accepted_generation(self) -> int:
        """Return the latest accepted generation, 0 if there was none."""
        return (await self._generation(time.monotonic() + self._timeout_s))[1].accepted

    async def accept(self, writer: Writer, *, by: str, reason: str) -> int:
        """Record, durably, that a person accepts the ledger as it is; return the new generation.

        All lives end with it.
        """
        deadline = time.monotonic() + self._timeout_s
        # What was seen beyond the end of what is left does not count any more.
        self._store.stretch.broke()
        self._store.seen = await self._store.last(self._store.subjects.all, deadline=deadline)
        sequence, old = await self._generation(deadline)
        await self._lives.retire_all(deadline=deadline)
        number = old.generation + 1
        new = Generation(
            generation=number, created=await self._created(deadline), accepted=number, by=by, reason=reason
        )
        put = Put(subject=self._store.subjects.generation, data=encode(new), expected=sequence)
        if (await self._store.put(put, deadline=deadline)).taken:
            raise troubles.unavailable("somebody else accepted it at the same time")
        self._moved = self._store.went_back = None
        self._store.created, self._store.accepted = new.created, number
        said = msgspec.json.encode({"by": by, "generation": number, "reason": reason}, order="sorted")
        draft = Draft(slot=slots.accepted_restore(number), kind=LEDGER, phase=_PHASE, body=said)
        place = (slots.SYSTEM_NAMESPACE, slots.SYSTEM_RUN)
        (reply,) = await writer.fill([entry_of(draft, *place, epoch="", append_id=number, at=time.time())])
        if isinstance(reply, BaseException):
            raise reply
        return number

    async def _generation(self, deadline: float) -> tuple[int, Generation]:
        found = await self._store.snapshot([], deadline=deadline)
        message = found[self._store.subjects.generation]
        return message.sequence, generation_of(message)

    async def _created(self, deadline: float) -> str:
        answer = await self._store.api(f"STREAM.INFO.{self._store.subjects.stream}", {}, deadline=deadline)
        if "error" in answer:
            raise troubles.unavailable(str(answer["error"].get("description")))
        return str(answer["created"])
