"""Lives of dispatchers that a test steps by hand, and ends as it likes."""

from __future__ import annotations

import time
from typing import Any

from counterfoil import Dispatcher, Runtime
from counterfoil.runtime.dispatcher import _call
from counterfoil.runtime.jobs import Job
from tests.outbox.shop import Shop, quick
from tests.support import PATIENCE_S


class Life:
    """One dispatcher over a ledger object of its own, as another process would have it."""

    def __init__(self, shop: Shop, *names: str, **more: Any) -> None:
        self.shop = shop
        self.runtime = Runtime(shop.url, clock=shop.given_clock)
        self.runtime.__enter__()
        more.setdefault("terms", quick())
        chosen = [shop.recipients[name] for name in names or shop.recipients]
        self.dispatcher = Dispatcher(self.runtime, chosen, **more)
        self.engine = self.dispatcher._open()
        self.jobs: list[Job] = []

    @property
    def epoch(self) -> str:
        return self.engine.epoch

    def turn(self) -> list[Job]:
        """Claim what is due and take the send-right for what there is room for; handlers are not called."""
        self.engine.nudged()
        started = [job for _ in range(2) for job in self.engine.turn()[0]]
        self.jobs += started
        return started

    def until(self, effect_id: str) -> None:
        """Go on until this intent is about to be sent, calling every other handler."""
        for _ in range(50):
            self.turn()
            mine = [job for job in self.jobs if job.context.key == effect_id and job.handler.__name__ == "run"]
            self.jobs = [job for job in self.jobs if job not in mine]
            if mine:
                return
            self.call()
        raise AssertionError("it is not sent")

    def settle(self, *, pause_s: float = 0.0) -> None:
        """Do rounds, calling handlers in this thread, until nothing is in hand.

        Args:
            pause_s: between two, for a store that is in trouble.
        """
        give_up = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up:
            time.sleep(pause_s)
            self.call()
            self.engine.nudged()
            self.jobs += self.engine.turn()[0]
            if not self.engine.in_hand and not self.jobs:
                return
        raise AssertionError("it does not settle")

    def call(self) -> None:
        """Call the handlers that are to be called."""
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            _call(job)

    def fenced(self) -> None:
        """Have others take this life for gone, although it goes on."""
        self.shop.sql(f"UPDATE counterfoil_owner SET retired = 1 WHERE epoch = '{self.epoch}'")

    def crash(self) -> None:
        """End it without a word: it is found gone, and nothing of what it has in hand is recorded."""
        self.runtime.ledger.close()  # type: ignore[attr-defined]
