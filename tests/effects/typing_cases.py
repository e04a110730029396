"""What type checkers must see of the public face: mypy checks this file, a test runs it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, assert_never, assert_type

import counterfoil
from counterfoil import UNASKABLE, Accepted, AsyncRun, Failed, Outcome, Recipient, Rejected, Run, Uncertain
from counterfoil.errors import EffectRan
from counterfoil.ports.durability import AsyncDurability, Durability


@dataclass
class Receipt:
    id: str


def text() -> str:
    return "x"


def ask(ctx: Any) -> str | None:
    return None


mail = Recipient("mail")


@mail.operation
def send(ctx: Any, to: str) -> str:
    return to


@mail.operation
async def send_later(to: str) -> int:
    return len(to)


def blocking(run: Run) -> None:
    assert_type(run.step("sum", text), str)
    assert_type(run.step("sum", text, result_type=Receipt), Receipt)
    assert_type(run.effect("pay", run=text, reconcile=UNASKABLE), Outcome[str])
    assert_type(run.effect("pay", run=text, reconcile=ask, proof_type=Receipt), Outcome[Receipt])
    assert_type(run.effect("mail", send(to="a")), Outcome[str])
    assert_type(run.effect("later", send_later(to="a")), Outcome[int])
    outcome = run.effect("pay", run=text, reconcile=ask)
    match outcome:
        case Accepted(proof=proof):
            assert_type(proof, str)
        case Uncertain(evidence=evidence):
            assert_type(evidence, counterfoil.Evidence)
        case Rejected() | Failed():
            assert_type(outcome.evidence, counterfoil.Evidence)
        case _:
            assert_never(outcome)
    mounted(run)


async def asynchronous(run: AsyncRun) -> None:
    assert_type(await run.step("sum", text, result_type=Receipt), Receipt)
    assert_type(await run.effect("pay", run=text, reconcile=ask, proof_type=Receipt), Outcome[Receipt])
    assert_type(await run.effect("mail", send(to="a")), Outcome[str])
    assert_type(await run.effect("later", send_later(to="a")), Outcome[int])
    await mounted_async(run)


def mounted(durability: Durability) -> Any:
    """A body for any host: it knows the narrow port only."""
    total = durability.step("sum", lambda: 3, inputs={"a": 1})
    durability.sleep(0, name="rest")
    durability.deliver("paid", "1", total)
    return durability.wait_for("paid", "1")


async def mounted_async(durability: AsyncDurability) -> Any:
    """The same, awaited."""
    total = await durability.step("sum", lambda: 3, inputs={"a": 1})
    await durability.sleep(0, name="rest")
    await durability.deliver("paid", "1", total)
    return await durability.wait_for("paid", "1")


def body(run: Run, order: str, amount: int = 1) -> dict[str, int]:
    return {order: amount}


def told(
    unresolved: counterfoil.EffectUnresolved,
    corrupt: counterfoil.LedgerCorrupt,
    read_only: counterfoil.LedgerReadOnly,
    missing: counterfoil.BlobMissing,
    damaged: counterfoil.BlobDamaged,
) -> bool:
    """A comparison with each of the three words is no error: any error may say any of them."""
    assert_type(missing.effect_ran, EffectRan)
    assert_type(damaged.effect_ran, EffectRan)
    return unresolved.effect_ran == "yes" or corrupt.effect_ran == "no" or read_only.effect_ran == "unknown"


def executed(runtime: counterfoil.Runtime) -> None:
    assert_type(runtime.execute("r", body, "order-1"), dict[str, int])
    handler: Callable[..., Any] = body
    assert callable(handler)
