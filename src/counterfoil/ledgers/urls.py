"""Ledger URLs: `sqlite:///relative.db`, `postgresql://host/database`, `nats://host/stream`, `memory:`."""

from __future__ import annotations

import math
import os
import re
from importlib.util import find_spec
from typing import Final, Protocol

import msgspec

from counterfoil.errors import UsageError
from counterfoil.ports.ledger import Closing, Ledger

_FORMS: Final = (
    "write sqlite:///relative.db, sqlite:////absolute.db, postgresql://host/database, nats://host/stream or memory:"
)
_POSTGRES: Final = ("postgresql", "postgres", "postgresql+psycopg")
_ENGINES: Final = ("apsw", "sqlite3")
_SQLITE_OPTIONS: Final = ("engine", "timeout", "synchronous", "strict")
_SYNCHRONOUS: Final = ("full", "extra")
# What is ours; every other option of a postgresql:// URL is libpq's.
_OWN_OPTIONS: Final = ("schema", "pool", "timeout", "beat", "poll")
_POOL_MAX: Final = 64
_NATS_OPTIONS: Final = ("timeout", "beat", "replicas", "monitor", "creds", "ca", "allow_lazy_sync")
_REPLICAS: Final = ("1", "3", "5")
_YES: Final = ("1", "true", "True")
_NO: Final = ("0", "false", "False")


class LedgerUrl(Protocol):
    """A URL that was understood; nothing is open yet."""

    def open(self) -> Ledger:
        """Open the ledger.

        Raises:
            UsageError: what the caller must mend: a directory, a missing folder, not a database.
            LedgerUnavailable: whatever else keeps it from opening.
        """
        ...


class MemoryUrl(msgspec.Struct, frozen=True):
    """`memory:`; each opening is a new ledger."""

    def open(self) -> Ledger:
        """Make a new ledger in memory."""
        from counterfoil.ledgers.memory import MemoryLedger

        return MemoryLedger()


class SqliteUrl(msgspec.Struct, frozen=True, kw_only=True):
    """A SQLite database.

    Args:
        path: the file; a relative one is looked up when the ledger is opened.
        engine: `apsw` or `sqlite3`.
        timeout_s: how long to wait for another process's transaction, in seconds.
        synchronous: `full` or `extra`.
        strict: refuse a SQLite library with the WAL-reset defect.
    """

    path: str
    engine: str = "apsw"
    timeout_s: float = 30.0
    synchronous: str = "full"
    strict: bool = False

    def open(self) -> Ledger:
        """Open the database, create it if it is not there, and bring its schema up to date."""
        if os.name != "posix":
            raise UsageError("the SQLite ledger needs POSIX record locks", hint="use Linux or macOS")
        from counterfoil.ledgers.sqlite import SqliteLedger

        return SqliteLedger(
            self.path,
            engine=self.engine,
            timeout_s=self.timeout_s,
            synchronous=self.synchronous,
            strict=self.strict,
        )


class PostgresUrl(msgspec.Struct, frozen=True, kw_only=True):
    """A PostgreSQL database.

    Args:
        conninfo: the address as libpq takes it, with its own options.
        schema: the ledger's schema.
        pool: connections at most.
        timeout_s: how long to wait for a connection, a lock and an answer, in seconds.
        beat_s: seconds between two beats of an owner.
        poll_s: look this often instead of listening, in seconds; None: listen.
    """

    conninfo: str
    schema: str = "counterfoil"
    pool: int = 3
    timeout_s: float = 30.0
    beat_s: float = 5.0
    poll_s: float | None = None

    def open(self, *, migrate: bool = True) -> Ledger:
        """Connect, and bring the schema up to date unless `migrate` is false."""
        from counterfoil.ledgers.postgres import PostgresLedger

        return PostgresLedger(
            self.conninfo,
            schema=self.schema,
            pool=self.pool,
            timeout_s=self.timeout_s,
            beat_s=self.beat_s,
            poll_s=self.poll_s,
            migrate=migrate,
        )

    def check(self) -> None:
        """Raise unless an up-to-date ledger is there; nothing is made.

        Raises:
            UsageError: there is none, or an older one.
            LedgerUnavailable: it cannot be reached.
        """
        ledger = self.open(migrate=False)
        if isinstance(ledger, Closing):
            ledger.close()

    def __repr__(self) -> str:
        # The address may hold a password.
        return f"PostgresUrl(schema={self.schema!r}, pool={self.pool})"


