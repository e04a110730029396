"""Opening: what is at that address, and whether it can keep the ledger's promises."""

from __future__ import annotations

import time
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from counterfoil.errors import LedgerUnavailable, UsageError
from counterfoil.ledgers.postgres import migrations, troubles
from counterfoil.ledgers.postgres.connections import CONNECT_S, Connection
from counterfoil.ledgers.postgres.pool import Pool

VERSION_MIN: Final = 140_000
# Whatever is wrong with a server is said within this time, in seconds.
OPEN_S: Final = 9.5
# What the caller's own address may say otherwise.
_DEFAULTS: Final = {
    "application_name": "counterfoil",
    "connect_timeout": str(CONNECT_S),
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}


def complete(conninfo: str) -> str:
    """Return what libpq takes, with our defaults.

    Raises:
        UsageError: libpq does not understand it.
    """
    try:
        given = conninfo_to_dict(conninfo)
        _check_ports(str(given.get("port") or ""))
    except psycopg.Error as error:
        raise UsageError(
            f"PostgreSQL does not understand the address: {troubles.text(error)}",
            hint="write postgresql://user:password@host:5432/database?option=value",
        ) from error
    return make_conninfo("", **{**_DEFAULTS, **given, "client_encoding": "UTF8"})


def _check_ports(listed: str) -> None:
    for port in listed.split(","):
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
            raise psycopg.ProgrammingError(f"{port!r} is no port")


def prepare(pool: Pool, schema: str, *, migrate: bool = True) -> None:
    """Check the server, and bring the ledger's schema up to date.

    Raises:
        UsageError: what the caller must mend: an old server, another encoding, a schema that this role may not make.
        LedgerReadOnly: it is a standby.
        LedgerUnavailable: it cannot be reached, or a newer version has written it.
    """
    begun = time.monotonic()
    connection = pool.spare()
    patient_until, connection.give_up = connection.give_up, min(connection.give_up, begun + OPEN_S)
    try:
        _prepare(connection, schema, migrate=migrate, patient_until=patient_until)
    except psycopg.Error as error:
        known = connection.idle
        connection.close()
        if known:
            raise troubles.said(error) from error
        raise LedgerUnavailable(
            f"PostgreSQL: {troubles.text(error)}",
            code="ledger-unreachable",
            hint="is the server overloaded, or restarting? Try again",
            effect_ran="no",
        ) from error
    except BaseException:
        connection.close()
        raise
    pool.keep(connection)


def _prepare(connection: Connection, schema: str, *, migrate: bool, patient_until: float) -> None:
    _check(connection)
    version = migrations.LEDGER.version_of(connection, schema)
    migrations.LEDGER.refuse_newer(version)
    if version < len(migrations.LEDGER.scripts):
        if not migrate:
            raise UsageError(
                f"there is no ledger of this version in the schema {schema!r}",
                code="schema-missing",
                hint="a runtime makes it, or `counterfoil migrate`",
            )
        connection.give_up = patient_until  # somebody else may be at it
        migrations.LEDGER.apply(connection, schema)


def _check(connection: Connection) -> None:
    version = connection.pgconn.server_version
    if version < VERSION_MIN:
        raise UsageError(
            f"the server is PostgreSQL {version // 10_000}, which is too old",
            hint=f"PostgreSQL {VERSION_MIN // 10_000} or later is needed",
        )
    encoding = connection.execute("SELECT getdatabaseencoding()").fetchone()
    if encoding != ("UTF8",):
        raise UsageError(
            f"the database's encoding is {encoding and encoding[0]}, which cannot hold every name",
            hint="make a database with ENCODING 'UTF8'",
        )
