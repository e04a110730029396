"""OpenStack Swift behind its S3 middleware: the four servers of one node, with one replica of everything."""

from __future__ import annotations

import importlib.util
import os
import pwd
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.blobs.s3_support import HOST, SECRET, Process
from tests.servers.finding import Missing
from tests.servers.starting import free_ports, until

_MODULES: Final = {"account": "account", "container": "container", "object": "obj", "proxy": "proxy"}
_SETTINGS: Final = "[swift-hash]\nswift_hash_path_suffix = tests\n[storage-policy:0]\nname = only\ndefault = yes\n"
# The ring builder of the command line takes seconds for the same.
_RINGS: Final = """
import sys
from swift.common.ring import RingBuilder
folder, *rings = sys.argv[1:]
for ring in rings:
    name, port = ring.split(":")
    builder = RingBuilder(2, 1, 1)
    at = {"ip": "127.0.0.1", "port": int(port), "replication_ip": "127.0.0.1", "replication_port": int(port)}
    builder.add_dev({"id": 0, "region": 1, "zone": 1, "device": "disk", "weight": 1.0, "meta": "", **at})
    builder.rebalance()
    builder.get_ring().save(f"{folder}/{name}.ring.gz")
"""
_SERVER: Final = """
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
swift_dir = {folder}
devices = {folder}
mount_check = false
disable_fallocate = true
workers = 0
user = {user}
[pipeline:main]
pipeline = {before}{kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
account_autocreate = true
# Its half a second for a neighbour ends as a 503 where the machine is busy.
conn_timeout = 20
node_timeout = 30
recoverable_node_timeout = 30
error_suppression_limit = 1000000
"""
_FILTERS: Final = ("catch_errors", "listing_formats", "s3api", "tempauth", "slo", "versioned_writes", "symlink")
_OPTIONS: Final = {
    "s3api": "location = us-east-1",
    "tempauth": "user_{access} = {secret} .admin",
    "versioned_writes": "allow_versioned_writes = true\nallow_object_versioning = true",
}


class Swift:
    """A Swift that checks signatures; its conditional requests do not hold where two come at once."""

    access = "tests:tester"

    def __init__(self, folder: Path) -> None:
        self._python = _python()
        _try_attributes(folder)
        ports = dict(zip(_MODULES, free_ports(len(_MODULES)), strict=True))
        self.port = ports["proxy"]
        (folder / "disk").mkdir()
        (folder / "swift.conf").write_text(_SETTINGS, "utf-8")
        rings = [f"{kind}:{port}" for kind, port in ports.items() if kind != "proxy"]
        log = folder / "rings.log"
        made = Process([self._python, "-c", _RINGS, str(folder), *rings], log=log)
        until(made.ended, failing=made.tail)
        self._servers = [self._started(kind, port, folder) for kind, port in ports.items()]
        until(self._ready, failing=lambda: "\n".join(server.tail() for server in self._servers))

    def _started(self, kind: str, port: int, folder: Path) -> Process:
        conf = folder / f"{kind}.conf"
        user = pwd.getpwuid(os.geteuid()).pw_name
        filters = _FILTERS if kind == "proxy" else ()
        text = _SERVER.format(
            port=port, folder=folder, user=user, kind=kind, before="".join(f"{each} " for each in filters)
        )
        for each in filters:
            options = _OPTIONS.get(each, "").format(access=self.access.replace(":", "_"), secret=SECRET)
            text += f"[filter:{each}]\nuse = egg:swift#{each}\n{options}\n"
        conf.write_text(text, "utf-8")
        main = f"import sys; from swift.{_MODULES[kind]}.server import main; sys.exit(main())"
        return Process([self._python, "-c", main, str(conf), "-v"], log=folder / f"{kind}.log")

    def _ready(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://{HOST}:{self.port}/info", timeout=30) as said:
            return bool(said.status == 200)
        return False

    def close(self) -> None:
        """End its servers."""
        for server in self._servers:
            server.end()


def _python() -> str:
    """Return an interpreter that has Swift."""
    named = os.environ.get("TEST_SWIFT_PYTHON")
    if named is None and any(importlib.util.find_spec(each) is None for each in ("swift", "pyeclib")):
        raise Missing("there is no OpenStack Swift here (its wheels are swift and pyeclib)")
    return named or sys.executable


def _try_attributes(folder: Path) -> None:
    try:
        os.setxattr(folder, "user.counterfoil", b"1")
    except (OSError, AttributeError):
        raise Missing(f"OpenStack Swift needs a file system with extended attributes, and {folder} has none") from None
