"""Giving space back: a finished run keeps its tombstone and what it names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from counterfoil.errors import UsageError
from counterfoil.ledgers.jetstream import troubles
from counterfoil.ledgers.jetstream.messages import Recorded, encode
from counterfoil.ledgers.jetstream.reader import Reader
from counterfoil.ledgers.jetstream.store import Put, Store
from counterfoil.ledgers.jetstream.writer import Writer
from counterfoil.protocol import slots
from counterfoil.protocol.records import EVENT, Entry

_AT_ONCE: Final = 64


async def bury(
    store: Store,
    *,
    reader: Reader,
    writer: Writer,
    place: tuple[str, str],
    entries: Sequence[Entry],
    drop: Sequence[str],
    timeout_s: float,
) -> None:
    """Prune one page of a run: the tombstone, what is kept, and then the records that are dropped.

    JetStream has no transaction over messages and removals. The order makes up for it: whatever ends it, what is kept
    is there before anything goes, and pruning again goes on.

    Args:
        store: the stream.
        reader: how the run is read.
        writer: how the kept entries are written.
        place: namespace and run.
        entries: the tombstone and what is kept.
        drop: slots whose messages are removed; never the tombstone's.
        timeout_s: how long each part may take, in seconds.

    Raises:
        UsageError: the run is neither finished nor one that holds deliveries alone.
    """
    tombstone, *kept = entries
    await _tombstone(store, reader, place, tombstone=tombstone, deadline=time.monotonic() + timeout_s)
    for reply in await writer.fill(kept, kept=True):
        if isinstance(reply, BaseException):
            raise reply
    deadline = time.monotonic() + timeout_s
    doomed = [store.subjects.record(*place, slot) for slot in drop if slot != tombstone.slot]
    for start in range(0, len(doomed), _AT_ONCE):
        await asyncio.gather(*(_purge(store, subject, deadline) for subject in doomed[start : start + _AT_ONCE]))


async def _tombstone(
    store: Store, reader: Reader, place: tuple[str, str], *, tombstone: Entry, deadline: float
) -> None:
    """Write the tombstone behind the last message of the run that was looked at: nothing comes in between."""
    while True:
        messages = await reader.messages(*place, 0)
        records = await reader.records(*place, 0)
        if any(record.slot == slots.TOMBSTONE for record in records):
            return
        finished = any(record.slot == slots.FINISHED for record in records)
        if not records or not (finished or all(record.kind == EVENT for record in records)):
            raise UsageError(f"run {place[1]!r} is not finished", hint="only finished runs are pruned")
        put = Put(
            subject=store.subjects.record(*place, tombstone.slot),
            data=encode(Recorded(tombstone)),
            expected=messages[-1].sequence,
            over=store.subjects.records_of(*place),
        )
        if (await store.put(put, deadline=deadline)).sequence:
            return
        if time.monotonic() >= deadline:
            raise troubles.unavailable(f"others keep writing to run {place[1]!r}")


async def _purge(store: Store, subject: str, deadline: float) -> None:
    answer = await store.api(f"STREAM.PURGE.{store.subjects.stream}", {"filter": subject}, deadline=deadline)
    if "error" in answer:
        raise troubles.unavailable(f"a record was not removed: {answer['error'].get('description')}")
