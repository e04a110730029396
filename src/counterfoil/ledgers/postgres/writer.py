"""Filling slots, many with one commit and one round trip."""

from __future__ import annotations

import math
import random
import struct
import time
from collections.abc import Sequence
from typing import Final

import psycopg
from psycopg.pq.abc import PGresult

from counterfoil.errors import (
    CounterfoilError,
    LedgerError,
    LedgerReadOnly,
    OwnerRetired,
    RunPruned,
    UsageError,
)
from counterfoil.ledgers.postgres import names, troubles, wire
from counterfoil.ledgers.postgres.connections import Connection
from counterfoil.ledgers.postgres.pool import Pool
from counterfoil.ledgers.postgres.rows import CODES, record
from counterfoil.ledgers.postgres.wire import BOOL, BYTEA, FLOAT8, INT2, INT4, INT8, TEXT
from counterfoil.ledgers.submissions import Submission
from counterfoil.ports.ledger import Reply
from counterfoil.protocol.records import RUN, Entry, record_of

# One entry can fill one page of the answer; a batch stays well below what the server's lock table holds.
ENTRIES_MAX: Final = 256
_TRIES: Final = 6
# The server gives up waiting for a lock before we give up waiting for the server, and its answer is definite. It is
# short, for other runs wait behind it.
LOCK_S: Final = 2.0
_LOCK_SHARE: Final = 0.7
_IMPATIENT: Final = -0.001
_PAUSE_S: Final = 0.01
_TOMBSTONE: Final = CODES[RUN, "tombstone"]
_ARRAYS: Final = (TEXT, TEXT, TEXT, INT2, INT2, TEXT, INT2, BYTEA, INT8, FLOAT8, INT8, INT2, BOOL)
_TYPES: Final = (INT4, BOOL, *(wire.ARRAY_OF[kind] for kind in _ARRAYS))
_ONE: Final = (INT4, TEXT, TEXT, TEXT, BOOL, TEXT, INT2, BYTEA, INT8, FLOAT8, INT8, INT2)
_FOUND, _PRUNED, _RETIRED, _RESTORED, _BUSY = 1, 2, 3, 4, 5


class Writer:
    """Fills slots.

    Args:
        pool: where connections are taken from.
        schema: the ledger's schema.
    """

    def __init__(self, pool: Pool, schema: str) -> None:
        self._pool = pool
        self._question = question(schema)
        self._question_of_one = _called(schema, "SELECT {}.append_one({})", _ONE)
        self._lock_s = min(LOCK_S, _LOCK_SHARE * pool.timeout_s)

    def commit(self, batch: Sequence[Submission]) -> None:
        """Append a batch with one durable commit and set every reply.

        An error of one entry is that entry's reply and leaves the others alone. A tombstone decides about what comes
        behind it, so a commit ends with it.
        """
        part: list[Submission] = []
        for item in batch:
            if (fault := fault_of(item.entry)) is not None:
                item.reply = fault
                continue
            part.append(item)
            if len(part) == ENTRIES_MAX or (item.entry.kind == RUN and item.entry.phase == "tombstone"):
                self._commit(part)
                part = []
        if part:
            self._commit(part)

    def _commit(self, items: list[Submission]) -> None:
        runs = _by_run(items) if len(items) > 1 else []
        try:
            self._reply(items, patience_s=_IMPATIENT if len(runs) > 1 else self._lock_s)
        except psycopg.Error as error:
            if len(items) == 1:
                items[0].reply = troubles.refused(error)
                return
            for item in items:
                self._commit([item])
            return
        if len(runs) > 1:
            # Somebody else has locked these runs: nobody but they wait for him.
            for waiting in runs:
                if any(item.reply is None for item in waiting):
                    self._commit(waiting)

    def _reply(self, items: list[Submission], *, patience_s: float) -> None:
        """Append in one transaction and set the replies, except for runs that somebody else has locked.

        Raises:
            psycopg.Error: the server does not take one of them; nothing was recorded.
        """
        try:
            answers = self._answers([item.entry for item in items], patience_s)
        except LedgerError as error:
            for item in items:
                item.reply = error.again()
        else:
            for item, answer in zip(items, answers, strict=True):
                item.reply = answer

    def _answers(self, entries: Sequence[Entry], patience_s: float) -> list[Reply | None]:
        tries = 0
        while True:
            tries += 1
            with self._pool.take() as connection:
                try:
                    answers = self._asked(connection, entries, patience_s)
                except psycopg.Error as error:
                    if not connection.idle:
                        raise troubles.lost(error) from error
                    if troubles.of_one_entry(error):
                        raise
                    if error.sqlstate not in troubles.AGAIN or tries == _TRIES:
                        raise troubles.said(error) from error
                else:
                    if connection.wait_cancelled:
                        raise troubles.not_awaited()
                    return answers
            time.sleep(_PAUSE_S * tries * random.uniform(0.5, 2))  # noqa: S311

    def _asked(self, connection: Connection, entries: Sequence[Entry], patience_s: float) -> list[Reply | None]:
        if len(entries) == 1 and (position := self._one(connection, entries[0], patience_s)):
            return [record_of(entries[0], position)]
        answer = ask(connection, self._question, entries, patience_s=patience_s, often=True)
        return [None if _passed_over(answer, row) else _reply(answer, row, entry) for row, entry in enumerate(entries)]

    def _one(self, connection: Connection, entry: Entry, patience_s: float) -> int:
        """Fill one slot in the cheapest way; 0: it was not filled, and the other way finds out why."""
        code = CODES[entry.kind, entry.phase]
        if code == _TOMBSTONE or entry.epoch == "":
            return 0
        values = (
            wire.integer(int(patience_s * 1000)),
            entry.namespace.encode(),
            entry.run.encode(),
            entry.epoch.encode(),
            wire.boolean(entry.decision),
            entry.slot.encode(),
            wire.small(code),
            entry.body,
            wire.big(entry.append_id),
            wire.double(entry.at),
            wire.big(entry.check),
            wire.small(entry.format),
        )
        return wire.whole(connection.ask(self._question_of_one, values, _ONE, often=True).get_value(0, 0))


