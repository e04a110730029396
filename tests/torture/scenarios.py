"""Every flow once, each as a body of its own: what `points` kills at each request."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from counterfoil import UNASKABLE, Accepted, Conflict, EffectUnresolved, Evidence, Failed, Rejected, Retry
from tests.torture.bodies import Lost, finding, making, refusing
from tests.torture.programs import Ask, Body, deliver, effect, finish, sleep, step, wait_for
from tests.torture.recipient import Client

LAG_S: Final = 0.05
VISIBILITY_S: Final = 0.3


def accepted(client: Client, run: str) -> Body:
    """Show the main story: the recipient answers, and can be asked."""
    outcome = yield effect("charge", run=making(client), reconcile=finding(client), request={"run": run})
    return summary(outcome)


def unaskable(client: Client, run: str) -> Body:
    outcome = yield effect("charge", run=making(client), reconcile=UNASKABLE)
    return summary(outcome)


def raises(client: Client, run: str) -> Body:
    outcome = yield effect("charge", run=making(client, loses=True), reconcile=finding(client))
    return summary(outcome)


def raises_unaskable(client: Client, run: str) -> Body:
    outcome = yield effect("charge", run=making(client, loses=True), reconcile=UNASKABLE)
    return summary(outcome)


def late(client: Client, run: str) -> Body:
    outcome = yield effect(
        "charge",
        run=making(client, loses=True),
        reconcile=finding(client, lag_s=LAG_S),
        visibility=VISIBILITY_S,
    )
    return summary(outcome)


def failed(client: Client, run: str) -> Body:
    outcome = yield effect("charge", run=refusing(client, until=9), reconcile=finding(client))
    return summary(outcome)


def rejected(client: Client, run: str) -> Body:
    outcome = yield effect("charge", run=refusing(client, until=9, kind=Rejected), reconcile=finding(client))
    return summary(outcome)


def retried(client: Client, run: str) -> Body:
    outcome = yield effect(
        "charge",
        run=refusing(client, until=3),
        reconcile=finding(client),
        retry=Retry(3, backoff_s=0.01),
    )
    return summary(outcome)


def exhausted(client: Client, run: str) -> Body:
    outcome = yield effect(
        "charge",
        run=refusing(client, until=9, kind=Rejected),
        reconcile=finding(client),
        retry=Retry(2, backoff_s=0.01),
    )
    return summary(outcome)


def closed(client: Client, run: str) -> Body:
    def close(_: Any) -> None:
        raise Failed(Evidence("key-closed", phase="acknowledged"))

    def fails(_: Any) -> None:
        raise Lost

    outcome = yield effect("charge", run=fails, reconcile=close)
    return summary(outcome)


def refused_proof(client: Client, run: str) -> Body:
    def altered(context: Any) -> str:
        return f"not {client.make(context.key)}"

    outcome = yield effect(
        "charge",
        run=altered,
        reconcile=finding(client),
        verify=lambda proof: str(proof).startswith("item-"),
    )
    return summary(outcome)


def large_proof(client: Client, run: str) -> Body:
    outcome = yield effect("charge", run=lambda context: client.make(context.key) * 20_000, reconcile=finding(client))
    return summary(outcome)


def settled(client: Client, run: str) -> Body:
    """Settle from outside what the recipient cannot be asked about."""

    def dumb(_: Any) -> None:
        raise Lost

    with suppress(EffectUnresolved):
        yield effect("charge", at_once=True, run=making(client, loses=True), reconcile=dumb)
    views = yield Ask("effects", (), {"run_id": run}, of_runtime=True)
    key = views[0].effect_key
    # A side channel tells; where nothing was sent yet there is nothing to tell.
    if (item := client.find(key)) is not None:
        yield Ask("settle", ("charge", item), {"key": key, "source": "side channel"})
        outcome = yield effect("charge", run=making(client, loses=True), reconcile=dumb)
        return summary(outcome)
    return ["nothing was sent"]


def decided(client: Client, run: str) -> Body:
    """Let a person decide about what is uncertain, and send it again under the name that they give."""
    yield effect("doubt", run=making(client, loses=True), reconcile=UNASKABLE)
    views = yield Ask("effects", (), {"run_id": run}, of_runtime=True)
    view = next(view for view in views if view.name == "doubt")
    if view.decision is None:
        verdict = {"did_not_happen": True, "reason": "looked", "by": "kim", "expect_version": view.version}
        with suppress(Conflict):
            yield Ask("decide", (run, "doubt"), {**verdict, "new_name": "again"}, at_once=True, of_runtime=True)
    decision = yield Ask("decision", ("doubt",))
    outcome = yield effect(decision.new_name, run=making(client), reconcile=finding(client))
    return summary(outcome)


def steps(client: Client, run: str) -> Body:
    raised = []

    def fails_once() -> int:
        raised.append(1)
        if len(raised) == 1:
            raise Lost
        return 7

    first = yield step("first", lambda: [run])
    second = yield step("second", fails_once, retry=Retry(4, backoff_s=0.01))
    return [first, second]


def parks(client: Client, run: str) -> Body:
    yield sleep(0.02, "nap")
    yield deliver("paid", "1", {"for": run})
    early = yield wait_for("paid", "1")
    with suppress(TimeoutError):
        yield wait_for("paid", "2", timeout=0.02)
    yield deliver("paid", "2", [run])
    later = yield wait_for("paid", "2")
    return [early, later]


def finished(client: Client, run: str) -> Body:
    total = yield step("total", lambda: 41)
    outcome = yield effect("charge", run=making(client), reconcile=finding(client))
    yield finish([total])
    again = yield effect("charge", run=making(client), reconcile=finding(client))
    return summary(outcome) + summary(again)


def summary(outcome: Any) -> list[Any]:
    """Return what two callers must agree on."""
    return [type(outcome).__name__, outcome.proof if isinstance(outcome, Accepted) else outcome.evidence.kind]


Scenario = Callable[[Client, str], Body]

MAIN: Final = "accepted"
SCENARIOS: Final[dict[str, Scenario]] = {
    scenario.__name__: scenario
    for scenario in (
        accepted,
        raises,
        late,
        retried,
        unaskable,
        settled,
        decided,
        parks,
        steps,
        finished,
        failed,
        rejected,
        exhausted,
        raises_unaskable,
        refused_proof,
        large_proof,
        closed,
    )
}
