"""The audit: durable before dispatch where it is required, uncertain after a crash, and without anybody's payloads."""

import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from counterfoil import Accepted, AsyncRuntime, Evidence, Failed, Rejected, Retry, Runtime, Uncertain, UsageError
from counterfoil.broker.audit import RUN_PREFIX
from counterfoil.effects.activation import _never, clear_up
from counterfoil.errors import CommitUnknown, LedgerUnavailable
from counterfoil.protocol.checker import ACKNOWLEDGED, Checker, Item
from counterfoil.runtime.session import RunState
from tests.broker.support import Desk, Line, LoopLine, Post, peer, runtime_of, wire_grant
from tests.support import (
    GROWING_S,
    PATIENCE_S,
    Awaited,
    Colour,
    Fault,
    Store,
    eventually,
    faulty,
    in_thread,
    tries,
)

PLANTED = "planted-secret-4711"


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(request.param, tmp_path)


class Books:
    """A runtime of the colour, and what its ledger says of activations."""

    def __init__(self, colour: Colour, target: Any) -> None:
        self.colour = colour
        self.runtime = runtime_of(colour, target)

    async def __aenter__(self) -> Self:
        if self.colour.blocking:
            await in_thread(self.runtime.__enter__)
        else:
            await self.runtime.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        if self.colour.blocking:
            await in_thread(lambda: self.runtime.__exit__(*error))
        else:
            await self.runtime.__aexit__(*error)

    async def effects(self, **which: Any) -> Any:
        found = self.runtime.effects(**which)
        return found if self.colour.blocking else await found

    async def runs(self) -> Any:
        found = self.runtime.runs()
        return found if self.colour.blocking else await found

    def records(self) -> list[Any]:
        session = self.runtime._session
        rows = session.ledger.runs(session.namespace)
        return [record for row in rows for record in session.ledger.read(session.namespace, row.run)]

    def raw(self) -> bytes:
        return b"\n".join(record.slot.encode() + record.body for record in self.records())

    def findings(self, items: Any = None) -> list[Any]:
        session = self.runtime._session
        checker = Checker(session.namespace, items)
        rows = session.ledger.runs(session.namespace)
        found = [f for row in rows for f in checker.run(row.run, session.ledger.read(session.namespace, row.run))]
        return found + (checker.rest() if items is not None else [])


@pytest.mark.rule("B8")
@pytest.mark.parametrize("audit", ["required", "best-effort"])
async def test_what_was_performed_is_on_record_as_the_caller_was_told(
    colour: Colour, post: Post, store: Store, audit: str
) -> None:
    failed = Failed(Evidence("status", status=404, details={"attempts": 1, "peer": "192.0.2.1:443", "text": PLANTED}))
    async with Books(colour, store.target) as books:
        desk = Desk.make(colour, books.runtime, audit=audit)
        async with desk.activation(principal="ann") as act:
            assert isinstance(await act.perform(post.send("a")), Accepted)
            assert await act.perform(post.raises(failed)) == failed
            assert isinstance(await act.perform(post.raises(ConnectionError(PLANTED))), Uncertain)
            # What was refused before it could be attempted is no attempt.
            assert isinstance(await act.perform(post.send("b"), timeout_s=0), Rejected)
            await desk.idle()
        await eventually(lambda: books.records()[-1].phase == "finished")
        views = await books.effects()
        views = sorted(views, key=lambda view: view.name)  # best effort records them in any order
        assert [(view.name, view.state) for view in views] == [
            ("1 send", "accepted"),
            ("2 raise_", "failed"),
            ("3 raise_", "uncertain"),
        ]
        assert views[0].effect_key == post.keys[0]
        assert views[1].outcome.evidence.details == {"attempts": 1, "peer": "192.0.2.1:443"}
        (run,) = await books.runs()
        assert run.run_id.startswith(RUN_PREFIX)
        assert run.state == "finished"
        assert books.findings() == []
        assert desk.report().records_lost == 0


