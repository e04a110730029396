"""Reading: the records of a run, the list of runs, and what is new."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from counterfoil.ledgers.jetstream import troubles
from counterfoil.ledgers.jetstream.messages import (
    RETIRED,
    Message,
    Recorded,
    owner_state,
    record_at,
    recorded,
    run_listed,
)
from counterfoil.ledgers.jetstream.store import Store
from counterfoil.ledgers.rows import RunRow, outlives_pruning
from counterfoil.protocol import slots
from counterfoil.protocol.records import Record

_PAGE: Final = 512
_RUNS: Final = 64
_LAG_S: Final = 0.02


class Reader:
    """Reads the stream. All methods run on the store's loop.

    Args:
        store: the stream.
        timeout_s: how long a read may take, in seconds.
    """

    def __init__(self, store: Store, *, timeout_s: float) -> None:
        self._store = store
        self._subjects = store.subjects
        self._timeout_s = timeout_s
        # Lives that are over, with the sequence of their retirement: it never changes.
        self._fences: dict[str, int] = {}

    async def records(self, namespace: str, run: str, after: int) -> list[Record]:
        """Return the valid records of a run behind a position, in order."""
        return [record_at(found.entry, message.sequence) for message, found in await self.valid(namespace, run, after)]

    async def valid(self, namespace: str, run: str, after: int) -> list[tuple[Message, Recorded]]:
        """Return the valid messages of a run behind a position, with what they say."""
        messages = await self.messages(namespace, run, after)
        if not messages:
            return []
        found = [(message, recorded(message)) for message in messages]
        tombstone, fences = await self._limits(namespace, run, found)
        return [
            (message, one)
            for message, one in found
            if not (
                (tombstone and tombstone < message.sequence and not (one.kept or outlives_pruning(one.entry)))
                or (
                    one.entry.decision
                    and one.entry.epoch
                    and fences.get(one.entry.epoch, message.sequence) < message.sequence
                )
            )
        ]

    async def messages(self, namespace: str, run: str, after: int) -> list[Message]:
        """Return all messages of a run behind a position, the void ones too, up to the last that the leader knows."""
        deadline = time.monotonic() + self._timeout_s
        where = self._subjects.records_of(namespace, run)
        last = await self._store.last(where, deadline=deadline)
        found: list[Message] = []
        while after < last:
            page = await self._store.page(where, after, limit=_PAGE, deadline=deadline)
            if not page:
                # The replica that answered has not got it yet, or it was pruned meanwhile.
                if time.monotonic() + _LAG_S >= deadline:
                    raise troubles.unavailable(f"no replica that answers has reached {last}")
                await asyncio.sleep(_LAG_S)
                last = await self._store.last(where, deadline=deadline)
                continue
            found += page
            after = page[-1].sequence
        return found

    async def _limits(
        self, namespace: str, run: str, found: Sequence[tuple[Message, Recorded]]
    ) -> tuple[int, dict[str, int]]:
        """Return the sequence of the run's tombstone, or 0, and where the lives that decided in it end."""
        deciding = {one.entry.epoch for _, one in found if one.entry.decision and one.entry.epoch}
        asked = {epoch: self._subjects.owner(epoch) for epoch in deciding if epoch not in self._fences}
        buried = self._subjects.record(namespace, run, slots.TOMBSTONE)
        deadline = time.monotonic() + self._timeout_s
        view = await self._store.snapshot([buried, *asked.values()], floor=found[-1][0].sequence, deadline=deadline)
        fences = {epoch: self._fences[epoch] for epoch in deciding if epoch in self._fences}
        for epoch, subject in asked.items():
            last = view.get(subject)
            if last is None:
                fences[epoch] = 0  # it never registered
            elif owner_state(last).state == RETIRED:
                fences[epoch] = self._fences[epoch] = last.sequence
        tombstone = view.get(buried)
        return (tombstone.sequence if tombstone is not None else 0), fences

    async def changes(self, after: int) -> tuple[set[tuple[str, str]], int]:
        """Return the runs with messages behind a position, and the new position; -1 asks for that alone."""
        deadline = time.monotonic() + self._timeout_s
        if after < 0:
            return set(), max(self._store.seen, await self._store.last(self._subjects.all, deadline=deadline))
        found: set[tuple[str, str]] = set()
        while page := await self._store.page(self._subjects.records, after, limit=_PAGE, deadline=deadline):
            for message in page:
                entry = recorded(message).entry
                found.add((entry.namespace, entry.run))
            after = page[-1].sequence
        return found, after

    async def runs(
        self, namespace: str, *, after: int, limit: int, finished: bool | None, holding: Sequence[tuple[str, str]]
    ) -> list[RunRow]:
        """Return a page of runs. What a run holds is found by reading it."""
        wanted = set(holding)
        rows: list[RunRow] = []
        while len(rows) < limit:
            deadline = time.monotonic() + self._timeout_s
            page = await self._store.page(self._subjects.runs_of(namespace), after, limit=_RUNS, deadline=deadline)
            if not page:
                break
            after = page[-1].sequence
            rows += [
                row
                for row, kinds in await self._rows(page)
                if (finished is None or finished == (row.finished is not None or row.pruned))
                and (not wanted or wanted & kinds)
            ]
        return rows[:limit]

    async def _rows(self, page: Sequence[Message]) -> list[tuple[RunRow, set[tuple[str, str]]]]:
        rows = await asyncio.gather(*map(self._row, page))
        return [row for row in rows if row is not None]

    async def _row(self, message: Message) -> tuple[RunRow, set[tuple[str, str]]] | None:
        listed = run_listed(message)
        records = await self.records(listed.namespace, listed.run, 0)
        if not records:
            return None  # listed, and then refused
        by_slot = {record.slot: record for record in records}
        end = by_slot.get(slots.FINISHED)
        row = RunRow(
            run=listed.run,
            began=listed.began,
            finished=end.at if end is not None else None,
            pruned=slots.TOMBSTONE in by_slot,
            position=message.sequence,
        )
        return row, {(record.kind, record.phase) for record in records}
