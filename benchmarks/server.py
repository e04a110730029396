"""A PostgreSQL server of our own with fsync, and what is measured beside everything on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers.finding import Missing
from tests.servers.postgres import Cluster

MAJOR = 18
# As PostgreSQL ships, but for the memory of a small machine.
SETTINGS = {"shared_buffers": "256MB"}


@contextmanager
def server() -> Iterator[Cluster]:
    """Start a server; it ends with the block."""
    with Cluster(MAJOR, durable=True, settings=SETTINGS) as cluster:
        yield cluster


def served(part: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """A part that has a server, `part(cluster, folder, hurried=…)`; without a server here it says so."""

    def alone(folder: str, *, hurried: bool) -> dict[str, Any]:
        try:
            with server() as cluster:
                return part(cluster, folder, hurried=hurried)
        except Missing as error:
            print(f"  did not run: {error}")
            return {}

    return alone


def readable(cluster: Cluster, name: str, text: str) -> Path:
    """Write a file that the server's programs may read."""
    file = cluster.folder / name
    file.write_text(text, encoding="utf-8")
    file.chmod(0o644)
    return file
