"""One transaction of a dispatcher's life in PostgreSQL: each statement sees what was committed before it began."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from counterfoil.ledgers.outbox_rows import RESTING, counted, ready_again
from counterfoil.ledgers.postgres.connections import Connection
from counterfoil.ledgers.postgres.outbox_staging import worded
from counterfoil.ports.outbox_store import Claim, Ending, Known, LateFact
from counterfoil.protocol import standings
from counterfoil.protocol.standings import LOOK

FORMAT_MAX: Final = 1

# The owner's row is locked until the commit: nobody retires this life meanwhile (rule L7).
_STATE: Final = (
    "WITH mine AS (INSERT INTO :schema.turn (epoch, number) VALUES (%s, %s))"
    " SELECT l.accepted, b.resumed, (SELECT o.retired FROM :schema.owner o WHERE o.epoch = %s FOR SHARE),"
    " ARRAY(SELECT scope FROM :schema.pause), coalesce(%s::float8, extract(epoch FROM clock_timestamp())::float8)"
    " FROM :schema.ledger l, :schema.outbox b"
)
_RETIRED: Final = "SELECT retired FROM :schema.owner WHERE epoch = %s FOR SHARE"
_CLAIM: Final = """
WITH due AS (
    SELECT r.intent FROM :schema.ready r
    WHERE r.kind = %(kind)s AND r.recipient = %(recipient)s AND r.due >= %(low)s AND r.due <= %(now)s
        AND r.format <= %(format)s AND r.operation = ANY (%(operations)s)
    ORDER BY r.due, r.intent LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), taken AS (
    DELETE FROM :schema.ready r USING due d WHERE r.intent = d.intent RETURNING r.*
), made AS (
    INSERT INTO :schema.attempt (intent, kind, owner, at, standing)
    SELECT t.intent, t.kind, %(owner)s, %(now)s, t.standing FROM taken t ORDER BY t.due, t.intent
    RETURNING seq, intent
)
SELECT m.seq, t.intent, i.effect_id, i.namespace, i.key, t.recipient, t.operation, t.format, i.body, t.standing,
    i.policy, t.lane, t.place, i.on_stuck, i.expires_at, i.generation, i.trace, t.due
