"""One transaction of a dispatcher's life in PostgreSQL: each statement sees what was committed before it began.

The schema's function `dispatch` does what most rounds need in one round trip. What must happen in between, where an end
lets something else go on, takes two of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from psycopg.adapt import Transformer

from counterfoil.ledgers.outbox_rows import HOLD, SKIP, WAIT, counted, lane_after, ready_again
from counterfoil.ledgers.postgres import wire
from counterfoil.ledgers.postgres.connections import Connection
from counterfoil.ledgers.postgres.outbox_staging import worded
from counterfoil.ledgers.postgres.wire import ARRAY_OF, BOOL, BYTEA, FLOAT8, INT4, INT8, TEXT
from counterfoil.ports.outbox_store import Claim, Ending, Given, LateFact, Wanted
from counterfoil.protocol import standings
from counterfoil.protocol.standings import LOOK, SEND, Standing

FORMAT_MAX: Final = 1

_ENDS: Final = (INT8, INT8, TEXT, BOOL, BYTEA, BOOL)
_CLAIMS: Final = (TEXT, TEXT, TEXT, FLOAT8, INT4)
_RIGHTS: Final = (INT8, INT4, FLOAT8, TEXT)
_TYPES: Final = (
    *(TEXT, INT8, FLOAT8),
    *(ARRAY_OF[kind] for kind in (*_ENDS, *_CLAIMS)),
    INT4,
    *(ARRAY_OF[kind] for kind in _RIGHTS),
)
_DISPATCH: Final = f"SELECT * FROM :schema.dispatch({', '.join(f'${place}' for place in range(1, len(_TYPES) + 1))})"  # noqa: S608
# Where the columns of a claim begin; those before them stand in the first row.
_CLAIMED: Final = 6
_NOTHING: Final = Wanted()
_EXPIRE: Final = (
    "INSERT INTO :schema.sending (attempt, kind, owner, at) SELECT a, 'expired', %s, %s FROM unnest(%s::bigint[]) a"
    " ON CONFLICT (attempt) DO NOTHING RETURNING attempt"
)
# Nobody sends any more under a claim whose end others have found out.
_CLOSE: Final = (
    "INSERT INTO :schema.sending (attempt, kind, owner, at) VALUES (%s, 'revocation', %s, %s) ON CONFLICT DO NOTHING"
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
_ADVANCE: Final = "SELECT :schema.advance(%s::text[], %s::bigint[], %s)::text"
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

    def often(
        self, sql: str, values: Sequence[bytes | None], types: Sequence[int], *, meanwhile: Callable[[], None]
    ) -> list[tuple[Any, ...]]:
        """Run a statement that is run again and again, with parameters in the server's own format."""
        question = worded(sql, self._schema).encode()
        answer = self._connection.ask(question, values, types, often=True, meanwhile=meanwhile)
        transformer = Transformer(self._connection)
        transformer.set_pgresult(answer)
        return transformer.load_rows(0, answer.ntuples, tuple)


