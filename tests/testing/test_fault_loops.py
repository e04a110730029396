"""Fault loops over the library itself: a ledger call fails, an await is cancelled, the n-th until a run is clean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from counterfoil import UNASKABLE, Accepted, Evidence, Failed, Retry
from counterfoil.effects import effect as effects
from counterfoil.errors import CommitUnknown, LedgerUnavailable
from counterfoil.ledgers.memory import MemoryLedger
from counterfoil.protocol.history import look
from counterfoil.protocol.requests import Append, Filled, Read
from counterfoil.testing.conformance import LedgerConformance
from counterfoil.testing.crash_points import Report, examine
from counterfoil.testing.recipients import MailSink, Payee
from counterfoil.testing.stage import LedgerFaults, faulty
from counterfoil.testing.suite import NAMESPACE
from tests.explore.zoo import patched

pytestmark = pytest.mark.rule("N4")

DELIVERED = [("approval", "7", "ada")]


class Flaky:
    """Refuses the first attempt with a proof, and takes the second."""

    def __init__(self, payee: Payee) -> None:
        self.payee = payee

    def charge(self, ctx: Any) -> Any:
        if ctx.attempt == 1:
            raise Failed(Evidence("status", status=503), retryable=True)
        return self.payee.charge(ctx)


def blocking(payee: Payee, sink: MailSink, *, short: bool) -> Callable[..., Any]:
    flaky = Flaky(payee)

    def body(run: Any) -> Any:
        total = run.step("total", lambda: 500, inputs={"basket": 1})
        paid = run.effect(
            "charge", run=payee.charge, reconcile=payee.find, request={"cents": total}, verify=lambda p: p[:3] == "ch_"
        )
        if short:
            return isinstance(paid, Accepted)
        again = run.effect("later", run=flaky.charge, reconcile=payee.find, retry=Retry(3, backoff_s=2.0))
        run.sleep(5.0, name="nap")
        who = run.wait_for("approval", "7")
        run.effect("mail", run=sink.send, reconcile=sink.find, visibility=3.0)
        run.effect("door", run=sink.send, reconcile=UNASKABLE)
        return [who, isinstance(paid, Accepted), isinstance(again, Accepted)]

    return body


def asyncio_(payee: Payee, sink: MailSink, *, short: bool) -> Callable[..., Any]:
    flaky = Flaky(payee)

    async def body(run: Any) -> Any:
        async def price() -> int:
            return 500

        total = await run.step("total", price, inputs={"basket": 1})
        paid = await run.effect(
            "charge",
            run=payee.awaited.charge,
            reconcile=payee.awaited.find,
            request={"cents": total},
            verify=lambda p: p[:3] == "ch_",
        )
        if short:
            return isinstance(paid, Accepted)
        again = await run.effect("later", run=flaky.charge, reconcile=payee.find, retry=Retry(3, backoff_s=2.0))
        await run.sleep(5.0, name="nap")
        who = await run.wait_for("approval", "7")
        await run.effect("mail", run=sink.awaited.send, reconcile=sink.awaited.find, visibility=3.0)
        await run.effect("door", run=sink.awaited.send, reconcile=UNASKABLE)
        return [who, isinstance(paid, Accepted), isinstance(again, Accepted)]

    return body


def tried(colour: str, ledger: str, *kinds: str) -> Report:
    payee, sink = Payee(), MailSink(lag_s=2.0)
    # Each record of a file is synced to the disk, so there the body is a short one.
    body = (blocking if colour == "blocking" else asyncio_)(payee, sink, short=ledger != "memory")
    return examine(body, ledger=ledger, recipients=[payee, sink], deliver=DELIVERED, kinds=kinds)


COLOURS = pytest.mark.parametrize("colour", ["blocking", "asyncio"])
LEDGERS = pytest.mark.parametrize("ledger", ["memory", "sqlite"])


@COLOURS
@LEDGERS
@pytest.mark.rule("L3", "E17", "E20")
def test_every_ledger_call_may_fail_once_and_twice_in_a_row(colour: str, ledger: str) -> None:
    report = tried(colour, ledger, "ledger")
    assert report.ok, report
    # Four ways to fail, once and twice in a row, at each call.
    assert report.trials["ledger"] >= 8 * (16 if ledger == "memory" else 5)


_claim = effects._claim


async def _claim_by_looking(scope: Any, call: Any, number: int, *, draft: Any, **more: Any) -> Any:
    async def record(draft: Any, *, settle: Any = None) -> Filled:
        try:
            return await Append(draft, settle)
        except CommitUnknown as lost:
            await Read()
            attempts = look(scope.history, call.name).attempts
            if len(attempts) < number:
                raise LedgerUnavailable("not there, so it did not commit") from lost
            return Filled(attempts[number - 1].intent, ours=True)

    with patched(effects, record=record):
        return await _claim(scope, call, number, draft=draft, **more)


@COLOURS
@pytest.mark.rule("L3")
def test_a_look_at_a_commit_that_is_still_open_misleads(colour: str) -> None:
    with patched(effects, _claim=_claim_by_looking):
        report = tried(colour, "memory", "ledger")
    assert report.mistakes[0].code == "rule-E2"
    assert report.mistakes[0].text.endswith("it is uncertain, and its living owner knows that it never sent it")
    assert report.plan.endswith("without an answer, and recorded only after the next look at the run")


@pytest.mark.rule("L3")
def test_an_open_commit_is_not_seen_by_who_looks_and_waited_for_by_who_writes() -> None:
    suite = LedgerConformance()
    suite.epoch, suite._number = "", 0
    for write_first in (False, True):
        inner = MemoryLedger()
        ledger = faulty(inner, LedgerFaults("run", {1: "late"}, 1))
        with pytest.raises(CommitUnknown):
            ledger.append(suite.entry("slot"))
        if write_first:
            ledger.append(suite.entry("later"))
            assert [record.slot for record in ledger.read(NAMESPACE, "run")] == ["slot", "later"]
        else:
            assert list(ledger.read(NAMESPACE, "run")) == []
            assert [record.slot for record in ledger.read(NAMESPACE, "run")] == ["slot"]


@COLOURS
@LEDGERS
@pytest.mark.rule("E6", "E10")
def test_every_await_may_be_cancelled_once_and_again(colour: str, ledger: str) -> None:
    report = tried(colour, ledger, "cancel")
    assert report.ok, report
    assert report.trials["cancel"] > (80 if ledger == "memory" else 15)


@COLOURS
@pytest.mark.rule("E2", "E8")
def test_every_event_may_be_the_last_one_and_a_second_process_may_come_at_each(colour: str) -> None:
    report = tried(colour, "memory", "crash", "second", "reply", "lag")
    assert report.ok, report
    assert report.trials["crash"] > 40
    assert report.trials["second"] == report.trials["crash"]
