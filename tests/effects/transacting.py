"""A process that lives of the application's transactions, and is killed in them.

    python transacting.py points URL COLOUR FIRST STRIDE   # a child for each statement: killed before or after it
    python transacting.py storm URL COLOUR SEED            # children that transact without end, killed at random

It opens no ledger itself: each life is a fork of its own. It prints how many it killed. The application's table `sale`
says what was sold; the ledger's receipts must say the same, and so must what was staged along with each sale.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from counterfoil import UNASKABLE, AsyncRuntime, Outbox, Recipient, Runtime
from counterfoil.ledgers.postgres import connections
from counterfoil.ledgers.sqlite import engines

AT_ONCE = 3
STORM_S = 1.0
# As long a storm at most, where the machine is too busy for anybody to sell before he is killed, or to kill.
STORM_MAX_S = 100.0
SALES_MIN, KILLS_MIN = 10, 10


# What each ledger says to its store goes through these.
STATEMENTS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (engines._Apsw, ("execute", "command", "insert")),
    (engines._Sqlite3, ("execute", "command", "insert")),
    (connections.Connection, ("wait", "ask")),
)


mail = Recipient("mail")
SENT: list[str] = []
# Sales that some life was told of, counted up to 255 where its parent sees it.
SALES = mmap.mmap(-1, 1)


def sold_one() -> None:
    SALES[0] = min(SALES[0] + 1, 255)


@mail.operation(reconcile=UNASKABLE)
def send(ctx: Any, name: str) -> str:
    SENT.append(name)
    return name


class Refused(Exception):
    """The application changed its mind."""


class Trap:
    """Kills this process before (odd numbers) or after (even numbers) the n-th statement of the ledger's own."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.armed = False
        for kind, names in STATEMENTS:
            for name in names:
                setattr(kind, name, self._around(getattr(kind, name)))

    def _around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count()
            try:
                return method(*args, **kwargs)
            finally:
                self.count()

        return counted

    def count(self) -> None:
        self.left -= self.armed
        if self.armed and self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(3600)


def sells(name: str, outbox: Outbox, trap: Trap | None = None) -> Callable[[Any], str]:
    def body(connection: Any) -> str:
        connection.execute("SAVEPOINT s")
        connection.execute("INSERT INTO sale (name) VALUES ('dropped')")
        outbox.stage(connection, send(name="dropped"))
        connection.execute("ROLLBACK TO s")
        connection.execute("RELEASE s")
        connection.execute(f"INSERT INTO sale (name) VALUES ('{name}')")
        outbox.stage(connection, send(name=name))
        if trap is not None:
            trap.count()
        return name

    return body


def sells_or_refuses(name: str, outbox: Outbox, dice: random.Random) -> Callable[[Any], str]:
    def body(connection: Any) -> str:
        sells(name, outbox)(connection)
        if dice.random() < 0.3:
            raise Refused
        return name

    return body


def begin(trap: Trap | None) -> None:
    if trap is not None:
        trap.armed = True


def finish(url: str, count: int) -> None:
    with Runtime(url) as runtime:
        outbox = Outbox(runtime)
        for number in range(1, count + 1):
            with runtime.run(f"r{number}") as run:
                for name in ("a", "b"):
                    run.transaction(name, sells(f"r{number}/{name}", outbox))


def two_sales(url: str, run_id: str, trap: Trap | None) -> None:
    with Runtime(url) as runtime, runtime.run(run_id) as run:
        run.step("begun", lambda: None)
        begin(trap)
        for name in ("a", "b"):
            run.transaction(name, sells(f"{run_id}/{name}", Outbox(runtime), trap))


async def two_sales_later(url: str, run_id: str, trap: Trap | None) -> None:
    async with AsyncRuntime(url) as runtime, runtime.run(run_id) as run:
        await run.step("begun", lambda: None)
        begin(trap)
        outbox = Outbox(runtime)
        await asyncio.gather(*(run.transaction(name, sells(f"{run_id}/{name}", outbox, trap)) for name in ("a", "b")))


def many_sales(url: str, seed: int) -> None:
    dice = random.Random(seed)
    with Runtime(url) as runtime:
        outbox = Outbox(runtime)
        while True:
            run_id = f"storm-{dice.randrange(6)}"
            with runtime.run(run_id) as run:
                name = str(dice.randrange(10_000))
                try:
                    run.transaction(name, sells_or_refuses(f"{run_id}/{name}", outbox, dice))
                except Refused:
                    continue
                sold_one()


async def many_sales_later(url: str, seed: int) -> None:
    dice = random.Random(seed)
    async with AsyncRuntime(url) as runtime:
        outbox = Outbox(runtime)
        while True:
            run_id = f"storm-{dice.randrange(6)}"
            async with runtime.run(run_id) as run:
                names = [str(dice.randrange(10_000)) for _ in range(2)]
                bodies = [sells_or_refuses(f"{run_id}/{name}", outbox, dice) for name in names]
                work = (run.transaction(name, body) for name, body in zip(names, bodies, strict=True))
                for result in await asyncio.gather(*work, return_exceptions=True):
                    if isinstance(result, BaseException) and not isinstance(result, Refused):
                        raise result
                    if not isinstance(result, Refused):
                        sold_one()


def child(work: Callable[[], None]) -> int:
    """Fork a life; it ends without the interpreter's own goodbye."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def in_colour(colour: str, blocking: Callable[..., None], later: Callable[..., Any], *args: Any) -> None:
    if colour == "blocking":
        blocking(*args)
    else:
        asyncio.run(later(*args))


def points(url: str, colour: str, first: int, stride: int) -> int:
    number = 0
    while True:
        number += 1
        run_id = f"r{number}"

        def killed(number: int = number, run_id: str = run_id) -> None:
            in_colour(colour, two_sales, two_sales_later, url, run_id, Trap(first + (number - 1) * stride))

        code = os.waitstatus_to_exitcode(os.waitpid(child(killed), 0)[1])
        assert code in (0, -signal.SIGKILL), code
        if code == 0:
            assert os.waitpid(child(lambda count=number: finish(url, count)), 0)[1] == 0  # type: ignore[misc]
            return number - 1


def storm(url: str, colour: str, seed: int) -> int:
    dice = random.Random(seed)
    kills = 0
    lives: list[int] = []
    began, calm_s = time.monotonic(), 0.0
    while (lasts_s := time.monotonic() - began) < STORM_S or (
        (SALES[0] < SALES_MIN or kills < KILLS_MIN) and lasts_s < STORM_MAX_S
    ):
        while len(lives) < AT_ONCE:
            one = dice.randrange(1 << 30)
            lives.append(child(lambda one=one: in_colour(colour, many_sales, many_sales_later, url, one)))  # type: ignore[misc]
        calm_s = 0.0 if SALES[0] else calm_s + 0.01
        time.sleep(dice.uniform(0.01, 0.08) + calm_s)
        victim = lives.pop(dice.randrange(len(lives)))
        os.kill(victim, signal.SIGKILL)
        kills += os.waitstatus_to_exitcode(os.waitpid(victim, 0)[1]) == -signal.SIGKILL
    for left in lives:
        os.kill(left, signal.SIGKILL)
        kills += os.waitstatus_to_exitcode(os.waitpid(left, 0)[1]) == -signal.SIGKILL
    return kills


def main() -> None:
    what, url, colour, *numbers = sys.argv[1:]
    kills = points if what == "points" else storm
    print(kills(url, colour, *map(int, numbers)))


if __name__ == "__main__":
    main()