@pytest.mark.rule("B8", "L2")
async def test_a_required_record_is_durable_before_the_recipient_is_called(
    colour: Colour, post: Post, store: Store
) -> None:
    async with Books(colour, store.target) as books:
        desk = Desk.make(colour, books.runtime, audit="required")
        async with desk.activation() as act:
            call = act.begin(post.hold())
            await post.arrival()
            # Another connection sees it: it is committed.
            phases = [record.phase for record in _seen_from_outside(store, books)]
            assert phases == ["started", "intent"]
            post.opened.set()
            assert isinstance(await call, Accepted)
            assert [record.phase for record in _seen_from_outside(store, books)] == ["started", "intent", "accepted"]


def _seen_from_outside(store: Store, books: Books) -> list[Any]:
    ledger = store.open()
    namespace = books.runtime._session.namespace
    try:
        return [record for row in ledger.runs(namespace) for record in ledger.read(namespace, row.run)]
    finally:
        if store.kind != "memory":
            ledger.close()


@pytest.mark.rule("B8", "B3")
async def test_an_attempt_that_cannot_be_recorded_does_not_go_out(colour: Colour, post: Post, tmp_path: Path) -> None:
    store = Store("sqlite", tmp_path)
    fault = Fault()
    fault.refuse("intent", error=lambda: LedgerUnavailable(PLANTED, effect_ran="no"))
    async with Books(colour, faulty(store.open(), fault)) as books:
        desk = Desk.make(colour, books.runtime, audit="required")
        async with desk.activation() as act:
            outcome = await act.perform(post.send())
            assert isinstance(outcome, Rejected)
            assert outcome.evidence.kind == "audit-unavailable"
            assert outcome.evidence.details == {"attempts": 0, "error": "LedgerUnavailable"}
            assert post.log == []
            assert desk.report().idle
        # Best effort goes on without, and says that it did.
        easy = Desk.make(colour, books.runtime, audit="best-effort")
        async with easy.activation() as act:
            assert isinstance(await act.perform(post.send()), Accepted)
            await easy.idle()
            assert easy.report().records_lost == 1


@pytest.mark.rule("B8", "L3")
@pytest.mark.parametrize("commits", [True, False])
async def test_a_record_whose_commit_is_unknown_is_settled_before_anything_goes_out(
    colour: Colour, post: Post, tmp_path: Path, commits: bool
) -> None:
    store = Store("sqlite", tmp_path)
    fault = Fault()
    async with Books(colour, faulty(store.open(), fault)) as books:
        desk = Desk.make(colour, books.runtime, audit="required")
        fault.refuse("intent", "outcome", error=lambda: CommitUnknown("no answer"), commits=commits, times=1)
        async with desk.activation() as act:
            assert isinstance(await act.perform(post.send("a")), Accepted)
            fault.refuse("outcome", error=lambda: CommitUnknown("no answer"), commits=commits, times=1)
            assert isinstance(await act.perform(post.send("b")), Accepted)
        assert post.log == ["send a", "send b"]
        assert [view.state for view in await books.effects()] == ["accepted", "accepted"]
        assert books.findings() == []


@pytest.mark.rule("B6", "B8", "B3")
@pytest.mark.parametrize("audit", ["required", "best-effort"])
async def test_a_ledger_that_hangs_holds_no_caller_beyond_its_deadline(
    colour: Colour, post: Post, tmp_path: Path, audit: str
) -> None:
    store = Store("sqlite", tmp_path)
    fault = Fault()
    hangs, goes_on = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        assert goes_on.wait(PATIENCE_S)

    fault.before("intent", hang)
    async with Books(colour, faulty(store.open(), fault)) as books:
        desk = Desk.make(colour, books.runtime, audit=audit)
        async with desk.activation() as act:
            # The ledger goes on only after the caller has been told.
            if audit == "required":
                for timeout_s in tries(hangs.is_set, GROWING_S):
                    outcome = await act.perform(post.send(), timeout_s=timeout_s)
                    assert (type(outcome), outcome.evidence.kind) == (Rejected, "deadline-before-dispatch")
                    await eventually(lambda: hangs.is_set() or desk.report().idle)
            else:
                assert isinstance(await act.perform(post.send()), Accepted)
                await eventually(hangs.is_set)
            assert not desk.report().idle
            goes_on.set()
            await desk.idle()
        # What the ledger took up in the end is on record as the caller was told.
        (view,) = await books.effects()
        assert view.state == ("rejected" if audit == "required" else "accepted")
        assert post.log == ([] if audit == "required" else ["send a"])
        assert books.findings() == []


