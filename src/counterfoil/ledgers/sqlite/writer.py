"""Filling slots, many with one commit.

Ids of runs and owners, who is retired and what is pruned are cached for as long as nobody else has committed
(`Transactions.view` tells). Where they are known, an append or a group of them is one statement that commits by
itself and checks in it what a transaction would have looked up first: the interpreter's lock is let go once, for the
sync too, and whoever is answered before works meanwhile. Where that does not hold it adds nothing, and the
transaction tells why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from counterfoil.errors import (
    CounterfoilError,
    LedgerUnavailable,
    OwnerRetired,
    RunPruned,
    UsageError,
)
from counterfoil.ledgers.rows import outlives_pruning
from counterfoil.ledgers.sqlite import rows, troubles
from counterfoil.ledgers.sqlite.database import SETTLED
from counterfoil.ledgers.sqlite.engines import CORRUPT, Connection, StoreError
from counterfoil.ledgers.sqlite.rows import HALF
from counterfoil.ledgers.sqlite.transactions import Transactions
from counterfoil.ledgers.submissions import Submission
from counterfoil.ports.ledger import Reply
from counterfoil.protocol.records import EFFECT, RUN, TRANSACTION, Entry, Record, record_of

# Rows of one INSERT: the interpreter's lock is released once for each statement.
ROWS_MAX: Final = 64
_RUNS_CACHED_MAX: Final = 20_000

# What a life begins no more of once a sync has failed.
_BEGINNINGS: Final = ((EFFECT, "intent"), (TRANSACTION, "committed"))

# What decides nothing about what comes behind it.
_PLAIN: Final = {words: code for words, code in rows.CODES.items() if words[0] != RUN}

# The column `retired` of an owner.
LIVE: Final = 0
RETIRED: Final = 1
STRANGER: Final = 2

_ROW: Final = "(?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT: Final = (
    "INSERT INTO counterfoil_record (run, slot, kind, body, owner, append_id, at, check_sum, format) VALUES "
)
# Only a filled slot is no error: whatever else does not fit must not pass in silence.
_INSERTS: Final = tuple(
    _INSERT + ", ".join([_ROW] * count) + " ON CONFLICT (run, slot) DO NOTHING" for count in range(ROWS_MAX + 1)
)
# Scalar look-ups, since SQLite compiles a statement anew at each use whose plan may hang on a parameter.
_GUARDED: Final = (
    "INSERT INTO counterfoil_record (run, slot, kind, body, owner, append_id, at, check_sum, format) "
    "SELECT {} WHERE (SELECT generation FROM counterfoil_ledger WHERE id = 1) = ? "
    "AND (SELECT epoch FROM counterfoil_owner WHERE id = ? AND retired = 0) = ? "
    "AND {} ON CONFLICT (run, slot) DO NOTHING"
)
_ALONE: Final = _GUARDED.format(
    "?, ?, ?, ?, ?, ?, ?, ?, ?", "(SELECT run FROM counterfoil_run WHERE id = ? AND pruned = 0) = ?"
)
# The runs come as a JSON object from ids to names; one that is not there, or is pruned, is no row.
_TOGETHER: Final = tuple(
    _GUARDED.format(
        f"* FROM (VALUES {', '.join([_ROW] * count)})",
        "(SELECT count(*) FROM json_each(?) AS told JOIN counterfoil_run AS run ON run.id = CAST(told.key AS INTEGER) "
        "WHERE run.run = told.value AND run.pruned = 0) = ?",
    )
    for count in range(1, ROWS_MAX + 1)
)
_FIND: Final = "SELECT seq FROM counterfoil_record WHERE run = ? AND slot = ?"
_FETCH: Final = f"SELECT run, {rows.COLUMNS} FROM counterfoil_record WHERE seq = ?"  # noqa: S608
_RUN: Final = "SELECT id, pruned FROM counterfoil_run WHERE namespace = ? AND run = ?"
_NEW_RUN: Final = "INSERT INTO counterfoil_run (namespace, run, began) VALUES (?, ?, ?)"
_OWNER: Final = "SELECT id, retired FROM counterfoil_owner WHERE epoch = ?"
_NEW_OWNER: Final = "INSERT INTO counterfoil_owner (epoch, label, since, retired) VALUES (?, ?, ?, ?)"

# Where a row has its owner.
_OWNER_AT: Final = 4

# What one entry can do wrong by itself; anything else is trouble for the whole transaction.
_OWN_FAULTS: Final = (UnicodeError, OverflowError, TypeError, ValueError)
_OWN_CODES: Final = troubles.OF_THE_STATEMENT | {CORRUPT}


class Writer:
    """Fills slots inside write transactions.

    Args:
        transactions: where they are run.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._view = -1
        self._namespaces: dict[str, int] = {}
        self._runs: dict[tuple[str, str], tuple[int, bool]] = {}
        self._owners: dict[str, tuple[int, int]] = {}

    def commit(self, batch: Sequence[Submission]) -> None:
        """Append a batch with one durable commit and set every reply. The caller holds the write lock.

        An error of one entry is that entry's reply and leaves the others alone.
        """
        if self._alone(batch[0]) if len(batch) == 1 else self._at_once(batch):
            return
        try:
            replies = self._transactions.run(lambda connection: self.fill(connection, batch))
        except Exception as error:  # noqa: BLE001
            for item in batch:
                item.reply = error.again() if isinstance(error, CounterfoilError) else error
        else:
            # Not before the commit: a reply that is set is an answer that its caller acts on.
            for item, reply in zip(batch, replies, strict=True):
                item.reply = reply

    def _alone(self, item: Submission) -> bool:
        """Append a lone entry as `_at_once` does a batch, with little more than the statement."""
        entry = item.entry
        row = None if item.settle else self._known(entry)
        if row is None:
            return False
        try:
            position = self._transactions.alone(_ALONE, row, guards=(row[_OWNER_AT], entry.epoch, row[0], entry.run))
        except CounterfoilError as error:
            item.reply = error
        except _OWN_FAULTS:
            return False
        else:
            if position is None:
                return False
            item.reply = record_of(entry, position)
        return True

    def _at_once(self, batch: Sequence[Submission]) -> bool:
        """Append a batch if one statement can: its runs and its owner are known, and nothing stands against it."""
        count = len(batch)
        if not 1 < count <= ROWS_MAX:
            return False
        values: list[Any] = []
        names: dict[int, str] = {}
        epoch = batch[0].entry.epoch
        for item in batch:
            entry = item.entry
            if item.settle or entry.epoch != epoch or (row := self._known(entry)) is None:
                return False
            names[row[0]] = entry.run
            values += row
        owner = (values[_OWNER_AT], epoch)
        if owner[0] == rows.NO_OWNER:
            return False
        try:
            told = (msgspec.json.encode(names).decode(), len(names))
            last = self._transactions.alone(_TOGETHER[count - 1], values, guards=(*owner, *told), count=count)
        except CounterfoilError as error:
            for item in batch:
                item.reply = error.again()
        except _OWN_FAULTS:
            return False
        else:
            if last is None:
                return False
            for place, item in enumerate(batch, last - count + 1):
                item.reply = record_of(item.entry, place)
        return True

    def fill(self, connection: Connection, batch: Sequence[Submission], *, keeping: bool = False) -> list[Reply]:
        """Fill the slots of a batch, in order, inside a transaction.

        Args:
            connection: in the transaction.
            batch: what to append.
            keeping: a pruned run takes these too: they are what it keeps.
        """
        self._refresh()
        replies: list[Reply] = []
        waiting: list[Entry] = []
        values: list[Any] = []

        def flush() -> None:
            if waiting:
                replies.extend(self._insert(connection, values, waiting))
                waiting.clear()
                values.clear()

        sound = not self._transactions.sync_failed
        for item in batch:
            entry = item.entry
            row = self._known(entry) if sound else None
            if row is not None:
                waiting.append(entry)
                values.extend(row)
                if len(waiting) == ROWS_MAX:
                    flush()
                continue
            admitted = self._admit(connection, entry, keeping=keeping)
            if waiting and not isinstance(admitted, tuple):
                flush()
                # A slot that this very batch has filled answers before a refusal does.
                admitted = self._admit(connection, entry, keeping=keeping)
            if not isinstance(admitted, tuple):
                replies.append(admitted)
                continue
            waiting.append(entry)
            values.extend(admitted)
            if len(waiting) == ROWS_MAX or entry.kind == RUN:
                flush()
            if entry.kind == RUN:  # it decides about what comes behind it
                self._mark(connection, entry, replies[-1])
        flush()
        for item in batch:
            if item.settle:
                connection.execute(SETTLED)  # the answer must wait for a commit of its own
                break
        return replies

    def standing(self, connection: Connection, entry: Entry) -> Reply | None:
        """Return what an append would answer before it inserts: the record in the slot, a refusal, or None."""
        self._refresh()
        run = self._run(connection, (entry.namespace, entry.run))
        if run is not None and run[1]:
            return RunPruned(f"run {entry.run!r} was pruned")
        found = None if run is None else self._found(connection, run[0], entry)
        return found or self._refusal(entry, self._owner(connection, entry.epoch))

    def run_id(self, connection: Connection, namespace: str, run: str) -> int | None:
        """Return the id of a run, None if it has none."""
        self._refresh()
        found = self._run(connection, (namespace, run))
        return None if found is None else found[0]

    def _refresh(self) -> None:
        view = self._transactions.view
        if self._view != view or len(self._runs) > _RUNS_CACHED_MAX:
            self._namespaces.clear()
            self._runs.clear()
            self._owners.clear()
            self._owners[""] = (rows.NO_OWNER, LIVE)
            self._view = view

    def _known(self, entry: Entry) -> tuple[Any, ...] | None:
        """Return the values of a row that nothing stands against, where that is seen without a look-up."""
        try:
            run, pruned = self._runs[entry.namespace, entry.run]
            owner, state = self._owners[entry.epoch]
            code = _PLAIN[entry.kind, entry.phase]
            if pruned or state != LIVE or not math.isfinite(entry.at):
                return None
            return _row(entry, run, code=code, owner=owner)
        except (KeyError, *_OWN_FAULTS):
            return None

    def _admit(self, connection: Connection, entry: Entry, *, keeping: bool) -> Reply | tuple[Any, ...]:
        """Return the values of the row to insert, or the reply if there is one without that."""
        try:
            run = self._run(connection, (entry.namespace, entry.run))
            if run is not None and run[1] and not keeping and not outlives_pruning(entry):
                return RunPruned(f"run {entry.run!r} was pruned")
            owner = self._owners.get(entry.epoch) or self._owner(connection, entry.epoch)
            refusal = self._refusal(entry, owner)
            if refusal is not None:
                # A filled slot answers first, whoever asks.
                return (run and self._found(connection, run[0], entry)) or refusal
            code = rows.CODES.get((entry.kind, entry.phase))
            if code is None or not math.isfinite(entry.at):
                return UsageError(f"no record: {entry.kind} {entry.phase} at {entry.at}")
            run = run or self._new_run(connection, entry)
            owner = owner or self._stranger(connection, entry)
            return _row(entry, run[0], code=code, owner=owner[0])
        except (StoreError, *_OWN_FAULTS) as error:
            if _belongs_to_all(connection, error):
                raise
            return _own_error(entry, error)

    def _refusal(self, entry: Entry, owner: tuple[int, int] | None) -> CounterfoilError | None:
        if entry.decision and (owner is None or owner[1] != LIVE):
            return OwnerRetired(f"owner {entry.epoch} is retired")
        stopped = self._transactions.sync_failed
        if stopped and (entry.kind, entry.phase) in _BEGINNINGS:
            return LedgerUnavailable(
                "a sync of the ledger failed in this life, so it starts no further effect",
                code="sync-failed",
                hint="check the disk, then start the process again",
                effect_ran="no",
            )
        return None

    def _insert(self, connection: Connection, values: Sequence[Any], entries: Sequence[Entry]) -> list[Reply]:
        count = len(entries)
        try:
            added, last = connection.insert(_INSERTS[count], values)
        except (StoreError, *_OWN_FAULTS) as error:
            if _belongs_to_all(connection, error):
                raise
            if count == 1:
                return [_own_error(entries[0], error)]
            width = len(values) // count
            return [
                self._insert(connection, values[place * width : (place + 1) * width], [entry])[0]
                for place, entry in enumerate(entries)
            ]
        if added == count:
            first = last - count + 1
            return [record_of(entry, first + place) for place, entry in enumerate(entries)]
        width = len(values) // count
        return [
            self._found(connection, values[place * width], entry)
            or troubles.corrupt(f"slot {entry.slot!r} is filled, but not to be found")
            for place, entry in enumerate(entries)
        ]

    def _found(self, connection: Connection, run: int, entry: Entry) -> Reply | None:
        """Return the record in a slot, read from the table and not from the index that led to it."""
        try:
            for (seq,) in connection.execute(_FIND, (run, entry.slot)):
                for in_run, *row in connection.execute(_FETCH, (seq,)):
                    if in_run == run and row[1] == entry.slot:
                        return rows.record(tuple(row), lambda owner: self._epoch(connection, owner))
                return troubles.corrupt(f"slot {entry.slot!r} leads to another record")
        except (StoreError, UnicodeDecodeError) as error:
            if isinstance(error, StoreError) and error.code != CORRUPT:
                raise
            return troubles.corrupt(error)
        return None

    def _run(self, connection: Connection, name: tuple[str, str]) -> tuple[int, bool] | None:
        known = self._runs.get(name)
        if known is None:
            namespace = self._namespace(connection, name[0])
            for run, pruned in connection.execute(_RUN, (namespace, name[1])):
                known = self._runs[name] = (run, bool(pruned))
        return known

    def _new_run(self, connection: Connection, entry: Entry) -> tuple[int, bool]:
        namespace = self._namespaces.get(entry.namespace, -1)
        if namespace < 0:
            _, namespace = connection.insert("INSERT INTO counterfoil_namespace (name) VALUES (?)", (entry.namespace,))
            self._namespaces[entry.namespace] = namespace
        _, run = connection.insert(_NEW_RUN, (namespace, entry.run, entry.at))
        self._runs[entry.namespace, entry.run] = (run, False)
        return run, False

    def _namespace(self, connection: Connection, name: str) -> int:
        known = self._namespaces.get(name, -1)
        if known < 0:
            found = connection.execute("SELECT id FROM counterfoil_namespace WHERE name = ?", (name,))
            if found:
                known = self._namespaces[name] = found[0][0]
        return known

    def _owner(self, connection: Connection, epoch: str) -> tuple[int, int] | None:
        for owner, retired in connection.execute(_OWNER, (epoch,)):
            self._owners[epoch] = (owner, retired)
            return owner, retired
        return None

    def _stranger(self, connection: Connection, entry: Entry) -> tuple[int, int]:
        # A host without owners of ours, or a life from elsewhere: it may state facts.
        values = (entry.epoch, "", entry.at, STRANGER)
        _, owner = connection.insert(_NEW_OWNER, values)
        self._owners[entry.epoch] = (owner, STRANGER)
        return owner, STRANGER

    def _epoch(self, connection: Connection, owner: Any) -> str:
        if owner == rows.NO_OWNER:
            return ""
        found = connection.execute("SELECT epoch FROM counterfoil_owner WHERE id = ?", (owner,))
        return str(found[0][0]) if found else "?"

    def _mark(self, connection: Connection, entry: Entry, reply: Reply) -> None:
        """Keep in the run's own row that it is finished or pruned."""
        ours = isinstance(reply, Record) and (reply.epoch, reply.append_id) == (
            entry.epoch,
            entry.append_id,
        )
        if ours and entry.phase in ("finished", "tombstone"):
            run = self._runs[entry.namespace, entry.run][0]
            mark = "finished" if entry.phase == "finished" else "pruned"
            value = entry.at if entry.phase == "finished" else 1
            connection.execute(f"UPDATE counterfoil_run SET {mark} = ? WHERE id = ?", (value, run))  # noqa: S608
            if mark == "pruned":
                self._runs[entry.namespace, entry.run] = (run, True)


def _row(entry: Entry, run: int, *, code: int, owner: int) -> tuple[Any, ...]:
    # Of 32 bits, in the signed range, which SQLite stores in fewer bytes.
    check = (entry.check ^ HALF) - HALF
    return run, entry.slot, code, entry.body, owner, entry.append_id, entry.at, check, entry.format


def _belongs_to_all(connection: Connection, error: Exception) -> bool:
    if isinstance(error, StoreError) and error.code not in _OWN_CODES:
        return True
    return not connection.in_transaction()


def _own_error(entry: Entry, error: Exception) -> CounterfoilError:
    if isinstance(error, StoreError) and error.code == CORRUPT:
        return troubles.corrupt(error)
    return UsageError(f"slot {entry.slot!r} cannot be recorded: {error}")
