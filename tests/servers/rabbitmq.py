"""RabbitMQ, of which no wheel exists, from Debian's package; with a name server of its own, so that none is left."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.servers.finding import Missing
from tests.servers.starting import Process, free_ports, server_folder, until

_HOST: Final = "127.0.0.1"
_PROGRAM: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_GREETING: Final = b"AMQP\x00\x00\x09\x01"
PATIENCE_S: Final = 90.0


class RabbitMQ:
    """One broker with a folder of its own.

    Raises:
        Missing: there is no RabbitMQ here.
    """

    def __init__(self) -> None:
        program = os.environ.get("TEST_RABBITMQ_SERVER", str(_PROGRAM))
        epmd = shutil.which("epmd")
        if not Path(program).is_file() or epmd is None:
            raise Missing("there is no RabbitMQ here (Debian has a package, PyPI has no wheel)")
        self.folder = server_folder("rabbitmq")
        self.port, self._names, distribution = free_ports(3)
        self._pid = self.folder / "pid"
        self._named = [epmd, "-port", str(self._names), "-address", _HOST]
        self._settings = {
            "HOME": self.folder,
            "ERL_EPMD_ADDRESS": _HOST,
            "ERL_EPMD_PORT": self._names,
            "RABBITMQ_NODENAME": f"n{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": _HOST,
            "RABBITMQ_NODE_PORT": self.port,
            "RABBITMQ_DIST_PORT": distribution,
            "RABBITMQ_MNESIA_BASE": self.folder / "data",
            "RABBITMQ_LOG_BASE": self.folder / "log",
            "RABBITMQ_PID_FILE": self._pid,
            "RABBITMQ_ENABLED_PLUGINS_FILE": self.folder / "plugins",
            "RABBITMQ_CONFIG_FILE": self.folder / "none",
        }
        self._program = program
        self._processes: list[Process] = []

    @property
    def url(self) -> str:
        """Its address."""
        return self.at(self.port)

    @staticmethod
    def at(port: int) -> str:
        """Return the address of a port in front of it."""
        return f"amqp://guest:guest@{_HOST}:{port}/"

    def start(self) -> Self:
        """Start; return when it answers."""
        settings = [f"{name}={value}" for name, value in self._settings.items()]
        names = Process(self._named, log=self.folder / "names.log")
        server = Process(["/usr/bin/env", *settings, self._program], log=self.folder / "start.log")
        self._processes = [server, names]
        until(self._answers, failing=server.tail, patience_s=PATIENCE_S)
        return self

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection((_HOST, self.port), timeout=60) as sock:
            sock.sendall(_GREETING)
            return bool(sock.recv(1))
        return False

    def kill(self) -> None:
        """Kill it."""
        with suppress(OSError, ValueError):
            os.kill(int(self._pid.read_text()), signal.SIGKILL)
        for process in self._processes:
            process.end(signal.SIGKILL)
        self._processes = []

    def remove(self) -> None:
        """Kill it and remove everything."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


__all__ = ["RabbitMQ"]
