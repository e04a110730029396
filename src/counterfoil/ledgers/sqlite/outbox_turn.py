"""One transaction of a dispatcher's life in SQLite: ends, claims and send-rights, in as few statements as can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from counterfoil.ledgers.outbox_rows import ready_again
from counterfoil.ledgers.sqlite.engines import Connection
from counterfoil.ledgers.sqlite.outbox_lanes import settle_lane
from counterfoil.ports.outbox_store import Claim, Ending, Given, Known, LateFact, Wanted
from counterfoil.protocol import standings
from counterfoil.protocol.standings import LOOK, SEND

# Rows of one INSERT.
ROWS_MAX: Final = 64

_STATE: Final = (
    "SELECT l.accepted, b.resumed, o.retired, (SELECT group_concat(scope, char(10)) FROM counterfoil_pause)"
    " FROM counterfoil_ledger l, counterfoil_outbox b LEFT JOIN counterfoil_owner o ON o.epoch = ?"
)
_CLAIMED: Final = (
    "r.intent, i.effect_id, i.namespace, i.key, r.recipient, r.operation, r.format, i.body, r.standing,"
    " i.policy, r.lane, r.place, i.on_stuck, i.expires_at, i.generation, i.trace, r.due"
)
ATTEMPT: Final = "INSERT INTO counterfoil_attempt (intent, kind, owner, at, standing) VALUES "
SENDING: Final = "INSERT INTO counterfoil_sending (attempt, kind, owner, at) VALUES "
RECEIPT: Final = "INSERT INTO counterfoil_receipt (attempt, intent, phase, final, body, owner, at) VALUES "
READY: Final = (
    "INSERT INTO counterfoil_ready (intent, kind, recipient, operation, format, due, not_before, lane, place, state,"
    " reason, since, standing) VALUES "
)
LATE: Final = "INSERT INTO counterfoil_late_evidence (intent, attempt, claims, body, owner, at) VALUES "


def insert(connection: Connection, sql: str, rows: Sequence[Sequence[Any]], *, tail: str = "") -> tuple[int, int]:
    """Insert many rows; return how many were added and the number of the last."""
    added, last = 0, 0
    for start in range(0, len(rows), ROWS_MAX):
        page = rows[start : start + ROWS_MAX]
        row = f"({', '.join('?' * len(page[0]))})"
        more, last = connection.insert(sql + ", ".join([row] * len(page)) + tail, [v for r in page for v in r])
        added += more
    return added, last


def marks(count: int) -> str:
    """Return as many question marks, in parentheses."""
    return f"({', '.join('?' * count)})"


class SqliteTurn:
    """Works inside a write transaction.

    Args:
        connection: in the transaction.
        epoch: the life.
        now: the clock when it began.
    """

    def __init__(self, connection: Connection, epoch: str, *, now: float) -> None:
        self._connection = connection
        self._epoch = epoch
        self._now = now
        accepted, resumed, retired, paused = connection.execute(_STATE, (epoch,))[0]
        self._accepted = accepted
        self._lives: dict[str, bool] = {epoch: retired == 0}
        self.paused = frozenset(paused.split("\n") if paused else ()) | ({"*"} if accepted > resumed else frozenset())

    def answer(self, wanted: Wanted) -> Given:
        """Do all that is wanted; see `counterfoil.ports.outbox_store.OutboxStore.exchange`."""
        recorded = self._finish(wanted.endings)
        self._note(wanted.notes)
        expired = self._expire(wanted.expiring)
        granted = self._grant(wanted.rights)
        claims = self._claim(SEND, limit=wanted.sends, known=wanted.known)
        claims += self._claim(LOOK, limit=wanted.looks, known=wanted.known)
        live = self._lives[self._epoch]
        return Given(recorded=recorded, expired=expired, granted=granted, claims=claims, live=live)

    def _finish(self, endings: Sequence[Ending]) -> list[bool]:
        """Record how claims ended."""
        over = self._over([ending.claim.attempt for ending in endings])
        recorded = [
            ending.claim.attempt not in over and (ending.fact or self._may_decide(ending.claim.owner))
            for ending in endings
        ]
        now = [ending for ending, ours in zip(endings, recorded, strict=True) if ours]
        if now:
            self._record([(ending, ending.claim.attempt) for ending in now])
        for ending, ours in zip(endings, recorded, strict=True):
            if not ours and ending.fact:
                self._late(ending)
        return recorded

    def _note(self, facts: Sequence[LateFact]) -> None:
        """Keep facts that are no end."""
        rows = [(f.claim.intent, f.claim.attempt, f.claims, f.body, self._epoch, self._now) for f in facts]
        if rows:
            insert(self._connection, LATE, rows)

    def _claim(self, kind: str, *, limit: int, known: Known) -> list[Claim]:
        """Take what is due, oldest first."""
        if limit <= 0 or not self._lives[self._epoch] or "*" in self.paused:
            return []
        found: list[tuple[Any, ...]] = []
        names = [name for name in known if f"recipient:{name}" not in self.paused]
        for name in names:
            found += self._due(kind, name, operations=tuple(known[name]), limit=limit)
        if len(names) > 1:
            found = sorted(found, key=lambda row: (row[-1], row[0]))[:limit]
        return self._taken(kind, found) if found else []

    def _grant(self, claims: Sequence[Claim]) -> list[float | None]:
        """Take the send-right of claims."""
        now = self._now
        wanted = [claim for claim in claims if self._may_send(claim)]
        if not wanted:
            return [None] * len(claims)
        rows = [(claim.attempt, "grant", self._epoch, now) for claim in wanted]
        added, _ = insert(self._connection, SENDING, rows, tail=" ON CONFLICT (attempt) DO NOTHING")
        ours = {claim.attempt for claim in wanted}
        if added < len(wanted):
            ours = self._rights("grant", list(ours))
        return [now if claim.attempt in ours else None for claim in claims]

    def _expire(self, claims: Sequence[Claim]) -> list[bool]:
        """Fill the send-right of claims so that nothing is ever sent under them."""
        if not claims or not self._lives[self._epoch]:
            return [False] * len(claims)
        rows = [(claim.attempt, "expired", self._epoch, self._now) for claim in claims]
        insert(self._connection, SENDING, rows, tail=" ON CONFLICT (attempt) DO NOTHING")
        ours = self._rights("expired", [claim.attempt for claim in claims])
        return [claim.attempt in ours for claim in claims]

    def _may_send(self, claim: Claim) -> bool:
        if not self._may_decide(claim.owner) or "*" in self.paused or f"recipient:{claim.recipient}" in self.paused:
            return False
        return claim.expires_at is None or claim.standing.unsure or self._now < claim.expires_at

    def _may_decide(self, owner: str) -> bool:
        if owner not in self._lives:
            found = self._connection.execute("SELECT retired FROM counterfoil_owner WHERE epoch = ?", (owner,))
            self._lives[owner] = bool(found) and found[0][0] == 0
        return self._lives[owner]

    def _rights(self, kind: str, attempts: list[int]) -> set[int]:
        inside = marks(len(attempts))
        sql = f"SELECT attempt FROM counterfoil_sending WHERE kind = ? AND owner = ? AND attempt IN {inside}"  # noqa: S608
        return {row[0] for row in self._connection.execute(sql, (kind, self._epoch, *attempts))}

    def _over(self, attempts: list[int]) -> set[int]:
        if not attempts:
            return set()
        sql = f"SELECT attempt FROM counterfoil_receipt WHERE attempt IN {marks(len(attempts))}"  # noqa: S608
        return {row[0] for row in self._connection.execute(sql, attempts)}

    def _due(self, kind: str, recipient: str, *, operations: Sequence[str], limit: int) -> list[tuple[Any, ...]]:
        sql = (
            f"SELECT {_CLAIMED} FROM counterfoil_ready r CROSS JOIN counterfoil_intent i ON i.seq = r.intent"  # noqa: S608
            " WHERE r.kind = ? AND r.recipient = ? AND r.due <= ? AND r.format <= 1"
            f" AND r.operation IN {marks(len(operations))} ORDER BY r.due, r.intent LIMIT ?"
        )
        return self._connection.execute(sql, (kind, recipient, self._now, *operations, limit))

    def _taken(self, kind: str, found: list[tuple[Any, ...]]) -> list[Claim]:
        connection, now = self._connection, self._now
        intents = [row[0] for row in found]
        connection.execute(f"DELETE FROM counterfoil_ready WHERE intent IN {marks(len(intents))}", intents)  # noqa: S608
        counted = [standings.claimed(standings.decode(row[8]), kind, now=now) for row in found]
        rows = [(row[0], kind, self._epoch, now, standings.encode(s)) for row, s in zip(found, counted, strict=True)]
        _, last = insert(connection, ATTEMPT, rows)
        first = last - len(rows) + 1
        return [
            Claim(
                attempt=first + place,
                intent=row[0],
                owner=self._epoch,
                kind=kind,
                effect_id=row[1],
                namespace=row[2],
                key=row[3],
                recipient=row[4],
                operation=row[5],
                format=row[6],
                body=row[7],
                standing=standing,
                policy=row[9],
                lane=row[10],
                place=row[11],
                on_stuck=row[12],
                expires_at=row[13],
                restored=row[14] < self._accepted,
                trace=row[15],
            )
            for place, (row, standing) in enumerate(zip(found, counted, strict=True))
        ]

    def _record(self, ends: Sequence[tuple[Ending, int]]) -> None:
        now, connection = self._now, self._connection
        receipts = [
            (attempt, e.claim.intent, e.phase, e.requeue is None, e.body, self._epoch, now) for e, attempt in ends
        ]
        insert(connection, RECEIPT, receipts)
        again = [ready_again(e.claim, e.requeue, now=now) for e, _ in ends if e.requeue is not None]
        if again:
            insert(connection, READY, again)
        for ending in sorted(
            (e for e, _ in ends if e.claim.lane is not None), key=lambda e: (e.claim.lane, e.claim.place)
        ):
            settle_lane(connection, ending, owner=self._epoch, now=now)

    def _late(self, ending: Ending) -> None:
        """Take a fact that comes after its claim was ended by others: the outcome if there is none, else late."""
        connection, claim = self._connection, ending.claim
        last, kind, kept, final, open_ = connection.execute(
            "SELECT a.seq, a.kind, a.standing, ifnull(c.final, 0), c.attempt IS NULL FROM counterfoil_attempt a"
            " LEFT JOIN counterfoil_receipt c ON c.attempt = a.seq WHERE a.intent = ? ORDER BY a.seq DESC LIMIT 1",
            (claim.intent,),
        )[0]
        waiting = connection.execute("SELECT kind, standing FROM counterfoil_ready WHERE intent = ?", (claim.intent,))
        if waiting:
            kind, kept = waiting[0]
        speaks = ending.phase == "accepted" or (
            kind == LOOK and standings.decode(kept).sends == claim.standing.sends + 1
        )
        if final or not speaks or not (waiting or open_):
            self._note([LateFact(claim=claim, claims=ending.phase, body=ending.body)])
            return
        if waiting:
            connection.execute("DELETE FROM counterfoil_ready WHERE intent = ?", (claim.intent,))
            row = (claim.intent, "fact", self._epoch, self._now, standings.encode(claim.standing))
            _, last = insert(connection, ATTEMPT, [row])
        # Nobody sends any more under a claim whose end others have found out.
        right = (last, "revocation", self._epoch, self._now)
        insert(connection, SENDING, [right], tail=" ON CONFLICT (attempt) DO NOTHING")
        self._record([(ending, last)])
