"""What the guarantees of a PostgreSQL ledger rest on, looked at now, each with its mend."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from counterfoil.ledgers.postgres import migrations
from counterfoil.ledgers.postgres.pool import Pool
from counterfoil.ledgers.rows import OwnerRow

Finding = tuple[str, str, str, str]

SKEW_S: Final = 5.0
_SETTINGS: Final = """
SELECT current_setting('server_version'), current_setting('synchronous_commit'), current_setting('fsync'),
    current_setting('full_page_writes'), pg_is_in_recovery(), current_setting('synchronous_standby_names'),
    extract(epoch FROM clock_timestamp())::float8
"""


def diagnose(pool: Pool, *, schema: str, reason: str | None, owners: Sequence[OwnerRow]) -> list[Finding]:
    """Look at everything and return findings: (level, subject, found, mend).

    Args:
        pool: the ledger's connections.
        schema: its schema.
        reason: why it counts as restored, or None.
        owners: the lives that are not known to be over.
    """
    with pool.take() as connection:
        begun = time.time()
        row = connection.execute(_SETTINGS).fetchone()
        ended = time.time()
        version = migrations.LEDGER.version_of(connection, schema)
        direct = connection.direct()
    assert row is not None
    newest = len(migrations.LEDGER.scripts)
    return [
        ("ok", "server", f"PostgreSQL {row[0]}", ""),
        *_settings(row),
        _judged(("error", "schema", f"{version} of {newest}", "run `counterfoil migrate`"), fine=version == newest),
        _generation(reason),
        _offset(row[6], begun, ended),
        _pooler(direct),
        _owners(owners),
    ]


def _settings(row: tuple[Any, ...]) -> list[Finding]:
    _, commit, fsync, pages, standby, names, *_ = row
    found = [
        _judged(
            (
                "warning",
                "synchronous-commit",
                f"{commit} by default; the ledger's own transactions commit with on",
                "set it to on for this role, so that what the application writes beside them is as durable",
            ),
            fine=commit in ("on", "remote_apply"),
        ),
        _judged(
            ("error", "fsync", "off: a crash of the machine loses and damages records", "set fsync = on, and restart"),
            fine=fsync == "on",
        ),
        _judged(
            (
                "error",
                "full-page-writes",
                "off: a crash of the machine can damage records",
                "set full_page_writes = on, unless the file system never tears a page",
            ),
            fine=pages == "on",
        ),
        _judged(("error", "primary", "this is a standby", "name the primary in the URL"), fine=not standby),
    ]
    text = f"commits wait for {names}" if names else "none: after a failover the newest records may be missing"
    return [*_named(found), ("ok", "synchronous-standbys", text, "")]


def _named(found: list[Finding]) -> list[Finding]:
    said = {"synchronous-commit": "on", "fsync": "on", "full-page-writes": "on", "primary": "yes"}
    return [(level, subject, said[subject] if level == "ok" else text, mend) for level, subject, text, mend in found]


def _generation(reason: str | None) -> Finding:
    mend = "look at what was lost, then run `counterfoil accept-restore --by YOU --reason WHY`"
    return _judged(("error", "generation", reason or "as it was left", mend), fine=reason is None)


def _offset(theirs: float, begun: float, ended: float) -> Finding:
    offset = theirs - (begun + ended) / 2
    mend = "keep both clocks set with NTP: deadlines of sleeps and retries are on this machine's"
    text = f"the server's clock is {offset:+.1f} s from this machine's"
    return _judged(("warning", "clock-offset", text, mend), fine=abs(offset) <= SKEW_S + (ended - begun))


def _pooler(direct: bool) -> Finding:  # noqa: FBT001 - it is what was found
    if direct:
        return "ok", "pooler", "none in between", ""
    mend = "in transaction mode give the URL poll=0.5, since notifications do not come through"
    return "warning", "pooler", "there is one in between", mend


def _owners(owners: Sequence[OwnerRow]) -> Finding:
    silent = [owner.label or owner.epoch for owner in owners if not owner.alive]
    found = f"{len(owners) - len(silent)} alive"
    if silent:
        found += f", silent: {', '.join(silent)}"
    mend = "call their runs again, or recover(): unresolved effects are then reconciled"
    return _judged(("warning", "owners", found, mend), fine=not silent)


def _judged(finding: Finding, *, fine: bool) -> Finding:
    return ("ok", *finding[1:3], "") if fine else finding
