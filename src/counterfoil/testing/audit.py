"""What `counterfoil audit-client` does: it lets a client of yours meet each misbehaviour, and counts what it sent."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, Literal

from counterfoil import threads
from counterfoil.errors import UsageError
from counterfoil.testing.peers.catalogue import CASES, Case, Known
from counterfoil.testing.peers.peer import FaultPeer

SAFE: Final = ("GET", "HEAD", "OPTIONS", "TRACE")
WATCHED_S: Final = 0.2
LIMIT_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How a client met one misbehaviour.

    Attributes:
        case: its name in the catalogue.
        says: what the peer did.
        known: what a client can know then: `not sent`, `unknown`, `refused` or `done`.
        ended: how the client's function ended: it `returned`, `raised`, or was still `waiting` at the limit.
        raised: what it raised, as `module.Class`; None if it raised nothing.
        sent: how many mutations reached the peer: requests that are neither GET, HEAD, OPTIONS nor TRACE.
        requests: how many requests reached it.
        connections: how many connections the client opened.
        keys: how many different idempotency keys the mutations carried.
        took_s: how long the function took.
        problem: why the case could not be tried; None if it could.
    """

    case: str
    says: str
    known: Known
    ended: Literal["returned", "raised", "waiting"]
    raised: str | None
    sent: int
    requests: int
    connections: int
    keys: int
    took_s: float
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Audit:
    """How a client met all of them."""

    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """Whether no mutation was sent more than once, and every case could be tried."""
        return all(each.sent <= 1 and each.problem is None for each in self.findings)

    def shape(self) -> dict[str, Any]:
        """Describe it as a JSON object."""
        return {"ok": self.ok, "findings": [asdict(each) for each in self.findings]}


def audit(
    client: Callable[..., Any],
    *,
    method: str | None = None,
    cases: Iterable[Case] = CASES,
    limit_s: float = LIMIT_S,
    at_once: int = 1,
) -> Audit:
    """Let a client meet each case, with a peer of its own on the loopback interface.

    Args:
        client: makes one request, blocking or asynchronous; it gets the URL.
        method: given to it as `method=`; None: it decides by itself.
        cases: what it is to meet.
        limit_s: how long it may take for one case; what it waits for longer is noted as `waiting`.
        at_once: how many cases are met at the same time, each in a thread of its own.

    Raises:
        UsageError: the client cannot be called so; it would send nothing, and that would look well.
    """
    _takes_a_url(client, method)
    chosen = list(cases)
    found: dict[str, Finding] = {}
    free = threading.Semaphore(at_once)

    def meet(case: Case) -> None:
        try:
            found[case.name] = _meet(client, method, case, limit_s=limit_s)
        finally:
            free.release()

    started = []
    for case in chosen:
        free.acquire()
        started.append(threads.start_daemon("audit", partial(meet, case)))
    for thread in started:
        thread.join()
    return Audit([found[case.name] for case in chosen])


def _meet(client: Callable[..., Any], method: str | None, case: Case, *, limit_s: float) -> Finding:
    ended = threading.Event()
    raised: list[BaseException] = []

    def work() -> None:
        try:
            _call(client, f"{peer.url}/orders", method)
        except BaseException as error:  # noqa: BLE001 - what it raises is what is asked for
            raised.append(error)
        ended.set()

    with FaultPeer(case.script) as peer:
        began = time.monotonic()
        threads.start_daemon("audited-client", work)
        ended.wait(limit_s)
        took_s = time.monotonic() - began
        waiting, error = not ended.is_set(), raised[0] if raised else None
        if not waiting:
            # A client may send even after it has told its caller how that ended.
            threading.Event().wait(WATCHED_S)
        requests, mistakes = list(peer.requests), list(peer.mistakes)
        peer.mistakes.clear()
    sent = [request for request in requests if request.method not in SAFE]
    return Finding(
        case=case.name,
        says=case.says,
        known=case.known,
        ended="waiting" if waiting else "returned" if error is None else "raised",
        raised=None if error is None else _named(error),
        sent=len(sent),
        requests=len(requests),
        connections=len(peer.connections),
        keys=len({request.key for request in sent if request.key}),
        took_s=round(took_s, 3),
        problem=str(mistakes[0]) if mistakes else None,
    )


def _takes_a_url(client: Callable[..., Any], method: str | None) -> None:
    try:
        signature = inspect.signature(client)
    except (TypeError, ValueError):
        return
    try:
        signature.bind("http://127.0.0.1/", **({} if method is None else {"method": method}))
    except TypeError as error:
        how = "client(url)" if method is None else "client(url, method=…)"
        raise UsageError(f"the client cannot be called with a URL: {error}", hint=f"it is called as {how}") from None


def _call(client: Callable[..., Any], url: str, method: str | None) -> None:
    found = client(url) if method is None else client(url, method=method)
    if inspect.iscoroutine(found):
        threads.run_apart(found)


def _named(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
