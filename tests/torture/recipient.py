"""The recipient: a process of its own that logs, durably, what it is asked for before it does it, and what it made.

Each line of its log is a JSON object: `received` when a request came in, `created` when the thing was made,
`refused` when it was not, `asked` for a look-up. A request that came in is carried out even if its sender is dead.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


class Refused(Exception):
    """The recipient said that it did not do it."""


@dataclass(frozen=True)
class Client:
    """How a worker speaks to the recipient."""

    address: str

    def make(self, key: str, *, land_s: float = 0.0, refuse: bool = False, size: int = 0) -> str:
        """Ask for a thing, and return what the recipient named it.

        Args:
            key: the effect's key.
            land_s: how long the recipient takes to make it, in seconds.
            refuse: it is to say no.
            size: by how many characters the name is longer than it need be.
        """
        answer = self._ask({"op": "make", "key": key, "land_s": land_s, "refuse": refuse, "size": size})
        if answer["item"] is None:
            raise Refused(key)
        return str(answer["item"])

    def find(self, key: str, *, lag_s: float = 0.0) -> str | None:
        """Look for a thing; one that is younger than `lag_s` is not shown."""
        found: str | None = self._ask({"op": "find", "key": key, "lag_s": lag_s})["item"]
        return found

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.connect(self.address)
            peer.sendall(json.dumps(message).encode() + b"\n")
            with peer.makefile("rb") as stream:
                answer: dict[str, Any] = json.loads(stream.readline())
                return answer


class _Log:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._lock = threading.Lock()
        self._count = 0
        self.made: dict[str, list[tuple[str, float]]] = defaultdict(list)

    def write(self, what: str, key: str, **more: Any) -> None:
        os.write(self._file, json.dumps({"what": what, "key": key, **more}).encode() + b"\n")
        os.fsync(self._file)

    def create(self, key: str, size: int) -> str:
        with self._lock:
            self._count += 1
            item = f"item-{self._count}{'.' * size}"
        self.write("created", key, item=item)
        self.made[key].append((item, time.monotonic()))
        return item


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 256
    log: _Log


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        line = self.rfile.readline()
        if not line.endswith(b"\n"):
            return  # its sender died before it had said what it wanted
        message = json.loads(line)
        assert isinstance(self.server, _Server)
        answer = {"item": self._served(self.server.log, message)}
        try:
            self.wfile.write(json.dumps(answer).encode() + b"\n")
        except OSError:
            return  # nobody is there to be told

    @staticmethod
    def _served(log: _Log, message: dict[str, Any]) -> str | None:
        key = message["key"]
        if message["op"] == "find":
            before = time.monotonic() - message["lag_s"]
            log.write("asked", key)
            return next((item for item, at in log.made[key] if at <= before), None)
        log.write("received", key)
        if message["refuse"]:
            log.write("refused", key)
            return None
        if message["land_s"]:
            time.sleep(message["land_s"])
        return log.create(key, message["size"])


def serve(connection: Connection, address: str, log: Path) -> None:
    """Serve until the campaign ends."""
    with _Server(address, _Handler) as server:
        server.log = _Log(log)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        connection.send("ready")
        connection.recv()


def read_log(path: Path) -> list[dict[str, Any]]:
    """Read a log; a last line that was cut by a kill is no line."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]
