"""The worker of the demo: `python -m counterfoil.cli.demo.worker`, with a ledger or without.

It serves order after order and is killed with SIGKILL: by itself at an exact point, or by its parent whenever.
Nothing of the command line is imported here, so that it starts fast.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from counterfoil.cli.demo.body import order
from counterfoil.errors import EffectUnresolved
from counterfoil.protocol.requests import Append, Request
from counterfoil.runtime.handlers import Context
from counterfoil.runtime.sync import Runtime

PAUSE_S: Final = 0.02
# A life with a ledger has about four times as many points as one without.
FEWER: Final = 4


class Killer:
    """Kills this process at a point: `after 17` (the n-th of all), or `before effect/charge/1/outcome`."""

    def __init__(self, point: str) -> None:
        self._moment, _, self._place = point.partition(" ")
        self._number = int(self._place) if self._place.isdigit() else 0
        self._seen = 0
        self._parent = os.getppid()

    def at(self, moment: str, place: str = "") -> None:
        """Pass a point, or not."""
        if os.getppid() != self._parent:
            os._exit(1)
        if moment != self._moment:
            return
        self._seen += 1
        if place == self._place or self._seen == self._number:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, moment: str, _run: str, request: Request[Any]) -> None:
        """Take a driver's requests as points."""
        self.at(moment, request.draft.slot if isinstance(request, Append) else "")


class Forgetful:
    """A run that records nothing: what anybody writes first."""

    def __init__(self, killer: Killer, order_id: str) -> None:
        self._at = killer.at
        self._order_id = order_id

    def step(self, name: str, body: Callable[[], Any], /) -> Any:
        """Compute it."""
        self._at("before", f"step/{name}")
        found = body()
        self._at("after", f"step/{name}")
        return found

    def effect(self, name: str, operation: Any, /) -> Any:
        """Send it."""
        # The points are called as those of the ledger, so that one seed kills both at the same ones.
        self._at("before", f"effect/{name}/1/intent")
        self._at("after", f"effect/{name}/1/intent")
        found = operation.run(Context(f"naive-{self._order_id}-{name}", 1, None))
        self._at("before", f"effect/{name}/1/outcome")
        self._at("after", f"effect/{name}/1/outcome")
        return found

    def sleep(self, seconds: float, *, name: str) -> None:
        """Wait, from the beginning each time."""
        self._at("before", f"park/sleep/{name}")
        time.sleep(seconds)
        self._at("after", f"park/sleep/{name}")

    def wait_for(self, event: str, id: str, /) -> None:
        """Believe that it has come."""
        self._at("before", f"event/{event}/{id}")
        time.sleep(PAUSE_S)
        self._at("after", f"event/{event}/{id}")


def with_ledger(folder: Path, port: int, point: str, *, until: int) -> None:
    """Serve orders with a ledger; what an earlier life left is taken up where it stands."""
    with Runtime(f"sqlite:///{folder / 'ledger.db'}", owner=f"demo worker, pid {os.getpid()}") as runtime:
        runtime._driver.watch = Killer(point).watch  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        for number in range(1, until + 1):
            order_id = f"order-{number}"
            _note(folder / "ours.log", order_id)
            while True:
                try:
                    runtime.execute(order_id, order, order_id, port)
                except EffectUnresolved as unresolved:
                    # Nobody knows yet; calling again asks again.
                    time.sleep(unresolved.retry_after_s or PAUSE_S)
                else:
                    break


def without(folder: Path, port: int, point: str, *, until: int) -> None:
    """Serve orders without a ledger; an order that was not finished begins again."""
    moment, _, place = point.partition(" ")
    if place.isdigit():
        point = f"{moment} {int(place) // FEWER + 1}"
    killer = Killer(point)
    done = folder / "naive-done.log"
    finished = done.read_text(encoding="utf-8").split() if done.exists() else []
    for number in range(1, until + 1):
        order_id = f"order-{number}"
        if order_id not in finished:
            _note(folder / "naive.log", order_id)
            order(Forgetful(killer, order_id), order_id, port)
            _note(done, order_id)


def _note(path: Path, order_id: str) -> None:
    with path.open("a", encoding="utf-8") as stream:
        stream.write(f"{order_id}\n")


def main() -> None:
    """Serve orders: `worker ours|naive FOLDER PORT UNTIL POINT`."""
    side, folder, port, until, point = sys.argv[1:]
    serve = with_ledger if side == "ours" else without
    serve(Path(folder), int(port), point, until=int(until))


if __name__ == "__main__":
    main()