def _by_run(items: list[Submission]) -> list[list[Submission]]:
    runs: dict[tuple[str, str], list[Submission]] = {}
    for item in items:
        runs.setdefault((item.entry.namespace, item.entry.run), []).append(item)
    return list(runs.values())


def question(schema: str) -> bytes:
    """Return the statement that appends; its one row for each entry goes to `replies`."""
    return _called(schema, "SELECT * FROM {}.append({})", _TYPES)


def _called(schema: str, call: str, types: Sequence[int]) -> bytes:
    parameters = ", ".join(f"${number}" for number in range(1, len(types) + 1))
    return call.format(names.quoted(schema), parameters).encode()


def ask(
    connection: Connection,
    statement: bytes,
    entries: Sequence[Entry],
    *,
    patience_s: float,
    keeping: bool = False,
    often: bool = False,
) -> PGresult:
    """Append entries on a connection, in its transaction if it has one open.

    Args:
        connection: where.
        statement: what `question` returned.
        entries: those for which `fault_of` finds nothing.
        patience_s: how long to wait for another transaction's lock, in seconds; 0: as the connection is set; negative:
            pass over the runs that somebody else has locked.
        keeping: a pruned run takes these too: they are what it keeps.
        often: see `Connection.ask`.
    """
    runs = sorted({(entry.namespace, entry.run) for entry in entries})
    places = {run: number for number, run in enumerate(runs, start=1)}
    owners: dict[str, int] = {}
    for entry in entries:
        owners.setdefault(entry.epoch, len(owners) + 1)
    values = (
        wire.integer(int(patience_s * 1000)),
        wire.boolean(keeping),
        wire.strings(TEXT, [namespace.encode() for namespace, _ in runs]),
        wire.strings(TEXT, [run.encode() for _, run in runs]),
        wire.strings(TEXT, [epoch.encode() for epoch in owners]),
        wire.array(INT2, [places[entry.namespace, entry.run] for entry in entries]),
        wire.array(INT2, [owners[entry.epoch] for entry in entries]),
        wire.strings(TEXT, [entry.slot.encode() for entry in entries]),
        wire.array(INT2, [CODES[entry.kind, entry.phase] for entry in entries]),
        wire.strings(BYTEA, [entry.body for entry in entries]),
        wire.array(INT8, [entry.append_id for entry in entries]),
        wire.array(FLOAT8, [entry.at for entry in entries]),
        wire.array(INT8, [entry.check for entry in entries]),
        wire.array(INT2, [entry.format for entry in entries]),
        wire.array(BOOL, [entry.decision for entry in entries]),
    )
    return connection.ask(statement, values, _TYPES, often=often)


def replies(answer: PGresult, entries: Sequence[Entry]) -> list[Reply]:
    """Make a reply of each row; not where `patience_s` was negative."""
    return [_reply(answer, number, entry) for number, entry in enumerate(entries)]


def _passed_over(answer: PGresult, row: int) -> bool:
    return wire.whole(answer.get_value(row, 0)) == _BUSY


def _reply(answer: PGresult, row: int, entry: Entry) -> Reply:
    value = answer.get_value
    verdict = wire.whole(value(row, 0))
    if verdict == 0:
        return record_of(entry, wire.whole(value(row, 1)))
    if verdict == _FOUND:
        return record(
            (
                wire.whole(value(row, 1)),
                entry.slot,
                wire.whole(value(row, 2)),
                value(row, 3) or b"",
                (value(row, 4) or b"").decode(),
                wire.whole(value(row, 5)),
                wire.real(value(row, 6)),
                wire.whole(value(row, 7)),
                wire.whole(value(row, 8)),
            )
        )
    return refusal(verdict, entry)


def refusal(verdict: int, entry: Entry) -> CounterfoilError:
    """Make the error for a verdict against an entry."""
    if verdict == _PRUNED:
        return RunPruned(f"run {entry.run!r} was pruned")
    if verdict == _RETIRED:
        return OwnerRetired(f"owner {entry.epoch} is retired")
    return restored("another server, or another timeline, has it now")


def restored(why: str) -> LedgerReadOnly:
    """Make the error for a ledger that a person must accept first."""
    return LedgerReadOnly(
        f"this ledger went back in time: {why}",
        code="ledger-restored",
        hint="look at what was lost, then run `counterfoil accept-restore --by YOU --reason WHY`",
    )


def fault_of(entry: Entry) -> UsageError | None:
    """Say what keeps an entry from being recorded anywhere, before it is sent."""
    try:
        texts = (entry.namespace.encode(), entry.run.encode(), entry.slot.encode(), entry.epoch.encode())
        struct.pack(">qqh", entry.append_id, entry.check, entry.format)
    except (UnicodeError, struct.error) as error:
        return UsageError(f"slot {entry.slot!r} cannot be recorded: {error}")
    if b"\0" in b"".join(texts):
        return UsageError(f"slot {entry.slot!r} cannot be recorded: a name has a NUL")
    if (entry.kind, entry.phase) not in CODES or not math.isfinite(entry.at):
        return UsageError(f"no record: {entry.kind} {entry.phase} at {entry.at}")
    return None