FROM made m JOIN taken t ON t.intent = m.intent JOIN :schema.intent i ON i.seq = m.intent ORDER BY m.seq
"""
_GRANT: Final = (
    "INSERT INTO :schema.sending (attempt, kind, owner, at) SELECT a, %s, %s, %s FROM unnest(%s::bigint[]) a"
    " ON CONFLICT (attempt) DO NOTHING RETURNING attempt"
)
RECEIPT: Final = (
    "INSERT INTO :schema.receipt (attempt, intent, phase, final, body, owner, at)"
    " SELECT a, i, p, f, b, %s, %s FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::bool[], %s::bytea[])"
    " u (a, i, p, f, b) ORDER BY a ON CONFLICT (attempt) DO NOTHING RETURNING attempt"
)
READY: Final = (
    "INSERT INTO :schema.ready (intent, kind, recipient, operation, format, due, not_before, lane, place, state,"
    " reason, since, standing)"
    " SELECT * FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::int[], %s::float8[], %s::float8[],"
    " %s::text[], %s::bigint[], %s::text[], %s::text[], %s::float8[], %s::bytea[])"
)
_LATE: Final = (
    "INSERT INTO :schema.late_evidence (intent, attempt, claims, body, owner, at) VALUES (%s, %s, %s, %s, %s, %s)"
)
_LAST: Final = (
    "SELECT a.seq, a.kind, a.standing, a.at, coalesce(c.final, false), c.attempt IS NULL FROM :schema.attempt a"
    " LEFT JOIN :schema.receipt c ON c.attempt = a.seq WHERE a.intent = %s ORDER BY a.seq DESC LIMIT 1"
)
_TAKE: Final = "DELETE FROM :schema.ready WHERE intent = %s RETURNING kind, standing"
ATTEMPT: Final = (
    "INSERT INTO :schema.attempt (intent, kind, owner, at, standing) VALUES (%s, %s, %s, %s, %s) RETURNING seq"
)
HEAD: Final = "SELECT at, stuck, since FROM :schema.lane_head WHERE lane = %s ORDER BY at DESC LIMIT 1"
_ADVANCE: Final = (
    "WITH past AS (DELETE FROM :schema.lane_head WHERE lane = %(lane)s AND at = %(at)s RETURNING at)"
    " INSERT INTO :schema.lane_head (lane, at) SELECT %(lane)s, %(at)s + 1 WHERE EXISTS (SELECT FROM past)"
    " OR (%(at)s = 1 AND NOT EXISTS (SELECT FROM :schema.lane_head WHERE lane = %(lane)s))"
    " ON CONFLICT DO NOTHING RETURNING at"
)
_NEXT: Final = (
    "UPDATE :schema.ready SET due = greatest(not_before, %s)"
    " WHERE lane = %s AND place = %s AND due IS NULL AND state = 'pending'"
)
_HOLD: Final = (
    "INSERT INTO :schema.lane_head (lane, at, stuck, since) SELECT %(lane)s, %(at)s, %(stuck)s, %(since)s"
    " WHERE coalesce((SELECT max(at) FROM :schema.lane_head WHERE lane = %(lane)s), 1) = %(at)s"
    " ON CONFLICT (lane, at) DO UPDATE SET stuck = excluded.stuck, since = excluded.since"
)
ACT: Final = (
    "INSERT INTO :schema.act (scope, number, name, by, reason, body, at)"
    " VALUES (%s, (SELECT count(*) + 1 FROM :schema.act WHERE scope = %s), %s, %s, %s, %s, %s)"
)


class Asking:
    """Statements on one connection, with the schema's name in them."""

    def __init__(self, connection: Connection, schema: str) -> None:
        self._connection = connection
        self._schema = schema

    def rows(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        with self._connection.cursor(binary=True) as cursor:
            cursor.execute(worded(sql, self._schema).encode(), parameters)
            return cursor.fetchall() if cursor.description is not None else []


class PostgresTurn:
    """Works inside a transaction; see `counterfoil.ports.outbox_store.Turn`.

    Args:
        asking: on the connection of the transaction.
        epoch: the life.
        number: of the transaction within the life.
        now: seconds since 1970; None: the database's clock.
        low: how far back claims look, by kind and recipient; changed by them.
    """

    def __init__(
        self, asking: Asking, epoch: str, *, number: int, now: float | None, low: dict[tuple[str, str], float]
    ) -> None:
        self._ask = asking
        self._epoch = epoch
        self._low = low
        ((accepted, resumed, retired, paused, at),) = asking.rows(_STATE, (epoch, number, epoch, now))
        self.now: float = at
        self._accepted = accepted
        self._lives: dict[str, bool] = {epoch: retired == 0}
        self.paused = frozenset(paused) | ({"*"} if accepted > resumed else frozenset())

    @property
    def live(self) -> bool:
        """Whether the life may still decide."""
        return self._lives[self._epoch]

    def finish(self, endings: Sequence[Ending]) -> list[bool]:
        """Record how claims ended."""
        if not endings:
            return []
        wanted = [ending for ending in endings if ending.fact or self._may_decide(ending.claim.owner)]
        ours = self._record([(ending, ending.claim.attempt) for ending in wanted])
        recorded = [ending.claim.attempt in ours for ending in endings]
        for ending, done in zip(endings, recorded, strict=True):
            if not done and ending.fact:
                self._late(ending)
        return recorded

    def note(self, facts: Sequence[LateFact]) -> None:
        """Keep facts that are no end."""
        for fact in facts:
            values = (fact.claim.intent, fact.claim.attempt, fact.claims, fact.body, self._epoch, self.now)
            self._ask.rows(_LATE, values)

    def claim(self, kind: str, *, limit: int, known: Known) -> list[Claim]:
        """Take what is due, oldest first."""
        if limit <= 0 or not self.live or "*" in self.paused:
            return []
        found: list[Claim] = []
        for recipient, operations in known.items():
            if len(found) < limit and f"recipient:{recipient}" not in self.paused:
                found += self._claimed(kind, recipient, (list(operations), limit - len(found)))
        return found

    def grant(self, claims: Sequence[Claim]) -> list[float | None]:
        """Take the send-right of claims: only what the insert returns may be sent."""
        ours = self._filled("grant", [claim for claim in claims if self._may_send(claim)])
        return [self.now if claim.attempt in ours else None for claim in claims]

    def expire(self, claims: Sequence[Claim]) -> list[bool]:
        """Fill the send-right of claims so that nothing is ever sent under them."""
        ours = self._filled("expired", claims) if self.live else set()
        return [claim.attempt in ours for claim in claims]

    def _filled(self, kind: str, claims: Sequence[Claim]) -> set[int]:
        if not claims:
            return set()
        attempts = sorted(claim.attempt for claim in claims)
        return {row[0] for row in self._ask.rows(_GRANT, (kind, self._epoch, self.now, attempts))}

    def _may_send(self, claim: Claim) -> bool:
        if not self._may_decide(claim.owner) or "*" in self.paused or f"recipient:{claim.recipient}" in self.paused:
            return False
        return claim.expires_at is None or claim.standing.unsure or self.now < claim.expires_at

    def _may_decide(self, owner: str) -> bool:
        if owner not in self._lives:
            found = self._ask.rows(_RETIRED, (owner,))
            self._lives[owner] = bool(found) and found[0][0] == 0
        return self._lives[owner]

    def _claimed(self, kind: str, recipient: str, what: tuple[list[str], int]) -> list[Claim]:
        low = self._low.get((kind, recipient), 0.0)
        asked = {
            "kind": kind,
            "recipient": recipient,
            "low": low,
            "now": self.now,
            "format": FORMAT_MAX,
            "operations": what[0],
            "limit": what[1],
            "owner": self._epoch,
        }
        found = self._ask.rows(_CLAIM, asked)
        if found:
            self._low[kind, recipient] = max(low, max(row[-1] for row in found) - LOW_S)
        return [self._claim_of(kind, row) for row in found]

    def _claim_of(self, kind: str, row: tuple[Any, ...]) -> Claim:
        return Claim(
            attempt=row[0],
            intent=row[1],
            owner=self._epoch,
            kind=kind,
            effect_id=row[2],
            namespace=row[3],
            key=row[4],
            recipient=row[5],
            operation=row[6],
            format=row[7],
            body=row[8],
            standing=counted(row[9], kind, at=self.now),
            policy=row[10],
            lane=row[11],
            place=row[12],
            on_stuck=row[13],
            expires_at=row[14],
            restored=row[15] < self._accepted,
            trace=row[16],
        )

    def _record(self, ends: Sequence[tuple[Ending, int]]) -> set[int]:
        """Fill the ends of claims; return those that were not filled before."""
        if not ends:
            return set()
        columns: list[list[Any]] = [[], [], [], [], []]
        for ending, attempt in ends:
            row = (attempt, ending.claim.intent, ending.phase, ending.requeue is None, ending.body)
            for column, value in zip(columns, row, strict=True):
                column.append(value)
        ours = {row[0] for row in self._ask.rows(RECEIPT, (self._epoch, self.now, *columns))}
        done = [ending for ending, attempt in ends if attempt in ours]
        requeue(self._ask, [ready_again(e.claim, e.requeue, now=self.now) for e in done if e.requeue is not None])
        for ending in sorted(
            (e for e in done if e.claim.lane is not None), key=lambda e: (e.claim.lane, e.claim.place)
        ):
            self._settle_lane(ending)
        return ours

    def _settle_lane(self, ending: Ending) -> None:
        claim, again = ending.claim, ending.requeue
        assert claim.lane is not None
        assert claim.place is not None
        resting = again is not None and again.state in RESTING
        if again is not None and not resting:
            return
        stuck = resting or ending.phase == "uncertain"
        if stuck and claim.on_stuck == "halt":
            reason = again.reason if again is not None else ending.phase
            what = {"lane": claim.lane, "at": claim.place, "stuck": reason or ending.phase, "since": self.now}
            self._ask.rows(_HOLD, what)
            return
        if stuck:
            why = f"lane {claim.lane!r} went on without it"
            said = (claim.effect_id, claim.effect_id, "skip", f"dispatcher {self._epoch}", why, b"{}", self.now)
            self._ask.rows(ACT, said)
        advance(self._ask, (claim.lane, claim.place), now=self.now)

    def _late(self, ending: Ending) -> None:
        """Take a fact that comes after its claim was ended by others: the outcome if there is none, else late."""
        claim = ending.claim
        last, kind, kept, at, final, open_ = self._ask.rows(_LAST, (claim.intent,))[0]
        standing = counted(kept, kind, at=at)
        if not final and not open_:
            for kind_, kept_ in self._ask.rows(
                "SELECT kind, standing FROM :schema.ready WHERE intent = %s", (claim.intent,)
            ):
                kind, standing = kind_, standings.decode(kept_)
        speaks = ending.phase == "accepted" or (kind == LOOK and standing.sends == claim.standing.sends + 1)
        if final or not speaks:
            self._keep(ending)
        elif open_:
            if last not in self._record([(ending, last)]):
                self._keep(ending)
        elif self._ask.rows(_TAKE, (claim.intent,)):
            row = (claim.intent, "fact", self._epoch, self.now, standings.encode(claim.standing))
            ((attempt,),) = self._ask.rows(ATTEMPT, row)
            self._record([(ending, attempt)])
        else:
            self._keep(ending)

    def _keep(self, ending: Ending) -> None:
        self.note([LateFact(claim=ending.claim, claims=ending.phase, body=ending.body)])


# How much later than it was staged an intent may commit and still be found at once; a sweep finds all others.
LOW_S: Final = 0.5


def requeue(asking: Asking, rows: Sequence[tuple[Any, ...]]) -> None:
    """Let intents wait again."""
    if rows:
        asking.rows(READY, [list(column) for column in zip(*rows, strict=True)])


def advance(asking: Asking, place: tuple[str, int], *, now: float) -> None:
    """Let the next intent of a lane be due, if this place is the head."""
    lane, at = place
    if asking.rows(_ADVANCE, {"lane": lane, "at": at}):
        asking.rows(_NEXT, (now, lane, at + 1))
