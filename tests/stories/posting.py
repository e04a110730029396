"""A dispatcher as a process of its own that is killed where a story says; run as a module.

python -m tests.stories.posting URL LOG POINT      # claimed, granted or sent
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from counterfoil import UNASKABLE, Dispatcher, Recipient
from counterfoil.runtime.dispatching import Engine


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def recipients(log: Path, *, dies: bool = False) -> list[Recipient]:
    """A door that cannot be asked and a mailbox that can; both write down what reaches them."""
    door, mail = Recipient("door"), Recipient("mail")

    def received(key: str, what: str) -> str:
        with log.open("a") as file:
            file.write(f"{key} {what}\n")
        if dies:
            die()
        return what

    @door.operation(reconcile=UNASKABLE)
    def unlock(ctx: Any, number: int) -> str:
        return received(ctx.key, f"door-{number}")

    @mail.operation
    def send(ctx: Any, to: str) -> str:
        return received(ctx.key, f"mail-{to}")

    @send.reconcile
    def find(ctx: Any, to: str) -> str | None:
        lines = log.read_text().splitlines() if log.exists() else []
        return f"mail-{to}" if f"{ctx.key} mail-{to}" in lines else None

    return [door, mail]


def dispatch(url: str, log: str, point: str) -> None:
    """Dispatch until the point at which this process is killed."""
    before = Engine.turn

    def turn(self: Engine) -> Any:
        jobs, idle_s = before(self)
        if (point == "granted" and jobs) or (point == "claimed" and self.in_hand and not jobs):
            die()
        return jobs, idle_s

    Engine.turn = turn  # type: ignore[method-assign]
    with Dispatcher(url, recipients(Path(log), dies=point == "sent")) as dispatcher:
        dispatcher.run_until_idle(timeout_s=30)


if __name__ == "__main__":
    dispatch(*sys.argv[1:])
