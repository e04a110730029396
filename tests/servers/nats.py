"""NATS servers with JetStream: one, or a cluster of three."""

from __future__ import annotations

import json
import shutil
import signal
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.servers.finding import nats_server
from tests.servers.starting import Process, free_ports, server_folder, until

_HOST: Final = "127.0.0.1"


class NatsNode:
    """One NATS server with JetStream and a folder of its own; `NatsCluster` makes them."""

    def __init__(self, name: str, folder: Path, *, config: str, port: int, monitor: int) -> None:
        self.name = name
        self.port = port
        self.monitor = monitor
        self._folder = folder
        self._config = folder / f"{name}.conf"
        self._config.write_text(config, encoding="utf-8")
        self._process: Process | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"nats://{_HOST}:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.alive

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start; nothing is waited for."""
        self._process = Process([nats_server(), "-c", self._config], log=self._folder / f"{self.name}.log")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it with a signal and wait."""
        if self._process is not None:
            self._process.end(number)
            self._process = None

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send(number)

    def healthy(self) -> bool:
        """Whether it says that JetStream works."""
        with suppress(OSError), urllib.request.urlopen(f"http://{_HOST}:{self.monitor}/healthz", timeout=30) as said:
            return bool(said.status == 200)
        return False

    def tail(self) -> str:
        """Return the end of its log."""
        return self._process.tail() if self._process is not None else f"{self.name} was not started"


class NatsCluster:
    """One or three NATS servers with JetStream.

    Args:
        nodes: 1 or 3.
        sync_always: each write is synced before it is acknowledged.
        more: further lines of each node's configuration.

    Raises:
        Missing: there is no NATS server here.
    """

    def __init__(self, nodes: int = 1, *, sync_always: bool = False, more: str = "") -> None:
        nats_server()
        self.folder = server_folder("nats")
        ports = free_ports(3 * nodes)
        routes = ", ".join(f'"nats://{_HOST}:{ports[3 * i + 2]}"' for i in range(nodes))
        self.nodes: list[NatsNode] = []
        for i in range(nodes):
            port, monitor, cluster = ports[3 * i : 3 * i + 3]
            sync = "sync_interval: always" if sync_always else ""
            config = (
                f"server_name: n{i}\nlisten: {_HOST}:{port}\nhttp: {_HOST}:{monitor}\n"
                f'jetstream {{ store_dir: "{self.folder}/n{i}", max_mem: 256MB, max_file: 4GB, {sync} }}\n{more}\n'
            )
            if nodes > 1:
                config += f"cluster {{ name: c, listen: {_HOST}:{cluster}, routes: [{routes}] }}\n"
            self.nodes.append(NatsNode(f"n{i}", self.folder, config=config, port=port, monitor=monitor))

    @property
    def url(self) -> str:
        """The address of the first node."""
        return self.nodes[0].url

    @property
    def urls(self) -> list[str]:
        """The addresses of all nodes."""
        return [node.url for node in self.nodes]

    def start(self) -> Self:
        """Start all nodes; return when JetStream is there, with a leader."""
        for node in self.nodes:
            node.start()
        self.ready()
        return self

    def ready(self) -> None:
        """Wait until every node that runs says that JetStream works."""
        for node in self.nodes:
            if node.alive:
                until(node.healthy, failing=node.tail)
        if len(self.nodes) > 1:
            until(self._led, failing=self.nodes[0].tail)

    def remove(self) -> None:
        """Kill all nodes and remove everything."""
        for node in self.nodes:
            node.stop(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def _led(self) -> bool:
        peers: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            alive = next(node for node in self.nodes if node.alive)
            with urllib.request.urlopen(f"http://{_HOST}:{alive.monitor}/jsz", timeout=30) as said:
                peers = json.load(said).get("meta_cluster", {})
        return bool(peers.get("leader")) and peers.get("cluster_size") == len(self.nodes)


__all__ = ["NatsCluster", "NatsNode"]
