"""Between rows of the record table and records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from counterfoil.protocol.records import FORMAT, KINDS, Record

CODES: Final[Mapping[tuple[str, str], int]] = {words: code for code, words in enumerate(KINDS)}
COLUMNS: Final = "r.seq, r.slot, r.kind, r.body, coalesce(o.epoch, ''), r.append_id, r.at, r.check_sum, r.format"

_KIND_COUNT: Final = len(KINDS)


def record(row: tuple[Any, ...]) -> Record:
    """Make a record of a row; a kind or a format that this version does not know gives one of kind `unknown`."""
    seq, slot, kind, body, epoch, append_id, at, check, form = row
    word, phase = KINDS[kind] if form == FORMAT and 0 <= kind < _KIND_COUNT else ("unknown", "")
    return Record(
        position=seq,
        slot=slot,
        kind=word,
        phase=phase,
        body=body,
        epoch=epoch,
        append_id=append_id,
        at=at,
        check=check,
        format=form,
    )
