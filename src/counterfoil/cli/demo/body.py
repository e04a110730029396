"""What the demo does for each order: one body, run by a worker with a ledger and by one without."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any, Final, Protocol
from urllib.parse import urlencode

from counterfoil.effects.effect import UNASKABLE
from counterfoil.errors import RecipientError
from counterfoil.recipients.function import Recipient
from counterfoil.runtime.handlers import Context

TIMEOUT_S: Final = 10.0
EVENT: Final = "packed"
EFFECTS: Final = {"charge": "charge", "receipt-mail": "mail", "open-door": "door"}

payee = Recipient("payee")


class OrderRun(Protocol):
    """What the body needs of a run."""

    def step(self, name: str, body: Any, /) -> Any:
        """Compute something once."""
        ...

    def effect(self, name: str, operation: Any, /) -> Any:
        """Make something happen once."""
        ...

    def sleep(self, seconds: float, *, name: str) -> None:
        """Wait."""
        ...

    def wait_for(self, event: str, id: str, /) -> Any:
        """Wait for an event."""
        ...


def ask(port: int, method: str, kind: str, **asked: str) -> Any:
    """Send one request to the payee and return its reply."""
    connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request(method, f"/{kind}?{urlencode(asked)}")
        reply = connection.getresponse()
        found = json.loads(reply.read())
    finally:
        connection.close()
    if reply.status != 200:
        raise RecipientError(f"the payee answered {reply.status}")
    return found


@payee.operation
def charge(ctx: Context, port: int, order: str, *, amount: int) -> str:
    """Charge a card; `amount` is only part of the request's fingerprint here."""
    del amount
    return str(ask(port, "POST", "charge", key=ctx.key, order=order)["id"])


@charge.reconcile
def find_charge(ctx: Context, port: int, order: str, *, amount: int) -> Any:
    """Look the charge up by our key."""
    del order, amount
    return ask(port, "GET", "charge", key=ctx.key)["id"]


@payee.operation(visibility=0.4)
def mail(ctx: Context, port: int, order: str) -> str:
    """Send a receipt, which the mailbox shows only some time later."""
    return str(ask(port, "POST", "mail", key=ctx.key, order=order)["id"])


@mail.reconcile
def find_mail(ctx: Context, port: int, order: str) -> Any:
    """Look the mail up by our key."""
    del order
    return ask(port, "GET", "mail", key=ctx.key)["id"]


@payee.operation(reconcile=UNASKABLE)
def door(ctx: Context, port: int, order: str) -> str:
    """Open the door of the store, which nobody can ask afterwards."""
    return str(ask(port, "POST", "door", key=ctx.key, order=order)["id"])


def order(run: OrderRun, order_id: str, port: int) -> str:
    """Serve one order: price, charge, mail, wait until it is packed, open the door."""
    total = run.step("price", lambda: 100 + 7 * len(order_id))
    run.effect("charge", charge(port, order_id, amount=total))
    run.sleep(0.1, name="cooling-off")
    run.effect("receipt-mail", mail(port, order_id))
    run.wait_for(EVENT, order_id)
    run.effect("open-door", door(port, order_id))
    return "served"
