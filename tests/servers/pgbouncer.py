"""PgBouncer in transaction mode in front of a cluster: a session's state does not outlive a transaction."""

from __future__ import annotations

import shutil
import signal
from types import TracebackType
from typing import Final, Self

import psycopg

from tests.servers.finding import pgbouncer
from tests.servers.postgres import SUPERUSER, Cluster
from tests.servers.starting import Process, free_ports, server_folder, until

_HOST: Final = "127.0.0.1"


class PgBouncer:
    """A transaction pooler that shares a few server connections among all its clients.

    Args:
        behind: the server.
        pool: connections to the server for each database.

    Raises:
        Missing: there is no PgBouncer here.
    """

    def __init__(self, behind: Cluster, *, pool: int = 4) -> None:
        self._program = pgbouncer()
        self.folder = server_folder("pgbouncer")
        (self.port,) = free_ports(1)
        users, config = self.folder / "users", self.folder / "ini"
        users.write_text(f'"{SUPERUSER}" ""\n', encoding="utf-8")
        config.write_text(
            f"[databases]\n* = host={_HOST} port={behind.port}\n[pgbouncer]\nlisten_addr = {_HOST}\n"
            f"listen_port = {self.port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {users}\n"
            f"pool_mode = transaction\ndefault_pool_size = {pool}\nmax_client_conn = 500\nserver_round_robin = 1\n",
            encoding="utf-8",
        )
        self._config = config
        self._process: Process | None = None

    def url(self, database: str) -> str:
        """Return the address of a database behind it."""
        return f"postgresql://{SUPERUSER}@{_HOST}:{self.port}/{database}"

    def start(self) -> Self:
        """Start; return when it answers."""
        self._process = process = Process([self._program, self._config], log=self.folder / "log")

        def answers() -> bool:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=60).close()
            except psycopg.OperationalError:
                return False
            return True

        until(answers, failing=process.tail)
        return self

    def remove(self) -> None:
        """End it and remove everything."""
        if self._process is not None:
            self._process.end(signal.SIGTERM)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


__all__ = ["PgBouncer"]
