"""What callers give wrongly is said before anything is recorded or sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from counterfoil import (
    UNASKABLE,
    Accepted,
    AsyncRun,
    AsyncRuntime,
    EffectUnresolved,
    Evidence,
    Failed,
    LedgerCorrupt,
    Recipient,
    Run,
    Runtime,
    Uncertain,
    UsageError,
)
from counterfoil.ports import AsyncDurability, Durability
from counterfoil.protocol.records import Entry, Record


@pytest.fixture
def run() -> Iterator[Run]:
    with Runtime("memory:") as runtime, runtime.run("r") as run:
        yield run
        assert runtime.show("r") == []


def never(*_: Any) -> Any:
    raise AssertionError("nothing may be called")


HUGE = 10**400


@pytest.mark.rule("E6", "E20", "P1")
@pytest.mark.parametrize(
    "call",
    [
        lambda run: run.effect("e", run=lambda ctx, to: 1, reconcile=never),
        lambda run: run.effect("e", run=never, reconcile=lambda ctx, to: 1),
        lambda run: run.effect("e", run=never, reconcile=never, verify=lambda proof, ctx, more: True),
        lambda run: run.effect("e", run=lambda *, to: 1, reconcile=never),
        lambda run: run.step("s", lambda ctx, more: 1),
        lambda run: run.effect("e", run=never, reconcile=never, proof_type=5),
        lambda run: run.step("s", never, result_type="x"),
        lambda run: run.effect("e", run=never, reconcile=never, wait=HUGE),
        lambda run: run.effect("e", run=never, reconcile=never, visibility=HUGE),
        lambda run: run.sleep(HUGE, name="nap"),
        lambda run: run.wait_for("e", "1", timeout=HUGE),
    ],
)
def test_wrong_arguments_are_usage_errors_and_nothing_is_recorded(run: Run, call: Callable[[Run], Any]) -> None:
    with pytest.raises(UsageError) as raised:
        call(run)
    assert raised.value.effect_ran == "no"


@pytest.mark.rule("L5")
def test_a_hundred_levels_are_recorded_and_one_more_is_refused() -> None:
    def nested(levels: int) -> Any:
        value: Any = []
        for _ in range(levels - 1):
            value = [value]
        return value

    with Runtime("memory:") as runtime, runtime.run("r") as run:
        assert run.step("hundred", lambda: nested(100)) == nested(100)
        with pytest.raises(UsageError):
            run.step("more", lambda: nested(101))


@pytest.mark.rule("O6", "L4")
@pytest.mark.parametrize(
    "wrong",
    [
        {"status": "404"},
        {"status": True},
        {"status": 404.0},
        {"status": -1},
        {"bytes_offered": 1.5},
        {"phase": 5},
        {"phase": ""},
        {"contract": 5},
        {"promises": (1,)},
        {"promises": "slug"},
        {"details": [1]},
    ],
)
def test_evidence_that_no_record_could_hold_is_refused_where_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Evidence("status", **wrong)
    for kind in (5, None, "", "bad\ud800"):
        with pytest.raises(UsageError):
            Evidence(kind)  # type: ignore[arg-type]
    for outcome in (Uncertain, Failed):
        with pytest.raises(TypeError):
            outcome("x")  # type: ignore[arg-type]


@dataclass
class Charge:
    id: int


@pytest.mark.rule("E5", "S4")
def test_plain_json_and_the_named_type_are_both_taken_and_both_decoded() -> None:
    with Runtime("memory:") as runtime, runtime.run("r") as run:
        for name, value in (("plain", {"id": 1}), ("typed", Charge(1))):
            outcome = run.effect(name, run=lambda value=value: value, reconcile=UNASKABLE, proof_type=Charge)
            assert outcome == Accepted(Charge(1))
            assert run.step(name, lambda value=value: value, result_type=Charge) == Charge(1)
        with pytest.raises(EffectUnresolved):
            run.effect("wrong", run=lambda: {"no": 1}, reconcile=UNASKABLE, proof_type=Charge)


def test_a_body_of_the_other_colour_is_named_before_a_run_begins() -> None:
    async def body(run: Any) -> None: ...

    with Runtime("memory:") as runtime:
        with pytest.raises(UsageError, match="AsyncRuntime"):
            runtime.execute("r", body)  # type: ignore[unused-coroutine]
        assert runtime.runs() == []


async def test_a_blocking_body_under_the_asyncio_runtime_is_named_too() -> None:
    def body(run: Any) -> int:
        return 1

    async with AsyncRuntime("memory:") as runtime:
        with pytest.raises(UsageError, match="not an async function"):
            await runtime.execute("r", body)  # type: ignore[arg-type]
        assert await runtime.runs() == []


def test_a_runtime_is_entered_once() -> None:
    with Runtime("memory:") as runtime, pytest.raises(UsageError, match="open already"):
        runtime.__enter__()


def test_an_operation_with_any_number_of_arguments_can_be_used() -> None:
    mail = Recipient("mail")

    @mail.operation(reconcile=UNASKABLE)
    def send(*to: str) -> str:
        return ",".join(to)

    with Runtime("memory:") as runtime, runtime.run("r") as run:
        assert run.effect("mail", operation=send("a", "b")) == Accepted("a,b")


@pytest.mark.rule("E16")
def test_what_happened_is_not_allowed_to_be_sent_again() -> None:
    with Runtime("memory:") as runtime, runtime.run("r") as run:

        def lost() -> None:
            raise TimeoutError

        # The text says what happened, whether something may have been sent, and the mend (rule E20).
        with pytest.raises(EffectUnresolved, match="may have been sent"):
            run.effect("pay", run=lost, reconcile=UNASKABLE)
        assert isinstance(run.effect("pay", run=lost, reconcile=UNASKABLE), Uncertain)
        [view] = runtime.effects()
        how: dict[str, Any] = {"reason": "looked", "by": "me", "expect_version": view.version}
        with pytest.raises(UsageError):
            runtime.decide("r", "pay", happened="x", new_name="again", **how)
        with pytest.raises(UsageError):
            runtime.decide("r", "pay", happened="x" * 70_000, **how)
        assert runtime.decide("r", "pay", did_not_happen=True, new_name="again", **how).new_name == "again"


@pytest.mark.rule("S7")
async def test_both_handles_fit_the_narrow_port() -> None:
    with Runtime("memory:") as runtime:
        assert isinstance(runtime.run("r"), Durability)
    async with AsyncRuntime("memory:") as other:
        assert isinstance(other.run("r"), AsyncDurability)


class Damaged:
    """A host's store that damages the records of some slots on the way out."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str, str], Record] = {}
        self.damage = ""

    def append(self, entry: Entry, *, settle: bool = False) -> Record:
        key = (entry.namespace, entry.run, entry.slot)
        fields = {name: getattr(entry, name) for name in Record.__struct_fields__ if name != "position"}
        return self.entries.setdefault(key, Record(position=len(self.entries) + 1, **fields))

    def read(self, namespace: str, run: str, after: int = 0) -> list[Record]:
        found = [r for (n, k, _), r in self.entries.items() if (n, k) == (namespace, run) and r.position > after]
        return [self._damaged(r) if self.damage and r.slot.startswith(self.damage) else r for r in found]

    @staticmethod
    def _damaged(record: Record) -> Record:
        fields = {name: getattr(record, name) for name in Record.__struct_fields__}
        return Record(**{**fields, "body": b'{"x'})


