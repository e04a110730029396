"""What pruning keeps, what it never touches, and what calls on a pruned run get."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from counterfoil import (
    UNASKABLE,
    Accepted,
    AsyncRuntime,
    EffectUnresolved,
    Evidence,
    Failed,
    Retry,
    Run,
    RunPruned,
    Runtime,
)
from counterfoil.protocol import slots


@pytest.fixture(params=["memory", "apsw", "sqlite3"])
def url(request: Any, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/l.db?engine={request.param}"


def never(*_: Any) -> Any:
    raise AssertionError("nothing may be called")


def fill(run: Run) -> None:
    """A finished run with a step, a park, a delivery and three effects."""
    run.step("total", lambda: 7)
    run.sleep(0.0, name="nap")
    run.deliver("paid", "1", {"by": "card"})
    run.effect("mail", run=lambda: "m-1", reconcile=UNASKABLE, request={"to": "a"})

    def refuse() -> None:
        raise Failed(Evidence("status", status=404))

    run.effect("charge", run=refuse, reconcile=UNASKABLE)
    run.finish({"ok": True})


@pytest.mark.rule("L10")
def test_a_pruned_run_answers_every_call_with_run_pruned_and_what_its_tombstone_keeps(url: str) -> None:
    with Runtime(url) as runtime:
        with runtime.run("r") as run:
            fill(run)
        assert runtime.prune(reason="space", by="me").pruned == ("r",)
        # The page size does not matter, and pruning again finds nothing to do.
        assert runtime.prune(page=1).pruned == ()
        calls: list[tuple[Any, Any]] = [
            (lambda r: r.effect("mail", run=never, reconcile=never), Accepted("m-1")),
            (lambda r: r.effect("charge", run=never, reconcile=never), Failed(Evidence("status", status=404))),
            (lambda r: r.effect("unheard of", run=never, reconcile=never), None),
            (lambda r: r.step("total", never), None),
            (lambda r: r.sleep(1.0, name="nap"), None),
            (lambda r: r.wait_for("paid", "1", timeout=0.0), {"ok": True}),
            (lambda r: r.deliver("paid", "1", {"by": "card"}), None),
            (lambda r: r.finish({"ok": True}), {"ok": True}),
        ]
        for call, kept in calls:
            with runtime.run("r") as run, pytest.raises(RunPruned) as raised:
                call(run)
            assert raised.value.outcome == kept
            assert raised.value.effect_ran == "no"
        with pytest.raises(RunPruned):
            runtime.execute("r", fill)


@pytest.mark.rule("L10")
async def test_the_other_colour_is_refused_alike(url: str) -> None:
    async with AsyncRuntime(url) as runtime:
        async with runtime.run("r") as run:
            await run.effect("mail", run=lambda: "m-1", reconcile=UNASKABLE)
            await run.finish()
        assert (await runtime.prune()).pruned == ("r",)
        async with runtime.run("r") as run:
            with pytest.raises(RunPruned) as raised:
                await run.effect("mail", run=never, reconcile=never)
            assert raised.value.outcome == Accepted("m-1")
            with pytest.raises(RunPruned):
                await run.step("total", never)


@pytest.mark.rule("L10")
def test_a_tombstone_takes_late_evidence(url: str) -> None:
    keys: list[str] = []

    def send(context: Any) -> str:
        keys.append(context.key)
        return "m-1"

    with Runtime(url) as runtime:
        with runtime.run("r") as run:
            run.effect("mail", run=send, reconcile=UNASKABLE)
            run.finish()
        runtime.prune()
        assert runtime.settle("r", "mail", "m-1b", key=keys[0], source="webhook") is False
        [view] = runtime.effects(run_id="r")
        assert view.outcome == Accepted("m-1")
        assert [late.proof for late in view.late_evidence] == ["m-1b"]


@pytest.mark.rule("L10")
def test_unfinished_unresolved_and_uncertain_are_never_pruned(url: str) -> None:
    def boom() -> None:
        raise RuntimeError

    with Runtime(url) as runtime:
        with runtime.run("unfinished") as run:
            run.step("total", lambda: 7)
        for name, times in (("unresolved", 1), ("uncertain", 2)):
            with runtime.run(name) as run:
                for _ in range(times):
                    with suppress(EffectUnresolved):
                        run.effect("mail", run=boom, reconcile=UNASKABLE)
                run.finish()
        report = runtime.prune()
        assert report.pruned == ()
        assert set(report.kept) == {"unresolved", "uncertain"}
        assert {run.state for run in runtime.runs()} == {"open", "finished"}


@pytest.mark.rule("L10", "E14")
def test_an_acceptance_that_closed_the_next_attempt_survives_pruning(url: str) -> None:
    keys: list[str] = []

    with Runtime(url) as runtime:
        with runtime.run("s") as run:
            told: list[bool] = []

            def fail_then_tell(context: Any) -> None:
                keys.append(context.key)
                raise Failed(Evidence("status", status=503), retryable=True)

            def tell(_moment: str, _run: str, request: Any) -> None:
                draft = getattr(request, "draft", None)
                if not told and draft is not None and draft.slot == slots.intent("charge", 2):
                    told.append(True)
                    assert runtime.settle("s", "charge", "c-1", key=keys[-1], source="webhook") is False

            runtime._driver.watch = tell
            outcome = run.effect("charge", run=fail_then_tell, reconcile=UNASKABLE, retry=Retry(2))
            runtime._driver.watch = None
            assert told == [True]
            assert outcome == Accepted("c-1", "evidence")
            run.finish()
        assert "s" in runtime.prune().pruned
        with runtime.run("s") as run, pytest.raises(RunPruned) as raised:
            run.effect("charge", run=never, reconcile=never)
        assert raised.value.outcome == Accepted("c-1", "evidence")


@pytest.mark.rule("L10")
def test_deliveries_for_runs_that_never_began_have_a_retention_of_their_own(url: str) -> None:
    with Runtime(url) as runtime:
        runtime.deliver("early", "paid", "1", 5)
        with runtime.run("begun") as run:
            run.deliver("paid", "1", 5)
            run.step("total", lambda: 7)
        assert runtime.prune().pruned == ()
        assert runtime.prune(deliveries_older_than_s=3600.0).pruned == ()
        assert runtime.prune(deliveries_older_than_s=0.0, dry_run=True).pruned == ("early",)
        assert runtime.prune(deliveries_older_than_s=0.0).pruned == ("early",)
        with pytest.raises(RunPruned):
            runtime.deliver("early", "paid", "1", 5)


@pytest.mark.rule("L10", "N2")
def test_who_pruned_and_why_is_on_record(url: str) -> None:
    with Runtime(url) as runtime:
        with runtime.run("r") as run:
            fill(run)
        runtime.prune(reason="space", by="me")
        [stone] = [record for record in runtime.show("r") if record.phase == "tombstone"]
        assert stone.body == {"reason": "space", "by": "me"}