class NatsUrl(msgspec.Struct, frozen=True, kw_only=True):
    """A stream on NATS JetStream.

    Args:
        servers: what stands between `nats://` and the stream: a login, and servers with commas between them.
        stream: the ledger's stream.
        timeout_s: how long an append or another question may take, in seconds.
        beat_s: seconds between two beats of an owner.
        replicas: of a stream that is made; None: 3 in a cluster, else 1.
        monitors: the HTTP monitoring addresses of the servers.
        creds: a file with NATS credentials.
        ca: a file with the certificates of the servers' authority.
        allow_lazy_sync: go on where `sync_interval` is not `always`.
    """

    servers: str
    stream: str = "counterfoil"
    timeout_s: float = 30.0
    beat_s: float = 5.0
    replicas: int | None = None
    monitors: tuple[str, ...] = ()
    creds: str | None = None
    ca: str | None = None
    allow_lazy_sync: bool = False

    def open(self, *, create: bool = True) -> Ledger:
        """Connect, and make the stream if it is not there, unless `create` is false."""
        from counterfoil.ledgers.jetstream import JetStreamLedger
        from counterfoil.ledgers.jetstream.place import place_of

        return JetStreamLedger(
            place_of(self.servers, creds=self.creds, ca=self.ca),
            stream=self.stream,
            timeout_s=self.timeout_s,
            beat_s=self.beat_s,
            replicas=self.replicas,
            monitors=self.monitors,
            allow_lazy_sync=self.allow_lazy_sync,
            create=create,
        )

    def check(self) -> None:
        """Raise unless a ledger is there; nothing is made.

        Raises:
            UsageError: there is none.
            LedgerUnavailable: it cannot be reached.
        """
        ledger = self.open(create=False)
        if isinstance(ledger, Closing):
            ledger.close()

    def __repr__(self) -> str:
        # The address may hold a password.
        return f"NatsUrl(stream={self.stream!r})"


def parse(url: str) -> LedgerUrl:
    """Understand a ledger URL without opening anything.

    Raises:
        UsageError: the URL is none of ours, or what it needs is not installed; the hint says
            what mends it.
    """
    if not isinstance(url, str):
        raise UsageError(f"a ledger URL is text, not {type(url).__name__}", hint=_FORMS)
    scheme, colon, rest = url.partition(":")
    if url == "memory:":
        return MemoryUrl()
    if not colon:
        raise UsageError(f"{url!r} is not a ledger URL", hint=_FORMS)
    if scheme == "memory":
        raise UsageError("memory: takes nothing after the colon", hint="write memory:")
    if scheme == "nats":
        return _nats(rest)
    if scheme in _POSTGRES:
        return _postgres(rest)
    if scheme != "sqlite":
        raise UsageError(f"there is no ledger for {scheme!r} URLs", hint=_FORMS)
    return _sqlite(rest)


def without_password(url: str) -> str:
    """Return a URL with its password hidden, for showing it."""
    if url.startswith("nats:"):  # a token stands where a user stands
        return re.sub(r"(?<=://)[^@/]*@", "***@", url)
    return re.sub(r"(?<=://)([^:@/]*):[^@/]*@", r"\1:***@", url)


def _sqlite(rest: str) -> SqliteUrl:
    location, mark, query = rest.partition("?")
    options = _options(query, _SQLITE_OPTIONS) if mark else {}
    found = SqliteUrl(
        path=_path(location),
        engine=_choice(options, "engine", _ENGINES),
        timeout_s=_positive("timeout", options.get("timeout", "30")),
        synchronous=_choice(options, "synchronous", _SYNCHRONOUS),
        strict=_choice(options, "strict", ("0", "1")) == "1",
    )
    if find_spec("fcntl") is None:
        raise UsageError(
            "the SQLite ledger does not work on this system: it proves that an owner lives by POSIX record locks",
            hint="it runs on Linux and macOS; memory: works anywhere",
        )
    if find_spec(found.engine) is None:
        mend = "pip install apsw" if found.engine == "apsw" else "this Python was built without sqlite3"
        raise UsageError(f"the engine {found.engine} is not installed", hint=mend)
    return found


