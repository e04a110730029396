"""Giving space back: a finished run keeps its tombstone and what it names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from counterfoil.errors import UsageError
from counterfoil.ledgers.sqlite.engines import Connection
from counterfoil.ledgers.sqlite.rows import CODES
from counterfoil.ledgers.sqlite.writer import Writer
from counterfoil.ledgers.submissions import Submission
from counterfoil.protocol.records import EVENT, Entry

# No run has this id. One row under it keeps the highest position from being given out twice.
_NOWHERE: Final = 0
_PRUNABLE: Final = """
SELECT 1 FROM counterfoil_run WHERE id = ? AND (
    finished IS NOT NULL OR pruned OR NOT EXISTS (SELECT 1 FROM counterfoil_record WHERE run = ? AND kind <> ?))
"""
_VOID: Final = "UPDATE counterfoil_record SET run = 0, slot = '', body = x'' WHERE seq = ?"


def bury(
    connection: Connection,
    writer: Writer,
    *,
    place: tuple[str, str],
    entries: Sequence[Entry],
    drop: Sequence[str],
) -> None:
    """Prune one page of a run inside a transaction.

    Args:
        connection: in the transaction.
        writer: fills the slots.
        place: namespace and run.
        entries: the tombstone and what is kept.
        drop: slots whose records are deleted; never the tombstone's.

    Raises:
        UsageError: the run is neither finished nor one that holds deliveries alone.
    """
    run = writer.run_id(connection, *place)
    state = connection.execute(_PRUNABLE, (run, run, CODES[EVENT, "delivered"]))
    if run is None or not state:
        raise UsageError(f"run {place[1]!r} is not finished", hint="only finished runs are pruned")
    for reply in writer.fill(connection, [Submission(entry, settle=False) for entry in entries], keeping=True):
        if isinstance(reply, BaseException):
            raise reply
    connection.execute("DELETE FROM counterfoil_record WHERE run = 0")
    last = connection.execute("SELECT max(seq) FROM counterfoil_record")[0][0]
    for slot in drop:
        if slot != entries[0].slot:
            _drop(connection, (run, slot), last)


def _drop(connection: Connection, place: tuple[int, str], last: int) -> None:
    found = connection.execute("SELECT seq FROM counterfoil_record WHERE run = ? AND slot = ?", place)
    for (seq,) in found:
        if seq == last:
            connection.execute(_VOID, (seq,))
        else:
            connection.execute("DELETE FROM counterfoil_record WHERE seq = ?", (seq,))
