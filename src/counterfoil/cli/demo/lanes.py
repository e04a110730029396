"""The processes of the demo: the payee, and two workers that are killed at points chosen by a seed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from counterfoil.cli.demo.body import EFFECTS
from counterfoil.errors import CounterfoilError

ORDERS_MIN: Final = 6
ENDLESS: Final = 1000
# Delays count from the start of a process, which takes about 0.15 s.
DELAY_S: Final = (0.12, 0.35)
NUMBERS: Final = (4, 30)
_ENDINGS: Final = (signal.SIGINT, signal.SIGTERM)


def points(seed: int, kills: int) -> list[str]:
    """Choose where to kill: exact points around each effect's sending, n-th requests, and delays."""
    chosen = random.Random(seed)  # noqa: S311 - a demo that can be repeated
    exact = [
        f"{moment} effect/{name}/1/{part}"
        for name in EFFECTS
        for moment, part in (("after", "intent"), ("before", "outcome"))
    ]
    chosen.shuffle(exact)
    found = exact[:kills]
    while len(found) < kills:
        if chosen.random() < 0.5:
            found.append(f"{chosen.choice(('before', 'after'))} {chosen.randint(*NUMBERS)}")
        else:
            found.append(f"delay {chosen.uniform(*DELAY_S):.3f}")
    chosen.shuffle(found)
    return found


class Lane:
    """One worker, started again each time that it was killed, until it has ended by itself.

    Args:
        side: `ours` or `naive`.
        folder: where its files are.
        port: the payee's.
        planned: where to kill it.

    Attributes:
        kills: how often it was killed.
        done: whether it has served every order.
        until: how many orders its last life serves; 0 while that is not known.
    """

    def __init__(self, side: str, folder: Path, *, port: int, planned: list[str]) -> None:
        self.side = side
        self.kills = 0
        self.done = False
        self.until = 0
        self._folder = folder
        self._port = port
        self._planned = planned
        self._process: subprocess.Popen[bytes] | None = None
        self._kill_at = 0.0

    @property
    def begun(self) -> list[str]:
        """The orders that were begun, in order."""
        path = self._folder / f"{self.side}.log"
        return list(dict.fromkeys(path.read_text(encoding="utf-8").split())) if path.exists() else []

    @property
    def survived(self) -> bool:
        """Whether it was killed as often as planned."""
        return self.kills == len(self._planned)

    def poll(self) -> None:
        """Start, kill or restart it, whatever is due.

        Raises:
            CounterfoilError: it ended otherwise than killed or done.
        """
        if self.done:
            return
        if self._process is None:
            if self.until or not self.survived:
                self._start()
            return
        code = self._process.poll()
        if code is None:
            if self._kill_at and time.monotonic() >= self._kill_at:
                self._kill_at = 0.0
                self._process.kill()
            return
        self._process = None
        if code == -signal.SIGKILL and not self.survived:
            self.kills += 1
        elif code == 0:
            self.done = True
        else:
            log = self._folder / f"{self.side}-errors.log"
            raise CounterfoilError(f"a worker of the demo ended with {code}", hint=f"see {log}")

    def stop(self) -> None:
        """Kill it for good."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        point, until = "never 0", str(self.until)
        self._kill_at = 0.0
        if not self.survived:
            point, until = self._planned[self.kills], str(ENDLESS)
            moment, _, delay = point.partition(" ")
            if moment == "delay":
                self._kill_at = time.monotonic() + float(delay)
                point = "never 0"
        words = ["worker", self.side, str(self._folder), str(self._port), until, point]
        with (self._folder / f"{self.side}-errors.log").open("ab") as errors, _uninterrupted():
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                _python(*words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )


@contextmanager
def payee(folder: Path) -> Generator[int]:
    """Have a payee in a process of its own, and give its port."""
    process: subprocess.Popen[bytes] | None = None
    try:
        with _uninterrupted():
            # In sessions of their own: Ctrl-C reaches the parent alone, which ends everything.
            process = subprocess.Popen(  # noqa: S603 - our own module
                _python("payee", str(folder / "payee.db")),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        assert process.stdout is not None
        yield int(process.stdout.readline() or 0)
    finally:
        if process is not None:
            process.kill()
            process.communicate()


@contextmanager
def _uninterrupted() -> Generator[None]:
    """Let Ctrl-C and SIGTERM wait: in the middle of a start they would leave a process that nobody knows of."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in _ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for one in came:
            signal.raise_signal(one)


def _python(module: str, *words: str) -> list[str]:
    return [sys.executable, "-m", f"counterfoil.cli.demo.{module}", *words]
