"""A long history at once: rows as a dispatcher leaves them behind, copied from an intent that it has delivered."""

from __future__ import annotations

from typing import Any, Final

import psycopg

PAGE: Final = 50_000
# What tells one delivered intent from another: the last digits of its id, and its key.
_DIGITS: Final = 32
_INTENT: Final = (
    "namespace, recipient, operation, format, body, fingerprint, policy, lane, place, on_stuck, not_before, expires_at,"
    " generation, staged_at, trace"
)
_ROWS: Final = (
    (
        "INSERT INTO {p}attempt (intent, kind, owner, at, standing)"
        " SELECT i.seq, a.kind, a.owner, a.at, a.standing FROM {p}intent i, {p}attempt a"
        " WHERE i.seq > {intent} AND a.seq = {attempt} ORDER BY i.seq"
    ),
    (
        "INSERT INTO {p}sending (attempt, kind, owner, at)"
        " SELECT n.seq, s.kind, s.owner, s.at FROM {p}attempt n, {p}sending s"
        " WHERE n.seq > {last} AND s.attempt = {attempt} ORDER BY n.seq"
    ),
    (
        "INSERT INTO {p}receipt (attempt, intent, phase, final, body, owner, at)"
        " SELECT n.seq, n.intent, r.phase, r.final, r.body, r.owner, r.at FROM {p}attempt n, {p}receipt r"
        " WHERE n.seq > {last} AND r.attempt = {attempt} ORDER BY n.seq"
    ),
)
_COPIES: Final = {
    True: (
        "INSERT INTO {p}intent (effect_id, key, " + _INTENT + ")"
        " SELECT left(effect_id, -{digits}) || md5('{page}.' || g), 'copy-{page}.' || g, "
        + _INTENT
        + " FROM {p}intent, generate_series(1, {count}) g WHERE seq = {intent_of}"
    ),
    False: (
        "INSERT INTO {p}intent (effect_id, key, " + _INTENT + ")"
        " WITH RECURSIVE g (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM g WHERE n < {count})"
        " SELECT substr(effect_id, 1, length(effect_id) - {digits}) || lower(hex(randomblob(16))),"
        " 'copy-{page}.' || n, " + _INTENT + " FROM {p}intent, g WHERE seq = {intent_of}"
    ),
}


def deliver(connection: Any, count: int) -> None:
    """Add so many delivered intents beside one that was delivered in earnest.

    Args:
        connection: the application's, in autocommit.
        count: how many.
    """
    on_a_server = isinstance(connection, psycopg.Connection)
    p = "counterfoil." if on_a_server else "counterfoil_"
    intent_of, attempt = _one(
        connection, f"SELECT intent, attempt FROM {p}receipt WHERE final ORDER BY attempt LIMIT 1"
    )
    for page, start in enumerate(range(0, count, PAGE)):
        what = {"p": p, "page": page, "count": min(PAGE, count - start), "digits": _DIGITS, "intent_of": intent_of}
        (intent,) = _one(connection, f"SELECT max(seq) FROM {p}intent")
        (last,) = _one(connection, f"SELECT max(seq) FROM {p}attempt")
        what |= {"intent": intent, "last": last, "attempt": attempt}
        connection.execute("BEGIN")
        for sql in (_COPIES[on_a_server], *_ROWS):
            connection.execute(sql.format(**what))
        connection.execute("COMMIT")
    # As a server finds it that has run for a while.
    connection.execute("VACUUM (ANALYZE)" if on_a_server else "PRAGMA wal_checkpoint(TRUNCATE)")


def pages_of_claims(connection: Any, epoch: str, *, claims: int) -> int:
    """Say how many of its pages PostgreSQL looks at to claim so many, rolled back afterwards."""
    sql = (
        "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM counterfoil.dispatch(%s, NULL, NULL, '{}', '{}', '{}',"
        " '{}', '{}', '{}', '{send}', '{noop}', '{send}', '{0}', ARRAY[%s::int], 1, '{}', '{}', '{}', '{}')"
    )
    looked: list[int] = []
    # The first time it is planned, too.
    for _ in range(2):
        connection.execute("BEGIN")
        ((found,),) = connection.execute(sql, (epoch, claims)).fetchall()
        connection.execute("ROLLBACK")
        looked.append(found[0]["Plan"]["Shared Hit Blocks"] + found[0]["Plan"]["Shared Read Blocks"])
    return looked[-1]


def _one(connection: Any, sql: str) -> Any:
    return connection.execute(sql).fetchall()[0]
