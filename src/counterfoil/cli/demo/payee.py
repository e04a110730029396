"""The recipient of the demo, in a process of its own: charges, a mailbox and a door, with a log of its own.

It does not deduplicate: whoever sends twice is charged twice. Charges are found by key as soon as they are
made, mails some time later, and the door cannot be asked.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

SHOWN_AFTER_S: Final = {"charge": 0.0, "mail": 0.3}
WORK_S: Final = 0.04

_SCHEMA: Final = """
PRAGMA synchronous = OFF;
CREATE TABLE request (at REAL, method TEXT, path TEXT);
CREATE TABLE item (id TEXT, kind TEXT, key TEXT, order_id TEXT, at REAL);
"""
_INSERT: Final = "INSERT INTO item VALUES (?, ?, ?, ?, ?)"
_FIND: Final = "SELECT id FROM item WHERE kind = ? AND key = ? AND at <= ? ORDER BY at LIMIT 1"
_ALL: Final = "SELECT id, kind, key, order_id, at FROM item ORDER BY at"


class Payee(HTTPServer):
    """Serves one request after the other."""

    timeout = 0.2

    def __init__(self, path: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.log = sqlite3.connect(path, isolation_level=None)
        self.log.executescript(_SCHEMA)

    def make(self, kind: str, key: str, order: str) -> str:
        """Make a thing, whatever was made before."""
        number = self.log.execute("SELECT count(*) FROM item WHERE kind = ?", (kind,)).fetchone()[0] + 1
        found = f"{kind}-{number}"
        self.log.execute(_INSERT, (found, kind, key, order, time.time()))
        return found

    def find(self, kind: str, key: str) -> str | None:
        """Look a thing up by its key."""
        found = self.log.execute(_FIND, (kind, key, time.time() - SHOWN_AFTER_S[kind])).fetchone()
        return None if found is None else str(found[0])

    def items(self) -> list[dict[str, Any]]:
        """Return everything that was ever made."""
        names = ("id", "kind", "key", "order", "at")
        return [dict(zip(names, row, strict=True)) for row in self.log.execute(_ALL)]


class _Handler(BaseHTTPRequestHandler):
    @property
    def _payee(self) -> Payee:
        assert isinstance(self.server, Payee)
        return self.server

    def do_POST(self) -> None:
        kind, asked = self._asked()
        found = self._payee.make(kind, asked["key"], asked["order"])
        # The thing is made; until the reply leaves nobody else knows.
        time.sleep(WORK_S)
        self._reply(200, {"id": found})

    def do_GET(self) -> None:
        kind, asked = self._asked()
        if kind == "log":
            self._reply(200, {"items": self._payee.items()})
        elif kind in SHOWN_AFTER_S:
            self._reply(200, {"id": self._payee.find(kind, asked["key"])})
        else:
            self._reply(405, {"id": None})

    def _asked(self) -> tuple[str, dict[str, str]]:
        self._payee.log.execute("INSERT INTO request VALUES (?, ?, ?)", (time.time(), self.command, self.path))
        split = urlsplit(self.path)
        return split.path.strip("/"), {name: values[0] for name, values in parse_qs(split.query).items()}

    def _reply(self, status: int, found: dict[str, Any]) -> None:
        body = json.dumps(found).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            # Whoever asked was killed meanwhile.
            return

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the log is in the database."""


def main() -> None:
    """Serve until the parent is gone; the port goes to stdout."""
    parent = os.getppid()
    with Payee(sys.argv[1]) as server:
        sys.stdout.write(f"{server.server_port}\n")
        sys.stdout.flush()
        while os.getppid() == parent:
            server.handle_request()


if __name__ == "__main__":
    main()