@pytest.mark.rule("P4", "L4")
def test_a_damaged_park_fails_closed_whatever_else_is_on_record() -> None:
    ledger = Damaged()
    with Runtime(ledger) as runtime, runtime.run("r") as run:
        run.sleep(0.0, name="nap")
        run.deliver("e", "1", 7)
        run.deliver("e", "2", 8)
    for damage in ("park/sleep/nap", "park/sleep/nap/woken"):
        ledger.damage = damage
        with Runtime(ledger) as runtime, runtime.run("r") as run, pytest.raises(LedgerCorrupt):
            run.sleep(0.0, name="nap")
    ledger.damage = "event/e/1"
    with Runtime(ledger) as runtime, runtime.run("r") as run:
        with pytest.raises(LedgerCorrupt):
            run.wait_for("e", "1", timeout=0.0)
        assert run.wait_for("e", "2") == 8


@pytest.mark.rule("P2")
def test_a_finished_run_takes_no_new_wait_with_or_without_a_timeout() -> None:
    with Runtime("memory:") as runtime, runtime.run("r") as run:
        run.deliver("e", "1", 7)
        run.finish()
        assert run.wait_for("e", "1", timeout=0.0) == 7
        for timeout in (None, 0.0, 1.0):
            with pytest.raises(UsageError):
                run.wait_for("e", "2", timeout=timeout)


def plain(run: Run, sku: str, count: int = 1) -> str:
    return f"{count} {sku}"


async def looped(run: AsyncRun, sku: str) -> str:
    return sku


@pytest.mark.rule("E20")
def test_a_body_that_cannot_be_called_does_not_begin_its_run() -> None:
    with Runtime("memory:") as runtime:
        for body, args in [(plain, ()), (plain, ("mug", 2, "more")), (looped, ("mug",)), (lambda: 1, ()), (3, ())]:
            with pytest.raises(UsageError):
                runtime.execute("r", body, *args)  # type: ignore[arg-type]
            assert runtime.show("r") == []
        assert runtime.execute("r", plain, "mug") == "1 mug"


async def test_an_async_body_that_cannot_be_called_does_not_begin_its_run() -> None:
    async with AsyncRuntime("memory:") as runtime:
        for body, args in [(looped, ()), (looped, ("mug", 2)), (plain, ("mug",))]:
            with pytest.raises(UsageError):
                await runtime.execute("r", body, *args)  # type: ignore[arg-type]
            assert await runtime.show("r") == []
        assert await runtime.execute("r", looped, "mug") == "mug"


@pytest.mark.parametrize("bodies", [3, [3], {"shop:plain": 3}, {3: plain}, [looped], {"shop:looped": looped}, "plain"])
def test_what_is_no_body_resumes_nothing(bodies: Any) -> None:
    with Runtime("memory:") as runtime, pytest.raises(UsageError):
        runtime.recover(bodies)


