"""Operations that bring asynchronous halves: a loop uses those, a thread the others."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from counterfoil import Accepted, AsyncRuntime, EffectUnresolved, Grant, Runtime
from tests.broker.support import Desk, WireSettings
from tests.support import Colour


@dataclass
class Halves:
    """Performs and is asked in the colour of its caller, and notes which."""

    loses: bool = False
    log: list[str] = field(default_factory=list)
    settings: WireSettings = field(default_factory=WireSettings)
    request: Any = None
    verify: Any = None

    def run(self, context: Any) -> str:
        self.log.append("run")
        return self._answer()

    async def run_async(self, context: Any) -> str:
        self.log.append("run_async")
        return self._answer()

    def _answer(self) -> str:
        if self.loses:
            raise ConnectionError
        return "proof"

    def reconcile(self, context: Any) -> str:
        self.log.append("reconcile")
        return "proof"

    async def reconcile_async(self, context: Any) -> str:
        self.log.append("reconcile_async")
        return "proof"


@pytest.mark.rule("E1", "E2")
async def test_an_effect_is_performed_and_asked_about_by_the_halves_of_its_colour(colour: Colour) -> None:
    operation = Halves(loses=True)
    if colour.blocking:
        with Runtime("memory:") as runtime, runtime.run("r") as run:
            with pytest.raises(EffectUnresolved):
                run.effect("e", operation)
            assert isinstance(run.effect("e", operation), Accepted)
    else:
        async with AsyncRuntime("memory:") as loop_runtime, loop_runtime.run("r") as loop_run:
            with pytest.raises(EffectUnresolved):
                await loop_run.effect("e", operation)
            assert isinstance(await loop_run.effect("e", operation), Accepted)
    suffix = "" if colour.blocking else "_async"
    assert operation.log == [f"run{suffix}", f"reconcile{suffix}"]


@pytest.mark.rule("B1")
async def test_an_immediate_operation_is_performed_by_the_half_of_its_colour(colour: Colour) -> None:
    operation = Halves()
    desk = Desk.make(colour)
    async with desk.activation(grants=[Grant("wire", operations=("LINE",))]) as act:
        assert isinstance(await act.perform(operation), Accepted)
    assert operation.log == ["run" if colour.blocking else "run_async"]