@pytest.mark.rule("B8", "B6")
async def test_an_outcome_that_cannot_be_recorded_is_told_all_the_same(
    colour: Colour, post: Post, tmp_path: Path
) -> None:
    store = Store("sqlite", tmp_path)
    fault = Fault()
    fault.refuse("outcome", error=lambda: LedgerUnavailable("disk full", effect_ran="no"))
    async with Books(colour, faulty(store.open(), fault)) as books:
        desk = Desk.make(colour, books.runtime, audit="required")
        async with desk.activation() as act:
            assert isinstance(await act.perform(post.send()), Accepted)
            await desk.idle()
            assert desk.report().records_lost == 1
        (view,) = await books.effects()
        assert view.state == "unresolved"


@pytest.mark.rule("B6", "B8", "E15")
@pytest.mark.parametrize("audit", ["required", "best-effort"])
async def test_what_arrives_after_the_deadline_is_late_evidence_in_the_audit(
    colour: Colour, post: Post, store: Store, audit: str
) -> None:
    async with Books(colour, store.target) as books:
        desk = Desk.make(colour, books.runtime, audit=audit)
        async with desk.activation() as act:
            ends: list[Any] = []
            for timeout_s in tries(lambda: isinstance(ends[-1], Uncertain), GROWING_S):
                outcome = await act.perform(post.hold(), timeout_s=timeout_s)
                ends.append(outcome)

        async def states() -> Any:
            # Without those whose deadline came before they went out.
            views = [view for view in await books.effects() if view.state != "rejected"]
            return [(view.state, [late.claims for late in view.late_evidence]) for view in views]

        # The uncertain outcome is on record while the work goes on, and does not wait for its end.
        while await states() != [("uncertain", [])]:
            await in_thread(lambda: post.ended.wait(0.01))
        assert not post.ended.is_set()
        post.opened.set()
        await desk.idle()
        assert await states() == [("uncertain", ["accepted"])]
        assert books.findings() == []


@pytest.mark.rule("B8", "B2")
@pytest.mark.parametrize("how", ["revoke", "cancel"])
async def test_a_call_that_loses_its_gate_after_it_was_recorded_is_on_record_as_rejected(
    colour: Colour, store: Store, how: str
) -> None:
    async with Books(colour, store.target) as books:
        desk = Desk.make(colour, books.runtime, audit="required")
        with peer() as other:
            async with desk.activation(grants=[wire_grant(other.port)]) as act:
                kind = Line if colour.blocking else LoopLine
                outcome = await act.perform(kind(other.port, before=getattr(act, how)))
                assert isinstance(outcome, Rejected)
                await desk.idle()
            (view,) = await books.effects()
            assert (view.state, view.name) == ("rejected", f"1 LINE tcp://127.0.0.1:{other.port}")
            assert other.lines == []
            assert books.findings() == []


@pytest.mark.rule("B8")
async def test_the_recipients_log_agrees_with_the_audit(colour: Colour, post: Post, store: Store) -> None:
    async with Books(colour, store.target) as books:
        desk = Desk.make(colour, books.runtime, audit="required")
        async with desk.activation() as act:
            for item in "abc":
                assert isinstance(await act.perform(post.send(item)), Accepted)
        # The audit keeps no proofs, so the log is compared by keys.
        items = [Item(key, None) for key in post.keys]
        assert books.findings(items) == []
        assert books.findings([*items, Item("cf-unknown", None)]) != []
        assert books.findings([Item(key, None, ACKNOWLEDGED) for key in post.keys]) != []


