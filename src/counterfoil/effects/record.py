"""Recording: an append whose end is unknown is settled by appending the same entry again (rule L3)."""

from __future__ import annotations

from typing import Final

from counterfoil.errors import CommitUnknown, LedgerUnavailable
from counterfoil.protocol.records import Draft, Entry
from counterfoil.protocol.requests import Append, Filled, Now, Pause

SETTLE_S: Final = 30.0
# Twice as long each time: a store that is down for long is not kept down by those who wait for it.
_PAUSE_S: Final = 0.05
_PAUSE_MAX_S: Final = 1.0


async def record(draft: Draft, *, settle: Entry | None = None) -> Filled:
    """Fill a slot or learn who filled it; the answer is durable.

    Raises:
        CommitUnknown: no definite answer within 30 s; its `entry` settles it later.
        LedgerError: definite, nothing was recorded.
    """
    if settle is None:
        try:
            return await Append(draft)
        except CommitUnknown as lost:
            settle = entry_of(lost)
            unknown = lost
    else:
        unknown = CommitUnknown("the end of an earlier append is still unknown", effect_ran="no")
        unknown.entry = settle  # type: ignore[attr-defined]
    return await insist(draft, settle, unknown)


async def insist(draft: Draft, settle: Entry | None, unknown: CommitUnknown) -> Filled:
    """Append until there is a definite answer: what was refused now says nothing about an earlier commit.

    Args:
        draft: what to record.
        settle: an earlier append of it whose end is unknown.
        unknown: what is raised if no answer comes within 30 s.
    """
    deadline = (await Now()).mono + SETTLE_S
    pause_s = _PAUSE_S
    while True:
        try:
            filled = await Append(draft, settle)
        except LedgerUnavailable as again:
            if settle is None and isinstance(again, CommitUnknown):
                settle = entry_of(again)
            if (await Now()).mono >= deadline:
                raise unknown from again
        else:
            return Filled(filled.record, filled.ours, settled=True)
        await Pause(pause_s, changes=False, idle=False)
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)


def entry_of(lost: CommitUnknown) -> Entry:
    """Return the entry whose end is unknown."""
    entry = getattr(lost, "entry", None)
    if not isinstance(entry, Entry):
        raise TypeError("a driver must set `entry` on CommitUnknown") from lost
    return entry
