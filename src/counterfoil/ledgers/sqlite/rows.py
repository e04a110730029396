"""Between rows of the record table and records; whatever a damaged row holds, it becomes a record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from counterfoil.ledgers.sqlite.engines import Row
from counterfoil.protocol.records import FORMAT, KINDS, Record

COLUMNS: Final = "seq, slot, kind, body, owner, append_id, at, check_sum, format"
# The same columns, read in a way that no damaged text can keep from being read.
RAW_COLUMNS: Final = "seq, CAST(slot AS BLOB), kind, CAST(body AS BLOB), owner, append_id, at, check_sum, format"
CODES: Final[Mapping[tuple[str, str], int]] = {words: code for code, words in enumerate(KINDS)}
NO_OWNER: Final = 0

_KIND_COUNT: Final = len(KINDS)
_TOP: Final = 1 << 32
HALF: Final = 1 << 31


def record(row: Row, epoch_of: Callable[[Any], str]) -> Record:
    """Make a record of a row.

    A kind that this version does not know, or a newer format, gives a record of kind `unknown`. A row whose
    columns have other types than they should gives a record that fails its checksum.
    """
    seq, slot, kind, body, owner, append_id, at, check, form = row
    if (
        form == FORMAT
        and type(slot) is str
        and type(body) is bytes
        and type(kind) is int
        and 0 <= kind < _KIND_COUNT
        and type(append_id) is int
        and type(at) is float
        and type(check) is int
    ):
        word, phase = KINDS[kind]
        return Record(
            position=seq,
            slot=slot,
            kind=word,
            phase=phase,
            body=body,
            epoch=epoch_of(owner),
            append_id=append_id,
            at=at,
            check=check if check >= 0 else check + _TOP,
            format=FORMAT,
        )
    return _strange(row, epoch_of)


def _strange(row: Row, epoch_of: Callable[[Any], str]) -> Record:
    seq, slot, kind, body, owner, append_id, at, check, form = row
    newer = type(form) is int and form != FORMAT
    sound = all(type(value) is wanted for value, wanted in ((body, bytes), (append_id, int), (at, float), (check, int)))
    return Record(
        position=seq,
        slot=_text(slot),
        kind="unknown",
        phase="",
        body=body if type(body) is bytes else _text(body).encode(),
        epoch=epoch_of(owner),
        append_id=append_id if type(append_id) is int else 0,
        at=at if type(at) is float else 0.0,
        # -1 is no checksum of anything.
        check=check % _TOP if sound and (newer or type(kind) is int) else -1,
        format=form if newer else FORMAT,
    )


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