@pytest.mark.rule("B8", "N6")
async def test_no_payload_credential_or_text_of_anybody_is_in_the_audit(
    colour: Colour, post: Post, store: Store
) -> None:
    saying = Evidence(PLANTED + " it said", details={"error": PLANTED, "peer": PLANTED, "by": PLANTED, PLANTED: 1})
    async with Books(colour, store.target) as books:
        desk = Desk.make(colour, books.runtime, audit="required")
        async with desk.activation(principal="ann") as act:
            await act.perform(post.send(PLANTED))
            await act.perform(post.raises(RuntimeError(PLANTED)))
            await act.perform(post.raises(Failed(saying)))
            await act.perform(post.raises(Rejected(saying)))
        raw = books.raw()
        assert b"1 send" in raw
        assert PLANTED.encode() not in raw
        assert b"said" not in raw


@pytest.mark.rule("B7", "B8", "O3")
async def test_attempts_of_one_operation_are_attempts_of_one_effect_on_record(
    colour: Colour, post: Post, store: Store
) -> None:
    rejected = Rejected(Evidence("connect-failed", phase="not-dispatched"))
    async with Books(colour, store.target) as books:
        desk = Desk.make(colour, books.runtime, audit="required")
        async with desk.activation() as act:
            assert await act.perform(post.raises(rejected), retry=Retry(3)) == rejected
        (view,) = await books.effects()
        assert (view.state, view.attempt) == ("rejected", 3)
        assert books.findings() == []
        async with desk.activation() as act:
            call = act.begin(post.raises(rejected), retry=Retry(3, backoff_s=20))
            await eventually(lambda: len(post.log) == 4)
            act.cancel()
            assert isinstance(await call, Rejected)
            await desk.idle()
        # The attempt that was due and not made is on record as such, so nothing is scheduled for ever.
        assert [view.state for view in await books.effects()] == ["rejected", "rejected"]
        assert books.findings() == []


# --- crashes


PROGRAM = """
    import asyncio, os, signal, sys
    from counterfoil import UNASKABLE, AsyncBroker, AsyncRuntime, Broker, Evidence, Grant, Recipient, Rejected
    from counterfoil import Retry, Runtime

    colour, url, moment = sys.argv[1:]
    mail = Recipient("mail")

    @mail.operation(reconcile=UNASKABLE)
    def send(to):
        print("sent", flush=True)
        if moment == "inside":
            os.kill(os.getpid(), signal.SIGKILL)
        if moment == "backoff":
            raise Rejected(Evidence("connect-failed"))
        return "id"

    def watch(when, run, request):
        phase = getattr(getattr(request, "draft", None), "phase", "")
        if f"{when}-{phase}" == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        if (moment, when, phase) == ("backoff", "after", "rejected"):
            signal.setitimer(signal.ITIMER_REAL, 0.2)

    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    grants = [Grant("mail", operations=("send",))]
    retry = Retry(3, backoff_s=3600, backoff_max_s=3600) if moment == "backoff" else None
    scope = {"grants": grants, "deadline_s": 7200}

    async def main():
        async with AsyncRuntime(url) as runtime:
            runtime._driver.watch = watch
            async with AsyncBroker(runtime, audit="required") as broker, broker.activation(**scope) as act:
                print(await act.perform(send(to="ann"), retry=retry), flush=True)

    if colour == "asyncio":
        asyncio.run(main())
    else:
        with Runtime(url) as runtime:
            runtime._driver.watch = watch
            with Broker(runtime, audit="required") as broker, broker.activation(**scope) as act:
                print(act.perform(send(to="ann"), retry=retry), flush=True)
"""