class PostgresTurn:
    """Works inside a transaction.

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
        self._number: int | None = number
        self._first = number
        self._moment = now
        self._low = low
        self._live = False
        self.now = 0.0

    def answer(self, wanted: Wanted, *, meanwhile: Callable[[], None]) -> Given:
        """Do all that is wanted; see `counterfoil.ports.outbox_store.OutboxStore.exchange`."""
        first = wanted.endings if wanted.notes or wanted.expiring or any(map(_lets_go, wanted.endings)) else None
        if first is not None:
            ours, _, _ = self._round(first, _NOTHING, meanwhile=meanwhile)
            recorded = self._ended(first, ours)
            self._note(wanted.notes)
            expired = self._expired(wanted.expiring)
            _, granted, claims = self._round((), wanted, meanwhile=meanwhile)
        else:
            ours, granted, claims = self._round(wanted.endings, wanted, meanwhile=meanwhile)
            recorded, expired = self._ended(wanted.endings, ours), []
        at = [self.now if claim.attempt in granted else None for claim in wanted.rights]
        return Given(recorded=recorded, claims=claims, expired=expired, granted=at, live=self._live)

    def _round(
        self, endings: Sequence[Ending], wanted: Wanted, *, meanwhile: Callable[[], None]
    ) -> tuple[set[int], set[int], list[Claim]]:
        """Return the claims that are ended now, those whose send-right was had, and new ones."""
        number, self._number = self._number, None
        values = (
            self._epoch.encode(),
            None if number is None else wire.big(number),
            None if self._moment is None else wire.double(self._moment),
            *self._ends(endings),
            *self._due(wanted),
            wire.integer(FORMAT_MAX),
            *self._rights(wanted.rights),
        )
        said, *found = self._ask.often(_DISPATCH, values, _TYPES, meanwhile=meanwhile)
        self.now, accepted, self._live, _, recorded, granted, *_ = said
        counted_first: dict[str, Standing] = {}
        claims = [self._claim_of(row[_CLAIMED:], accepted, counted_first) for row in found]
        return set(recorded or ()), set(granted or ()), claims

    def _ends(self, endings: Sequence[Ending]) -> tuple[bytes, ...]:
        # Claims of an earlier life are nobody's any more: of these only facts count.
        facts = [ending.fact or ending.claim.owner == self._epoch for ending in endings]
        endings = [ending for ending, counts in zip(endings, facts, strict=True) if counts]
        return (
            wire.array(INT8, [ending.claim.attempt for ending in endings]),
            wire.array(INT8, [ending.claim.intent for ending in endings]),
            wire.strings(TEXT, [ending.phase.encode() for ending in endings]),
            wire.array(BOOL, [ending.requeue is None for ending in endings]),
            wire.strings(BYTEA, [ending.body for ending in endings]),
            wire.array(BOOL, [ending.fact for ending in endings]),
        )

    def _due(self, wanted: Wanted) -> tuple[bytes, ...]:
        rooms = [(kind, room) for kind, room in ((SEND, wanted.sends), (LOOK, wanted.looks)) if room > 0]
        names = list(wanted.known)
        # Each comes first in its turn, so that none takes all the room for ever.
        at = self._first % len(names) if names else 0
        asked = [(kind, name, room) for kind, room in rooms for name in names[at:] + names[:at]]
        return (
            wire.strings(TEXT, [kind.encode() for kind, _, _ in asked]),
            wire.strings(TEXT, [name.encode() for _, name, _ in asked]),
            wire.strings(TEXT, ["\n".join(wanted.known[name]).encode() for _, name, _ in asked]),
            wire.array(FLOAT8, [self._low.get((kind, name), 0.0) for kind, name, _ in asked]),
            wire.array(INT4, [room for _, _, room in asked]),
        )

    def _rights(self, claims: Sequence[Claim]) -> tuple[bytes, ...]:
        ours = [claim for claim in claims if claim.owner == self._epoch]
        places: dict[str, int] = {}
        for claim in ours:
            places.setdefault(claim.recipient, len(places) + 1)
        return (
            wire.array(INT8, [claim.attempt for claim in ours]),
            wire.array(INT4, [places[claim.recipient] for claim in ours]),
            wire.array(FLOAT8, [_until(claim) for claim in ours]),
            wire.strings(TEXT, [f"recipient:{name}".encode() for name in places]),
        )

    def _claim_of(self, row: tuple[Any, ...], accepted: int, first: dict[str, Standing]) -> Claim:
        kind, recipient, due, kept = row[1], row[8], row[2], row[3]
        asked = (kind, recipient)
        self._low[asked] = max(self._low.get(asked, 0.0), due - LOW_S)
        standing = first.get(kind) if kept is None else None
        if standing is None:
            standing = counted(kept, kind, at=self.now)
            if kept is None:
                first[kind] = standing
        return Claim(
            attempt=row[0],
            intent=row[4],
            owner=self._epoch,
            kind=kind,
            effect_id=row[5],
            namespace=row[6],
            key=row[7],
            recipient=recipient,
            operation=row[9],
            format=row[10],
            body=row[11],
            standing=standing,
            policy=row[12],
            lane=row[13],
            place=row[14],
            on_stuck=row[15],
            expires_at=row[16],
            restored=row[17] < accepted,
            trace=row[18],
        )

    def _ended(self, endings: Sequence[Ending], ours: set[int]) -> list[bool]:
        """Let go on what the ends that were recorded let go on, and keep the facts that came too late."""
        self._let_go([ending for ending in endings if ending.claim.attempt in ours])
        recorded = [ending.claim.attempt in ours for ending in endings]
        for ending, done in zip(endings, recorded, strict=True):
            if not done and ending.fact:
                self._late(ending)
        return recorded

    def _note(self, facts: Sequence[LateFact]) -> None:
        for fact in facts:
            values = (fact.claim.intent, fact.claim.attempt, fact.claims, fact.body, self._epoch, self.now)
            self._ask.rows(_LATE, values)

    def _expired(self, claims: Sequence[Claim]) -> list[bool]:
        """Fill the send-right of claims so that nothing is ever sent under them."""
        ours: set[int] = set()
        if claims and self._live:
            attempts = sorted(claim.attempt for claim in claims)
            ours = {row[0] for row in self._ask.rows(_EXPIRE, (self._epoch, self.now, attempts))}
        return [claim.attempt in ours for claim in claims]

    def _record(self, ending: Ending, attempt: int) -> bool:
        """Record a fact as the end of a claim, its own or another one; False if that has ended already."""
        self._ask.rows(_CLOSE, (attempt, self._epoch, self.now))
        row = ([attempt], [ending.claim.intent], [ending.phase], [ending.requeue is None], [ending.body])
        if not self._ask.rows(RECEIPT, (self._epoch, self.now, *row)):
            return False
        self._let_go([ending])
        return True

    def _let_go(self, done: Sequence[Ending]) -> None:
        requeue(self._ask, [ready_again(e.claim, e.requeue, now=self.now) for e in done if e.requeue is not None])
        self._settle_lanes(
            sorted((e for e in done if e.claim.lane is not None), key=lambda e: (e.claim.lane, e.claim.place))
        )

    def _settle_lanes(self, endings: Sequence[Ending]) -> None:
        """Let lanes go on or stand still, in their order: whoever locks several heads locks them in that."""
        going: list[tuple[str, int]] = []
        for ending in endings:
            claim = ending.claim
            assert claim.lane is not None
            assert claim.place is not None
            step, why = lane_after(ending)
            if step == WAIT:
                continue
            if step == HOLD:
                advance(self._ask, going, now=self.now)
                going = []
                self._ask.rows(_HOLD, {"lane": claim.lane, "at": claim.place, "stuck": why, "since": self.now})
                continue
            if step == SKIP:
                said = (claim.effect_id, claim.effect_id, "skip", f"dispatcher {self._epoch}", why, b"{}", self.now)
                self._ask.rows(ACT, said)
            going.append((claim.lane, claim.place))
        advance(self._ask, going, now=self.now)

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
            if not self._record(ending, last):
                self._keep(ending)
        elif self._ask.rows(_TAKE, (claim.intent,)):
            row = (claim.intent, "fact", self._epoch, self.now, standings.encode(claim.standing))
            ((attempt,),) = self._ask.rows(ATTEMPT, row)
            self._record(ending, attempt)
        else:
            self._keep(ending)

    def _keep(self, ending: Ending) -> None:
        self._note([LateFact(claim=ending.claim, claims=ending.phase, body=ending.body)])


# How much later than it was staged an intent may commit and still be found at once; a sweep finds all others.
LOW_S: Final = 0.5


def _lets_go(ending: Ending) -> bool:
    """Say whether something else goes on when a claim has ended so."""
    return ending.requeue is not None or ending.claim.lane is not None


def _until(claim: Claim) -> float:
    """Return until when the send-right may be had: what may have been sent never expires."""
    return math.inf if claim.expires_at is None or claim.standing.unsure else claim.expires_at


def requeue(asking: Asking, rows: Sequence[tuple[Any, ...]]) -> None:
    """Let intents wait again."""
    if rows:
        asking.rows(READY, [list(column) for column in zip(*rows, strict=True)])


def advance(asking: Asking, places: Sequence[tuple[str, int]], *, now: float) -> None:
    """Let the next intents of lanes be due, where these places are the heads."""
    if places:
        asking.rows(_ADVANCE, ([lane for lane, _ in places], [place for _, place in places], now))