async def test_what_is_no_async_body_resumes_nothing() -> None:
    async with AsyncRuntime("memory:") as runtime:
        for bodies in (3, {"shop:looped": 3}, [plain], {"shop:plain": plain}):
            with pytest.raises(UsageError):
                await runtime.recover(bodies)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [-1, "1", 1.5, True])
def test_a_limit_is_a_number_of_runs(limit: Any) -> None:
    with Runtime("memory:") as runtime:
        runtime.execute("r", plain, "mug")
        for wrong in (
            lambda: runtime.runs(limit=limit),
            lambda: runtime.prune(limit=limit),
            lambda: runtime.runs(finished="yes"),  # type: ignore[arg-type]
        ):
            with pytest.raises(UsageError):
                wrong()
        with pytest.raises(UsageError):
            runtime.runs(limit=0)
        assert [run.run_id for run in runtime.runs(limit=1)] == ["r"]


def test_an_async_handle_is_made_where_its_loop_runs() -> None:
    with asyncio.Runner() as runner:
        runtime = AsyncRuntime("memory:")
        runner.run(runtime.__aenter__())
        with pytest.raises(UsageError, match="another event loop"):
            runtime.run("r")
        runner.run(runtime.__aexit__(None, None, None))


def test_an_async_handle_is_used_where_its_loop_runs() -> None:
    sent: list[int] = []

    async def elsewhere(run: AsyncRun) -> None:
        for call in (
            lambda: run.step("s", lambda: 1),
            lambda: run.effect("e", run=lambda: sent.append(1), reconcile=UNASKABLE),
            lambda: run.sleep(0, name="n"),
            lambda: run.deliver("event", "id"),
            lambda: run.wait_for("event", "id"),
            lambda: run.settle("e", 1, key="k", source="s"),
            lambda: run.decision("e"),
            run.finish,
            run.__aenter__,
        ):
            with pytest.raises(UsageError, match="another event loop") as caught:
                await call()
            assert caught.value.code == "other-loop"
            assert caught.value.effect_ran == "no"

    with asyncio.Runner() as runner, asyncio.Runner() as other:
        runtime = AsyncRuntime("memory:")
        runner.run(runtime.__aenter__())

        async def begin() -> AsyncRun:
            run = runtime.run("r")
            await run.step("first", lambda: 1)
            return run

        run = runner.run(begin())
        other.run(elsewhere(run))
        assert sent == []
        assert [record.name for record in runner.run(runtime.show("r"))] == ["first"]
        runner.run(runtime.__aexit__(None, None, None))


class Checks:
    def of_nothing(self) -> bool:
        raise AssertionError("never called")

    def __call__(self, proof: Any) -> bool:
        return True


def named(ctx: Any, to: str) -> str:
    return to


without_look_up = Recipient("mail").operation(named)


@pytest.mark.parametrize(
    ("call", "says", "mends"),
    [
        (lambda run: run.effect("e", run="sent", reconcile=never), "run of effect 'e' is a callable, not str", "later"),
        (lambda run: run.effect("e", run=never), "effect 'e' needs reconcile=", "UNASKABLE"),
        (lambda run: run.effect("e", run=never, reconcile="none"), "reconcile of effect 'e' is a callable", "asks"),
        (lambda run: run.effect("e", without_look_up(to="a")), "operation 'named' has none", "@named.reconcile"),
        (lambda run: run.effect("e", without_look_up), "not OperationFunction", "send(to=…)"),
        (lambda run: run.effect("e", never), "not function", "run="),
        *[
            (
                lambda run, verify=verify: run.effect("e", run=never, reconcile=never, verify=verify),
                "verify of effect 'e' is called with the proof; this one takes nothing",
                "take the proof",
            )
            for verify in (lambda: True, Checks().of_nothing, partial(lambda proof: True, 1))
        ],
    ],
)
def test_a_mistake_about_an_effects_handlers_is_told_with_its_mend(
    run: Run, call: Callable[[Run], Any], says: str, mends: str
) -> None:
    with pytest.raises(UsageError) as caught:
        call(run)
    assert says in str(caught.value.args[0])
    assert mends in caught.value.hint


@pytest.mark.parametrize("verify", [lambda *found: True, Checks(), bool, lambda proof, ctx: True, partial(Checks())])
def test_a_verify_that_takes_the_proof_is_taken_whatever_it_is(verify: Callable[..., Any]) -> None:
    with Runtime("memory:") as runtime, runtime.run("r") as run:
        assert run.effect("e", run=lambda: 1, reconcile=never, verify=verify) == Accepted(1)


def test_a_verify_that_raises_is_told_with_what_may_have_been_sent() -> None:
    with Runtime("memory:") as runtime, runtime.run("r") as run:
        with pytest.raises(EffectUnresolved, match="its verify raised ZeroDivisionError") as caught:
            run.effect("e", run=lambda: 1, reconcile=never, verify=lambda proof: proof / 0)
        assert caught.value.effect_ran == "yes"
        assert "do not send it again" in caught.value.hint