@pytest.mark.rule("B8")
@pytest.mark.parametrize(
    ("moment", "sent", "states"),
    [
        ("before-intent", 0, []),
        ("after-intent", 0, ["uncertain"]),
        ("inside", 1, ["uncertain"]),
        ("before-accepted", 1, ["uncertain"]),
        ("after-accepted", 1, ["accepted"]),
        ("before-finished", 1, ["accepted"]),
        ("backoff", 1, ["rejected"]),
    ],
)
async def test_after_a_kill_a_restart_shows_as_uncertain_what_may_have_gone_out(
    colour: Colour, post: Post, tmp_path: Path, moment: str, sent: int, states: list[str]
) -> None:
    if not colour.blocking and moment not in ("after-intent", "inside", "backoff"):
        pytest.skip("the flows are the same in both colours; these moments show that the drivers are")
    url = f"sqlite:///{tmp_path}/audit.db"
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), colour.name, url, moment]
    died = await in_thread(lambda: subprocess.run(command, capture_output=True, text=True, check=False))
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert died.stdout.count("sent") == sent
    async with Books(colour, url) as books:
        before = [view.state for view in await books.effects()]
        assert "uncertain" not in before
        desk = Desk.make(colour, books.runtime, audit="required")
        async with desk.activation() as act:
            # The restart itself makes it so, whatever it goes on to do.
            assert [view.state for view in await books.effects()] == states
            assert isinstance(await act.perform(post.send()), Accepted)
        assert all(run.state == "finished" for run in await books.runs())
        assert books.findings() == []


