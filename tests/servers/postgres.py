"""PostgreSQL clusters: started, stopped in three ways, restarted, dumped, and followed by standbys."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psycopg

from tests.servers.finding import postgres_bin
from tests.servers.starting import Process, as_ordinary_user, free_ports, server_folder, until

SUPERUSER: Final = "postgres"
_TRIES: Final = 5
# What a crash cannot lose if the machine stays up; never for tests of crashes.
_CARELESS: Final = {"fsync": "off", "full_page_writes": "off"}
_SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "64MB",
    "max_connections": "200",
    "max_prepared_transactions": "10",
    "log_line_prefix": "%m [%p] %u@%d ",
    "timezone": "UTC",
}
_STOPS: Final = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class Cluster:
    """One PostgreSQL server with a data folder of its own.

    Args:
        major: 16, 17 or 18.
        durable: with fsync, for tests of crashes.
        settings: more settings of the server.

    Raises:
        Missing: no such server is here.
    """

    def __init__(self, major: int, *, durable: bool = False, settings: Mapping[str, str] | None = None) -> None:
        self.major = major
        self.bin = postgres_bin(major)
        self.settings = {**_SETTINGS, **({} if durable else _CARELESS), **(settings or {})}
        self.folder = server_folder(f"postgres{major}")
        self.port = 0
        self._process: Process | None = None

    @property
    def data(self) -> Path:
        """Its data folder."""
        return self.folder / "data"

    @property
    def log(self) -> Path:
        """Its log."""
        return self.folder / "log"

    @property
    def pid(self) -> int:
        """The process id of its postmaster."""
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.alive

    def url(self, database: str = "postgres", *, user: str = SUPERUSER, host: str = "127.0.0.1", port: int = 0) -> str:
        """Return the address of one of its databases; `host` and `port` put a proxy there."""
        return f"postgresql://{user}@{host}:{port or self.port}/{database}"

    def connect(self, database: str = "postgres", **options: Any) -> psycopg.Connection:
        """Connect as the superuser, in autocommit."""
        return psycopg.connect(self.url(database), autocommit=True, **options)

    def execute(self, *statements: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Execute statements as the superuser, each by itself; return the rows of the last."""
        rows: list[tuple[Any, ...]] = []
        with self.connect(database) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
                rows = cursor.fetchall() if cursor.description else []
        return rows

    def create(self) -> Self:
        """Make the data folder and start."""
        self.tool("initdb", "-D", self.data, "-N", "--no-locale", "-E", "UTF8", "-A", "trust", "-U", SUPERUSER)
        self.start()
        return self

    def start(self, *, ready: bool = True) -> None:
        """Start; with `ready` return when it accepts connections (a standby: reading ones)."""
        for attempt in range(_TRIES):
            self.port = self.port or free_ports(1)[0]
            settings = [f"--{name}={value}" for name, value in {**self.settings, "port": str(self.port)}.items()]
            self._process = Process(
                [self.bin / "postgres", "-D", self.data, *settings], log=self.log, dies_by="SIGQUIT"
            )
            if not ready or self._accepts():
                return
            if "Address already in use" not in self._process.tail() or attempt + 1 == _TRIES:
                raise RuntimeError(f"PostgreSQL {self.major} did not start:\n{self._process.tail()}")
            self.port = 0

    def stop(self, mode: str = "fast") -> None:
        """Stop and wait: `smart`, `fast`, `immediate` (as a crash), or `kill` (its power is gone)."""
        if self._process is None:
            return
        if mode == "kill":
            self._kill_all()
        self._process.end(_STOPS.get(mode, signal.SIGQUIT))
        self._process = None

    def restart(self, mode: str = "immediate") -> None:
        """Stop and start on the same port."""
        self.stop(mode)
        self.start()

    def freeze(self, *, frozen: bool = True) -> None:
        """Stop the postmaster and its children from doing anything, or let them go on."""
        for pid in self._pids():
            _signal(pid, signal.SIGSTOP if frozen else signal.SIGCONT)

    def set(self, **settings: str) -> None:
        """Change settings of the running server that need no restart."""
        self.execute(*[f"ALTER SYSTEM SET {name} = '{value}'" for name, value in settings.items()])
        self.execute("SELECT pg_reload_conf()")

    def wait_for(self, standby: Cluster) -> None:
        """From now on answer no commit until the standby has it; and freeze the standby."""
        self.set(synchronous_standby_names="standby")
        follows = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
        until(lambda: self.execute(follows), failing=lambda: "the standby does not follow")
        standby.freeze()
        # The one process that makes commits wait says nowhere that it has read the setting.
        until(self._commit_waits, failing=lambda: "commits do not wait")

    def _commit_waits(self) -> bool:
        with self.connect() as connection:
            pid = connection.info.backend_pid
            waits = f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'SyncRep'"
            connection.pgconn.send_query(b"CREATE TABLE probe (); DROP TABLE probe")
            waiting = False
            while connection.pgconn.is_busy() and not waiting:
                waiting = bool(self.execute(waits))
                connection.pgconn.consume_input()
            if waiting:
                self.execute(f"SELECT pg_cancel_backend({pid})")
            while connection.pgconn.get_result():
                pass
            return waiting

    def database(self, name: str) -> str:
        """Make a database and return its address."""
        self.execute(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def drop(self, name: str) -> None:
        """Drop a database, whoever is in it."""
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def dump(self, database: str) -> Path:
        """Dump a database in pg_dump's own format; return the file."""
        into = self.folder / f"{database}.dump"
        self.tool("pg_dump", "-Fc", "-f", into, self.url(database))
        return into

    def restore(self, dump: Path, *, database: str) -> str:
        """Restore a dump into a new database; return its address."""
        url = self.database(database)
        self.tool("pg_restore", "-d", url, dump)
        return url

    def standby(self, *, name: str = "standby") -> Cluster:
        """Make a streaming standby of it, and start that."""
        standby = Cluster(self.major, settings=self.settings)
        source = f"host=127.0.0.1 port={self.port} user={SUPERUSER} application_name={name}"
        self.tool("pg_basebackup", "-D", standby.data, "-R", "-X", "stream", "-c", "fast", "-d", source)
        standby.start()
        return standby

    def promote(self) -> None:
        """Make a primary of a standby; return when it accepts writes."""
        self.execute("SELECT pg_promote(true, 60)")
        until(lambda: not self.execute("SELECT pg_is_in_recovery()")[0][0], failing=lambda: "it stayed a standby")

    def catch_up(self, standby: Cluster) -> None:
        """Wait until a standby has applied everything."""
        (position,) = self.execute("SELECT pg_current_wal_lsn()")[0]
        behind = f"SELECT pg_last_wal_replay_lsn() >= '{position}'"
        until(lambda: standby.execute(behind)[0][0], failing=lambda: "the standby does not catch up")

    def statements(self) -> str:
        """Return what it has logged."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def tool(self, name: str, *arguments: str | Path) -> str:
        """Run one of its programs to its end and return what that said."""
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [self.bin / name, *arguments], capture_output=True, text=True, check=False, cwd="/", **as_ordinary_user()
        )
        if done.returncode:
            raise RuntimeError(f"{name}: {done.stdout}{done.stderr}")
        return done.stdout

    def remove(self) -> None:
        """Stop at once and remove everything."""
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.create()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def _accepts(self) -> bool:
        process = self._process
        assert process is not None

        # The postmaster's own word; to try to connect again and again would cost it a process each time.
        def answered() -> bool:
            with suppress(OSError):
                lines = (self.data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
                if lines[:1] == [str(process.pid)] and [line.strip() for line in lines[7:]] in (["ready"], ["standby"]):
                    return True
            return not process.alive

        until(answered, failing=process.tail)
        return process.alive

    def _pids(self) -> list[int]:
        own = self.pid
        everybody = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
        return [own, *[pid for pid in everybody if _stat(pid)[1] == own]]

    def _kill_all(self) -> None:
        # The postmaster first stops making children; what is left of one would keep the next server from starting.
        _signal(self.pid, signal.SIGSTOP)
        own, *children = self._pids()
        for pid in children:
            _signal(pid, signal.SIGKILL)
        until(lambda: all(_dead(pid) for pid in children), failing=lambda: "a child of the server does not die")
        _signal(own, signal.SIGKILL)


def _dead(pid: int) -> bool:
    return _stat(pid)[0] == "Z"


def _stat(pid: int) -> tuple[str, int]:
    """Return the state of a process and its parent; one that is not there counts as dead."""
    try:
        state, parent = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:2]
        )
    except OSError:
        return "Z", 0
    return state, int(parent)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


__all__ = ["SUPERUSER", "Cluster"]
