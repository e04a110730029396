"""Starts and ends servers: never as root, ended by the recorded process id and waited for."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGCONT, SIGTERM, Signals
from typing import Any, Final

NOBODY: Final = 65534
PATIENCE_S: Final = 60.0
# Where ports are taken from that nobody gets by chance: below those that systems give to connections.
_PORTS: Final = range(12_000, 32_000)
# What says that a port is ours, until this process ends.
_claims: list[socket.socket] = []


def as_ordinary_user() -> dict[str, Any]:
    """Return what `subprocess` needs so that a server that refuses root starts."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


def server_folder(prefix: str) -> Path:
    """Make a folder that belongs to the user that servers run as; whoever asked for it removes it."""
    folder = Path(tempfile.mkdtemp(prefix=f"counterfoil-{prefix}-"))
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    return folder


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nobody listens on now, and that no other process of the tests gets meanwhile."""
    # Not of the seeded chance: that is the same in every worker.
    chance = random.SystemRandom()
    ports: list[int] = []
    while len(ports) < count:
        port = chance.choice(_PORTS)
        if _claimed(port) and _free(port):
            ports.append(port)
    return ports


def _claimed(port: int) -> bool:
    """Say to the other processes that a port is taken, also while its server is down; False if one of them has it."""
    if not sys.platform.startswith("linux"):
        return True
    claim = socket.socket(socket.AF_UNIX)
    try:
        # An abstract name: there is no file, and it goes with the process.
        claim.bind(f"\0counterfoil-tests-{port}")
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True


def _free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def until(holds: Callable[[], Any], *, failing: Callable[[], str], patience_s: float = PATIENCE_S) -> None:
    """Wait until something holds; otherwise raise what `failing` says."""
    give_up = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() > give_up:
            raise TimeoutError(failing())
        time.sleep(0.005)


class Process:
    """One server process and its log.

    Args:
        command: what to start.
        log: the file that takes what it says.
        dies_by: the signal that it gets if this process dies without ending it (where `setpriv` exists).
    """

    def __init__(self, command: Sequence[str | os.PathLike[str]], *, log: Path, dies_by: str = "SIGKILL") -> None:
        setpriv = shutil.which("setpriv")
        guarded = [setpriv, "--pdeathsig", dies_by, "--", *command] if setpriv else list(command)
        self.log = log
        with log.open("ab") as said:
            self._process = subprocess.Popen(
                guarded,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd="/",
                start_new_session=True,
                **as_ordinary_user(),
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def send(self, number: Signals) -> None:
        """Send it a signal if it lives."""
        if self.alive:
            self._process.send_signal(number)

    def end(self, number: Signals = SIGTERM) -> None:
        """End it and wait; what does not end in time is killed."""
        self.send(SIGCONT)
        self.send(number)
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def tail(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-3000:]


__all__ = ["NOBODY", "Process", "as_ordinary_user", "free_ports", "server_folder", "until"]