@pytest.mark.rule("B8", "L7")
async def test_what_another_life_is_doing_is_left_alone(colour: Colour, post: Post, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/audit.db"
    async with Books(colour, url) as one, Books(colour, url) as two:
        first = Desk.make(colour, one.runtime, audit="required")
        second = Desk.make(colour, two.runtime, audit="required")
        async with first.activation() as act:
            call = act.begin(post.hold())
            await post.arrival()
            async with second.activation():
                assert [view.state for view in await two.effects()] == ["unresolved"]
            # Nor does the same life take its own for left behind.
            third = Desk.make(colour, one.runtime, audit="required")
            async with third.activation():
                assert [view.state for view in await two.effects()] == ["unresolved"]
            post.opened.set()
            assert isinstance(await call, Accepted)
        assert [view.state for view in await two.effects()] == ["accepted"]


@pytest.mark.rule("B8")
async def test_a_runtime_that_was_left_lets_nothing_out_where_the_audit_is_required(
    colour: Colour, post: Post, store: Store
) -> None:
    async with Books(colour, store.target) as books:
        desk = Desk.make(colour, books.runtime, audit="required")
        act = desk.activation()
        await act.__aenter__()
    with pytest.raises(UsageError, match="not open"):
        await act.perform(post.send())
    assert post.log == []
    await act.__aexit__(None, None, None)


@pytest.mark.rule("B8")
async def test_a_runtime_that_is_being_left_lets_nothing_out_where_the_audit_is_required(
    colour: Colour, post: Post, store: Store
) -> None:
    books = Books(colour, store.target)
    async with books:
        desk = Desk.make(colour, books.runtime, audit="required")
        act = desk.activation()
        await act.__aenter__()
        session = books.runtime._session
        session.retain(work := object())  # a handler that goes on beyond its caller
    with pytest.raises(UsageError, match="was left"):
        await act.perform(post.send())
    await act.__aexit__(None, None, None)
    with pytest.raises(UsageError, match="was left"):
        await desk.activation().__aenter__()
    assert post.log == []
    session.release(work)


@pytest.mark.parametrize("make", [Runtime, AsyncRuntime])
def test_a_runtime_of_the_other_colour_is_refused(make: Callable[..., Any]) -> None:
    other = Colour("asyncio" if make is Runtime else "blocking")
    with pytest.raises(ValueError, match="takes a"):
        Desk.make(other, make("memory:"))


# --- lives that are taken for gone


def _retire(books: Books) -> None:
    """Take the life for gone, as a heartbeat does that was missed."""
    session = books.runtime._session
    for epoch in list(session.own_epochs):
        session.owners.retire(epoch)


@pytest.mark.rule("B8", "L7", "L8")
async def test_a_life_that_was_taken_for_gone_goes_on_under_a_fresh_epoch(colour: Colour, post: Post) -> None:
    ledger = Store("memory", None).target
    async with Books(colour, ledger) as one, Books(colour, ledger) as two:
        desk = Desk.make(colour, one.runtime, audit="required")
        async with desk.activation() as act:
            assert isinstance(await act.perform(post.send("a")), Accepted)
            _retire(one)
            refused = await act.perform(post.send("b"))
            assert refused.evidence.details == {"attempts": 0, "error": "OwnerRetired"}
            call = act.begin(post.hold())
            await post.arrival()
            # Its run began in an epoch that is gone; what it performs under the new one is its own all the same.
            other = Desk.make(colour, two.runtime, audit="required")
            async with other.activation():
                assert [view.state for view in await two.effects()] == ["accepted", "unresolved"]
            post.opened.set()
            assert isinstance(await call, Accepted)
        assert post.log == ["send a", "hold"]
        assert one.findings() == []


@pytest.mark.rule("B8", "L3", "L8")
async def test_an_intent_that_was_settled_when_its_life_was_gone_is_not_sent_and_says_so(
    colour: Colour, post: Post
) -> None:
    fault = Fault()
    async with Books(colour, faulty(Store("memory", None).open(), fault)) as books:
        desk = Desk.make(colour, books.runtime, audit="required")
        fault.refuse("intent", error=lambda: CommitUnknown("no answer"), commits=True, times=1)
        fault.before("intent", lambda: fault.before("intent", lambda: _retire(books)))
        async with desk.activation() as act:
            refused = await act.perform(post.send())
            assert refused.evidence.details == {"attempts": 0, "error": "OwnerRetired"}
        assert post.log == []
        assert [view.state for view in await books.effects()] == ["rejected"]
        assert books.findings() == []


@pytest.mark.rule("B8")
async def test_an_activation_that_ends_while_somebody_clears_up_is_left_as_it_is(colour: Colour, post: Post) -> None:
    async with Books(colour, Store("memory", None).target) as books:
        desk = Desk.make(colour, books.runtime, audit="required")
        async with desk.activation() as act:
            assert isinstance(await act.perform(post.send()), Accepted)
        before = books.records()
        session = books.runtime._session
        (run,) = await books.runs()
        scope = session.scope(run.run_id, RunState(session.namespace, run.run_id))
        cleared = books.runtime._driver.run(scope, clear_up(scope))
        assert (cleared if colour.blocking else await cleared) is False
        assert books.records() == before


def test_what_an_activation_left_is_never_sent_again() -> None:
    with pytest.raises(AssertionError, match="never sent"):
        _never()


@pytest.mark.rule("B8", "E16", "L10")
async def test_a_person_decides_about_an_audited_call_and_it_is_pruned_like_any_run(
    colour: Colour, post: Post, store: Store
) -> None:
    async with Books(colour, store.target) as books:
        desk = Desk.make(colour, books.runtime, audit="required")
        async with desk.activation() as act:
            assert isinstance(await act.perform(post.raises(ConnectionError())), Uncertain)
        async with desk.activation() as act:
            assert isinstance(await act.perform(post.send()), Accepted)
        (view,) = await books.effects(state="uncertain")
        runtime = Awaited(books.runtime)
        decided = await runtime.decide(
            view.run_id, view.name, did_not_happen=True, reason="asked them", by="ann", expect_version=view.version
        )
        assert decided.happened is False
        report = await runtime.prune(older_than_s=0, reason="test", by="ann")
        assert report is not None
        states = {run.run_id: run.state for run in await books.runs()}
        # What is uncertain is kept, whatever was decided about it.
        assert states.pop(view.run_id) == "finished"
        assert list(states.values()) == ["pruned"]
        assert books.findings() == []
