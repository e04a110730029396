"""The S3 endpoints that the tests of blobs run against, and what is known of each."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import Any, Final

from counterfoil.recipients.blobs.s3.capabilities import Capabilities
from tests.blobs.s3_support import JuiceFS, Ministack
from tests.blobs.swift import Swift
from tests.servers.finding import Missing, missing
from tests.servers.starting import server_folder

SERVERS: Final[dict[str, Any]] = {"ministack": Ministack, "juicefs": JuiceFS, "swift": Swift}
# What a probe must find out by itself; the same table is in docs/reference/blobs.md.
KNOWN: Final[dict[str, Capabilities]] = {
    "ministack": Capabilities(create="atomic", complete="atomic", versions=False, checksums=True),
    "juicefs": Capabilities(create="ignored", complete="ignored", versions=False, checksums=False),
    "swift": Capabilities(create="not-atomic", complete="not-atomic", versions=False, checksums=True),
}


@dataclass
class Endpoint:
    """A server that runs, and its port: its own, or that of somebody in between."""

    name: str
    server: Any = field(repr=False)
    port: int
    access: str

    @property
    def known(self) -> Capabilities:
        """What it can do."""
        return KNOWN[self.name]

    @property
    def weak(self) -> str:
        """What must be asked for so that it is written to."""
        return "refuse" if self.known.strong else "verify"

    def behind(self, port: int) -> Endpoint:
        """Return the same one behind another port."""
        return Endpoint(self.name, self.server, port, self.access)


class Endpoints:
    """Starts each server when it is first wanted."""

    def __init__(self) -> None:
        self._folder = server_folder("s3")
        self._running: dict[str, Endpoint | Missing] = {}

    def get(self, name: str) -> Endpoint:
        """Return a server that runs; the test is skipped where there is none."""
        if name not in self._running:
            folder = self._folder / name
            folder.mkdir()
            try:
                server = SERVERS[name](folder)
                self._running[name] = Endpoint(name, server, server.port, server.access)
            except Missing as error:
                self._running[name] = error
        found = self._running[name]
        if isinstance(found, Missing):
            missing(found)
        return found

    def close(self) -> None:
        """End them all."""
        for endpoint in self._running.values():
            if isinstance(endpoint, Endpoint):
                endpoint.server.close()
        shutil.rmtree(self._folder, ignore_errors=True)
