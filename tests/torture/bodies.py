"""The body that is tortured: a step, effects of every kind, a sleep, a wait and an end."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from counterfoil import UNASKABLE, Evidence, Failed, Rejected, Retry
from tests.torture.programs import Body, deliver, effect, finish, sleep, step, wait_for
from tests.torture.recipient import Client, Refused

# How long the recipient takes to show what was sent to it, and how long it is given.
LAND_S: Final = 0.05
LAG_S: Final = 0.15
VISIBILITY_S: Final = 1.0


class Lost(Exception):
    """The answer did not come back."""


def making(client: Client, *, land_s: float = 0.0, loses: bool = False) -> Callable[[Any], str]:
    """Return a `run` that has a thing made; it `loses` the answer."""

    def run(context: Any) -> str:
        item = client.make(context.key, land_s=land_s)
        if loses:
            raise Lost
        return item

    return run


def refusing(client: Client, *, until: int, kind: type[Failed | Rejected] = Failed) -> Callable[[Any], str]:
    """Return a `run` that is refused until an attempt."""

    def run(context: Any) -> str:
        try:
            return client.make(context.key, refuse=context.attempt < until)
        except Refused:
            evidence = Evidence("refused", phase="acknowledged" if kind is Failed else "not-dispatched")
            raise (Failed(evidence, retryable=True) if kind is Failed else Rejected(evidence)) from None

    return run


def finding(client: Client, *, lag_s: float = 0.0) -> Callable[[Any], str | None]:
    """Return a `reconcile`."""
    return lambda context: client.find(context.key, lag_s=lag_s)


def order(client: Client, run: str) -> Body:
    """Take one order from its total to its end; chance is the run's, so every life does the same."""
    chance = random.Random(run)
    total = yield step("total", lambda: {"of": run, "sum": chance.random()})
    yield effect("mail", run=making(client, land_s=LAND_S / 2), reconcile=finding(client), visibility=VISIBILITY_S)
    yield sleep(0.05, "nap")
    yield effect(
        "charge",
        run=making(client, land_s=LAND_S, loses=chance.random() < 0.3),
        reconcile=finding(client, lag_s=LAG_S),
        visibility=VISIBILITY_S,
        request={"total": total},
    )
    paid = yield wait_for("paid", run)
    yield effect("blind", run=making(client, land_s=LAND_S / 2), reconcile=UNASKABLE)
    yield effect(
        "picky",
        run=refusing(client, until=chance.choice((1, 2, 3, 9)), kind=chance.choice((Failed, Rejected))),
        reconcile=finding(client),
        visibility=VISIBILITY_S,
        retry=Retry(3, backoff_s=0.01),
    )
    yield finish({"total": total, "paid": paid})


def steady(client: Client, run: str) -> Body:
    """Take one order in which nothing goes wrong, so that nobody ever has a reason to ask the recipient."""
    total = yield step("total", lambda: {"of": run})
    for name in ("mail", "charge"):
        yield effect(
            name,
            run=making(client, land_s=LAND_S),
            reconcile=finding(client) if name == "mail" else UNASKABLE,
            request={"total": total},
            wait=0.3,
        )
        yield sleep(0.02, f"nap-{name}")
    paid = yield wait_for("paid", run)
    yield finish({"total": total, "paid": paid})


def post(client: Client, run: str) -> Body:
    """Deliver what an order waits for."""
    yield deliver("paid", run, {"for": run})


BODIES: Final[dict[str, Callable[[Client, str], Body]]] = {"order": order, "steady": steady, "post": post}
