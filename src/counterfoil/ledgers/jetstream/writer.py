"""Filling slots: publish where nothing valid is, then look whether anything makes the message void.

What a fence must stop is not kept from the stream; it is void there (see `messages`). So each group of appends ends
with one look that reaches as far as its last message: a tombstone or a retirement before a message would be in it.
Where all that came since the last such look was published by this process itself (see `stretch`), none is needed. An
append whose answer is lost is published again, on the same subject and with the same expectation: if the first one has
landed, or still lands, one of the two is refused, and the last message of the subject says whose it is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Final

from counterfoil.errors import CounterfoilError, LedgerUnavailable, OwnerRetired, RunPruned, UsageError
from counterfoil.ledgers.jetstream import troubles
from counterfoil.ledgers.jetstream.messages import (
    RETIRED,
    Message,
    Recorded,
    RunListed,
    encode,
    owner_state,
    record_at,
    recorded,
)
from counterfoil.ledgers.jetstream.store import Put, Sending, Store
from counterfoil.ledgers.jetstream.troubles import Said
from counterfoil.ledgers.rows import outlives_pruning
from counterfoil.ledgers.submissions import Submission
from counterfoil.ports.ledger import Reply
from counterfoil.protocol import slots
from counterfoil.protocol.records import Entry

_PAUSE_S: Final = 0.05
_LISTED_MAX: Final = 100_000


class _Append:
    """One entry on its way into its slot."""

    __slots__ = ("answer", "data", "entry", "expected", "kept", "maybe", "reply", "subject")

    def __init__(self, entry: Entry, *, kept: bool) -> None:
        self.entry = entry
        self.kept = kept
        self.subject = ""
        self.data = b""
        # The void message that is to be followed, or 0.
        self.expected = 0
        # A message of ours may be there, or may still come.
        self.maybe = False
        self.answer = Said()
        self.reply: Reply | None = None


class Writer:
    """Fills slots. `commit` runs on the store's loop.

    Args:
        store: the stream.
        timeout_s: how long an append may take, in seconds.
        fault: returns why nothing may be recorded now, or None.
        own: whether a life is one of this process that was not found retired.
    """

    def __init__(
        self,
        store: Store,
        *,
        timeout_s: float,
        fault: Callable[[], CounterfoilError | None],
        own: Callable[[str], bool],
    ) -> None:
        self._store = store
        self._subjects = store.subjects
        self._timeout_s = timeout_s
        self._fault = fault
        self._own = own
        self._listed: dict[tuple[str, str], None] = {}
        # Groups are published one after the other, and none before those that must be published again.
        self._turn = asyncio.Lock()
        self._again = 0
        self._calm = asyncio.Event()
        self._calm.set()

    async def commit(self, batch: Sequence[Submission]) -> None:
        """Append a batch and set every reply; an error of one entry is that entry's reply."""
        replies = await self.fill([item.entry for item in batch])
        for item, reply in zip(batch, replies, strict=True):
            item.reply = reply

    async def fill(self, entries: Sequence[Entry], *, kept: bool = False) -> list[Reply]:
        """Append entries in order and return what fills their slots, or why not.

        Args:
            entries: what to append.
            kept: they are written by pruning: the tombstone does not void them.
        """
        deadline = time.monotonic() + self._timeout_s
        works = [self._work(entry, kept=kept) for entry in entries]
        await self._try([work for work in works if work.reply is None], deadline, first=True)
        if any(work.reply is None for work in works):
            self._again += 1
            self._calm.clear()
            try:
                while open_ := [work for work in works if work.reply is None]:
                    await asyncio.sleep(_PAUSE_S)
                    await self._try(open_, deadline, first=False)
            finally:
                self._again -= 1
                if not self._again:
                    self._calm.set()
        return [work.reply for work in works if work.reply is not None]

    async def _try(self, works: list[_Append], deadline: float, *, first: bool) -> None:
        """Publish what is open once; what must be published again is left open."""
        if (fault := self._fault()) is not None:
            _end(works, fault)
        elif time.monotonic() >= deadline:
            for work in works:
                work.reply = (troubles.unknown if work.maybe else troubles.unavailable)(work.answer.text)
        else:
            try:
                await self._round(works, deadline, first=first)
            except LedgerUnavailable as error:
                for work in works:
                    if work.reply is None:
                        work.answer = Said(text=str(error.args[0]).removeprefix("JetStream: "))
            except CounterfoilError as error:
                _end(works, error)

    def _work(self, entry: Entry, *, kept: bool) -> _Append:
        work = _Append(entry, kept=kept)
        try:
            work.subject = self._subjects.record(entry.namespace, entry.run, entry.slot)
            work.data = encode(Recorded(entry, kept))
        except (UnicodeError, OverflowError) as error:
            work.reply = UsageError(f"it cannot be recorded: {error}")
        return work

    async def _round(self, works: list[_Append], deadline: float, *, first: bool) -> None:
        """Publish what is open and judge what became of it."""
        if first:
            async with self._turn:
                await self._calm.wait()
                works, sending = await self._begin(works, deadline)
        else:
            works, sending = await self._begin(works, deadline)
        for work, answer in zip(works, await sending.answers(), strict=True):
            work.answer = answer
            # From now on, and until it is judged, a message of ours may be there.
            work.maybe = work.maybe or answer.unknown or bool(answer.sequence)
            if answer.too_large:
                work.reply = troubles.too_large(len(work.data))
            elif answer.sequence and self._alone(work):
                work.reply = record_at(work.entry, answer.sequence)
        await self._judge(
            [work for work in works if work.reply is None and (work.answer.sequence or work.answer.taken)], deadline
        )

    async def _begin(self, works: list[_Append], deadline: float) -> tuple[list[_Append], Sending]:
        """Publish what nothing forbids; return it, and the answers that it will get."""
        if doubtful := [work for work in works if self._doubtful(work)]:
            await self._look_first(doubtful, deadline)
            works = [work for work in works if work.reply is None]
        await self._list(works, deadline)
        return works, await self._store.send([_put(work) for work in works], deadline=deadline)

    def _alone(self, work: _Append) -> bool:
        """Return whether it is known without a look that nothing makes our message void."""
        entry, answer = work.entry, work.answer
        names: list[Hashable] = [(entry.namespace, entry.run)]
        if entry.decision and entry.epoch:
            names.append(entry.epoch)
        return self._store.stretch.covers(names, answer.since, answer.sequence)

    def _doubtful(self, work: _Append) -> bool:
        return work.entry.decision and bool(work.entry.epoch) and not self._own(work.entry.epoch)

    async def _look_first(self, works: list[_Append], deadline: float) -> None:
        """Answer the decisions of lives that may be over without leaving void messages behind."""
        view, _ = await self._view(works, deadline, slots_too=True)
        for work in works:
            last = view.get(work.subject)
            if self._pruned(work, view) is not None and not self._outlives(work):
                work.reply = _pruned(work.entry)
            elif last is not None and not await self._void(last, view, deadline):
                work.reply = record_at(recorded(last).entry, last.sequence)
            elif self._fence(work.entry.epoch, view) is not None:
                work.reply = _retired(work.entry)
            elif last is not None:
                work.expected = last.sequence

    async def _list(self, works: list[_Append], deadline: float) -> None:
        """List the runs that this process has not seen listed, before their first records."""
        fresh: dict[tuple[str, str], Put] = {}
        for work in works:
            place = (work.entry.namespace, work.entry.run)
            if place not in self._listed and place not in fresh:
                listed = RunListed(namespace=place[0], run=place[1], began=work.entry.at)
                fresh[place] = Put(subject=self._subjects.run(*place), data=encode(listed), expected=0, ends=False)
        if not fresh:
            return
        answers = await self._store.put_each(list(fresh.values()), deadline=deadline)
        for place, answer in zip(fresh, answers, strict=True):
            if not (answer.sequence or answer.taken):
                raise troubles.unavailable(answer.text)
            self._listed[place] = None
        while len(self._listed) > _LISTED_MAX:
            del self._listed[next(iter(self._listed))]

    async def _judge(self, works: list[_Append], deadline: float) -> None:
        """Say for each what fills its slot now; those that must be published again are left open."""
        if not works:
            return
        view, reached = await self._view(works, deadline, slots_too=False)
        for work in works:
            sequence = work.answer.sequence
            tombstone = self._pruned(work, view)
            if sequence:
                if tombstone is not None and tombstone < sequence and not self._outlives(work):
                    work.reply = _pruned(work.entry)
                elif work.entry.decision and _before(self._fence(work.entry.epoch, view), sequence):
                    work.reply = _retired(work.entry)
                else:
                    work.reply = record_at(work.entry, sequence)
                    self._saw(work, view, reached)
                continue
            if tombstone is not None and not self._outlives(work):
                work.reply = _pruned(work.entry)
                continue
            last = view.get(work.subject)
            if last is None:
                work.expected = 0  # somebody's message is on its way, or was pruned
                continue
            if await self._void(last, view, deadline):
                work.expected = last.sequence
            else:
                work.reply = record_at(recorded(last).entry, last.sequence)

    def _saw(self, work: _Append, view: dict[str, Message], reached: int) -> None:
        names: list[Hashable] = []
        if self._pruned(work, view) is None:
            names.append((work.entry.namespace, work.entry.run))
        if work.entry.decision and work.entry.epoch and self._fence(work.entry.epoch, view) is None:
            names.append(work.entry.epoch)
        self._store.stretch.saw(names, reached)

    async def _view(self, works: list[_Append], deadline: float, *, slots_too: bool) -> tuple[dict[str, Message], int]:
        """Look at everything that can make these messages void, as of a moment behind the last of them.

        Returns:
            The last messages, and the sequence up to which they are the last.
        """
        subjects: list[str] = []
        for work in works:
            entry = work.entry
            subjects.append(self._subjects.record(entry.namespace, entry.run, slots.TOMBSTONE))
            if entry.decision and entry.epoch:
                subjects.append(self._subjects.owner(entry.epoch))
            if slots_too or not work.answer.sequence:
                subjects.append(work.subject)
        floor = max((self._store.seen, *(work.answer.sequence for work in works)))
        view = await self._store.snapshot(subjects, floor=floor, deadline=deadline)
        self._check_known(works, view)
        return view, floor

    def _check_known(self, works: list[_Append], view: dict[str, Message]) -> None:
        """Check that the stream knows our lives: otherwise it is another one, and what was sent is not in it.

        Raises:
            LedgerReadOnly: it does not.
        """
        for epoch in {work.entry.epoch for work in works if work.entry.decision and work.entry.epoch}:
            if self._own(epoch) and self._subjects.owner(epoch) not in view:
                self._store.forgot(epoch)
        if (fault := self._fault()) is not None:
            raise fault

    async def _void(self, message: Message, view: dict[str, Message], deadline: float) -> bool:
        """Return whether a slot's last message is void."""
        found = recorded(message)
        entry = found.entry
        tombstone = view.get(self._subjects.record(entry.namespace, entry.run, slots.TOMBSTONE))
        if (
            tombstone is not None
            and tombstone.sequence < message.sequence
            and not (found.kept or outlives_pruning(entry))
        ):
            return True
        if not entry.decision or not entry.epoch:
            return False
        owner = self._subjects.owner(entry.epoch)
        if owner not in view:
            view = await self._store.snapshot([owner], floor=message.sequence, deadline=deadline)
        return _before(self._fence(entry.epoch, view), message.sequence)

    def _fence(self, epoch: str, view: dict[str, Message]) -> int | None:
        """Return the sequence behind which a life decides nothing, or None while it lives; 0 if it never registered."""
        if not epoch:
            return None
        last = view.get(self._subjects.owner(epoch))
        if last is None:
            return 0
        return last.sequence if owner_state(last).state == RETIRED else None

    def _pruned(self, work: _Append, view: dict[str, Message]) -> int | None:
        found = view.get(self._subjects.record(work.entry.namespace, work.entry.run, slots.TOMBSTONE))
        return found.sequence if found is not None else None

    def _outlives(self, work: _Append) -> bool:
        return work.kept or outlives_pruning(work.entry)


def _put(work: _Append) -> Put:
    ends = work.entry.slot == slots.TOMBSTONE
    return Put(subject=work.subject, data=work.data, expected=work.expected, ends=ends)


def _before(fence: int | None, sequence: int) -> bool:
    return fence is not None and fence < sequence


def _retired(entry: Entry) -> OwnerRetired:
    return OwnerRetired(f"owner {entry.epoch} is retired")


def _pruned(entry: Entry) -> RunPruned:
    return RunPruned(f"run {entry.run!r} was pruned")


def _end(works: Sequence[_Append], error: CounterfoilError) -> None:
    for work in works:
        if work.reply is None:
            work.reply = error.again()