def _postgres(rest: str) -> PostgresUrl:
    if find_spec("psycopg") is None:
        raise UsageError(
            "the PostgreSQL ledger needs psycopg, which is not installed",
            hint="pip install 'counterfoil[postgres]'",
            code="missing-extra",
        )
    from counterfoil.ledgers.postgres import names, opening

    location, mark, query = rest.partition("?")
    if not location.startswith("//"):
        raise UsageError(f"postgresql:{location} names no server", hint=_FORMS)
    own: dict[str, str] = {}
    libpq: list[str] = []
    for part in query.split("&") if mark else ():
        name, _, value = part.partition("=")
        if name not in _OWN_OPTIONS:
            libpq.append(part)
        elif name in own:
            raise UsageError(f"the option {name} is given twice", hint="give it once")
        else:
            own[name] = value
    found = PostgresUrl(
        conninfo=f"postgresql:{location}" + ("?" + "&".join(libpq) if libpq else ""),
        schema=own.get("schema", "counterfoil"),
        pool=_count(own.get("pool", "3")),
        timeout_s=_positive("timeout", own.get("timeout", "30")),
        beat_s=_positive("beat", own.get("beat", "5")),
        poll_s=_positive("poll", own["poll"]) if "poll" in own else None,
    )
    names.quoted(found.schema)
    opening.complete(found.conninfo)
    return found


def _nats(rest: str) -> NatsUrl:
    if find_spec("nats") is None:
        raise UsageError(
            "the JetStream ledger needs nats-py, which is not installed",
            hint="pip install 'counterfoil[nats]'",
            code="missing-extra",
        )
    from counterfoil.ledgers.jetstream import place, subjects

    location, mark, query = rest.partition("?")
    if not location.startswith("//"):
        raise UsageError(f"nats:{location} names no server", hint=_FORMS)
    servers, _, stream = location[2:].partition("/")
    options = _options(query, _NATS_OPTIONS) if mark else {}
    found = NatsUrl(
        servers=servers,
        stream=subjects.checked(stream or "counterfoil"),
        timeout_s=_positive("timeout", options.get("timeout", "30")),
        beat_s=_positive("beat", options.get("beat", "5")),
        replicas=int(_choice(options, "replicas", _REPLICAS)) if "replicas" in options else None,
        monitors=tuple(options["monitor"].split(",")) if "monitor" in options else (),
        creds=options.get("creds"),
        ca=options.get("ca"),
        allow_lazy_sync=_choice(options, "allow_lazy_sync", _NO + _YES) in _YES,
    )
    place.place_of(servers, creds=found.creds)
    for monitor in found.monitors:
        if not re.match("https?://[^/]", monitor):
            raise UsageError(f"monitor={monitor} is no address", hint="write monitor=http://host:8222")
    return found


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _POOL_MAX:
        raise UsageError(f"pool={text} is not possible", hint=f"it is a number of connections, 1 to {_POOL_MAX}")
    return int(text)


def _path(location: str) -> str:
    path = location[3:]
    if not location.startswith("///"):
        raise UsageError(f"sqlite:{location} names a host", hint=f"a SQLite file has none: {_FORMS}")
    if not path or path == ":memory:":
        raise UsageError("the URL names no file", hint="a ledger in memory is memory:")
    if path.endswith("/"):
        raise UsageError(f"{path!r} names a folder", hint="name a file in it")
    if "\0" in path or any("\ud800" <= char <= "\udfff" for char in path):
        raise UsageError(f"{path!r} cannot name a file", hint=_FORMS)
    if re.search("%[0-9A-Fa-f]{2}", path):
        raise UsageError(
            f"{path!r} looks percent-encoded",
            hint="write the path as it is; nothing in it is decoded",
        )
    return path


def _options(query: str, known: tuple[str, ...]) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in query.split("&"):
        name, equals, value = part.partition("=")
        if not equals or name not in known:
            raise UsageError(f"unknown option {part!r}", hint=f"there are {', '.join(known[:-1])} and {known[-1]}")
        if name in options:
            raise UsageError(f"the option {name} is given twice", hint="give it once")
        options[name] = value
    return options


def _choice(options: dict[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = options.get(name, allowed[0])
    if value not in allowed:
        why = "; anything weaker can lose records" if name == "synchronous" else ""
        raise UsageError(f"{name}={value} is not possible", hint=f"{name} is one of {', '.join(allowed)}{why}")
    return value


def _positive(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise UsageError(f"{name}={text} is not possible", hint="it is a positive number of seconds")
    return seconds
